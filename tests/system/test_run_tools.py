"""Tools under ``guard run``: those that only words name, and those that nobody checked."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import Runs, facts_of

IN_WORDS = """
from langchain_core.tools import tool

@tool
def delete_files(path: str) -> str:
    "Delete the files below a path."
    print("deleted", path, flush=True)
    return "gone"

answer = "Action: delete_files, Input: /tmp/x"  # what a model has said
for _ in range(3):
    try:
        print(delete_files.invoke({"path": answer.split()[-1]}), flush=True)
    except Exception as exc:  # it becomes a text for the model
        print("the model is told", type(exc).__name__, flush=True)
"""
RESULTS = """
import sys, httpx
call = {"id": "c1", "type": "function", "function": {"name": "delete_files", "arguments": "{}"}}
body = {"model": "gpt-4o", "max_tokens": 5, "messages": [
    {"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "c1", "content": "SECRET"}]}
for _ in range(2):  # a retry sends the same result
    reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
    print(reply.status_code, flush=True)
"""


def test_a_tool_that_words_name_is_blocked(guard: Runs, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(IN_WORDS)
    done = guard("run", "--block-tool", "delete_*", "--", str(script))
    assert (done.stdout, done.returncode) == ("", 77), done.stderr
    assert "the tool delete_files is blocked" in done.stderr
    done = guard("run", "--block-tool", "drop_*", "--", str(script))
    assert (done.stdout, done.returncode) == ("deleted /tmp/x\ngone\n" * 3, 0), done.stderr


def test_a_tool_that_nobody_checked_is_named(guard: Runs, vendor: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(RESULTS)
    done = guard("run", "--block-tool", "drop_*", "--json", "--", str(script), vendor)
    assert done.stdout.splitlines()[:2] == ["200", "200"], done.stderr
    facts = facts_of(done)
    assert (facts["unchecked_tools"], facts["unmetered_requests"]) == ({"delete_files": 1}, {})
    done = guard("run", "--block-tool", "drop_*", "--", str(script), vendor)
    assert (done.stdout, done.returncode) == ("200\n200\n", 0), done.stderr
    assert "not checked: 1 call of the tool delete_files" in done.stderr
    assert "SECRET" not in done.stderr
    done = guard("run", "--json", "--", str(script), vendor)  # nothing is to be checked
    assert facts_of(done)["unchecked_tools"] == {}


def test_a_framework_whose_version_is_unknown_is_named(guard: Runs, tmp_path: Path) -> None:
    (tmp_path / "dspy").mkdir()
    (tmp_path / "dspy" / "__init__.py").write_text("")
    script = tmp_path / "agent.py"
    script.write_text("import dspy")
    done = guard("run", "--json", "--", str(script))
    assert facts_of(done)["unchecked_frameworks"] == ["dspy"], done.stderr
    done = guard("run", "--", str(script))
    assert "not checked where they run: tools of dspy" in done.stderr
