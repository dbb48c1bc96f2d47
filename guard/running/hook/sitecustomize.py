"""Loaded by every Python process of a ``guard run`` before its program; see ``guard.running``."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _load_replaced() -> None:
    """Load the ``sitecustomize`` that this one stands in front of, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _guard() -> None:
    directory = os.environ.get("GUARD_RUN_DIR")
    if not directory or not os.path.isdir(directory):
        return
    if importlib.util.find_spec("guard") is None:
        sys.stderr.write(
            f"guard run: guard is not installed for {sys.executable}: this process is not guarded\n"
        )
        return
    try:
        from guard.running.child import start

        start(directory)
    except BaseException as exc:  # noqa: BLE001  # whatever it is: a run is never unguarded
        sys.stderr.write(f"guard run: guard cannot start: {type(exc).__name__}: {exc}\n")
        sys.stderr.flush()
        os._exit(77)


try:
    _load_replaced()
finally:
    _guard()
