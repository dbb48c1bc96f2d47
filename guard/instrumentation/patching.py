"""The active observer, and the hooks that feed it: patched now, or when a client is imported.

A hook is a method of a transport's class, replaced by a wrapper that calls :func:`active` on
each call. Another tool may wrap the same method on top; then the wrapper stays in place and
does nothing while no observer is active. Another tool may also take the wrapper out: :func:`look`
finds that, on a timer of the background loop and before LLM requests, and hooks the method again.

Locks: the import lock of a module comes before ``_lock``, because wrapt calls :func:`_imported` at
the end of an import. So nothing here imports a client, or waits for its import, with ``_lock``
held, except that a client's hook may import what the client itself has imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, Final

from guard.core.usage.vendors import find_endpoint, provider_of
from guard.instrumentation import own_proxy, tool_table
from guard.instrumentation.method_hook import MethodHook
from guard.instrumentation.observer import Observer

logger = logging.getLogger("guard.instrumentation")

_HOOKS: Final[dict[str, str]] = {
    "httpx": "guard.instrumentation.httpx",
    "httpx2": "guard.instrumentation.httpx",
    "httpcore": "guard.instrumentation.httpcore",
    "httpcore2": "guard.instrumentation.httpcore",
    "aiohttp": "guard.instrumentation.aiohttp",
    "requests": "guard.instrumentation.requests",
    "urllib3": "guard.instrumentation.urllib3",
    "http.client": "guard.instrumentation.http_client",
    "tornado.simple_httpclient": "guard.instrumentation.tornado",
    "botocore.httpsession": "guard.instrumentation.botocore",
    "websockets.asyncio.client": "guard.instrumentation.websockets",
    "websockets.sync.client": "guard.instrumentation.websockets",
    "websockets.legacy.client": "guard.instrumentation.websockets",
    "websocket._core": "guard.instrumentation.websocket_client",
    "websocket._app": "guard.instrumentation.websocket_client",
    "grpc._channel": "guard.instrumentation.grpc",
    "grpc.aio._channel": "guard.instrumentation.grpc",
    "pycurl": "guard.instrumentation.libcurl",
    "curl_cffi.curl": "guard.instrumentation.libcurl",
    "curl_cffi.aio": "guard.instrumentation.libcurl",
    "primp": "guard.instrumentation.rust_clients",
    "rnet": "guard.instrumentation.rust_clients",
    "litellm.rust_bridge.runtime": "guard.instrumentation.rust_clients",
    **dict.fromkeys(tool_table.PACKAGES, "guard.integrations.tool_seams"),
}
"""Maps a client's or framework's module to the module here whose ``patch(module)`` hooks it."""

TAKEN_OUT: Final = "other code has removed guard's hook from an HTTP client; guard has put it back"

# Written under `_lock`. The wrappers read it without: it is replaced as a whole.
_active: Observer | None = None
# The next four are about imports. They change under `_lock`, except in `_Imports.find_spec`, which
# must not take it; each of its changes is one atomic operation.
# Clients that wrapt will report when they are imported. A hook of wrapt cannot be withdrawn, so it
# is registered once and outlives `uninstall`.
_awaited: set[str] = set()
# Clients that wrapt has reported since: their import has ended.
_executed: set[str] = set()
# Clients whose import another thread had begun when they were to be awaited. wrapt has used up its
# hook for them, so `install` waits for their imports by itself.
_half_imported: set[str] = set()
# The client that is being awaited right now. wrapt calls the hook at once for a module that is in
# `sys.modules`, even if its import has not ended.
_registering: str | None = None
# By class and method; changed under `_lock`. Deleted only when no wrapper of guard's is left.
_patches: dict[tuple[type[Any], str], MethodHook] = {}
# By client: whether it could be hooked, and the module that was; changed under `_lock`. They stay
# after `uninstall`, for the status.
_seams: dict[str, bool] = {}
_modules: dict[str, ModuleType] = {}
# Methods that other code has taken guard out of since it was installed; a dict for its order.
_restored: dict[str, None] = {}
# Re-entrant: patching one client may import another.
_lock = threading.RLock()

_LOOK_S: Final = 0.05
"""How often, at most, LLM requests look at the hooks."""

next_look_s = 0.0
"""When the next LLM request calls :func:`look`, by the monotonic clock. The caller compares it
itself, which saves a function call. Threads write it without a lock: at worst two of them look."""


def active() -> Observer | None:
    """Return the active observer of this process, if any."""
    return _active


def hooked() -> dict[str, bool]:
    """Return the modules that were hooked; False for those whose version could not be."""
    return dict(_seams)


def is_seen(name: str) -> bool:
    """Return whether a module was hooked."""
    return _seams.get(name, False)


def prepare() -> None:
    """Load what :func:`install` needs in nearly every process: most clients send by httpx."""
    importlib.import_module("wrapt")
    importlib.import_module(_HOOKS["httpx"])


def restored() -> tuple[str, ...]:
    """Return the methods that other code had replaced, and that were hooked again."""
    return tuple(_restored)


def unhooked() -> tuple[str, ...]:
    """Return the clients whose version could not be hooked: their requests pass unseen."""
    return tuple(
        name for name, is_hooked in hooked().items()
        if not is_hooked and name not in tool_table.PACKAGES
    )  # fmt: skip


def unhooked_tools() -> tuple[str, ...]:
    """Return the frameworks whose version could not be hooked: their tools run unchecked."""
    return tuple(dict.fromkeys(package for module, package in tool_table.PACKAGES.items()
                               if module != tool_table.HANDLER  # it calls none
                               and package in sys.modules and _is_unhooked(module)))  # fmt: skip


def _is_unhooked(name: str) -> bool:
    """Return whether a framework's module could not be hooked, or does not exist."""
    if name in _seams:
        return not _seams[name]
    # Not imported yet. It will be hooked when it is, unless this version of the framework has no
    # such module.
    return _active is not None and not _exists(name)


