"""What a program reads of a refusal."""

from __future__ import annotations

import json

import pytest

from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardBudgetError,
    GuardInfrastructureError,
    GuardToolBlockedError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.core.usage import find_endpoint
from guard.core.usage.framing import take_frames
from guard.proxy.refusals import Dialect, ErrorAnswer, dialect_of, told_of, unreachable

BUDGET = {"scope": "key k (total)", "limit_nanousd": 2_000_000_000, "spent_nanousd": 1_990_000_000}


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (GuardBudgetError(details={"budget": BUDGET}), 400, "GD-B004", "limit of $2 is reached"),
        (GuardBudgetError(), 400, "GD-B004", "the limit is reached"),
        (WorkflowKilledInterrupt(reason="runaway"), 400, "GD-W002", "has stopped this: runaway"),
        (GuardBudgetError(details={"budget": BUDGET | {"scope": "tag team=ads (day)"}}), 400,
         "GD-B004", "the limit of $2 on tag team=ads (day) is reached; ask for a higher one"),
        (WorkflowPausedException(workflow_id="w"), 400, "GD-W003", "has paused this; go on"),
        (WorkflowPausedException("w", reason="why"), 400, "GD-W003", "paused this: why; go on"),
        (GuardToolBlockedError(tool_name="delete_all"), 400, "GD-T001", "the tool delete_all is"),
        (GuardBlockedException(reason="gpt-5 is not allowed"), 400, "GD-X001", "gpt-5 is not"),
        (GuardTransportError("gone"), 503, "GD-B001", "cannot be reached"),
        (GuardInfrastructureError("full"), 503, "GD-I001", "had a problem"),
        (RateLimitError("slow", retry_after=3.2), 503, "GD-R001", "Too many requests"),
    ],
)  # fmt: skip
def test_a_decision_is_final_and_a_failure_is_not(
    error: BaseException, status: int, code: str, words: str
) -> None:
    told = told_of(error)
    assert (told.status, told.code) == (status, code)
    assert told.sentence.startswith("guard: ")
    assert words in told.sentence
    headers = dict(told.headers())
    assert headers[b"x-should-retry"] == (b"false" if status == 400 else b"true")
    assert headers[b"x-guard-code"] == code.encode()
    assert (b"retry-after" in headers) is (code == "GD-R001")


@pytest.mark.parametrize(
    "words",
    ["prompt is too long: 3", "exceeds the context length", "maximum context", "quota exceeded"],
)
def test_no_sentence_makes_a_tool_shorten_its_prompt(words: str) -> None:
    sentence = told_of(GuardBlockedException(reason=words)).sentence.lower()
    for each in ("prompt is too long", "context length", "maximum context", "quota"):
        assert each not in sentence


@pytest.mark.parametrize(
    ("host", "path", "dialect"),
    [
        ("api.anthropic.com", "/v1/messages", Dialect.ANTHROPIC),
        ("127.0.0.1", "/v1/messages", Dialect.ANTHROPIC),
        ("api.openai.com", "/v1/chat/completions", Dialect.CHAT),
        ("chatgpt.com", "/backend-api/codex/responses", Dialect.RESPONSES),
        ("api.openai.com", "/v1/responses", Dialect.RESPONSES),
        ("generativelanguage.googleapis.com", "/v1beta/models/m:generateContent", Dialect.GEMINI),
        ("127.0.0.1", "/api/chat", Dialect.OLLAMA),
        ("bedrock-runtime.eu-west-1.amazonaws.com", "/model/m/converse-stream", Dialect.BEDROCK),
    ],
)
def test_the_shape_is_that_of_the_endpoint(host: str, path: str, dialect: Dialect) -> None:
    assert dialect_of("custom/x", find_endpoint("POST", host, path)) is dialect


def test_without_an_endpoint_the_shape_is_that_of_the_vendor() -> None:
    found = {name: dialect_of(name, None) for name in ("anthropic", "gemini", "codex", "groq")}
    assert found == {
        "anthropic": Dialect.ANTHROPIC, "gemini": Dialect.GEMINI, "codex": Dialect.RESPONSES,
        "groq": Dialect.CHAT,
    }  # fmt: skip


TOLD = ErrorAnswer(400, "GD-B004", 'guard: the limit of "$2" is reached')


@pytest.mark.parametrize("dialect", Dialect)
def test_each_shape_holds_the_sentence(dialect: Dialect) -> None:
    body = json.loads(TOLD.body(dialect))
    inner = body["error"] if isinstance(body.get("error"), dict) else body
    assert TOLD.sentence in (inner.get("message"), inner.get("error"))
    event = TOLD.event(dialect)
    if dialect is Dialect.BEDROCK:
        assert b":exception-type" in event
        assert [json.loads(each) for each in take_frames(bytearray(event))] == [
            {"message": TOLD.sentence}
        ]
        return
    line = next(each for each in event.splitlines() if each.startswith((b"data: ", b"{")))
    told = json.loads(line.removeprefix(b"data: "))
    assert TOLD.sentence in json.dumps(told, ensure_ascii=False).replace('\\"', '"')
    assert event.endswith(b"\n" if dialect is Dialect.OLLAMA else b"\n\n")


def test_an_upstream_out_of_reach_is_named() -> None:
    told = unreachable("api.openai.com")
    assert told.status == 503
    assert "api.openai.com" in told.sentence
