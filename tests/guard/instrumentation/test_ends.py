"""In doubt, dear: every client, cut off at every moment in every way, is charged what is billed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest
import requests

from guard.core.usage.ends import ChargeBy, Ending, Evidence, UsageKind, charge_of
from tests.guard.instrumentation import cut_clients
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.cut_clients import ASYNC, BLOCKING, LEAVING, PATH
from tests.guard.instrumentation.fake_gate import FakeGate, FakeHold
from tests.guard.instrumentation.gated_clients import by_aiohttp, by_httpx, by_requests
from tests.guard.instrumentation.standin.reply import Reply, sse
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.cutting_vendor import MOMENTS, Moment, Way, cutting_vendor
from tests.support.waiting import WAIT_S


@attrs.define(eq=False)
class PricedHold(FakeHold):
    """A hold at one nano-dollar a token."""

    @property
    def amount_nanousd(self) -> int:
        return self.cost_at_most(self.bound.input_tokens or 0, self.output_tokens or 0)

    def cost_at_most(self, input_tokens: int, output_tokens: int) -> int:
        return input_tokens + output_tokens


class PricedGate(FakeGate):
    def _grant(self, scope: Any, bound: Any) -> FakeHold:
        held = super()._grant(scope, bound)
        self.holds[-1] = PricedHold(held.bound, self, held.reservation_id, held.output_tokens)
        return self.holds[-1]


@pytest.fixture
def gate() -> FakeGate:
    return PricedGate()


def charged(gated: Observed) -> int:
    """Return the tokens of all events, at one nano-dollar each."""
    total = 0
    for event in gated.events:
        tokens = event.input_tokens + event.output_tokens
        total += tokens if event.cost_nanousd is None else event.cost_nanousd
    return total


# Clients that are cut off leave connections open, which the collector finds in a later test.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


NOTHING_BILLED: tuple[Moment, ...] = ("at once", "overloaded")


@pytest.mark.parametrize("send", [by_httpx, by_requests, by_aiohttp])
@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
def test_a_redirect_that_nobody_follows_costs_nothing(
    standin: StandIn,
    gated: Observed,
    gate: FakeGate,
    send: Callable[[str], None],
    status: int,
) -> None:
    standin.status, standin.instead = status, Reply(None, b"")
    send(standin.url)
    assert gated.events == []
    assert gate.ends == ["back"]


def check(
    gated: Observed,
    gate: FakeGate,
    billed: int,
    moment: Moment,
    stream: bool,
    loses_the_end: bool = False,
) -> None:
    total = charged(gated)
    assert total >= billed
    assert len(gate.ends) == len(gate.holds), "each hold has ended once"
    assert gated.instrumentation.failures == 0
    if moment == "after usage" and stream and not loses_the_end:
        assert total == billed, "its usage was seen"
    if moment == "overloaded":
        assert total == 0, "the vendor has refused it"


@pytest.mark.generator("ends of requests, by client, moment and way")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", ["reset", "disconnect", "hang"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("client", BLOCKING)
def test_of_a_blocking_client(
    client: str, moment: Moment, way: Way, stream: bool, gated: Observed, gate: FakeGate
) -> None:
    with cutting_vendor(moment, way) as vendor:
        if way == "hang":
            cut_clients.timed_out(BLOCKING[client], vendor.url, stream, moment)
        else:
            cut_clients.lost_to(BLOCKING[client], vendor.url, stream)
        loses_the_end = client in ("requests", "boto3")  # with a read that breaks off: urllib3's
        check(gated, gate, vendor.billed, moment, stream, loses_the_end)


@pytest.mark.generator("ends of requests, by client, moment and way")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", ["reset", "disconnect", "timeout", "cancelled", "closed"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("client", ASYNC)
def test_of_an_asynchronous_client(
    client: str, moment: Moment, way: str, stream: bool, gated: Observed, gate: FakeGate
) -> None:
    cut: Way = "reset" if way == "reset" else "disconnect" if way == "disconnect" else "hang"
    with cutting_vendor(moment, cut) as vendor:
        if way == "cancelled":
            cut_clients.cancelled(client, vendor, stream)
        elif way == "closed":
            cut_clients.closed_beside_neighbours(client, vendor, stream)
        else:
            timeout_s = cut_clients.patience(moment, stream) if way == "timeout" else WAIT_S
            cut_clients.async_lost_to(client, vendor.url, stream, timeout_s)
        check(gated, gate, vendor.billed, moment, stream)


@pytest.mark.generator("ends of requests, by client, moment and way")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_of_a_client_that_another_thread_closes(
    stream: bool, gated: Observed, gate: FakeGate
) -> None:
    with cutting_vendor("no answer", "hang") as vendor:
        cut_clients.closed_in_another_thread(vendor, stream)
        check(gated, gate, vendor.billed, "no answer", stream)


@pytest.mark.generator("ends of requests, by client, moment and way")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("moment", ["in the body", "before usage"])
def test_of_a_reader_who_leaves(
    leave: Callable[[str], None], moment: Moment, gated: Observed, gate: FakeGate
) -> None:
    # boto3 shows nothing of a short answer before its connection ends.
    with cutting_vendor(moment, "hang", hang_s=1.0) as vendor:
        leave(vendor.url)
        check(gated, gate, vendor.billed, moment, True)
        (event,) = gated.events
        assert event.estimate == "bound", "this vendor is not known to stop"


class TestNothingLeft:
    """What is known not to have left costs nothing."""

    @pytest.mark.parametrize("host", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
    @pytest.mark.parametrize("client", [*BLOCKING, *(f"async {name}" for name in ASYNC)])
    def test_without_a_connection_or_a_name(
        self, client: str, host: str, gated: Observed, gate: FakeGate
    ) -> None:
        if client.startswith("async "):
            cut_clients.async_lost_to(client.removeprefix("async "), host, False)
        else:
            cut_clients.lost_to(BLOCKING[client], host, False)
        assert gate.ends == ["back"]
        assert gated.events == []

    def test_when_the_pool_is_full(self, gated: Observed, gate: FakeGate) -> None:
        limits = httpx.Limits(max_connections=1)
        with (
            cutting_vendor("before the body", "hang") as vendor,
            httpx.Client(limits=limits, timeout=httpx.Timeout(WAIT_S, pool=0.1)) as client,
            client.stream("POST", vendor.url + PATH, json=cut_clients.ASK),
        ):
            with pytest.raises(httpx.PoolTimeout):
                client.post(vendor.url + PATH, json=cut_clients.ASK)
            assert gate.holds[1].ends == ["back"]

    def test_when_a_hook_of_the_users_raises_before(self, gated: Observed, gate: FakeGate) -> None:
        def stop(request: Any) -> None:
            raise ValueError

        with (
            cutting_vendor("no answer", "hang") as vendor,
            httpx.Client(event_hooks={"request": [stop]}) as client,
        ):
            with pytest.raises(ValueError):
                client.post(vendor.url + PATH, json=cut_clients.ASK)
            assert vendor.received == 0
        assert gate.ends == ["back"]


def test_each_try_of_urllib3_is_held_by_itself(gated: Observed, gate: FakeGate) -> None:
    from urllib3.util import Retry

    retry = Retry(2, allowed_methods=None, backoff_factor=0, status_forcelist=[503])
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
        for moment, bills in (("no answer", 3), ("overloaded", 0)):
            with cutting_vendor(moment, "disconnect") as vendor:  # type: ignore[arg-type]
                with contextlib.suppress(requests.RequestException):
                    session.post(vendor.url + PATH, json=cut_clients.ASK, timeout=WAIT_S)
                assert vendor.received == 3
                assert charged(gated) >= vendor.billed
                assert len(gated.events) == bills
            gated.calls.clear()
    assert len(gate.ends) == 6


def stream_of(pieces: int) -> Reply:
    """A stream that says nothing of its usage."""
    delta = {"index": 0, "delta": {"content": "word"}}
    chunk = {"id": "c", "model": "gpt-4o", "choices": [delta]}
    events = sse(*[chunk] * pieces, done=True)
    return Reply(None, events=events, content_type="text/event-stream")


class TestStreamsWithoutUsage:
    ASK = cut_clients.ASK | {
        "model": "gpt-4o",
        "max_tokens": 50_000,
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "f", "description": "word " * 90}}],
    }

    def test_what_shows_all_that_it_writes_is_counted(
        self, standin: StandIn, gated: Observed, gate: FakeGate
    ) -> None:
        standin.instead = stream_of(40)
        httpx.post(standin.url + PATH, json=self.ASK).raise_for_status()
        with httpx.stream("POST", standin.url + PATH, json=self.ASK) as response:
            response.read()
        whole, streamed = gated.events
        assert (whole.estimate, streamed.estimate) == ("counted", "counted")
        held = gate.holds[0].bound.input_tokens or 0
        assert streamed.input_tokens == held > 90, "tools and schemas included"
        assert 40 <= streamed.output_tokens <= 80
        assert streamed.cost_nanousd == held + streamed.output_tokens

    def test_no_count_is_above_the_limit_that_the_request_names(
        self, standin: StandIn, gated: Observed
    ) -> None:
        """The count is dear: it takes short words for more tokens than they are."""
        standin.instead = stream_of(40)
        asked = self.ASK | {"max_tokens": 40}
        httpx.post(standin.url + PATH, json=asked).raise_for_status()
        [event] = gated.events
        assert (event.estimate, event.output_tokens) == ("counted", 40)

    @pytest.mark.parametrize(
        "more",
        [
            {"model": "o3"},
            {"model": "some-finetune"},
            {"model": "claude-sonnet-4-5", "thinking": {"type": "enabled", "budget_tokens": 9}},
            {"reasoning_effort": "high"},
        ],
    )
    def test_what_may_have_thought_costs_its_bound(
        self, more: dict[str, Any], standin: StandIn, gated: Observed, gate: FakeGate
    ) -> None:
        standin.instead = stream_of(40)
        with httpx.stream("POST", standin.url + PATH, json=self.ASK | more) as response:
            response.read()
        (event,) = gated.events
        assert event.estimate == "bound"
        assert event.cost_nanousd == gate.holds[0].amount_nanousd

    @pytest.mark.parametrize(
        ("host", "estimate"),
        [("api.openai.com", "speed"), ("generativelanguage.googleapis.com", "bound")],
    )
    def test_that_we_close(
        self, host: str, estimate: str, standin: StandIn, gated: Observed, gate: FakeGate
    ) -> None:
        """The stand-in is their proxy, so that the request names the real host."""
        standin.instead = stream_of(600)
        standin.hold = True
        with (
            httpx.Client(proxy=standin.url, timeout=WAIT_S) as client,
            client.stream("POST", f"http://{host}{PATH}", json=self.ASK) as response,
        ):
            for piece in response.iter_bytes():
                if b"word" in piece:
                    break
        (event,) = gated.events
        assert event.estimate == estimate
        bound = gate.holds[0].amount_nanousd or 0
        assert event.cost_nanousd is not None
        if estimate == "bound":
            assert event.cost_nanousd == bound
        else:
            assert event.output_tokens >= 1
            assert event.cost_nanousd < bound


class TestRefusedByTheVendor:
    """An answer that a client, or a hook of the user's, turns into an exception."""

    def test_by_a_hook_of_httpx(self, gated: Observed, gate: FakeGate) -> None:
        with (
            cutting_vendor("overloaded", "disconnect") as vendor,
            httpx.Client(event_hooks={"response": [httpx.Response.raise_for_status]}) as client,
            pytest.raises(httpx.HTTPStatusError),
        ):
            client.post(vendor.url + PATH, json=cut_clients.ASK)
        assert gate.ends == ["back"]

    @pytest.mark.parametrize(("moment", "free"), [("overloaded", True), ("bad gateway", False)])
    def test_by_aiohttp(self, moment: Moment, free: bool, gated: Observed, gate: FakeGate) -> None:
        import asyncio

        import aiohttp

        async def main(url: str) -> None:
            async with aiohttp.ClientSession(raise_for_status=True) as session:
                with pytest.raises(aiohttp.ClientResponseError):
                    await session.post(url + PATH, json=cut_clients.ASK)

        with cutting_vendor(moment, "disconnect") as vendor:
            asyncio.run(main(vendor.url))
            assert (charged(gated) == 0) == free
            assert charged(gated) >= vendor.billed


