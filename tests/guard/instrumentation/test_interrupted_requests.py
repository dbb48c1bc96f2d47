"""Ctrl-C between the cover of a request and its sending: the money goes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import httpx
import pytest
import requests

from guard.breaker.refusals import Refusal
from guard.instrumentation import Instrumentation
from guard.instrumentation.include_usage import StreamUsage
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import CHAT, STREAM
from tests.guard.instrumentation.interleaved import at_every_step
from tests.guard.instrumentation.standin.server import StandIn
from tests.guard.instrumentation.test_threads_at_once import BODY


def send_httpx(url: str) -> None:
    httpx.post(url, json=STREAM)


def send_httpx_async(url: str) -> None:
    async def main() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(url, json=STREAM)

    asyncio.run(main())


def send_requests(url: str) -> None:
    requests.post(url, json=STREAM)


def send_aiohttp(url: str) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=STREAM):
            pass

    asyncio.run(main())


CLIENTS: Final = (send_httpx, send_httpx_async, send_requests, send_aiohttp)


class Interrupt(BaseException):
    """Ctrl-C, without its meaning for pytest and for event loops."""


def _interrupt(*_: object) -> Any:
    raise Interrupt


@pytest.mark.parametrize("send", CLIENTS)
def test_while_its_body_is_prepared(
    send: Callable[[str], None],
    standin: StandIn,
    gate: FakeGate,
    gated: Observed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gated.instrumentation.stream_usage.is_on = True
    monkeypatch.setattr(StreamUsage, "asked", _interrupt)
    with pytest.raises(Interrupt):
        send(standin.url + CHAT)
    assert gate.ends == ["back"]
    assert not gated.instrumentation._open
    assert standin.bodies == []


class _Tools:
    applies = staticmethod(lambda scope: True)
    results = staticmethod(_interrupt)


@pytest.mark.parametrize("send", CLIENTS)
def test_while_the_results_of_its_tools_are_named(
    send: Callable[[str], None], standin: StandIn, gate: FakeGate, gated: Observed
) -> None:
    gated.account.tools = _Tools()
    with pytest.raises(Interrupt):
        send(standin.url + CHAT)
    assert gate.ends == ["back"]
    assert not gated.instrumentation._open


def test_a_try_that_is_refused_is_not_charged_beside_the_one_before(
    gate: FakeGate, gated: Observed
) -> None:
    gate.left = 1
    call = gated.instrumentation.begin("POST", "api.openai.com", CHAT, lambda: BODY)
    assert call is not None

    def send() -> None:
        call.sent_s, call.tried = time.monotonic(), 0
        call.takes()  # as the transports do for another body: the first one is lost

    with pytest.raises(Refusal), call.sending():
        send()
    assert [each.estimate for each in gated.events] == ["bound"]
    assert gate.ends == ["kept"]
    assert not gated.instrumentation._open


def test_at_every_step_after_the_money_was_set_aside(gate: FakeGate, gated: Observed) -> None:
    def run() -> tuple[Callable[[], object], Callable[[], object]]:
        def begin() -> None:
            with contextlib.suppress(Interrupt):
                gated.instrumentation.begin("POST", "api.openai.com", CHAT, lambda: BODY)

        return begin, lambda: _interrupt() if gate.holds and not gate.holds[-1].ends else None

    own = (Instrumentation.begin, Instrumentation._admit, Instrumentation._cover)
    at_every_step({each.__code__ for each in own}, run)
    assert any(hold.ends == ["back"] for hold in gate.holds)
    # The others are known, and end with the process at the latest.
    for call in list(gated.instrumentation._open):
        call.dropped()
    assert gate.ends == ["back"] * len(gate.holds)
