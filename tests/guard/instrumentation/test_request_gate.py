"""The gate of LLM requests at every transport: held before the first byte, ended once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import httpx
import pytest

from guard.breaker.refusals import Refusal
from guard.core.buffer import Record
from guard.core.events import event_of
from guard.core.ids import IdFactory
from guard.scope.scope import Scope, current_scope
from tests.guard.instrumentation.conftest import Observed, start_observing
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import (
    ASK,
    CHAT,
    CLIENTS,
    INSIDE,
    STREAM,
    by_boto3,
    by_httpx,
)
from tests.guard.instrumentation.matrix import (
    anthropic_cases,
    openai_cases,
    other_cases,
    plain_cases,
)
from tests.guard.instrumentation.matrix.other_cases import CONVERSE, bedrock_client
from tests.guard.instrumentation.matrix.registry import (
    CASES,
    UNFINISHED,
    Case,
    UnavailableError,
    installed,
)
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import until, until_async

REGISTERED = (anthropic_cases, openai_cases, other_cases, plain_cases)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_way_to_make_a_call_is_held_once_and_settled_once(
    case: Case, standin: StandIn, gate: FakeGate, gated: Observed
) -> None:
    if installed(case.client) is None:
        pytest.skip(f"{case.client} is not installed")
    covered = gate.covered = CASES.index(case) % 3 > 0
    standin.hold = case.mode in UNFINISHED
    try:
        case(standin.url)
    except UnavailableError:
        pytest.skip("this release of the client does not have it")
    (event,) = gated.events
    (held,) = gate.holds
    (end,) = gate.ends
    assert len(gate.asked) == (not covered)
    assert gated.calls[0].reservation_id == held.reservation_id
    if case.mode in UNFINISHED or event.estimated:
        assert (end, event.estimate) == ("kept", "bound")
    else:
        assert (end.input_tokens, end.output_tokens) == (event.input_tokens, event.output_tokens)
    assert held.bound.model
    assert event.model.startswith(held.bound.model)
    assert held.bound.streams == ("stream" in case.mode or case.mode in (*UNFINISHED, "helper"))
    if case.endpoint in ("embeddings", "embedContent", "embed", "rerank"):
        assert held.bound.output_tokens == 0


class TestStoodStill:
    """The process was suspended, or frozen, with money that has gone to others meanwhile."""

    @pytest.mark.parametrize("client", CLIENTS)
    def test_a_request_asks_again_before_it_leaves(
        self, client: Callable[[str], None], standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        gate.lapses = True
        client(standin.url)
        assert len(standin.bodies) == len(gate.asked) == 1
        assert len(gated.events) == 1
        assert gated.calls[0].reservation_id == gate.holds[1].reservation_id
        assert [held.ends[0] == "back" for held in gate.holds] == [True, False]

    @pytest.mark.parametrize("client", CLIENTS)
    def test_and_does_not_leave_if_it_is_refused(
        self, client: Callable[[str], None], standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        gate.lapses, gate.left = True, 1
        with pytest.raises(Refusal):
            client(standin.url)
        assert not any(standin.bodies)
        assert gate.ends == ["back"]
        assert gated.events == []
        assert not gated.instrumentation._open

    def test_an_upload_that_is_streamed_asks_again_too(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        gate.lapses, gate.left = True, 1
        speech = {"file": ("a.wav", b"RIFF", "audio/wav")}
        with pytest.raises(Refusal):
            httpx.post(
                f"{standin.url}/v1/audio/transcriptions", data={"model": "whisper-1"}, files=speech
            )
        assert not any(standin.bodies)


class TestRefused:
    @pytest.mark.parametrize("covered", [True, False], ids=["by the lease", "by the gateway"])
    @pytest.mark.parametrize("client", CLIENTS)
    def test_before_the_first_byte_and_no_client_tries_again(
        self,
        client: Callable[[str], None],
        covered: bool,
        standin: StandIn,
        gate: FakeGate,
        gated: Observed,
    ) -> None:
        gate.left, gate.covered = 0, covered
        with pytest.raises(Refusal):
            client(standin.url)
        assert standin.bodies == []
        assert len(gate.asked) <= 1
        assert gated.events == []
        assert not gated.instrumentation._open

    @pytest.mark.parametrize("client", CLIENTS)
    def test_the_vendors_own_refusal_costs_nothing_and_each_retry_is_a_request(
        self, client: Callable[[str], None], standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        standin.instead = Reply(None, b'{"error": {}}')
        standin.status = 400
        with contextlib.suppress(Exception):  # each client has its own
            client(standin.url)
        assert len(gate.holds) == len(standin.bodies) == 1
        assert gate.ends == ["back"]

    def test_each_retry_of_a_client_is_held_by_itself(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        import openai

        standin.instead = Reply(None, b"{}", headers={"retry-after-ms": "1"})
        standin.status = 503
        with (
            openai.OpenAI(base_url=f"{standin.url}/v1", api_key="k", max_retries=3) as api,
            pytest.raises(openai.InternalServerError),
        ):
            api.chat.completions.create(**ASK)
        assert gate.ends == ["back"] * 4

    def test_the_edge_learns_of_a_refusal_that_a_framework_swallowed(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        from guard.scope.scope import Entry

        gate.left = 0
        entry = Entry(INSIDE)
        current_scope.set(INSIDE.evolve(entry=entry))
        with pytest.raises(Refusal) as caught:
            by_httpx(standin.url)
        assert entry.refused is caught.value.error


class TestScope:
    def test_outside_of_any_it_is_held_too(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        current_scope.set(Scope())
        by_httpx(standin.url)
        [hold] = gate.holds
        assert gated.calls[0].reservation_id == hold.reservation_id

    def test_a_poll_is_not_held(self, standin: StandIn, gate: FakeGate, gated: Observed) -> None:
        httpx.get(f"{standin.url}/v1/responses/resp_1")
        assert gate.holds == []

    def test_a_path_of_something_else_is_not_held(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        httpx.post(f"{standin.url}/v1/messages", json={"to": "ada", "text": "hello"})
        assert gate.holds == []


class TestManyAtOnce:
    def test_a_question_waits_on_the_callers_loop_and_does_not_block_it(
        self, standin: StandIn, gated: Observed
    ) -> None:
        class Together(FakeGate):
            """Answers when all have asked, and the loop has gone on meanwhile."""

            ticks = 0

            def ask(self, scope: Scope, bound: Any, limit: Any) -> Any:
                raise AssertionError("it blocks the loop")

            async def ask_async(self, scope: Scope, bound: Any, limit: Any) -> Any:
                self.asked.append(bound)
                await until_async(lambda: len(self.asked) == 20 and self.ticks >= 10)
                return self._grant(scope, bound)

            async def tick(self) -> None:
                while True:
                    await asyncio.sleep(0.01)
                    self.ticks += 1

        together = Together(covered=False)
        gated.account.request_gate = together

        async def main() -> None:
            ticking = asyncio.create_task(together.tick())
            async with httpx.AsyncClient() as client, aiohttp.ClientSession() as session:
                await asyncio.gather(
                    *(client.post(standin.url + CHAT, json=ASK) for _ in range(10)),
                    *(session.post(standin.url + CHAT, json=ASK) for _ in range(10)),
                )
            ticking.cancel()

        asyncio.run(main())
        assert len(together.asked) == len(together.holds) == 20

    def test_a_hundred_gathered_requests_and_money_for_ten(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        gate.left = 10

        async def main() -> list[Any]:
            async with httpx.AsyncClient() as client:
                return await asyncio.gather(
                    *(client.post(standin.url + CHAT, json=ASK) for _ in range(100)),
                    return_exceptions=True,
                )

        answers = asyncio.run(main())
        assert sum(isinstance(answer, Refusal) for answer in answers) == 90
        assert len(standin.bodies) == len(gated.events) == len(gate.ends) == 10

    def test_threads(self, standin: StandIn, gate: FakeGate, gated: Observed) -> None:
        gate.left, gate.covered = 10, False

        def one(_: int) -> bool:
            current_scope.set(INSIDE)
            try:
                by_httpx(standin.url)
            except Refusal:
                return False
            return True

        with ThreadPoolExecutor(20) as pool:
            assert sum(pool.map(one, range(60))) == 10
        assert len(standin.bodies) == len(gated.events) == len(gate.ends) == 10

    def test_cancelled_while_it_waits_it_is_forgotten(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        gate.covered, gate.waits_s = False, 30

        async def main() -> None:
            async with httpx.AsyncClient() as client:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.post(standin.url + CHAT, json=ASK), 0.1)

        asyncio.run(main())
        assert standin.bodies == []
        assert not gated.instrumentation._open
        assert gated.events == []

    def test_unread_answers_are_settled_before_the_gateway_is_asked(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        """An answer holds its worst case until it is read; nobody is to wait because of that."""

        class Lease(FakeGate):
            def hold(self, scope: Scope, bound: Any) -> Any:
                if any(not held.ends for held in self.holds):
                    return None
                return super().hold(scope, bound)

        lease = Lease()
        gated.account.request_gate = lease
        for _ in range(3):
            by_httpx(standin.url)
        assert lease.asked == []
        assert len(lease.holds) == 3


class TestEnds:
    def test_a_request_that_was_not_sent_is_given_back(
        self, gate: FakeGate, gated: Observed
    ) -> None:
        with pytest.raises(httpx.ConnectError):
            httpx.post("http://127.0.0.1:1/v1/chat/completions", json=ASK)
        assert gate.ends == ["back"]
        assert gated.events == []

    def test_what_was_sent_and_not_answered_costs_its_hold(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        standin.hold = True
        with (
            httpx.Client(timeout=httpx.Timeout(30, read=0.3)) as client,
            pytest.raises(httpx.ReadTimeout),
        ):
            client.post(standin.url + CHAT, json=STREAM | {"max_tokens": 321})
        until(lambda: standin.bodies)  # it may be late with that, and belongs to no other test
        (event,) = gated.events
        assert gate.ends == ["kept"]
        assert (event.model, event.output_tokens, event.estimated) == ("gpt-5", 321, True)
        assert event.input_tokens > 0

    def test_an_answer_without_usage_costs_its_hold(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        standin.instead = Reply(None, encoded({"id": "c", "choices": []}))
        httpx.post(standin.url + CHAT, json=ASK)
        (event,) = gated.events
        assert gate.ends == ["kept"]
        assert (event.output_tokens, event.estimated) == (gate.assumed_output, True)
        assert gated.instrumentation.unseen_hosts() == ("127.0.0.1",)

    def test_a_background_answer_holds_its_money_until_it_is_polled(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        reply = encoded({"id": "resp_1", "object": "response", "status": "queued", "model": "m"})
        standin.instead = Reply(None, reply)
        httpx.post(f"{standin.url}/v1/responses", json={"model": "m", "input": "a"})
        assert gated.events == []
        assert gate.holds[0].ends == []
        usage = {"input_tokens": 5, "output_tokens": 7}
        ended = {"id": "resp_1", "object": "response", "status": "completed", "model": "m"}
        standin.instead = Reply(None, encoded({**ended, "usage": usage}))
        httpx.get(f"{standin.url}/v1/responses/resp_1")
        (event,) = gated.events
        assert (event.input_tokens, event.output_tokens, event.estimated) == (5, 7, False)
        assert gate.ends[0].output_tokens == 7

    def test_an_answer_from_a_cache_that_is_known_costs_nothing(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 7}
        reply = encoded({"id": "c1", "model": "gpt-5", "choices": [], "usage": usage})
        standin.instead = Reply(None, reply)
        httpx.post(standin.url + CHAT, json=ASK)
        standin.instead = Reply(None, reply, headers={"age": "3"})
        httpx.post(standin.url + CHAT, json=ASK)
        assert len(gated.events) == 1
        assert gate.ends[1] == "back"

    def test_the_end_of_the_process_ends_what_is_open(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        with httpx.Client() as client:
            client.send(client.build_request("POST", standin.url + CHAT, json=STREAM), stream=True)
            gated.instrumentation.close()
        assert len(gate.ends) == 1

    def test_an_event_that_cannot_be_recorded_keeps_its_hold(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        def broken(kind: str, payload: Any, scope: Scope | None = None) -> int:
            raise MemoryError

        gated.account.record = broken
        by_httpx(standin.url)
        assert gate.ends == ["kept"]

    def test_the_event_names_the_hold_and_not_the_call_around_it(self) -> None:
        from guard.core.events import InstrumentedCall
        from guard.core.usage import Usage
        from guard.scope.scope import CallRecord

        scope = INSIDE.evolve(call=CallRecord("c", "of-the-call"))
        for named, expected in (("lease-1", "lease-1"), (None, "of-the-call")):
            call = InstrumentedCall("openai", 1.0, usage=Usage(), reservation_id=named)
            event = event_of(Record("llm", 1, 1, scope.event_fields, call), IdFactory())
            assert event is not None
            assert event.reservation_id == expected

    def test_a_models_ratio_is_learned_from_its_answers(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        usage = {"prompt_tokens": 9_000, "completion_tokens": 7}
        standin.instead = Reply(None, encoded({"model": "gpt-5", "choices": [], "usage": usage}))
        long = {**ASK, "messages": [{"role": "user", "content": "to be " * 1_700}]}
        for _ in range(2):
            httpx.post(standin.url + CHAT, json=long)
            assert len(gated.events) == len(gate.ends)
        first, second = (held.bound.input_tokens for held in gate.holds)
        assert (first or 0) < 9_000 <= (second or 0)


class TestBodies:
    @pytest.mark.parametrize(
        "options",
        [
            {"json": ASK},
            {"data": json.dumps(ASK)},
            {"data": json.dumps(ASK).encode()},
            {"data": aiohttp.BytesPayload(json.dumps(ASK).encode())},
            {"data": aiohttp.JsonPayload(ASK)},
        ],
        ids=["json", "text", "bytes", "payload", "json payload"],
    )
    def test_of_aiohttp_are_bounded_however_they_are_given(
        self, options: dict[str, Any], standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        async def main() -> None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(standin.url + CHAT, **options) as response,
            ):
                await response.read()

        asyncio.run(main())
        assert gate.holds[0].bound.model == "gpt-5"
        assert gate.holds[0].bound.input_tokens is not None

    def test_that_are_made_while_they_are_sent_have_no_bound(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        httpx.post(standin.url + CHAT, content=iter([json.dumps(ASK).encode()]))
        bound = gate.holds[0].bound
        assert (bound.model, bound.input_tokens, bound.output_tokens) == (None, None, None)


class TestLimit:
    @pytest.fixture
    def limited(self, gate: FakeGate) -> Iterator[Observed]:
        observing = start_observing(request_gate=gate, max_output_tokens=77)
        token = current_scope.set(INSIDE)
        yield observing
        current_scope.reset(token)
        observing.instrumentation.uninstall()

    @pytest.mark.parametrize("client", [c for c in CLIENTS if c is not by_boto3])
    def test_is_put_into_requests_without_one(
        self, client: Callable[[str], None], standin: StandIn, gate: FakeGate, limited: Observed
    ) -> None:
        client(standin.url)
        (body,) = standin.bodies
        anthropic = "anthropic" in client.__name__
        assert gate.holds[0].bound.output_tokens == (9 if anthropic else 77)
        assert (b"77" in body) is not anthropic
        assert json.loads(body)

    def test_a_signed_request_is_left_alone(
        self, standin: StandIn, gate: FakeGate, limited: Observed
    ) -> None:
        asked = {name: value for name, value in CONVERSE.items() if name != "inferenceConfig"}
        bedrock_client(standin.url).converse(**asked)
        assert b"77" not in standin.bodies[0]
        assert gate.holds[0].bound.output_tokens is None

    def test_a_request_with_one_keeps_it(
        self, standin: StandIn, gate: FakeGate, limited: Observed
    ) -> None:
        httpx.post(standin.url + CHAT, json=ASK | {"max_tokens": 5})
        assert json.loads(standin.bodies[0]) == ASK | {"max_tokens": 5}


def test_a_gate_is_thread_safe_to_read_from(gate: FakeGate, standin: StandIn) -> None:
    """Answers that one thread reads are settled once, although another reads them too."""
    observing = start_observing(request_gate=gate)
    token = current_scope.set(INSIDE)
    try:
        for _ in range(50):
            by_httpx(standin.url)
        readers = [threading.Thread(target=lambda: observing.events) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        current_scope.reset(token)
        observing.instrumentation.uninstall()
    assert len(gate.ends) == 50
