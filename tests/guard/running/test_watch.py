"""What a run sees of the processes below it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guard.local_gateway import try_lock
from guard.running import processes, reports, watch
from guard.running.past_guard import PastGuard, Traffic
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


def test_where_no_process_can_be_found_it_may_be_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other systems a coding agent's reports to its vendor must not end its run."""
    nobody: Callable[[], set[int]] = set
    tree = TreeWatch(tmp_path, {}, lambda: None, nobody, lambda *_: None)
    monkeypatch.setattr(processes, "IS_LINUX", False)
    past = PastGuard(tmp_path, tree, ends=True)
    traffic = past.open("api.anthropic.com", 443, ("127.0.0.1", 1))
    assert past.sent(traffic, 20_000)
    assert reports.refusal(tmp_path) is None
    assert not past.sent(traffic, 20_000)
    refused = reports.refusal(tmp_path)
    assert refused is not None
    assert "a program has sent 40.0 kB" in refused["message"]


def test_room_comes_back_by_the_clock() -> None:
    traffic = Traffic("claude", "api.anthropic.com")
    assert traffic.takes(10**9, 0.0)  # nothing limits it
    traffic = Traffic("claude", "api.anthropic.com")
    traffic.allow(1000)
    assert traffic.takes(1000, 100.0)
    assert traffic.takes(200, 101.0)
    assert not traffic.takes(200, 101.0)
    traffic.allow(2000)
    assert traffic.takes(800, 101.0)
    assert traffic.takes(2000, 10_000.0)  # and never more than at once
    assert not traffic.takes(1, 10_000.0)