@functools.cache
def _exists(name: str) -> bool:
    """Return whether a module can be found, without importing its packages.

    ``importlib.util.find_spec`` would import them.
    """
    *around, last = name.split(".")
    path: Any = None
    for depth in range(len(around)):
        loaded = sys.modules.get(".".join(around[: depth + 1]))
        if loaded is not None:
            path = list(getattr(loaded, "__path__", ()))
            continue
        spec = PathFinder.find_spec(".".join(around[: depth + 1]), path)
        if spec is None or spec.submodule_search_locations is None:
            return False
        path = list(spec.submodule_search_locations)
    return PathFinder.find_spec(f"{'.'.join(around)}.{last}", path) is not None


def install(observer: Observer) -> None:
    """Observe the clients, including existing instances. Idempotent."""
    global _active
    _wait_for_imports()
    with _lock:
        if _active is not observer:
            _restored.clear()
        # Before the methods are replaced, so that the first request through a wrapper is seen.
        _active = observer
        # A client is (1) imported: hooked now; (2) not imported: hooked at the end of its import;
        # (3) in the middle of its import, which began after `_wait_for_imports`: `_await` puts it
        # into `_half_imported`.
        for name in _HOOKS:
            module = sys.modules.get(name)
            if module is not None and (name in _executed or _is_loaded(module)):
                _patch(name, module)
            elif name not in _awaited:
                _await(name)
        if _imports not in sys.meta_path:
            # Before wrapt's finder: it registers the hook that wrapt's then finds.
            sys.meta_path.insert(0, _imports)
        half_imported = sorted(_half_imported)
        _half_imported.clear()
    # Without the lock, which the importing thread takes at the end of its import.
    for name in half_imported:
        with contextlib.suppress(Exception):  # raised in the thread that imports it
            _imported(importlib.import_module(name))


def uninstall(observer: Observer) -> None:
    """Restore the clients if ``observer`` is the active one."""
    global _active
    with _lock:
        if _active is not observer:
            return
        _active = None
        for key, seam in list(_patches.items()):
            # A wrapper below another tool's stays: taking it out would take theirs out too.
            if seam.take_out():
                del _patches[key]


