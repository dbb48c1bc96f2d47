"""Hooks gRPC's channels, whose calls to models are sent by a library in C: they are named."""

from __future__ import annotations

import functools
import re
from types import ModuleType
from typing import Any, Final

from guard.core.usage.vendors import find_endpoint, provider_of
from guard.instrumentation import native, patching
from guard.instrumentation.patching import active

_ENDING: Final = "MultiCallable"
"""How the classes are called whose instances are the methods of a service."""

_STARTS: Final = ("__call__", "with_call", "future")

_ASKS: Final = re.compile(
    r"^(?!List|Delete|Cancel|Count|GetDeferred|GetStored)"
    r".*(?:Answer|Chat|Completion|Converse|Embed|Generate|Image|Infer|Predict|Sample|Speech|Video)"
)
"""Methods of services that make a model work: Google's (Gemini, Vertex) and xAI's."""

_FREE: Final = re.compile(r"^(?:Get|List|Delete|Cancel|Count|Compute|Tokenize)")


def patch(module: ModuleType) -> None:
    """Hook the calls of ``grpc._channel`` or ``grpc.aio._channel``.

    Raises:
        AttributeError: this version has no such calls.
    """
    found = [each for name, each in vars(module).items() if name.endswith(_ENDING)]
    if not found:
        raise AttributeError(f"{module.__name__} has no {_ENDING}")
    for owner in found:
        for name in _STARTS:
            patching.replace(owner, name, _start)


def _start(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any, *args: Any, **options: Any) -> Any:
        if active() is not None:
            target = self._channel.target  # a method, and of an asynchronous channel a value
            _name(target() if callable(target) else target, self._method)
        return original(self, *args, **options)

    return start


def _name(target: Any, method: bytes | str) -> None:
    """Report a call of a service's method, if a model works for it.

    Raises:
        Refusal, GuardBlockedException: such calls are refused here.
    """
    # Such as `host:443` or `dns:///host:443`, perhaps with a server of names.
    host = target.decode("utf-8", "replace").rpartition("/")[2].partition(":")[0].lower()
    observer = active()
    if observer is None or provider_of(host) is None:
        return
    path = method.decode("utf-8", "replace") if isinstance(method, bytes) else method
    name = path.rpartition("/")[2]
    if _ASKS.match(name):
        native.name_call(observer, "grpc", host, path)
    elif not _FREE.match(name):
        endpoint = find_endpoint("POST", host, path)
        if endpoint is not None and endpoint.is_unknown:
            observer.unknown_path(host, path)
