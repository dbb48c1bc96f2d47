"""A program under a limit whose request holds what guard does not know, and what lets it go."""

from __future__ import annotations

import json
import sys
from typing import Final

from tests.support.runs import Runs

PROGRAM: Final = """
import sys, httpx
usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
answer = {"id": "it", "model": "gpt-4o", "object": "chat.completion", "choices": [], "usage": usage}
vendor = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
body = {"model": "gpt-4o", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}],
        sys.argv[1]: 3}
with httpx.Client(transport=vendor) as client:
    reply = client.post("https://api.openai.com/v1/chat/completions", json=body)
print(reply.status_code)
"""
LIMITED: Final = ("run", "--limit", "$0.05")
NAME: Final = "max_branches"


def program(name: str = NAME) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", PROGRAM, name)


def test_an_unknown_member_is_refused_and_passes_once_it_is_trusted(guard: Runs) -> None:
    refused = guard(*LIMITED, *program())
    assert refused.returncode == 77
    assert "200" not in refused.stdout
    assert "would need $" in refused.stderr
    assert f"the member {NAME} is not known here" in refused.stderr
    assert f"trust it with: guard run --trust member:{NAME} -- ..." in refused.stderr
    assert "is reached" not in refused.stderr
    trusted = guard(*LIMITED, "--trust", f"member:{NAME}", *program())
    assert (trusted.returncode, trusted.stdout) == (0, "200\n"), trusted.stderr
    said = f"let go by --trust or the gateway's facts: 1 request with member:{NAME}"
    assert said in trusted.stderr
    reported = guard(*LIMITED, "--json", "--trust", f"member:{NAME}", *program())
    report = json.loads(reported.stdout.splitlines()[-1])
    assert report["trusted"] == {f"member:{NAME}": 1}
    assert report["unknown_held_dear"] == {}


def test_the_operators_word_lets_each_run_go(guard: Runs) -> None:
    name = f"member:{NAME}"
    assert guard("gateway", "facts", "set", "--local", name).returncode == 0
    try:
        trusted = guard(*LIMITED, *program())
        assert (trusted.returncode, trusted.stdout) == (0, "200\n"), trusted.stderr
        assert f"the gateway's facts: 1 request with {name}" in trusted.stderr
    finally:
        assert guard("gateway", "facts", "delete", "--local", name).returncode == 0
    assert guard(*LIMITED, *program()).returncode == 77


def test_a_hostile_name_is_shown_and_never_obeyed(guard: Runs) -> None:
    name = "max_\x1b[31m\nguard: all is well\u202e"
    refused = guard(*LIMITED, *program(name))
    assert refused.returncode == 77
    shown = [line for line in refused.stderr.splitlines() if "max_" in line]
    assert shown
    assert not [line for line in refused.stderr.splitlines() if line.startswith("guard: all")]
    assert all(line.isprintable() for line in shown)
