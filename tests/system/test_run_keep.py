"""``guard run --keep``: a run that has used up the rest of its limit ends with an answer."""

from __future__ import annotations

import json
from pathlib import Path

from guard.breaker.exceptions import GuardBudgetError
from guard.proxy.refusals import told_of
from tests.support.runs import AGENT, LIMIT, Runs

ASK = """
import sys, httpx, guard
def ask(text):
    body = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": text}]}
    return httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60).status_code
"""
LOOKS = (
    ASK
    + """
with guard.workflow("research"):
    for number in range(1000):
        status = ask("the next step, or the answer if there is nothing more to find out")
        if guard.spend().winding_down:
            print("answer", status, "after", number, flush=True)
            break
"""
)
SUMS_UP = (
    ASK
    + """
with guard.workflow("research"):
    try:
        with guard.context.options():
            for number in range(1000):
                ask("the next step")
    except guard.GuardBudgetError:
        with guard.context.winding_down():
            print("summary", ask("sum up what you have found"), flush=True)
"""
)


def script(folder: Path, text: str) -> str:
    path = folder / "agent.py"
    path.write_text(text)
    return str(path)


def test_an_agent_that_looks_ends_with_an_answer(guard: Runs, vendor: str, tmp_path: Path) -> None:
    program = script(tmp_path, LOOKS)
    run = guard("run", "--limit", "$0.05", "--keep", "20%", "--json", "--", program, vendor)
    assert run.returncode == 0, run.stderr
    answer, *_, last = run.stdout.splitlines()
    assert answer.startswith("answer 200 after 7"), "four fifths of the limit went before it"
    facts = json.loads(last)
    assert facts["refused"] is None
    assert facts["spent_nanousd"] <= 50_000_000
    assert run.stderr.count("winds down: this is its last request") == 1


def test_an_agent_that_is_refused_sums_up_from_the_share(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    program = script(tmp_path, SUMS_UP)
    run = guard("run", "--limit", "$0.01", "--keep", "20%", "--", program, vendor)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == "summary 200"


def test_who_does_not_look_has_one_last_request(guard: Runs, vendor: str, tmp_path: Path) -> None:
    """Three requests fit into the limit, and two outside of what is kept."""
    program = script(tmp_path, AGENT)
    run = guard("run", "--limit", LIMIT, "--keep", "30%", "--", program, vendor, "9")
    assert run.returncode == 77, run.stderr
    assert [line[-3:] for line in run.stdout.splitlines()] == ["200"] * 3
    assert run.stderr.count("winds down: this is its last request") == 1
    assert "kept for winding down" in run.stderr


def test_keep_is_a_share_of_the_limit(guard: Runs) -> None:
    assert "share of --limit" in guard("run", "--keep", "5%", "--", "true").stderr
    for share in ("0", "100%", "five"):
        run = guard("run", "--limit", "1", "--keep", share, "--", "true")
        assert "is no share" in run.stderr, share


def test_the_user_of_a_tool_is_told_that_the_last_answer_is_given() -> None:
    budget = {"limit_nanousd": 2_000_000_000}
    error = GuardBudgetError(details={"budget": budget, "winding_down": True})
    assert told_of(error).sentence == (
        "guard: the limit of $2 is reached, and so is what was kept of it for a last answer; ask "
        "for a higher one, or start again with a higher --limit"
    )


def test_a_share_of_tokens_is_kept_as_well(guard: Runs, vendor: str, tmp_path: Path) -> None:
    program = script(tmp_path, LOOKS)
    run = guard("run", "--limit-tokens", "2k", "--keep", "20%", "--watch", "--json", "--",
                program, vendor)  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer, *_, last = run.stdout.splitlines()
    assert answer.startswith("answer 200 after "), run.stdout
    [tokens] = json.loads(last)["counted"]
    assert tokens["kept"] == 400
    assert 1600 - 100 < tokens["used"] <= 2000, "the share went to the last request only"
    assert "tokens (400 to wind down)" in run.stderr


def test_a_share_needs_a_limit_that_has_one(guard: Runs) -> None:
    run = guard("run", "--max-calls", "3", "--keep", "20%", "--", "true")
    assert run.returncode == 2
    assert "--keep is a share of --limit or --limit-tokens" in run.stderr
