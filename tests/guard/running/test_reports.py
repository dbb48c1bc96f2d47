"""The reports of a run's processes, while others read them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from guard.running import reports
from tests.support.programs import environment


@contextlib.contextmanager
def seen_while_starting(directory: Path) -> Iterator[None]:
    """Let a reader meet each file of a directory just before its own process locks it.

    The reader holds its lock for a moment, as ``reports.guarded`` and ``reports.nested_in`` do.
    """
    lock = fcntl.flock

    def met(descriptor: int, operation: int) -> None:
        with contextlib.ExitStack() as reading:
            for path in [*directory.glob("process-*"), *directory.glob("nested-*")]:
                held = os.open(path, os.O_RDWR)
                reading.callback(os.close, held)
                lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock(descriptor, operation)

    with mock.patch.object(fcntl, "flock", met):
        yield


def test_a_process_that_is_seen_while_it_starts_counts_as_guarded(tmp_path: Path) -> None:
    with seen_while_starting(tmp_path):
        held = reports.announce(tmp_path)
    assert held is not None
    assert reports.guarded(tmp_path) == (1, [os.getpid()])
    os.close(held)
    assert reports.guarded(tmp_path) == (1, [])


def test_a_run_within_a_run_that_is_seen_while_it_starts_is_known(tmp_path: Path) -> None:
    with seen_while_starting(tmp_path):
        held = reports.say_nested(tmp_path, tmp_path / "own")
    assert held is not None
    assert reports.nested(tmp_path) == {os.getpid()}
    assert reports.nested_in(tmp_path, os.getpid()) is None, "it lives"
    os.close(held)
    assert reports.nested_in(tmp_path, os.getpid()) == tmp_path / "own"


def test_a_process_with_the_number_of_an_earlier_one_counts_as_guarded(tmp_path: Path) -> None:
    earlier = reports.announce(tmp_path)
    assert earlier is not None
    kept = os.dup(earlier)  # in a child of it that has not loaded guard
    os.close(earlier)
    held = reports.announce(tmp_path)
    assert held is not None
    assert reports.guarded(tmp_path) == (1, [os.getpid()])
    os.close(kept)
    os.close(held)


AFTER_THE_END = """
import os, pathlib, sys
from guard.running import reports

folder = pathlib.Path(sys.argv[1])
before = os.listdir("/dev/fd")
try:
    reports.announce(folder / "gone")
except FileNotFoundError:
    print("gone")
assert reports.say_nested(folder / "gone", folder) is None
print(len(os.listdir("/dev/fd")) - len(before))
"""


def test_a_report_after_the_end_of_the_run_leaves_nothing_open(tmp_path: Path) -> None:
    """In a process of its own: in this one other threads open and close files."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_THE_END, str(tmp_path)], env=environment(),
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["gone", "0"]
