"""Hooks what Rust sends: primp, rnet, and LiteLLM's core. Requests to models are named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from guard.instrumentation import native, patching
from guard.instrumentation.patching import active

_CLIENTS: Final = ("Client", "AsyncClient", "BlockingClient")
_METHODS: Final = ("get", "head", "options", "trace", "delete", "post", "put", "patch")
_HOOKED: Final = "_guard_hooked"
_LITELLM: Final = "litellm.rust_bridge.runtime"
_FREE: Final = ("token_counter", "tokenizer")
"""Routes of LiteLLM's core that send nothing."""


def patch(module: ModuleType) -> None:
    """Hook the clients and functions of ``primp`` or ``rnet``, or the calls of LiteLLM's core.

    Raises:
        AttributeError: this version has no client.
    """
    package = module.__name__
    if package == _LITELLM:
        for name in ("attempt", "aattempt"):
            function = getattr(module, name)
            if not hasattr(function, _HOOKED):
                setattr(module, name, _attempting(function))
        return
    _ = module.Client
    wraps = {name: _wrap(package, name) for name in (*_METHODS, "request", "websocket")}
    for owner in filter(None, (getattr(module, name, None) for name in _CLIENTS)):
        for name, wrap in wraps.items():
            patching.replace(owner, name, wrap)
    # Functions stay, and do nothing while no observer is active.
    for name, wrap in wraps.items():
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, _HOOKED):
            setattr(module, name, _hooked(function, wrap))


def _attempting(function: Any) -> Any:
    @functools.wraps(function)
    def attempt(*, context: Any, **options: Any) -> Any:
        observer = active()
        if observer is not None and context.route not in _FREE:
            route, provider = str(context.route), str(context.provider or "litellm")
            native.name_call(observer, "LiteLLM's Rust core", provider, f"/{route}")
        return function(context=context, **options)

    setattr(attempt, _HOOKED, True)
    return attempt


def _hooked(function: Any, wrap: Callable[[Any], Any]) -> Any:
    method = wrap(lambda _, *args, **options: function(*args, **options))

    @functools.wraps(function)
    def send(*args: Any, **options: Any) -> Any:
        return method(None, *args, **options)

    setattr(send, _HOOKED, True)
    return send


def _wrap(package: str, name: str) -> Callable[[Any], Any]:
    """Return what wraps a method: ``request`` takes its HTTP method first, the others a URL."""
    names = ("method", "url") if name == "request" else ("url",)

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def send(self: Any, *args: Any, **options: Any) -> Any:
            if active() is not None:
                given = dict(zip(names, args, strict=False)) | options
                _name(package, self, str(given.get("method", name)), given.get("url"))
            return original(self, *args, **options)

        return send

    return wrap


def _name(package: str, client: Any, method: str, url: Any) -> None:
    """Report a request that a client is about to send, if it asks a model.

    Raises:
        Refusal, GuardBlockedException: such requests are refused here.
    """
    base = getattr(client, "base_url", None)
    if base and isinstance(url, str) and "://" not in url:
        url = f"{str(base).rstrip('/')}/{url.lstrip('/')}"
    native.name_request(package, method.rpartition(".")[2], url)
