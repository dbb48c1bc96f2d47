"""A limit holds over WebSockets: everything is real but the vendor, which has its own bill."""

from __future__ import annotations

import contextvars
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
import websocket

import guard
from guard import WorkflowKilledInterrupt
from guard.breaker.exceptions import GuardBudgetError
from guard.breaker.refusals import Refusal
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.frames import (
    APPEND,
    COMMIT,
    KINDS,
    LIVE,
    REALTIME,
    RESPONSES,
    Kind,
    Open,
    opened_at,
)
from tests.guard.instrumentation.lines import LINES, AppLine, Line
from tests.guard.instrumentation.standin.sockets import SocketVendor, socket_vendor
from tests.support.waiting import WAIT_S, until

OUTPUT_TOKENS = 100
INPUT_NANOUSD, OUTPUT_NANOUSD = 1_000, 4_000
LIMIT = 10 * OUTPUT_TOKENS * OUTPUT_NANOUSD + 10 * 60 * INPUT_NANOUSD
"""For ten answers and their prompts, each bounded at most that high."""

ASK: dict[str, Any] = {
    "type": "response.create",
    "model": "gpt-5",
    "input": "Hello?",
    "max_output_tokens": OUTPUT_TOKENS,
    "metadata": {"say": str(OUTPUT_TOKENS)},
}
RATES = {"input_per_mtok": INPUT_NANOUSD * 10**6, "output_per_mtok": OUTPUT_NANOUSD * 10**6}
REFUSED = (Refusal, GuardBudgetError)
READ_HERE = [each for each in LINES if each is not AppLine]


@attrs.define
class Limited:
    """A tenant whose workflow ``w`` has money for ten answers."""

    tenant: Tenant
    vendor: SocketVendor
    runtime: guard.GuardRuntime

    def billed(self) -> int:
        """Return what the vendor has charged."""
        return sum(
            each.input_tokens * INPUT_NANOUSD + each.output_tokens * OUTPUT_NANOUSD
            for each in self.vendor.bill
        )

    def balance(self) -> dict[str, Any]:
        self.runtime.flush()
        (row,) = (row for row in self.tenant.admin.ledger() if row["scope_id"] == "w")
        return row


@pytest.fixture
def limited(tenant: Tenant, start: Callable[..., guard.GuardRuntime]) -> Iterator[Limited]:
    for model in ("gpt-5", "gpt-realtime"):
        tenant.admin.set_price(model, **RATES)
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=LIMIT)
    runtime = start()
    until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
    with socket_vendor() as vendor:
        yield Limited(tenant, vendor, runtime)


def _finish(line: Line, ends: str = "response.completed") -> None:
    while (event := line.receive()) is not None and event["type"] != ends:
        pass


@pytest.mark.parametrize("opened", LINES)
def test_many_connections_and_money_for_ten(limited: Limited, opened: Open) -> None:
    def converse() -> int:
        line = opened(f"{limited.vendor.url}/v1/responses")
        answers = 0
        try:
            while True:
                line.send(ASK)
                _finish(line)
                answers += 1
        except REFUSED:
            return answers
        finally:
            line.close()

    answered: list[int] = []

    def agent() -> None:
        with guard.workflow("w"), ThreadPoolExecutor(8) as pool:
            contexts = [contextvars.copy_context() for _ in range(8)]
            answered.extend(pool.map(lambda context: context.run(converse), contexts))

    with pytest.raises(GuardBudgetError):
        agent()
    assert 8 <= sum(answered) == len(limited.vendor.frames) == len(limited.vendor.bill)
    assert limited.billed() <= LIMIT
    assert limited.balance()["committed"] == limited.billed()


@pytest.mark.parametrize("opened", READ_HERE)
def test_lanes_that_are_not_read_are_refused_and_do_not_hang(
    limited: Limited, opened: Open
) -> None:
    """Only this thread could bring money back, by reading: it must not wait for that."""
    line = opened(f"{limited.vendor.url}/v1/responses")
    sent, begun_s = 0, time.monotonic()

    def agent() -> None:
        nonlocal sent
        with guard.workflow("w"):
            while sent < 30:
                line.send({**ASK, "stream_id": str(sent)})
                sent += 1

    with pytest.raises(GuardBudgetError):
        agent()
    assert time.monotonic() - begun_s < 8  # those in line wait longer
    assert 8 <= sent <= 10
    for _ in range(sent):
        _finish(line)
    line.close()
    assert len(limited.vendor.bill) == sent
    assert limited.balance()["committed"] == limited.billed() <= LIMIT


def test_sound_that_the_vendor_answers_by_itself(limited: Limited) -> None:
    sound = {"type": "input_audio_buffer.append", "audio": "AAAA" * 100}
    limit = {"type": "session.update", "session": {"max_output_tokens": 5}}
    line = LINES[0](f"{limited.vendor.url}/v1/realtime?model=gpt-realtime")
    until(lambda: line.receive())

    def agent() -> None:
        with guard.workflow("w"):
            line.send(limit)
            while True:
                line.send(sound)
                line.send({"type": "input_audio_buffer.commit"})
                _finish(line, "response.done")

    with pytest.raises(GuardBudgetError):
        agent()
    line.close()
    assert limited.billed() <= LIMIT
    assert limited.balance()["committed"] <= LIMIT


