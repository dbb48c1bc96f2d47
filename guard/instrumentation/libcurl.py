"""Hooks pycurl and curl_cffi: requests to models that libcurl sends are named."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from guard.instrumentation import native, patching
from guard.instrumentation.method_hook import unbound
from guard.instrumentation.observed_call import call_being_sent
from guard.instrumentation.patching import active

_URL: Final = 10002
_CUSTOM_METHOD: Final = 10036
_POST: Final = 47
_POSTS: Final = frozenset((_POST, 10015, 10165, 10024, 10269))
"""Also ``POSTFIELDS``, ``COPYPOSTFIELDS``, ``HTTPPOST`` and ``MIMEPOST``."""

_OTHERS: Final = {44: "HEAD", 80: "GET", 46: "PUT"}
"""``NOBODY``, ``HTTPGET`` and ``UPLOAD``."""

_NOTED: Final = frozenset((_URL, _CUSTOM_METHOD, *_POSTS, *_OTHERS))
"""The numbers of the options that say what is sent and where; in libcurl they never change."""

_IS_HELD: Final = 0
"""No option: whether the URL was set for a call that is held above. A thread may send it later."""

_OPTIONS: Final = "_guard_options"
"""Where a handle keeps its options."""

_IS_HOOKED: Final = "_guard_hooked"


def patch(module: ModuleType) -> None:
    """Hook the handles of ``pycurl``, ``curl_cffi.curl`` or ``curl_cffi.aio``.

    Raises:
        AttributeError: this version has no such handles.
    """
    if module.__name__ == "pycurl":
        _patch_pycurl(module)
    elif module.__name__ == "curl_cffi.aio":
        patching.replace(module.AsyncCurl, "add_handle", _add)
    else:
        for name, wrap in _HANDLE.items():
            patching.replace(module.Curl, name, wrap)


def _patch_pycurl(module: ModuleType) -> None:
    """Put classes with hooked methods in the place of pycurl's, which cannot be changed.

    They stay, and do nothing while no observer is active.
    """
    if hasattr(module.Curl, _IS_HOOKED):
        return
    places: tuple[Any, ...] = module, sys.modules.get("pycurl.async_multi", module)
    curl = _subclass(module.Curl, _HANDLE)
    setattr(curl, _IS_HOOKED, True)
    multi = _subclass(module.CurlMulti, {"add_handle": _add})
    for place in places:
        place.Curl, place.CurlMulti = curl, multi


def _subclass(base: type[Any], hooked: Mapping[str, Callable[[Any], Any]]) -> type[Any]:
    methods = {
        name: wrap(unbound(base.__dict__[name]))
        for name, wrap in hooked.items()
        if name in base.__dict__
    }
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__})


def _set(original: Any) -> Any:
    @functools.wraps(original)
    def setopt(self: Any, option: int, *value: Any) -> Any:
        result = original(self, option, *value)
        if option in _NOTED:
            noted = getattr(self, _OPTIONS, None)
            if noted is None:
                noted = {}
                setattr(self, _OPTIONS, noted)
            # What curl does: the newest of them says which method is meant.
            noted.pop(int(option), None)
            if value and value[0] is not None:
                is_text = option in (_URL, _CUSTOM_METHOD)
                noted[int(option)] = value[0] if is_text else bool(value[0])
            if option == _URL:
                noted[_IS_HELD] = call_being_sent() is not None
        return result

    return setopt


def _reset(original: Any) -> Any:
    @functools.wraps(original)
    def reset(self: Any) -> Any:
        setattr(self, _OPTIONS, {})
        return original(self)

    return reset


def _copy(original: Any) -> Any:
    @functools.wraps(original)
    def duphandle(self: Any) -> Any:
        copy = original(self)
        setattr(copy, _OPTIONS, dict(getattr(self, _OPTIONS, None) or {}))
        return copy

    return duphandle


def _perform(original: Any) -> Any:
    @functools.wraps(original)
    def perform(self: Any, *args: Any, **options: Any) -> Any:
        _name(self)
        return original(self, *args, **options)

    return perform


def _add(original: Any) -> Any:
    @functools.wraps(original)
    def add_handle(self: Any, curl: Any, *args: Any, **options: Any) -> Any:
        _name(curl)
        return original(self, curl, *args, **options)

    return add_handle


def _name(curl: Any) -> None:
    """Report the request of a handle, if it asks a model.

    Raises:
        Refusal, GuardBlockedException: such requests are refused here.
    """
    noted = getattr(curl, _OPTIONS, None)
    if noted and _URL in noted and not noted.get(_IS_HELD) and active() is not None:
        client = type(curl).__module__.partition(".")[0]
        native.name_request(client, _method(noted), noted[_URL])


def _method(noted: Mapping[int, Any]) -> str:
    """Return the HTTP method that libcurl takes for these options, the oldest first.

    >>> _method({47: True}), _method({47: True, 10036: b"PUT"})
    ('POST', 'PUT')
    >>> _method({}), _method({10015: True}), _method({10015: True, 80: True})
    ('GET', 'POST', 'GET')
    """
    method = "GET"
    for option, value in noted.items():
        if option in _POSTS:
            method = "POST" if value or option != _POST else "GET"
        elif option in _OTHERS and value:
            method = _OTHERS[option]
    custom = noted.get(_CUSTOM_METHOD)
    if not custom:
        return method
    return custom.decode("latin-1") if isinstance(custom, bytes) else str(custom)


_HANDLE: Final[dict[str, Callable[[Any], Any]]] = {
    "setopt": _set, "setopt_string": _set, "unsetopt": _set, "reset": _reset,
    "duphandle": _copy, **dict.fromkeys(("perform", "perform_rb", "perform_rs"), _perform),
}  # fmt: skip
"""The methods of a handle that are hooked, in either package."""
