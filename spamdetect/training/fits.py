"""Fits that are made for their scores alone: several at a time, and none twice.

Calibration and evaluation fit the classifier again and again, each time without some texts, and
need nothing of such a fit but its scores. Those of each fit are written to a file whose name is
a digest of all that determines them.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.training import judge, linear, network, portable, spam_fit
from spamdetect.training.blending import Signals
from spamdetect.training.judge import NETWORK, fit_judge
from spamdetect.training.linear import Settings
from spamdetect.training.matrix import Matrix, Progress, silent
from spamdetect.training.spam_fit import DEFAULTS, Corpus

CROSS_VALIDATING: Final = "cross-validating"
_NAMES: Final = tuple(field.name for field in attrs.fields(Signals))
_CODE: Final = (judge, linear, network, portable, spam_fit)  # with the settings, it makes a fit


@attrs.frozen
class Wanted:
    """A fit, and what it is to score.

    Attributes:
        chosen: the texts to fit to.
        asked: the numbers of the texts to score, or the features of others.
    """

    chosen: NDArray[np.bool_]
    asked: NDArray[np.intp] | Matrix


@attrs.frozen
class Fits:
    """Makes fits and returns their scores.

    The scores do not depend on the number of processes, nor on whether they were kept.

    Attributes:
        folder: keeps the scores, and is looked through for them first; by default nothing is kept.
        jobs: how many processes share the fits, where the system can fork.
    """

    folder: Path | None = None
    jobs: int = 1

    def signals(
        self,
        data: Corpus,
        wanted: Sequence[Wanted],
        settings: Settings = DEFAULTS,
        progress: Progress = silent,
        stage: str = CROSS_VALIDATING,
    ) -> list[Signals]:
        """The scores of each fit.

        Args:
            data: the texts and their copies.
            wanted: the fits.
            settings: the settings of all.
            progress: receives the share of the fits that are there.
            stage: the name that it is told.

        Raises:
            DataError: the texts to fit to are of one class.
        """
        with self._place() as folder:
            paths = [folder / f"{name}.npz" for name in digests(data, wanted, settings)]

            def make(number: int) -> Signals:
                asked, chosen = wanted[number].asked, wanted[number].chosen
                matrix = asked if isinstance(asked, Matrix) else data.matrix.select(asked)
                made = fit_judge(data, chosen, settings).signals(matrix)
                _write(paths[number], made)
                return made

            def tell(left: int) -> None:
                progress(stage, 1.0 - left / max(1, len(wanted)))

            held = [_read(path) for path in paths]
            missing = [number for number, signals in enumerate(held) if signals is None]
            tell(len(missing))
            if self.jobs > 1 and len(missing) > 1:
                _forked(make, missing, self.jobs, tell)
                held = [_read(path) for path in paths]
            found = []
            for number, signals in enumerate(held):
                # What no process has made is made here, so that errors reach the caller.
                found.append(make(number) if signals is None else signals)
                tell(held[number + 1 :].count(None))
            return found

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        if self.folder is None:
            with tempfile.TemporaryDirectory() as name:
                yield Path(name)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            yield self.folder


ALONE: Final = Fits()
"""Keeps nothing, and fits in this process."""


def digests(data: Corpus, wanted: Sequence[Wanted], settings: Settings) -> list[str]:
    """What determines the scores of each fit, as a name: data, settings, code and numpy."""
    common = hashlib.sha256()
    _add(common, np.__version__, settings, NETWORK, data.plan, data.seed, data.ends)
    _add(common, data.matrix, data.owner, data.labels, data.sources)
    for module in _CODE:
        common.update(Path(str(module.__file__)).read_bytes())
    found = []
    for one in wanted:
        own = common.copy()
        _add(own, one.chosen, one.asked)
        found.append(own.hexdigest())
    return found


def _add(digest: Any, *parts: object) -> None:
    for part in parts:
        if isinstance(part, Matrix):
            _add(digest, *(getattr(part, field.name) for field in attrs.fields(Matrix)))
        elif isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape};".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(f"{part!r};".encode())


def _read(path: Path) -> Signals | None:
    """The scores in a file; none if there is no such file, or a damaged one."""
    try:
        with path.open("rb") as stream, np.load(stream) as held:
            return Signals(*(held[name] for name in _NAMES))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, signals: Signals) -> None:
    ready = path.with_suffix(f".{os.getpid()}.tmp")
    with ready.open("wb") as out:
        np.savez_compressed(out, **{name: getattr(signals, name) for name in _NAMES})
    ready.replace(path)


def _forked(
    make: Callable[[int], object], numbers: Sequence[int], jobs: int, tell: Callable[[int], None]
) -> None:
    """Call ``make`` for each number in a process of its own, ``jobs`` at a time.

    They share the memory of this one. Whether they succeed is not looked at.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(numbers))
    running: list[ForkProcess] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                process = context.Process(target=_child, args=(make, waiting.pop()), daemon=True)
                process.start()
                running.append(process)
            wait([process.sentinel for process in running])
            running = [process for process in running if process.is_alive()]
            tell(len(waiting) + len(running))
    finally:
        for process in running:
            process.terminate()
            process.join()


def _child(make: Callable[[int], object], number: int) -> None:
    """Leaves at once: a thread of the parent may have held the locks of its streams."""
    status = 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        make(number)
        status = 0
    finally:
        os._exit(status)