@pytest.mark.parametrize("opened", READ_HERE)
def test_a_kill_closes_the_connection_in_mid_answer(limited: Limited, opened: Open) -> None:
    raised: list[BaseException] = []
    kept: list[Line] = []

    def agent() -> None:
        line = opened(f"{limited.vendor.url}/v1/responses")
        kept.append(line)
        with guard.workflow("w"):
            line.send({**ASK, "metadata": {"say": "100 stall"}})
            while line.receive() is not None:
                pass

    def run() -> None:
        try:
            agent()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: limited.vendor.bill)
    limited.tenant.admin.kill("w")
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [type(each) for each in raised] == [WorkflowKilledInterrupt]
    limited.vendor.go_on.set()
    until(lambda: limited.vendor.closed)  # although nobody has closed the client's connection
    kept[0].close()
    limited.runtime.flush()
    (event,) = limited.tenant.llm_events("w")
    assert event["data"]["estimate"] in ("speed", "bound")
    assert limited.billed() <= limited.balance()["committed"] <= LIMIT


@pytest.mark.parametrize("protected", [True, False])
def test_a_kill_ends_an_app_that_waits_for_a_message(limited: Limited, protected: bool) -> None:
    raised: list[BaseException] = []
    asked = json.dumps({**ASK, "metadata": {"say": "100 stall"}})
    app = websocket.WebSocketApp(
        f"{limited.vendor.url}/v1/responses", on_open=lambda app: app.send(asked)
    )

    @guard.protect
    def converse() -> None:
        app.run_forever()

    def agent() -> None:
        try:
            with guard.workflow("w"):
                converse() if protected else app.run_forever()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=agent)
    thread.start()
    until(lambda: limited.vendor.bill)
    limited.tenant.admin.kill("w")
    thread.join(WAIT_S / 2)  # before the stand-in goes on by itself
    assert not thread.is_alive()
    assert [type(each) for each in raised] == [WorkflowKilledInterrupt]
    limited.vendor.go_on.set()
    until(lambda: limited.vendor.closed)


def test_a_lost_connection_costs_its_bound(limited: Limited) -> None:
    line = LINES[0](f"{limited.vendor.url}/v1/responses")
    with guard.workflow("w"):
        line.send({**ASK, "metadata": {"say": "50 cut"}})
        while line.receive() is not None:
            pass
    line.close()
    limited.runtime.flush()
    (event,) = limited.tenant.llm_events("w")
    assert event["data"]["estimate"] == "bound"
    assert {"estimated", "in_doubt"} <= set(event["flags"])
    assert limited.billed() <= limited.balance()["committed"]


MONEY = {
    RESPONSES: (OUTPUT_TOKENS, LIMIT),
    REALTIME: (4_000, 300_000_000),
    LIVE: (60_000, 92 * 10**8),
}
"""The tokens of each answer, and money for some: a Live turn is held at the whole context."""

ENDS: dict[str, type[BaseException]] = {
    "kill": WorkflowKilledInterrupt,
    "policy": guard.GuardToolBlockedError,
    "model": guard.GuardBlockedException,
    "budget": GuardBudgetError,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("opened", LINES)
@pytest.mark.parametrize("kind", KINDS)
def test_random_sessions_end_as_they_are_told(
    limited: Limited, opened: Open, kind: Kind, end: str
) -> None:
    """The bill is charged, whatever is said before; what is refused is neither sent nor read."""
    chosen = random.Random(f"{opened.__name__} {kind.path} {end}")
    admin, runtime, vendor = limited.tenant.admin, limited.runtime, limited.vendor
    output, money = MONEY[kind]
    money = money if end == "budget" else 10**13
    for model in ("gpt-realtime", "gemini-live"):
        sound = {"audio_per_mtok": RATES["output_per_mtok"]}
        admin.set_price(model, **RATES, **sound)
    admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=money)
    admin.set_policy("tools", tools_block=["delete_*"])
    until(lambda: runtime.enforcement.control.tools)
    seen: list[dict[str, Any]] = []
    tells = chosen.randrange(3)  # after how many answers
    line: Line

    def tell() -> None:
        if end == "kill":
            admin.kill("w")
            until(lambda: runtime.enforcement.control.kills.find("w", None, 0) is not None)
        elif end == "model":
            admin.set_policy("models", models_block=["gpt-*", "gemini-*"])

    def said(number: int) -> dict[str, Any]:
        says_tool = end == "policy" and number == tells
        if kind is REALTIME and not says_tool and chosen.random() < 0.3:
            line.send(APPEND)
            return COMMIT
        if kind is LIVE and end != "budget" and not says_tool and chosen.random() < 0.3:
            return {"realtimeInput": {"text": "Hello"}}
        frame = kind.ask(f"{output} tool" if says_tool else str(output))
        return {**frame, "max_output_tokens": output} if kind is RESPONSES else frame

    def agent() -> None:
        nonlocal line
        with guard.workflow("w"):
            line = opened_at(opened, vendor, kind)
            ends_s, number = time.monotonic() + WAIT_S, 0
            while time.monotonic() < ends_s:
                if number == tells:
                    tell()
                line.send(said(number))
                while (event := line.receive()) is not None:
                    seen.append(event)
                    if kind.is_done(event):
                        break
                number += 1

    with pytest.raises(ENDS[end]) as raised:
        agent()
    answers = len(vendor.bill)
    line.close()
    until(lambda: vendor.closed)
    assert len(vendor.bill) == answers
    if end in ("kill", "policy"):
        assert answers == tells + (end == "policy")
    assert sum(map(kind.is_done, seen)) == answers - (end == "policy")
    assert end != "budget" or answers, raised.value
    assert "delete_files" not in json.dumps(seen)
    assert limited.billed() <= limited.balance()["committed"] <= money
