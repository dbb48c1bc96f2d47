"""``guard run --session``: the limit is of all runs of a session, whoever resumes it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from guard.gateway.admin import AdminClient
from guard.local_gateway import join
from guard.running.session_key import key_of_session
from tests.support.runs import AGENT, LIMIT, Runs, facts_of

DAY_MS = 86_400_000


@pytest.fixture
def agent(tmp_path: Path) -> str:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return str(path)


def test_a_session_keeps_what_its_runs_have_used(guard: Runs, vendor: str, agent: str) -> None:
    program = ("--json", "--", sys.executable, agent, vendor)
    first = guard("run", "--session", "feature-17", "--limit", LIMIT, *program, "2")
    assert (first.returncode, facts_of(first)["requests"]) == (0, 2)
    resumed = guard("run", "--session", "feature-17", *program, "9")
    facts = facts_of(resumed)
    assert (resumed.returncode, facts["requests"]) == (77, 1)
    assert (facts["session"], facts["limit_nanousd"]) == ("feature-17", 2_000_000)
    assert facts["money"]["used"] == 3 * facts["spent_nanousd"]
    other = guard("run", "--session", "feature-18", "--limit", LIMIT, *program, "9")
    assert (other.returncode, facts_of(other)["requests"]) == (77, 3)
    higher = guard("run", "--session", "feature-17", "--limit", "$1", *program[1:], "2")
    assert higher.returncode == 0, higher.stderr
    assert "; session feature-17: $0." in higher.stderr
    refused = guard("run", "--session", "feature-18", *program[1:], "1")
    assert "stopped: the session feature-18's --limit of $0.002 is reached" in refused.stderr


def test_a_session_ends_after_thirty_days(guard: Runs, directory: Path) -> None:
    gateway = join(directory)
    admin = AdminClient(gateway.url, gateway.identity.admin_key)
    try:
        first = key_of_session(admin, "old")
        admin.set_budget(scope_kind="key", scope_id=first, limit_nanousd=1)
        assert key_of_session(admin, "old") == first
        admin.change_key(first, expires_at_ms=round(time.time() * 1000) - 1)
        second = key_of_session(admin, "old")
        assert second != first
        assert not [each for each in admin.budgets() if each["scope_id"] == first]
        found = admin.keys()
        (key,) = [each for each in found if each["key_id"] == second]
        assert key["expires_at_ms"] > time.time() * 1000 + 29 * DAY_MS
    finally:
        admin.close()
        gateway.leave()


def test_a_run_within_a_run_is_in_its_session(guard: Runs) -> None:
    inner = ("guard", "run", "--session", "inner", "--", "sh", "-c", "true")
    done = guard("run", "--allow-unseen", "--", sys.executable, "-m", *inner)
    assert done.returncode == 2
    assert "this one is within its session" in done.stderr
