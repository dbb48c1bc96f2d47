"""Odd answers are read right where they can be read, and cost their bound where they cannot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import guard
from guard.core.events import llm_data
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.core.usage.ends import Ending
from guard.core.usage.recording import HEAD_BYTES
from guard.core.usage.response_format import replaced
from guard.core.wire import LlmData
from guard.scope.scope import current_scope
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.conftest import Observed, start_observing
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import INSIDE
from tests.guard.instrumentation.odd_answers import (
    READABLE,
    STRANGE_COUNTS,
    Answer,
    answers,
    counts_as,
    kind_of,
)
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.guard.instrumentation.test_ends import PricedGate, PricedHold

ANSWERS = answers()
HOST = "llm.example.com"
LOGGER = "guard.instrumentation"
REQUEST = encoded(
    {
        "model": "m", "max_tokens": 4096, "stream": True,
        "messages": [{"role": "user", "content": "Hello? " * 30}],
    }
)  # fmt: skip


class Bench:
    """Answers requests without a network, and says what each was charged."""

    def __init__(self) -> None:
        self.gate = PricedGate()
        self.observed: Observed = start_observing(request_gate=self.gate)

    def charge(
        self,
        answer: Answer,
        *,
        streamed: bool | None = None,
        chunks: int = 0,
        ending: Ending = Ending.COMPLETE,
    ) -> tuple[LlmData | None, PricedHold]:
        """Answer one request; return its event, and its hold, which has ended once.

        Args:
            answer: what comes.
            streamed: whether the client reads it piece by piece; None for a stream only.
            chunks: of how many bytes each piece is; 0 means all at once.
            ending: how a stream ends.
        """
        instrumentation = self.observed.instrumentation
        before = len(self.observed.calls)
        request = REQUEST.replace(b'"m"', encoded(answer.asked_model))
        call = instrumentation.begin("POST", HOST, answer.path, lambda: request)
        assert call is not None
        assert not call.uncovered
        call.sent_s, call.tried = call.started_s, 0
        header = answer.headers.get
        if answer.is_stream if streamed is None else streamed:
            assert call.streaming(200, header, "")
            size = chunks or len(answer.data) or 1
            for start in range(0, len(answer.data), size):
                call.feed(answer.data[start : start + size])
            call.finish(ending)
        else:
            call.whole(200, header, answer.data)
        made = self.observed.calls[before:]
        events = [data for each in made if (data := llm_data(each, "id")) is not None]
        del self.observed.calls[:]
        assert instrumentation.failures == 0, "nothing was raised"
        hold = self.gate.holds.pop()
        assert len(hold.ends) == 1, "its hold has ended once"
        assert len(events) <= 1
        return (events[0] if events else None), hold  # type: ignore[return-value]  # of PricedGate


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    token = current_scope.set(INSIDE)
    yield made
    current_scope.reset(token)
    made.observed.instrumentation.uninstall()


def cost(event: LlmData | None) -> int:
    """Return what an event costs, at a nano-dollar each token."""
    if event is None:
        return 0
    if event.cost_nanousd is not None:
        return event.cost_nanousd
    return (
        event.input_tokens + event.output_tokens + event.cache_read_tokens
        + event.cache_write_tokens + event.reasoning_tokens + event.audio_tokens
    )  # fmt: skip


def spent(usage: Usage) -> int:
    """Return what a usage costs, likewise."""
    return (
        usage.input_tokens + usage.output_tokens + usage.cache_read_tokens
        + usage.cache_write_tokens + usage.reasoning_tokens + usage.audio_tokens
    )  # fmt: skip


def _as_said(usage: Any) -> Usage:
    assert isinstance(usage, Usage), usage
    return replaced(usage, fees=None, text_tokens=0)


def is_dear(event: LlmData | None, hold: PricedHold, truth: Usage) -> bool:
    """Tell whether what cannot be read was charged at least its bound, or what was billed."""
    # Sound in a form that cannot be read here has no bound of its own: its words are counted.
    least = 1 if hold.bound.input_tokens is None else min(spent(truth), hold.amount_nanousd)
    return 0 < cost(event) >= least


@pytest.mark.generator("odd answers: bodies, counts and cuts")
@pytest.mark.parametrize("oddity", READABLE)
def test_an_odd_answer_is_read_right(
    bench: Bench, oddity: str, count_cases: Callable[[int], None]
) -> None:
    change, kinds = READABLE[oddity]
    made_to = [name for name, answer in ANSWERS.items() if kind_of(answer) in kinds]
    for name in made_to:
        answer = ANSWERS[name]
        odd = change(answer)
        pieces = [(True, 0), (True, 7 if len(odd.data) < 20_000 else 999)]
        for streamed, chunks in pieces if answer.is_stream else [(False, 0), *pieces]:
            event, hold = bench.charge(odd, streamed=streamed, chunks=chunks)
            assert event is not None, name
            assert not event.estimated, name
            assert _as_said(hold.ends[0]) == answer.usage, name
            count_cases(1)
    assert made_to


TEXTS = {name: answer for name, answer in ANSWERS.items() if kind_of(answer) != "binary"}


@pytest.mark.parametrize("form", ['"{}"', "{}.0", '" {} "', '"{}.0"', "{}e0"])
def test_counts_in_another_form_are_read(bench: Bench, form: str) -> None:
    for name, answer in TEXTS.items():
        event, hold = bench.charge(counts_as(form)(answer))
        assert event is not None, name
        assert not event.estimated, name
        assert _as_said(hold.ends[0]) == answer.usage, name


@pytest.mark.generator("odd answers: bodies, counts and cuts")
@pytest.mark.parametrize("form", STRANGE_COUNTS)
def test_counts_that_are_none_cost_the_bound(
    bench: Bench, form: str, count_cases: Callable[[int], None]
) -> None:
    checks = 0
    for name, answer in TEXTS.items():
        odd = counts_as(form)(answer)
        if odd.data != answer.data and spent(answer.usage):  # another one counts something else
            event, hold = bench.charge(odd)
            assert event is not None, name
            assert event.estimated, name
            assert is_dear(event, hold, answer.usage), name
            checks += 1
    assert checks > len(TEXTS) // 2
    count_cases(checks)


def check_cut(bench: Bench, answer: Answer, end: int, ending: Ending, streamed: bool) -> None:
    """Check what an answer is charged of which no more than so many bytes came."""
    cut = answer.with_data(answer.data[:end])
    event, hold = bench.charge(cut, streamed=streamed, ending=ending)
    if event is not None and not event.estimated:
        assert _as_said(hold.ends[0]) == answer.usage, end
    else:
        assert is_dear(event, hold, answer.usage), end


def cuts(data: bytes, step: int = 1) -> Iterator[int]:
    """Every byte, or each so many; of the middle of a vector or an image less."""
    most = 5000 if len(data) < 10_000 else 300
    for end in range(0, len(data), step):
        if end < most or end > len(data) - most or end % (9973 * step) == 0:
            yield end


ENDINGS = (Ending.COMPLETE, Ending.LOST, Ending.CLOSED)
SMALL = {name: answer for name, answer in ANSWERS.items() if len(answer.data) < 10_000}


@pytest.mark.generator("odd answers: bodies, counts and cuts")
def test_cut_here_and_there(bench: Bench, count_cases: Callable[[int], None]) -> None:
    """By a server that ends there, by a connection that is lost, by a reader who leaves."""
    checks = 0
    for answer in SMALL.values():
        for ending, end in zip(itertools.cycle(ENDINGS), cuts(answer.data, 17), strict=False):
            check_cut(bench, answer, end, ending, True)
            checks += 1
    assert checks > 1000
    count_cases(checks)


@pytest.mark.long
@pytest.mark.generator("odd answers: bodies, counts and cuts")
@pytest.mark.parametrize("name", ANSWERS)
def test_cut_at_every_byte(bench: Bench, name: str, count_cases: Callable[[int], None]) -> None:
    answer = ANSWERS[name]
    for end in cuts(answer.data):
        for ending in ENDINGS:
            check_cut(bench, answer, end, ending, True)
        if not answer.is_stream:
            check_cut(bench, answer, end, Ending.COMPLETE, False)
        count_cases(len(ENDINGS) + (not answer.is_stream))


ODD_CUTS = [oddity for oddity in READABLE if oddity != "as it is"]


@pytest.mark.long
@pytest.mark.generator("odd answers: bodies, counts and cuts")
@pytest.mark.parametrize("oddity", ODD_CUTS)
def test_odd_and_cut_at_every_byte(
    bench: Bench, oddity: str, count_cases: Callable[[int], None]
) -> None:
    change, kinds = READABLE[oddity]
    checks = 0
    for answer in SMALL.values():
        if kind_of(answer) in kinds:
            odd = change(answer)
            for ending, end in zip(itertools.cycle(ENDINGS), cuts(odd.data), strict=False):
                check_cut(bench, odd, end, ending, True)
                checks += 1
    count_cases(checks)


_LARGE = 20 * 1024 * 1024


@pytest.mark.parametrize("place", ["before", "after", "around"])
@pytest.mark.parametrize("name", ["chat", "responses", "anthropic", "gemini", "cohere", "ollama"])
def test_a_whole_answer_of_20_megabytes_to_a_stream(bench: Bench, name: str, place: str) -> None:
    answer = ANSWERS[name]
    filler = b'"filler":"' + b"x" * _LARGE + b'"'
    data = answer.data
    if place != "after":
        data = b"{" + filler + b"," + data[1:]
    if place != "before":
        data = data.rstrip()[:-1] + b"," + filler + b"}"
    for streamed in (True, False):
        event, hold = bench.charge(answer.with_data(data), streamed=streamed, chunks=1024 * 1024)
        if event is not None and not event.estimated:
            assert _as_said(hold.ends[0]) == answer.usage
        else:
            assert streamed
            assert place == "around" or len(answer.data) > HEAD_BYTES, "it is in the middle"
            assert is_dear(event, hold, answer.usage)


class TestCaches:
    """Only what a cache says it has kept is an earlier answer over again."""

    @pytest.mark.parametrize("age", ["0", "", "-1", "x", "0.0"])
    def test_ids_that_are_used_again_are_charged_again(self, bench: Bench, age: str) -> None:
        """Some servers give every answer the same id."""
        answer = ANSWERS["chat"].with_data(ANSWERS["chat"].data, age=age)
        for _ in range(3):
            event, _ = bench.charge(answer)
            assert cost(event) == spent(answer.usage)

    def test_an_age_is_a_cache(self, bench: Bench) -> None:
        answer = ANSWERS["chat"].with_data(ANSWERS["chat"].data, age="5")
        found = [bench.charge(answer) for _ in range(2)]
        assert [cost(event) for event, _ in found] == [spent(answer.usage), 0]
        assert found[1][1].ends == ["back"]


class TestAtTheGateway:
    """What a request inside a workflow with a budget is charged in the end."""

    PROMPT_NANOUSD, OUTPUT_NANOUSD = 1_000, 4_000

    def _committed(self, tenant: Tenant, start: Any, standin: StandIn, usage: str) -> int:
        rates = {"input_per_mtok": self.PROMPT_NANOUSD * 10**6,
                 "output_per_mtok": self.OUTPUT_NANOUSD * 10**6}  # fmt: skip
        tenant.admin.set_price("gpt-5", **rates)
        tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=10**12)
        runtime = start()
        standin.instead = Reply(
            None, b'{"id":"c","model":"gpt-5","choices":[],"usage":' + usage.encode() + b"}"
        )
        asked = {
            "model": "gpt-5", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}],
        }  # fmt: skip
        with guard.workflow("w"), httpx.Client() as client:
            client.post(standin.url + "/v1/chat/completions", json=asked).raise_for_status()
        runtime.flush()
        (row,) = (row for row in tenant.admin.ledger() if row["scope_id"] == "w")
        return int(row["committed"])

    def test_counts_as_strings(self, tenant: Tenant, start: Any, standin: StandIn) -> None:
        said = '{"prompt_tokens":"10","completion_tokens":"20"}'
        committed = self._committed(tenant, start, standin, said)
        assert committed == 10 * self.PROMPT_NANOUSD + 20 * self.OUTPUT_NANOUSD

    @pytest.mark.parametrize("count", ["2000000000", "2e9", "-1", '"many"', "null"])
    def test_counts_that_are_none(
        self, tenant: Tenant, start: Any, standin: StandIn, count: str
    ) -> None:
        said = f'{{"prompt_tokens":{count},"completion_tokens":{count}}}'
        committed = self._committed(tenant, start, standin, said)
        bound = 1000 * self.OUTPUT_NANOUSD
        assert bound <= committed <= bound + 200 * self.PROMPT_NANOUSD


@pytest.mark.parametrize("held", [True, False])
def test_the_log_says_what_is_charged(
    bench: Bench, held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    silent = ANSWERS["chat"].with_data(b'{"choices":[]}')
    if not held:
        bench.gate = PricedGate()
        bench.observed.account.request_gate = None
        bench.gate.hold(INSIDE, RequestBound("openai", "m", 1, 1))
        bench.gate.holds[0].ends.append("none")
    with caplog.at_level("WARNING", logger=LOGGER):
        event, _ = bench.charge(silent)
    (said,) = (each.getMessage() for each in caplog.records if each.name == LOGGER)
    assert "no usage that can be read" in said
    assert ("charged what was set aside" in said) is held is (cost(event) > 0)
    assert ("not charged" in said) is not held


@pytest.mark.parametrize("oddity", [oddity for oddity in READABLE if oddity != "an age of zero"])
def test_the_user_gets_every_byte(
    standin: StandIn, gate: FakeGate, gated: Observed, oddity: str
) -> None:
    """Through a real client, at once and in pieces."""
    change, kinds = READABLE[oddity]
    for name in ("chat", "chat, streamed"):
        answer = ANSWERS[name]
        if kind_of(answer) not in kinds:
            continue
        odd = change(answer)
        pieces = tuple(odd.data[start : start + 50] for start in range(0, len(odd.data), 50))
        standin.instead = Reply(answer.usage, events=pieces, content_type=odd.content_type)
        asked = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
        with httpx.Client() as client:
            whole = client.post(standin.url + answer.path, json=asked)
            with client.stream("POST", standin.url + answer.path, json=asked) as response:
                streamed = b"".join(response.iter_raw())
        assert whole.content == streamed == odd.data
        assert len(gated.events) == 2
        assert [_as_said(end) for end in gate.ends] == [answer.usage] * 2
        gate.holds.clear()
        gated.calls.clear()
    assert gated.instrumentation.failures == 0
