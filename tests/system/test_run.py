"""``guard run``: real programs, a real local gateway, a stand-in of the vendor."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from guard.running.plan import HOOK, RunLimits, name_of, read_limit, read_rate
from tests.support.runs import AGENT, LIMIT, Runs
from tests.support.waiting import WAIT_S


@pytest.fixture
def agent(tmp_path: Path) -> str:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return str(path)


def test_a_run_is_cut_when_its_money_is_used_up(guard: Runs, vendor: str, agent: str) -> None:
    done = guard("run", "--limit", LIMIT, "--", sys.executable, agent, vendor, "9")
    assert done.stdout == "0 200\n1 200\n2 200\n"
    assert done.returncode == 77
    assert "3 LLM requests, $0.0015375 of $0.002" in done.stderr
    assert "stopped: this run's --limit of $0.002 is reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_loads_no_more_than_it_needs(guard: Runs) -> None:
    """Whoever starts a program waits for the imports of `guard run` first."""
    run = "run", "--limit", LIMIT, "--allow-unseen", "--", "sh", "-c", "true"
    done = guard(*run, env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    unneeded = (
        "asyncio", "h2", "httpx", "pygments", "rich", "sqlite3", "guard.core.usage",
        "guard.delivery", "guard.instrumentation", "guard.session", "guard.settings",
        "guard.transport.client",
    )  # fmt: skip
    assert "guard.running.supervise" in loaded
    assert not {each for each in loaded if any(f"{each}.".startswith(f"{x}.") for x in unneeded)}


def test_its_child_processes_share_the_limit(
    guard: Runs, vendor: str, agent: str, tmp_path: Path
) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import subprocess, sys, time\n"
        "subprocess.run([sys.executable, *sys.argv[1:], '2'])\n"
        "subprocess.run([sys.executable, *sys.argv[1:], '9'])\n"
        "time.sleep(60)\n"
    )
    done = guard("run", "--limit", LIMIT, "--json", "--", str(parent), agent, vendor)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["requests"], facts["guarded_processes"], done.returncode) == (3, 3, 77)
    assert facts["refused"]["error_code"] in ("GD-B001", "GD-B004")


def test_workflows_of_the_program_are_within_the_limit(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    script = tmp_path / "own.py"
    script.write_text(f"import guard\nwith guard.workflow('own'):\n    exec({AGENT!r})\n")
    done = guard("run", "--limit", LIMIT, "--", str(script), vendor, "9")
    assert (done.stdout, done.returncode) == ("0 200\n1 200\n2 200\n", 77)


def test_a_module_and_a_console_script(guard: Runs, vendor: str, tmp_path: Path) -> None:
    test = tmp_path / "test_agent.py"
    test.write_text(
        f"import sys\n\ndef test_it():\n    sys.argv = ['', {vendor!r}, '9']\n    exec({AGENT!r})\n"
    )
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to load all that is installed takes seconds
    for program in (["pytest"], ["-m", "pytest"]):
        done = guard("run", "--limit", LIMIT, "--", *program, "-q", "-p", "no:cacheprovider",
                     str(test), cwd=tmp_path, env=alone)  # fmt: skip
        assert done.returncode == 77, "pytest's own code is 1"
        assert "3 LLM requests" in done.stderr


def test_dry_run_refuses_nothing_and_reports(guard: Runs, vendor: str, agent: str) -> None:
    done = guard("run", "--limit", LIMIT, "--dry-run", "--json", "--", agent, vendor, "6")
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, facts["requests"], facts["refused"]) == (0, 6, None)
    assert [each["error_code"] for each in facts["would_refuse"]] == ["GD-B004"] * 3
    assert "this run's --limit: $0." in facts["would_refuse"][0]["reason"]


def test_models_and_rates(guard: Runs, vendor: str, agent: str) -> None:
    done = guard("run", "--allow-model", "claude-*", "--", agent, vendor, "2")
    assert (done.stdout, done.returncode) == ("", 77)
    assert "GD-X001" in done.stderr
    began_s = time.monotonic()
    done = guard("run", "--rate", "2/s", "--", agent, vendor, "7")
    assert (done.stdout.count(" 200\n"), done.returncode) == (7, 0), (
        "a rate paces, and ends nothing"
    )
    assert time.monotonic() - began_s > 3.0


FAN: Final = """
import sys
from concurrent.futures import ThreadPoolExecutor
import httpx

def ask(number):
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "go"}]}
    return httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60).status_code

with ThreadPoolExecutor(20) as pool:
    print(sorted(pool.map(ask, range(int(sys.argv[2])))))
