"""``guard run --limit``: a run that has used up its limit asks, is raised, and goes on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.support.runs import AGENT, LIMIT, Runs
from tests.support.terminal import TerminalSession
from tests.support.waiting import WAIT_S

THREE_MORE = "$0.0016"
GUARD = [sys.executable, "-m", "guard", "run"]
READS = AGENT.replace(
    "import sys, httpx",
    """
import sys, httpx, threading
threading.Thread(target=sys.stdin.readline, daemon=True).start()
""",
)


def agent(folder: Path, text: str = AGENT) -> str:
    path = folder / "agent.py"
    path.write_text(text)
    return str(path)


def wait_until_it_asks(run: Any, before: list[str] | None = None) -> str:
    """Return the line that asks; add those before it to a list."""
    for line in run.stderr:
        if " waits until " in line:
            return str(line)
        if before is not None:
            before.append(line)
    raise AssertionError("it never asked")


def end_of(run: Any) -> tuple[str, str]:
    """Return the rest of what a run prints: `communicate` would miss lines that are read ahead."""
    err = run.stderr.read()
    out = run.stdout.read()
    run.wait(WAIT_S)
    return str(out), str(err)


def test_raised_twice_from_another_terminal_it_ends_by_itself(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    run = guard.start(
        "run", "--limit", LIMIT, "--on-limit", "ask", "--workflow", "raised-twice", "--json", "--",
        agent(tmp_path), vendor, "9",
    )  # fmt: skip
    for number in (1, 2):
        shown = wait_until_it_asks(run)
        assert "guard budgets raise raised-twice --by" in shown
        waiting = json.loads(guard("budgets", "waiting", "--local", "--json").stdout)
        # Of another test's run, which has ended, a question may be left for a while.
        assert [each["workflow_id"] for each in waiting].count("raised-twice") == 1
        raised = guard("budgets", "raise", "raised-twice", "--by", THREE_MORE, "--local")
        assert raised.returncode == 0, raised.stderr
        assert f"raised by $0.0016 to ${0.002 + 0.0016 * number:.4f}" in raised.stdout
    out, err = end_of(run)
    assert run.returncode == 0, err
    assert out.count(" 200") == 9, "no request was lost"
    facts = json.loads(out.splitlines()[-1])
    assert (facts["limit_nanousd"], facts["refused"]) == (5_200_000, None)
    assert facts["spent_nanousd"] <= facts["limit_nanousd"]
    assert "raised to $0.0052: it goes on" in err


def test_limits_of_tokens_and_calls_are_raised_from_another_terminal(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    run = guard.start(
        "run", "--limit", "$1", "--limit-tokens", "150", "--max-calls", "gpt*=4", "--on-limit",
        "ask", "--workflow", "counted", "--watch", "--json", "--", agent(tmp_path), vendor, "6",
    )  # fmt: skip
    before: list[str] = []
    shown = wait_until_it_asks(run, before)
    assert "of 150 tokens, and a request waits until" in shown
    assert "guard budgets raise counted --by '1,000 tokens' --local" in shown
    several = guard("budgets", "raise", "counted", "--by", "100", "--local")
    assert several.returncode == 1
    assert "several budgets are for counted" in several.stderr, "100 may be dollars"
    raised = guard("budgets", "raise", "counted", "--by", "500k tokens", "--local")
    assert raised.returncode == 0, raised.stderr
    assert "raised by 500,000 tokens to 500,150 tokens" in raised.stdout
    shown = wait_until_it_asks(run, before)
    assert "4 of 4 calls of gpt* made, and a call waits until" in shown
    waiting = guard("budgets", "waiting", "--local").stdout
    assert "4 calls" in waiting
    raised = guard("budgets", "raise", "counted", "--by", "10 calls", "--local")
    assert "raised by 10 calls to 14 calls" in raised.stdout, raised.stderr
    out, err = end_of(run)
    assert run.returncode == 0, err
    assert out.count(" 200") == 6, "no request was lost"
    facts = json.loads(out.splitlines()[-1])
    assert (facts["limit_tokens"], facts["max_calls"]) == (500_150, {"gpt*": 14})
    assert {each["unit"]: each["limit"] for each in facts["counted"]} == {
        "tokens": 500_150, "calls": 14,
    }  # fmt: skip
    watched = "".join(before) + err
    assert re.search(r"; left: \$0\.99\d+, \d calls of gpt\*, [\d,]+ tokens\n", watched), watched
    raises = guard("budgets", "raises", "--local").stdout
    assert "500,150 tokens" in raises
    assert "14 calls" in raises


def test_a_request_waits_as_long_as_it_is_told(guard: Runs, vendor: str, tmp_path: Path) -> None:
    run = guard(
        "run", "--max-calls", "2", "--on-limit", "ask", "--ask-seconds", "0.5", "--",
        agent(tmp_path), vendor, "4",
    )  # fmt: skip
    assert run.returncode == 77, run.stderr
    assert "2 of 2 calls made, and a call waits until" in run.stderr


def test_its_own_terminal_raises_and_ends_it(guard: Runs, vendor: str, tmp_path: Path) -> None:
    program = agent(tmp_path)
    command = [*GUARD, "--limit", LIMIT, "--", program, vendor, "9"]
    with TerminalSession(command, env=guard.env | {"CI": ""}, cwd=tmp_path) as session:
        session.expect("[r]aise by $0.01, [q]uit")
        session.type("what\n")
        session.expect("r raises by $0.01, q quits")
        session.type("r\n")
        session.expect("raised to $0.012: it goes on")
        assert session.wait() == 0, session.shown
        assert "9 LLM requests" in session.shown
    with TerminalSession(command, env=guard.env | {"CI": ""}, cwd=tmp_path) as session:
        session.expect("[q]uit")
        session.type("q\n")
        assert session.wait() == 77, session.shown
        assert "this run's --limit of $0.002 is reached" in session.shown


def test_a_program_that_reads_the_terminal_keeps_it(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    program = agent(tmp_path, READS)
    command = [*GUARD, "--limit", LIMIT, "--workflow", "reader", "--", program, vendor, "4"]
    with TerminalSession(command, env=guard.env | {"CI": ""}, cwd=tmp_path) as session:
        session.expect("raise it from another terminal: guard budgets raise reader --by")
        assert "[r]aise" not in session.shown
        assert guard("budgets", "raise", "reader", "--by", "1", "--local").returncode == 0
        assert session.wait() == 0, session.shown


def test_a_program_that_draws_on_the_whole_screen_cannot_hide_it(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    draws = AGENT.replace("import sys, httpx", "import sys, httpx, tty\ntty.setraw(0)")
    program = agent(tmp_path, draws)
    command = [*GUARD, "--limit", LIMIT, "--workflow", "drawn", "--", program, vendor, "4"]
    with TerminalSession(command, env=guard.env | {"CI": ""}, cwd=tmp_path) as session:
        session.expect("raise it from another terminal: guard budgets raise drawn --by")
        session.expect("\x1b[22;0t\x1b]2;guard run: spent ")  # the title before is kept
        session.expect("\x07\x1b]777;notify;guard run;guard run: spent ")
        session.expect("raise it from another terminal: guard budgets raise drawn --by")  # again
        assert "]777;" not in session.shown[session.shown.rfind("raise it from") :]
        guard("budgets", "raise", "drawn", "--by", "$1", "--local")
        session.expect("\x1b[23;0t")
        assert session.wait() == 0, session.shown


def test_a_ci_job_and_a_script_are_refused_at_once(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    program = agent(tmp_path)
    assert guard("run", "--limit", LIMIT, "--", program, vendor, "4").returncode == 77
    command = [*GUARD, "--limit", LIMIT, "--", program, vendor, "4"]
    with TerminalSession(command, env=guard.env | {"CI": "true"}, cwd=tmp_path) as session:
        assert session.wait() == 77, session.shown