class TestTable:
    """Every row of the table, and the order of its rows."""

    @pytest.mark.parametrize(
        ("seen", "charge"),
        [
            (Evidence(Ending.UNSENT), ChargeBy.NOTHING),
            (Evidence(Ending.UNSENT, usage="counted"), ChargeBy.NOTHING),
            (Evidence(Ending.COMPLETE, 200, "exact"), ChargeBy.USAGE),
            (Evidence(Ending.LOST, 200, "exact", streamed=True, began=True), ChargeBy.USAGE),
            (Evidence(Ending.COMPLETE, 400), ChargeBy.NOTHING),
            (Evidence(Ending.LOST, 429), ChargeBy.NOTHING),
            (Evidence(Ending.COMPLETE, 503), ChargeBy.NOTHING),
            (Evidence(Ending.LOST, 502), ChargeBy.BOUND),
            (Evidence(Ending.LOST, 504), ChargeBy.BOUND),
            (Evidence(Ending.LOST, 524), ChargeBy.BOUND),
            (Evidence(Ending.COMPLETE, 200, "pending"), ChargeBy.LATER),
            (Evidence(Ending.COMPLETE, 200), ChargeBy.BOUND),
            (Evidence(Ending.COMPLETE, 200, is_llm=False), ChargeBy.NOTHING),
            (Evidence(Ending.COMPLETE, 200, "counted", streamed=True, may_hide=False),
             ChargeBy.COUNTED),
            (Evidence(Ending.COMPLETE, 200, "counted", streamed=True), ChargeBy.BOUND),
            (Evidence(Ending.COMPLETE, 200, "counted", may_hide=False), ChargeBy.BOUND),
            (Evidence(Ending.LOST, 200, "counted", streamed=True, may_hide=False), ChargeBy.BOUND),
            (Evidence(Ending.CLOSED, 200, "counted", streamed=True, began=True, stops=True),
             ChargeBy.SPEED),
            (Evidence(Ending.CLOSED, 200, "counted", streamed=True, began=True), ChargeBy.BOUND),
            (Evidence(Ending.CLOSED, 200, stops=True), ChargeBy.BOUND),
            (Evidence(Ending.CLOSED, None, stops=True), ChargeBy.BOUND),
            (Evidence(Ending.LOST), ChargeBy.BOUND),
        ],
    )  # fmt: skip
    def test_row(self, seen: Evidence, charge: ChargeBy) -> None:
        assert charge_of(seen) is charge

    def test_nothing_is_free_but_what_is_known_to_be(self) -> None:
        known: tuple[UsageKind, ...] = ("exact", "counted", "pending", "none")
        flags = itertools.product([False, True], repeat=4)
        for ending, status, usage, (streamed, began, may_hide, stops) in itertools.product(
            Ending, (None, 200, 307, 400, 500, 502, 503, 504), known, flags
        ):
            seen = Evidence(ending, status, usage, True, streamed, began, may_hide, stops)
            charge = charge_of(seen)
            if ending is Ending.UNSENT or status in (307, 400, 500, 503):
                assert charge is ChargeBy.NOTHING
            else:
                assert charge is not ChargeBy.NOTHING
            if charge is ChargeBy.USAGE:
                assert usage == "exact"
            if charge is ChargeBy.COUNTED:
                assert not may_hide
                assert ending is Ending.COMPLETE
            if charge is ChargeBy.SPEED:
                assert stops
                assert began
                assert ending is Ending.CLOSED
