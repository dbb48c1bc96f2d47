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
from guard.running.past_guard import HostConnection, PastGuard, Traffic
from guard.running.watch import Hosts, TreeWatch

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
    connection = past.open("api.anthropic.com", 443, ("127.0.0.1", 1))
    assert past.sent(connection, 250_000)
    assert past.received(connection, 2000)
    assert reports.refusal(tmp_path) is None
    assert not past.received(connection, 4000)
    refused = reports.refusal(tmp_path)
    assert refused is not None
    assert "a program is answered by api.anthropic.com past guard" in refused["message"]


REPORT, QUESTION, ACKNOWLEDGED = 247_156, 30_000, 35


@pytest.mark.parametrize(
    ("parts", "may"),
    [
        pytest.param([QUESTION, -500, -3000, -600], False, id="a request to a model"),
        pytest.param([1800, -3000, QUESTION, -500, ACKNOWLEDGED, -4000], False, id="over HTTP/2"),
        pytest.param([1800, -3000, REPORT, -1500, 333, -20_000], True, id="a report, a download"),
        pytest.param([1800, -3000, *[2000, -2000] * 50], True, id="many small ones"),
        pytest.param([1800, -3000, *[15_000, -15_000] * 80], False, id="too many"),
    ],
)
def test_what_is_answered_at_length_was_asked_of_a_model(parts: list[int], may: bool) -> None:
    """Bytes that a program sends, and less than 0 those that come back."""
    traffic = Traffic("claude", "api.anthropic.com", is_limited=True)
    connection = HostConnection(traffic)

    def passes(size: int) -> bool:
        if size < 0:
            return connection.gets(-size)
        connection.sends(size)
        return traffic.takes(size, 0.0)

    assert all(passes(size) for size in parts) is may
    unlimited = HostConnection(Traffic("python", "api.anthropic.com"))
    unlimited.sends(QUESTION)
    assert unlimited.gets(REPORT)


def test_room_comes_back_by_the_clock() -> None:
    traffic = Traffic("claude", "api.anthropic.com")
    assert traffic.takes(10**9, 0.0)  # nothing limits it
    traffic = Traffic("claude", "api.anthropic.com", is_limited=True)
    assert traffic.takes(1_048_576, 100.0)
    assert traffic.takes(16_000, 101.0)
    assert not traffic.takes(1000, 101.0)
    assert traffic.takes(1_048_576, 10_000.0)  # and never more than at once
    assert not traffic.takes(1, 10_000.0)


@pytest.mark.parametrize(
    ("host", "is_known"),
    [("api.kimi.com", True), ("bedrock-mantle.us-east-1.api.aws", True), ("eu-1.api.x.ai", True),
     ("aiplatform.eu.rep.googleapis.com", True), ("API.OpenAI.com.", True),
     ("mine.openai.azure.us", True), ("proxy.individual.githubcopilot.com", True),
     ("vpce-0a1.bedrock-runtime.us-east-1.vpce.amazonaws.com", True),
     ("api.github.com", False), ("registry.npmjs.org", False), ("s3.us-east-1.api.aws", False)],
)  # fmt: skip
def test_hosts_are_known_by_name(host: str, is_known: bool) -> None:
    assert Hosts({}).has(host, 443) is is_known
