"""Loaded by every Python process of a ``guard run`` before its program; see ``guard.running``."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _load_replaced() -> None:
    """Load the ``sitecustomize`` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _guard() -> None:
    directory = os.environ.get("GUARD_RUN_DIR")
    if not directory or not os.path.isdir(directory) or _is_gateway(sys.orig_argv):
        return
    if importlib.util.find_spec("guard") is None:
        _leave_to_proxy("guard is not installed")
        return
    try:
        from guard.running.child import start
    except Exception as exc:  # noqa: BLE001  # such as a Python that guard does not run on
        _leave_to_proxy(f"guard cannot be loaded ({type(exc).__name__}: {exc})")
        return
    try:
        start(directory)
    except BaseException as exc:  # noqa: BLE001  # any failure: a run is never unguarded
        sys.stderr.write(f"guard run: guard cannot start: {type(exc).__name__}: {exc}\n")
        sys.stderr.flush()
        os._exit(77)


def _is_gateway(words: list[str]) -> bool:
    """Return whether this is a gateway, which outlives a run and sends no LLM requests."""
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in ("-X", "-W", "--check-hash-based-pycs") else rest[1:]
    is_module = rest[:1] == ["-m"]
    program, following = [*rest[is_module:], "", ""][:2]
    if is_module and program.startswith("guard.gateway"):
        return True
    name = program if is_module else os.path.basename(program)
    return (name, following) == ("guard", "gateway")


def _leave_to_proxy(why: str) -> None:
    """Let a process without guard run if the proxy covers its LLM requests; else end it."""
    if not os.environ.get("GUARD_PROXY_URL"):
        sys.stderr.write(f"guard run: {why} for {sys.executable}: the program was ended\n")
        sys.stderr.flush()
        os._exit(77)
    sys.stderr.write(
        f"guard run: {why} for {sys.executable}: its LLM requests go through guard's proxy, and "
        "what it does itself is not checked\n"
    )


try:
    _load_replaced()
finally:
    _guard()
