"""Answers are read where their events are made, later than they come, and yet once each."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import httpx
import msgspec
import pytest

import guard
from guard.core.buffer import Record
from guard.core.events import InstrumentedCall, event_of, is_event
from guard.core.ids import IdFactory
from guard.delivery.batch import encoded as encoded_events
from guard.instrumentation import Instrumentation
from guard.runtime import active
from guard.scope.scope import OUTSIDE
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.conftest import Observed, RecordingAccount
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S

CHAT = "/v1/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SILENT = Reply(None, encoded({"choices": []}))


def records_of(calls: list[InstrumentedCall]) -> list[Record]:
    return [
        Record("llm", 1, number, OUTSIDE.event_fields, call) for number, call in enumerate(calls)
    ]


class TestReading:
    def test_the_caller_does_not_wait_for_it(self, standin: StandIn, observed: Observed) -> None:
        httpx.post(standin.url + CHAT, json=ASK)
        (call,) = observed.calls
        assert call.answer is not None
        assert call.usage is None
        (event,) = observed.events
        assert event.input_tokens > 0
        assert call.answer is None  # and the answer is let go of

    def test_an_answer_is_read_once(self, standin: StandIn, observed: Observed) -> None:
        httpx.post(standin.url + CHAT, json=ASK)
        (record,) = records_of(observed.calls)
        ids = IdFactory()
        assert event_of(record, ids) == event_of(record, ids)
        (event,) = observed.events
        data = event_of(record, ids).data  # type: ignore[union-attr]
        assert data == msgspec.structs.replace(event, request_id=data.request_id)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_is_large_is_read_at_once(
        self, standin: StandIn, observed: Observed, stream: bool
    ) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 6}
        body = encoded({"id": "big", "model": "m", "x": "y" * 100_000, "usage": usage})
        standin.instead = Reply(None, body)
        if stream:
            with httpx.stream("POST", standin.url + CHAT, json=ASK) as response:
                response.read()
        else:
            httpx.post(standin.url + CHAT, json=ASK)
        (call,) = observed.calls
        assert (call.answer is None) is not stream  # of a stream no more than its ends are kept
        assert [(e.input_tokens, e.output_tokens) for e in observed.events] == [(5, 6)]

    def test_few_answers_wait(self, standin: StandIn, observed: Observed) -> None:
        kept = []
        with httpx.Client() as client:
            for _ in range(300):
                response = client.post(standin.url + CHAT, json=ASK)
                kept.append(weakref.ref(response.headers))
                del response
        gc.collect()
        assert sum(call.answer is not None for call in observed.calls) <= 128
        assert sum(reference() is not None for reference in kept) <= 128
        assert len(observed.events) == 300

    def test_switching_off_reads_what_waits(self, standin: StandIn, observed: Observed) -> None:
        httpx.post(standin.url + CHAT, json=ASK)
        observed.instrumentation.uninstall()
        assert [call.answer for call in observed.calls] == [None]
        assert len(observed.events) == 1

    def test_a_forked_child_leaves_it_to_its_parent(
        self, standin: StandIn, observed: Observed
    ) -> None:
        standin.instead = SILENT
        httpx.post(standin.url + CHAT, json=ASK)
        child = os.fork()
        if child == 0:
            observed.instrumentation.after_fork()
            os._exit(len(observed.instrumentation.unseen_hosts()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert observed.instrumentation.unseen_hosts() == ("127.0.0.1",)


class TestNoEvent:
    def test_is_neither_sent_nor_broken(self, standin: StandIn, observed: Observed) -> None:
        httpx.post(standin.url + CHAT, json=ASK)
        standin.instead = SILENT
        httpx.post(standin.url + CHAT, json=ASK)
        records = records_of(observed.calls)
        events, good, broken = encoded_events(records, IdFactory())
        assert (len(events), good, broken) == (1, records[:1], 0)
        assert [is_event(record) for record in records] == [True, False]

    def test_is_no_loss_at_a_gateway(self, standin: StandIn, tenant: Tenant) -> None:
        guard.init(api_key=tenant.key, api_url=tenant.url)
        runtime: Any = active.current
        httpx.post(standin.url + CHAT, json=ASK)
        standin.instead = SILENT
        httpx.post(standin.url + CHAT, json=ASK)
        runtime.flush()
        status = guard.status()
        assert (status.events_sent, status.events_lost, status.buffered) == (2, 0, 0), (
            "what an answer without usage held is charged by an event of its own"
        )
        assert status.unseen_hosts == ("127.0.0.1",)

    def test_is_no_loss_without_one(self, standin: StandIn) -> None:
        standin.instead = SILENT
        guard.GuardRuntime("k", "http://127.0.0.1:9", fallback_mode="open").open()
        httpx.post(standin.url + CHAT, json=ASK)
        runtime: Any = active.current
        guard.shutdown(WAIT_S)
        assert runtime.status().events_lost == 0


def test_no_hook_keeps_an_instrumentation_alive(standin: StandIn) -> None:
    def record(kind: str, payload: Any, scope: Any = None) -> int:
        kept.append(payload)
        return 1

    kept: list[Any] = []
    instrumentation = Instrumentation(RecordingAccount(record))
    instrumentation.install()
    httpx.post(standin.url + CHAT, json=ASK)
    instrumentation.uninstall()
    alive = weakref.ref(instrumentation)
    del instrumentation
    gc.collect()
    assert len(kept) == 1
    assert alive() is None
