"""What a run sees of the processes below it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guard.local_gateway import try_lock
from guard.running import processes, watch
from guard.running.watch import TreeWatch

pytestmark = pytest.mark.skipif(not processes.IS_LINUX, reason="reads /proc")


@pytest.mark.parametrize("report", ["process-{}", "nested-{}"])
def test_a_python_that_starts_slowly_is_not_named_once_it_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    """A program that loads guard, or a run within the run."""
    monkeypatch.setattr(watch, "_GRACE_S", 0.0)
    nobody: Callable[[], set[int]] = set
    tree = TreeWatch(tmp_path, {}, lambda: None, nobody, lambda *_: None)
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tree.poll()
        assert child.pid in tree._named
        lock = try_lock(tmp_path / report.format(child.pid))  # as the process itself holds it
        assert lock is not None
        tree.poll()
        assert child.pid not in tree._named
        os.close(lock)
        child.communicate(b"\n")
