"""The active observer, and the hooks that feed it: patched now, or when a client is imported.

A hook is a method of a transport's class, replaced by a wrapper that calls :func:`active` on
each call. Another tool may wrap the same method on top; then the wrapper stays in place and
does nothing while no observer is active.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from guard.instrumentation.observer import Observer

logger = logging.getLogger("guard.instrumentation")

_HOOKS: Final[dict[str, str]] = {
    "httpx": "guard.instrumentation.httpx",
    "httpx2": "guard.instrumentation.httpx",
    "aiohttp": "guard.instrumentation.aiohttp",
    "requests": "guard.instrumentation.requests",
    "http.client": "guard.instrumentation.http_client",
    "botocore.httpsession": "guard.instrumentation.botocore",
    "websockets.asyncio.client": "guard.instrumentation.websockets",
    "websockets.sync.client": "guard.instrumentation.websockets",
}
"""Maps a client's module to the module here whose ``patch(module)`` hooks it."""

# Replaced as a whole; the wrappers read it without the lock, under which all else changes.
_active: Observer | None = None
# Clients that wrapt will report when they are imported; a hook of wrapt cannot be withdrawn.
_awaited: set[str] = set()
# Clients that wrapt has reported since: their import has ended.
_executed: set[str] = set()
# Clients whose import another thread had begun when they were to be awaited.
_half_imported: set[str] = set()
# The client that is being awaited right now: wrapt reports a module at once if it is loaded.
_registering: str | None = None
# By class and method: the wrapper and the original.
_patches: dict[tuple[type[Any], str], tuple[Any, Any]] = {}
# By client: whether it could be hooked.
_seams: dict[str, bool] = {}
# Re-entrant: patching one client may import another.
_lock = threading.RLock()


def active() -> Observer | None:
    """Return the active observer of this process, if any."""
    return _active


def seams() -> dict[str, bool]:
    """Return the modules that were hooked; False for those whose version could not be."""
    return dict(_seams)


def prepare() -> None:
    """Load what :func:`install` needs in nearly every process: the SDK itself loads httpx."""
    importlib.import_module("wrapt")
    importlib.import_module(_HOOKS["httpx"])


def install(observer: Observer) -> None:
    """Observe the clients, including existing ones. Idempotent."""
    global _active
    _wait_for_imports()
    with _lock:
        _active = observer
        for name in _HOOKS:
            module = sys.modules.get(name)
            if module is not None and (name in _executed or _is_loaded(module)):
                _patch(name, module)
            elif name not in _awaited:
                _await(name)
        half_imported = sorted(_half_imported)
        _half_imported.clear()
    for name in half_imported:  # another thread has begun meanwhile
        with contextlib.suppress(Exception):  # raised in the thread that imports it
            _imported(importlib.import_module(name))


def uninstall(observer: Observer) -> None:
    """Restore the clients if ``observer`` is the active one."""
    global _active
    with _lock:
        if _active is not observer:
            return
        _active = None
        for (owner, name), (wrapper, original) in list(_patches.items()):
            # A wrapper below another tool's stays: taking it out would take theirs out too.
            if owner.__dict__.get(name) is wrapper:
                setattr(owner, name, original)
                del _patches[owner, name]


def replace(owner: type[Any], name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method by ``wrap(method)``, once, until :func:`uninstall`."""
    current = owner.__dict__.get(name)
    known = _patches.get((owner, name))
    if current is None or (known is not None and current is not known[1]):
        return  # inherited from a hooked class, or hooked (perhaps below another's wrapper)
    wrapper = wrap(current)
    _patches[owner, name] = (wrapper, current)
    setattr(owner, name, wrapper)


def _await(name: str) -> None:
    """Have a client hooked at the end of its import; called with the lock held."""
    global _registering
    import wrapt

    _awaited.add(name)
    _registering = name
    try:
        wrapt.register_post_import_hook(_imported, name)
    finally:
        _registering = None


def _imported(module: ModuleType) -> None:
    with _lock:
        if _registering == module.__name__ and not _is_loaded(module):
            _half_imported.add(module.__name__)  # not its end: it is in ``sys.modules`` already
            return
        _executed.add(module.__name__)
        if _active is not None:
            _patch(module.__name__, module)


def _wait_for_imports() -> None:
    """Wait for clients that another thread is importing: a half of a module cannot be patched.

    Call it without the lock, which the other thread needs at the end of its import.
    """
    for name in _HOOKS:
        module = sys.modules.get(name)
        if module is not None and not _is_loaded(module):
            with contextlib.suppress(Exception):  # raised in the thread that imports it
                importlib.import_module(name)


def _is_loaded(module: ModuleType) -> bool:
    """Tell whether a module's import has ended."""
    return not getattr(module.__spec__, "_initializing", False)


def _patch(name: str, module: ModuleType) -> None:
    try:
        importlib.import_module(_HOOKS[name]).patch(module)
        _seams[name] = True
    except Exception:
        _seams[name] = False
        logger.warning("this version of %s cannot be instrumented", name, exc_info=True)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that no longer exists may have held it


os.register_at_fork(after_in_child=_after_fork)
