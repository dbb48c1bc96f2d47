"""Prompts and completions never leave the process: not by wire, disk, log, repr or traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import requests

import guard
from guard.instrumentation.instrumentation import Instrumentation
from guard.runtime.runtime import GuardRuntime
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.proxy import ChaosProxy

PROMPT = "CANARY-PROMPT-5f1d"
ANSWER = "CANARY-ANSWER-9c2e"
KEY = "sk-CANARY-KEY-77aa"
SECRETS = (PROMPT, ANSWER, KEY)


def answers(*, stream: bool) -> Reply:
    if stream:
        chunk = {"id": "c-2", "model": "m", "choices": [{"delta": {"content": ANSWER}}]}
        event = b"data: " + encoded(chunk) + b"\n\n"
        return Reply(None, events=(event, event), content_type="text/event-stream")
    message = {"role": "assistant", "content": ANSWER}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    body = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip
    return Reply(None, encoded(body))


def test_nothing_of_them_is_anywhere(
    standin: StandIn,
    proxy: ChaosProxy,
    start: Callable[..., GuardRuntime],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG, "guard")
    reprs: list[str] = []
    begin = Instrumentation.begin

    def remembering(self: Instrumentation, *arguments: Any) -> Any:
        exchange = begin(self, *arguments)
        reprs.append(repr(exchange))
        return exchange

    monkeypatch.setattr(Instrumentation, "begin", remembering)
    runtime = start(api_url=proxy.url, spool_dir=tmp_path / "spool", debug=True)
    messages: Any = [{"role": "user", "content": PROMPT}]
    ask = {"model": "m", "messages": messages}

    @guard.protect
    def agent() -> None:
        with openai.OpenAI(base_url=f"{standin.url}/v1", api_key=KEY) as api:
            standin.instead = answers(stream=False)
            api.chat.completions.create(model="m", messages=messages)
            standin.instead = answers(stream=True)
            for _ in api.chat.completions.create(model="m", messages=messages, stream=True):
                break
        url = f"{standin.url}/v1/chat/completions"
        requests.post(url, json={**ask, "stream": True}, timeout=120)
        standin.instead = Reply(None, b'{"choices": "' + ANSWER.encode())  # cannot be read
        httpx.post(url, json=ask, headers={"Authorization": f"Bearer {KEY}"})

    with guard.workflow("canary"):
        agent()
    runtime.flush()
    proxy.fault = "refuse"
    proxy.cut()
    with guard.workflow("canary"):
        guard.track_llm(1, 1, model="m")
    status = runtime.status()
    reprs += [repr(runtime), repr(status), repr(runtime.instrumentation), repr(runtime.settings)]
    with pytest.raises(guard.GuardError) as refused:
        agent()
    reprs += [repr(refused.value), str(refused.getrepr(style="short"))]
    try:
        runtime.shutdown(timeout=1.0)
    except Exception as exc:
        reprs.append(repr(exc))
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    captured = capfd.readouterr()
    assert standin.bodies
    assert all(PROMPT.encode() in body for body in standin.bodies[:2])  # it was really said
    assert status.events_sent >= 2
    assert b"/api/v1/events" in proxy.bytes_up or b"/gate" in proxy.bytes_up
    for secret in SECRETS:
        assert secret.encode() not in bytes(proxy.bytes_up)
        assert all(secret.encode() not in file for file in files)
        for text in (caplog.text, captured.out, captured.err, *reprs):
            assert secret not in text