"""


def test_twenty_at_once_wait_for_the_money_of_each_other(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    """The largest answers of two fit at once, and there is money for all that come."""
    script = tmp_path / "fan.py"
    script.write_text(FAN)
    done = guard("run", "--limit", "$0.35", "--json", "--", str(script), vendor, "20")
    assert done.stdout.splitlines()[0] == str([200] * 20), done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["requests"], facts["refused"], done.returncode) == (20, None, 0)


def test_strict_refuses_models_without_a_price(guard: Runs, vendor: str, agent: str) -> None:
    known = guard("run", "--strict", "--", agent, vendor, "1")
    assert (known.stdout, known.returncode) == ("0 200\n", 0)
    unknown = Path(agent).with_name("unknown.py")
    unknown.write_text(AGENT.replace("gpt-4o", "a-model-of-nobody"))
    done = guard("run", "--strict", "--", str(unknown), vendor, "1")
    assert (done.stdout, done.returncode) == ("", 77)
    assert "the price of the model is not known" in done.stderr
    assert guard("run", "--", str(unknown), vendor, "1").stdout == "0 200\n"


def test_a_kill_ends_a_program_that_sleeps(guard: Runs, tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(120)\n")
    process = guard.start("run", "--workflow", "doomed", "--", str(script))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert guard("gateway", "kill", "doomed", "--local", "--reason", "enough").returncode == 0
    _, err = process.communicate(timeout=300)
    assert process.returncode == 77
    assert "enough" in err
    again = guard("run", "--workflow", "doomed", "--", str(script))
    assert again.returncode == 77
    assert "guard revive doomed --local" in again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program(guard: Runs, tmp_path: Path, number: int) -> None:
    script = tmp_path / "patient.py"
    script.write_text(
        "import os, signal, sys, time\n"
        # By os.write: the signal may come in mid-print, and another print there would fail.
        "def told(number, frame):\n    os.write(1, b'told %d\\n' % number)\n    sys.exit(5)\n"
        f"signal.signal({number:d}, told)\n"
        "print('up', flush=True)\n"
        "for _ in range(1200): time.sleep(0.05)\n"  # Python takes a signal between two naps
    )
    process = guard.start("run", "--", str(script), start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert (out, process.returncode) == (f"told {number:d}\n", 5)


def test_exit_codes_stdin_and_sitecustomize_pass_through(guard: Runs, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'kept'\n")
    script = "import sys; print(mine, sys.stdin.read()); sys.exit(4)"
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    done = guard("run", "--", sys.executable, "-c", script, stdin="typed", env=env)
    assert (done.stdout, done.returncode) == ("kept typed\n", 4)
    killed = guard("run", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 128 + 9
    assert "nothing was seen of the program" in killed.stderr


def test_watch_shows_the_spend(guard: Runs, vendor: str, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(AGENT + "\nsys.stdin.readline()\n")
    process = guard.start("run", "--watch", "--workflow", "shown", "--", str(script), vendor, "1")
    assert process.stdin is not None
    assert process.stderr is not None
    text = "guard run: shown: 1 LLM request, $0.0005125"
    assert any(text in line for line in process.stderr), "shown while it runs"
    process.stdin.close()
    assert process.stderr.read().count(text) == 1, "and in the end"
    assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "no program; for example: guard run --limit '$2' -- python agent.py"),
        (["--", "no-such-program"], 127, "check its name and PATH"),
        (["--", "absent.py"], 127, "there is no file absent.py"),
        (["--limit", "", "--", "true"], 2, "--limit '$2'"),
        (["--limit", ".50", "--", "true"], 2, "the shell expands $2"),  # of an unquoted $2.50
        (["--block-tool", "", "--", "true"], 2, "that of a tool or a model"),
        (["--allow-model", "x" * 257, "--", "true"], 2, "256 characters at most"),
        # Only the gateway refuses these: it is heard, and not what then cannot be removed.
        (["--block-tool", "x"] * 1001 + ["--", "true"], 1, "1000"),
        (["--max-calls", "x" * 257 + "=2", "--", "true"], 1, "256"),
        (["--rate", "often", "--", "true"], 2, "write 10/s, 60/min or 500/h"),
    ],
)
def test_errors_say_what_to_do(guard: Runs, arguments: list[str], code: int, says: str) -> None:
    done = guard("run", *arguments)
    assert done.returncode == code
    assert says in " ".join(done.stderr.split())


def test_help_has_examples(guard: Runs) -> None:
    assert "guard run --limit '$2' -- python agent.py" in guard("run", "--help").stdout
    helped = guard("--help").stdout
    assert "Put a program under guard" in helped
    assert "guard run --limit '$2' -- claude" in helped


def test_amounts_rates_and_names() -> None:
    amounts = [read_limit(text) for text in ("$2", "0.50", "2 usd")]
    assert amounts == [2 * 10**9, 5 * 10**8, 2 * 10**9]
    for wrong in ("", "$", "-1", "nan", "inf", "0", "two", ".50"):
        with pytest.raises(ValueError, match="no amount"):
            read_limit(wrong)
    assert [read_rate(text) for text in ("10/s", "60 / min")] == [(10, 1000), (60, 60_000)]
    programs = (["python3", "a/agent.py"], ["python", "-m", "x.y"], ["pytest", "-q"])
    assert [name_of(program) for program in programs] == ["agent", "x.y", "pytest"]
    assert RunLimits().policy() == {}


BROKEN: Final = "def start(directory):\n    raise ValueError('broken')\n"


def test_a_process_in_which_guard_cannot_start_does_not_run(guard: Runs, tmp_path: Path) -> None:
    broken = tmp_path / "guard"
    (broken / "running").mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "running/__init__.py").touch()
    (broken / "running/child.py").write_text(BROKEN)
    (tmp_path / "script.py").write_text("print('ran')\n")
    program = ["env", f"PYTHONPATH={HOOK}:{tmp_path}", sys.executable, str(tmp_path / "script.py")]
    done = guard("run", "--", *program)
    assert (done.stdout, done.returncode) == ("", 77)
    assert "guard cannot start: ValueError: broken" in done.stderr
    # Where it cannot even be loaded nothing of it is in the process, which is led to the proxy.
    (broken / "__init__.py").write_text("raise ValueError('no such Python')\n")
    done = guard("run", "--", *program)
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert "guard cannot be loaded (ValueError: no such Python)" in done.stderr
    assert guard("run", "--limit", "$2", "--", *program).returncode == 78