def replace(owner: type[Any], name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method by ``wrap(method)``, once, until :func:`uninstall`.

    Called by the clients' hooks, with the lock held.

    Args:
        owner, name: those of the method.
        wrap: makes the wrapper around a function that takes the instance first.
    """
    if owner.__dict__.get(name) is None:
        return  # inherited from a hooked class
    seam = _patches.get((owner, name))
    if seam is None:
        seam = _patches[owner, name] = MethodHook(owner, name, wrap)
    elif seam.is_in_place():  # perhaps below another's wrapper
        return
    else:
        _tell_restored(seam)
    seam.put()


def is_hooked(owner: type[Any], name: str) -> bool:
    """Return whether the method that instances of a class have leads to guard's wrapper."""
    for each in owner.__mro__:
        method = each.__dict__.get(name)
        if method is not None:
            # By a copy, since other threads may be patching.
            seams = [seam for seam in tuple(_patches.values()) if seam.name == name]
            return any(seam.leads_to(method) for seam in seams)
    return False


def rehook() -> bool:
    """Look whether each hook is still called, and put back those that others have taken out.

    Each method that was put back is logged once. Never raises.

    Returns:
        Whether any was put back.
    """
    global next_look_s
    next_look_s = time.monotonic() + _LOOK_S
    # Without the lock, and by copies, since other threads may be patching: nearly every look ends
    # here.
    if _active is None or (
        all(seam.is_untouched() for seam in tuple(_patches.values()))
        and all(sys.modules.get(name, module) is module for name, module in tuple(_modules.items()))
    ):
        return False
    with _lock:
        if active() is None:  # uninstalled meanwhile
            return False
        gone = False
        for seam in list(_patches.values()):
            if not seam.is_in_place() and seam.put():
                _tell_restored(seam)
                gone = True
        # Modules that were loaded anew have other classes, or the same module has: `patch` hooks
        # those that it does not know yet.
        for name in list(_modules):
            module = sys.modules.get(name)
            if module is not None and _is_loaded(module):
                _patch(name, module)
    return gone


def name_unhooked(
    method: str, host: str, port: int | str | None, path: str, why: str, by: str = ""
) -> None:
    """Report an LLM request that is about to be sent, and that no hook above has seen.

    Args:
        method: the HTTP method, in upper case.
        host, port, path: those of the URL.
        why: no hook has seen it, where none was taken out.
        by: the native client that sends it, if it is one; nothing above it is hooked.

    Raises:
        Refusal, GuardBlockedException: such requests are refused here.
    """
    observer = active()
    if observer is None or own_proxy.is_at(host, port):
        return
    endpoint = find_endpoint(method, host, path)
    if endpoint is None:
        return
    is_out = not by and endpoint.asks and rehook()
    if endpoint.is_unknown:
        observer.unknown_path(host, path)
    elif endpoint.asks and (is_out or endpoint.certain or provider_of(host)):
        observer.unmetered(host, path, TAKEN_OUT if is_out else why, by)


def _tell_restored(seam: MethodHook) -> None:
    if str(seam) not in _restored:
        _restored[str(seam)] = None
        logger.warning(
            "%s was replaced by other code that leaves guard out; it is hooked again", seam
        )


class _Imports:
    """Has a client hooked each time it is imported: a hook of wrapt's works for one import only.

    A program may delete a module from ``sys.modules`` and import it again.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Have the import that has just begun reported at its end; never finds a module."""
        # Without the lock: this thread holds the module's import lock, and a thread that holds
        # `_lock` may be waiting for that.
        if name in _HOOKS and name not in sys.modules and name not in _awaited:
            import wrapt

            _executed.discard(name)
            _awaited.add(name)
            wrapt.register_post_import_hook(_imported, name)


_imports: Final = _Imports()


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
    """Hook a client; called by wrapt, in the thread that has imported it."""
    with _lock:
        # Called from within `_await`, for a module that another thread is still importing.
        if _registering == module.__name__ and not _is_loaded(module):
            _half_imported.add(module.__name__)
            return
        _executed.add(module.__name__)
        _awaited.discard(module.__name__)
        if _active is not None:
            _patch(module.__name__, module)


def _wait_for_imports() -> None:
    """Wait for clients that another thread is importing: half a module cannot be patched.

    Call it without the lock, which the other thread needs at the end of its import.
    """
    for name in _HOOKS:
        module = sys.modules.get(name)
        if module is not None and not _is_loaded(module):
            # Waits for the module's import lock. The importing thread gets an error as well.
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _is_loaded(module: ModuleType) -> bool:
    """Return whether a module's import has ended."""
    return not getattr(module.__spec__, "_initializing", False)


def _patch(name: str, module: ModuleType) -> None:
    """Hook a client; called with the lock held. Never raises: the client works without guard."""
    try:
        importlib.import_module(_HOOKS[name]).patch(module)
        _seams[name] = True
        _modules[name] = module
    except Exception:
        _seams[name] = False
        logger.warning("this version of %s cannot be instrumented", name, exc_info=True)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that no longer exists may have held it


os.register_at_fork(after_in_child=_after_fork)
