"""The engine in worker processes, for many texts, whole files or services with spare cores.

A worker outlives neither its pool nor a parent that was killed, and leaves Ctrl-C to its parent.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait

from spamdetect.engine.core import Engine
from spamdetect.thresholds import Threshold

_engine: Engine | None = None


def engine_pool(
    processes: int,
    model_path: str | os.PathLike[str] | None = None,
    threshold: Threshold | None = None,
) -> ProcessPoolExecutor:
    """Make a pool whose workers have the engine loaded.

    Args:
        processes: The number of workers.
        model_path: Model file; None takes the packaged one.
        threshold: Spam from this score on; None takes the model's.
    """
    return ProcessPoolExecutor(
        processes,
        mp_context=get_context("spawn"),
        initializer=_start,
        initargs=(model_path, threshold),
    )


def loaded_engine() -> Engine:
    """The engine of this worker."""
    assert _engine is not None
    return _engine


def _start(model_path: str | os.PathLike[str] | None, threshold: Threshold | None) -> None:
    global _engine
    # Both may reach the whole process group; the parent decides and ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A worker waits for work on a pipe that it also holds open itself, so the pipe does not tell
    # it when its parent is killed.
    threading.Thread(target=_end_with_parent, name="spamdetect-parent", daemon=True).start()
    _engine = Engine.load(model_path, threshold=threshold)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
