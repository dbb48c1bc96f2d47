"""Kills by a glob reach runs that only sleep, and runs that would begin while they hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway
from tests.support.programs import is_gone
from tests.support.runs import Runs
from tests.support.waiting import WAIT_S

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def sleeper(tmp_path: Path) -> str:
    path = tmp_path / "sleeper.py"
    path.write_text(SLEEPER)
    return str(path)


@pytest.mark.parametrize(
    "target",
    [
        "doomed-1",
        "doomed-*",
        *(pytest.param(each, marks=pytest.mark.matrix) for each in ("d?omed-1", "*")),
    ],
)
def test_a_kill_ends_a_run_that_sleeps_and_lets_none_begin(
    guard: Runs, sleeper: str, target: str
) -> None:
    process = guard.start("run", "--workflow", "doomed-1", "--", sleeper)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    killed = guard("kill", target, "--reason", "enough")
    try:
        quoted = target if target == "doomed-1" else f"'{target}'"
        assert killed.stdout.startswith(f"killed {quoted} on http://127.0.0.1:"), killed.stderr
        assert killed.stdout.rstrip().endswith("1 run stopped")
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 77
        lift = f"guard revive {quoted} --local"
        assert "enough" in err
        assert f"lift that with: {lift}" in err
        again = guard("run", "--workflow", "doomed-1", "--", sys.executable, "-c", "print('ran')")
        assert (again.stdout, again.returncode) == ("", 77)
        assert lift in " ".join(again.stderr.split())
    finally:
        revived = guard("revive", target)
    assert revived.returncode == 0
    again = guard("run", "--workflow", "doomed-1", "--", sys.executable, "-c", "print('ran')")
    assert (again.stdout, again.returncode) == ("ran\n", 0)


def test_a_program_that_ends_well_all_the_same_was_killed(guard: Runs) -> None:
    """It ends with 0 before ``guard run`` looks again, as agents do that have shown why."""
    script = "sleep 600 >/dev/null 2>&1 & echo $!; read line; exit 0"
    with guard.start("run", "--workflow", "polite", "--json", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with guard.operator() as admin:
            admin.directive("kill", "polite", reason="enough")
            out, err = process.communicate("\n", timeout=WAIT_S)
            admin.directive("revive", "polite")
    facts = json.loads(out.splitlines()[-1])
    assert (facts["exit_code"], facts["program_exit_code"]) == (77, 0), err
    assert facts["refused"]["error_code"] == "GD-W002"
    assert is_gone(child), "what it has left behind"


def test_a_run_that_does_not_match_goes_on(guard: Runs, sleeper: str) -> None:
    process = guard.start("run", "--workflow", "spared", "--", sleeper)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    killed = guard("kill", "other-*", "--anyway")
    assert "no workflows, no runs seen in the last" in killed.stdout
    assert guard("revive", "other-*").returncode == 0
    assert process.poll() is None
    assert "1 run stopped" in guard("kill", "spared").stdout
    process.communicate(timeout=WAIT_S)
    assert guard("revive", "spared").returncode == 0


def test_a_kill_elsewhere_names_the_run_that_it_does_not_reach(
    guard: Runs, sleeper: str, gateway: Gateway
) -> None:
    process = guard.start("run", "--workflow", "nightly", "--", sleeper)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    env = {"GUARD_API_URL": gateway.base_url, "GUARD_ADMIN_KEY": gateway.admin_key}
    hint = "1 run of this name goes on at this user's local gateway: guard kill nightly --local"
    missed = guard("kill", "nightly", env=env)
    assert missed.returncode == 1
    assert f"no such workflow on {gateway.base_url}: nightly; {hint}" in missed.stderr
    gateway.admin.announce_workflow("nightly")
    killed = guard("kill", "nightly", env=env)
    assert killed.stdout.startswith(f"killed nightly on {gateway.base_url}: no runs seen in")
    assert hint in killed.stderr
    assert process.poll() is None
    assert "1 run stopped" in guard("kill", "nightly", "--local", env=env).stdout
    process.communicate(timeout=WAIT_S)
