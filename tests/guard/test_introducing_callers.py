"""How callers come into a process and leave it, and that their money is exact through faults."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import (
    SHUT_DOWN,
    BreakerTransportError,
    GuardAuthError,
    GuardBudgetError,
    GuardProtocolError,
    GuardTransportError,
)
from guard.contexts.caller import CallerRejectedError, caller, introduce
from guard.core import wire
from guard.gateway.api import health
from guard.gateway.embedded import Gateway
from guard.runtime import callers
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import current_scope
from guard.session.event_pipeline import EventPipeline
from guard.session.link import Link
from guard.session.session import Session
from tests.support.many_callers import (
    PROMPT,
    TOKEN,
    Customer,
    Organisation,
    act,
    process_for,
)
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until_async

pytestmark = pytest.mark.asyncio


@pytest.fixture
def between(gateway: Gateway) -> Iterator[ChaosProxy]:
    """A breakable way to the gateway."""
    chaos = ChaosProxy(gateway.base_url)
    yield chaos
    chaos.close()


def _agents_key(gateway: Gateway) -> str:
    own = Organisation.of(gateway)
    key = own.admin.create_key("agent")
    own.admin.close()
    return key


# -- coming ----------------------------------------------------------------------------------------


async def test_whoever_is_known_costs_no_question(gateway: Gateway, between: ChaosProxy) -> None:
    async with process_for(gateway, between.url) as process:
        await until_async(lambda: process.a.who.events.health.channel == "websocket")
        between.part("partition")
        assert await introduce(process.a.key) is process.a.who
        between.fault = "none"


async def test_many_that_come_at_once_get_one_account(gateway: Gateway) -> None:
    async with process_for(gateway) as process:
        key = await asyncio.to_thread(process.own.admin.create_key, "new")
        found = await asyncio.gather(*(introduce(key) for _ in range(50)))
        assert len({id(each) for each in found}) == 1
        assert len(process.runtime.callers.active) == 4


async def test_an_unknown_key_is_refused_and_asked_about_once(
    gateway: Gateway, between: ChaosProxy
) -> None:
    async with process_for(gateway, between.url) as process:
        with pytest.raises(CallerRejectedError) as first:
            await introduce("gdk_nobody")
        between.part("refuse")
        with pytest.raises(CallerRejectedError) as again:
            await introduce("gdk_nobody")
        assert first.value is not again.value
        assert (again.value.error_code, again.value.status_code) == ("GD-A004", 401)
        with pytest.raises(GuardTransportError):  # nothing was decided
            await introduce("gdk_somebody")
        between.fault = "none"
        assert len(process.runtime.callers.active) == 3


async def test_the_secrets_of_one_key_share_its_account(gateway: Gateway) -> None:
    """It is the key's: a secret that replaces another one has no account, spool or socket of its
    own, and one that has ended is refused although the account is open."""
    async with process_for(gateway) as process:
        first, admin = process.a, process.own.admin

        async def rotated(overlap_ms: int = 0) -> str:
            made = await asyncio.to_thread(admin.rotate_key, first.key_id, overlap_ms)
            return str(made["api_key"])

        second = await rotated(3_600_000)
        found = await asyncio.gather(*(introduce(second) for _ in range(9)))
        assert all(each is first.who for each in found)
        assert first.who.identity == first.key_id
        assert len(process.runtime.callers.active) == 3
        third = await rotated()
        await until_async(lambda: first.who.is_rejected)
        # What was used before, and is not delivered yet, is delivered with the new secret.
        with caller(first.who):
            guard.track_llm(1, 1)
        assert first.who.events.waiting
        other = await introduce(third)
        await until_async(lambda: not first.who.events.waiting and not other.events.waiting)
        events = await asyncio.to_thread(admin.events, type="llm")
        assert len(events) == 1
        assert other is not first.who
        assert (other.identity, other.is_rejected) == (first.key_id, False)
        assert len(process.runtime.callers.active) == 3
        for ended in (first.key, second):
            with pytest.raises(CallerRejectedError):
                await introduce(ended)
        first.key = third
        await first.introduced()
        assert await first.request() is None


async def test_only_a_proxys_key_may_introduce(gateway: Gateway) -> None:
    key = await asyncio.to_thread(_agents_key, gateway)
    runtime = await GuardRuntime.start(key, gateway.base_url)
    with pytest.raises(GuardAuthError) as found:
        await introduce(key)
    assert found.value.error_code == "GD-A005"
    assert runtime.callers.active == []
    await asyncio.to_thread(runtime.shutdown)


async def test_an_older_gateway_is_named(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know the feature; nothing is asked in anybody's name."""
    older = tuple(each for each in health.FEATURES if each != wire.FEATURE_CALLERS)
    monkeypatch.setattr(health, "FEATURES", older)
    key = await asyncio.to_thread(_agents_key, gateway)
    runtime = await GuardRuntime.start(key, gateway.base_url)
    with pytest.raises(GuardProtocolError, match="older"):
        await introduce(key)
    await asyncio.to_thread(runtime.shutdown)


async def test_a_proxy_spends_nothing_for_itself(gateway: Gateway) -> None:
    async with process_for(gateway) as process:
        with pytest.raises(GuardAuthError) as found:
            await act()
        assert found.value.error_code == "GD-A005"
        assert await process.a.call() is None
        await until_async(lambda: guard.status().state == "ok")


async def test_a_revoked_proxy_works_for_nobody(gateway: Gateway) -> None:
    async with process_for(gateway) as process:
        await process.a.request()
        await asyncio.to_thread(process.own.admin.revoke_key, process.proxy_id)
        async with asyncio.timeout(60):
            while not isinstance(await process.a.request(), GuardAuthError):
                await asyncio.sleep(0.01)
        process.loses_events = True

        async def introduce_again_and_again() -> None:
            while True:  # it is known until its own socket is closed, which is another's moment
                await introduce(process.b.key)
                await asyncio.sleep(0.01)

        with pytest.raises(GuardAuthError) as found:
            await asyncio.wait_for(introduce_again_and_again(), 60)
        assert found.value.error_code == "GD-A003"
        await until_async(lambda: guard.status().state == "misconfigured")


async def test_a_lease_ends_with_the_key(gateway: Gateway) -> None:
    """Not even for the moment for which leases are good without a socket."""
    async with process_for(gateway) as process:
        a = process.a
        await until_async(lambda: a.who.link.session.asks.can_lease)  # type: ignore[union-attr]
        assert [await a.request() for _ in range(3)] == [None] * 3
        assert a.who.leases.totals().leases == 1
        socket = a.who.link.session.asks  # type: ignore[union-attr]
        ended = asyncio.Event()
        loop, tell = asyncio.get_running_loop(), a.who._keeper.switched
        # Seen on the loop itself: nothing else can run between the end of the socket and this.
        usable = []

        def switched(is_open: bool, good_for_s: float) -> None:
            tell(is_open, good_for_s)
            usable.append(good_for_s)
            if not is_open and not good_for_s:
                loop.call_soon_threadsafe(ended.set)

        a.who._keeper.switched = switched  # type: ignore[method-assign]
        a.who.link.session._leases = a.who._keeper  # type: ignore[union-attr]
        process.loses_events = True
        await asyncio.to_thread(process.own.admin.revoke_key, a.key_id)
        await asyncio.wait_for(ended.wait(), 60)
        assert not socket.is_open
        billed = process.vendor.billed["a"]
        assert isinstance(await a.request(), GuardAuthError)
        assert process.vendor.billed["a"] == billed


# -- the scope -------------------------------------------------------------------------------------


async def test_nothing_of_the_code_around_counts_inside(gateway: Gateway) -> None:
    async with process_for(gateway) as process:
        outer = current_scope.get()
        with (
            caller(process.b.who), guard.workflow("outer"), guard.chain("c"), guard.agent("x"),
            guard.context.user("u"), guard.context.tags(team="t"),
        ):  # fmt: skip
            guard.set_call_context("model", ["tool"])
            with caller(process.a.who, run_id="given", agent="cli"):
                scope = current_scope.get()
                assert scope.caller is process.a.who
                assert (scope.workflow_id, scope.run_id, scope.agent) == ("default", "given", "cli")
                rest = (scope.chain_id, scope.user, scope.tags, scope.model, scope.tools)
                assert rest == (None, None, None, None, ())
            assert current_scope.get().caller is process.b.who
        assert current_scope.get() is outer


async def test_a_refusal_that_was_answered_stops_nobody_else(gateway: Gateway) -> None:
    """It is raised where it happens, and neither on leaving nor around."""
    async with process_for(gateway) as process:
        await asyncio.to_thread(process.own.admin.set_budget, limit_nanousd=1)
        with guard.agent("connection"):
            async with caller(process.a.who):
                with contextlib.suppress(GuardBudgetError):
                    await act()
                with pytest.raises(BaseException, match="budget"):
                    await process.a.http.post(
                        f"{process.vendor.url}/v1/chat/completions",
                        json={"model": "many-callers", "max_tokens": 5,
                              "messages": [{"role": "user", "content": "x"}]},
                    )  # fmt: skip
            async with caller(process.b.who):
                await act()


async def test_a_confined_keys_workflow_is_that_of_its_scope(gateway: Gateway) -> None:
    async with process_for(gateway) as process:
        key = await asyncio.to_thread(process.own.admin.create_key, "c", workflow_id="only")
        who = await introduce(key)
        assert who.workflow == "only"
        with caller(who, workflow="another"):
            assert current_scope.get().workflow_id == "only"
            await act()
            with pytest.raises(guard.GuardError), guard.workflow("another"):
                await act()


@pytest.mark.parametrize(("field", "value"), [("run_id", ""), ("run_id", "x" * 300), ("agent", "")])
async def test_a_name_that_the_protocol_does_not_take_is_refused_at_once(
    gateway: Gateway, field: str, value: str
) -> None:
    async with process_for(gateway) as process:
        with pytest.raises(ValueError):
            caller(process.a.who, **{field: value})


async def test_a_scope_is_entered_by_a_generator_of_a_context_manager(gateway: Gateway) -> None:
    """As a server does it, for requests at once and one after another."""

    @contextlib.asynccontextmanager
    async def admitted(each: Customer, workflow: str) -> AsyncIterator[None]:
        async with caller(await introduce(each.key), workflow=workflow):
            yield

    async with process_for(gateway) as process:

        async def serve(each: Customer) -> None:
            for number in range(3):
                async with admitted(each, f"tool-{number}"):
                    scope = current_scope.get()
                    assert (scope.caller, scope.workflow_id) == (each.who, f"tool-{number}")
                    await act()
                assert current_scope.get().caller is None

        await asyncio.gather(*(serve(each) for each in process.customers for _ in range(5)))
        for each in process.customers:
            assert not each.who._entries


# -- leaving ---------------------------------------------------------------------------------------


async def test_an_idle_account_is_closed_and_opened_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "_SWEEP_S", 0.05)
    async with process_for(gateway) as process:
        hub = gateway._server.app.hub  # type: ignore[union-attr]
        channels = hub.count
        await process.a.request()
        with caller(process.b.who):
            monkeypatch.setattr(callers, "IDLE_S", 0.3)
            await until_async(lambda: process.runtime.callers.active == [process.b.who])
        await until_async(lambda: process.runtime.callers.active == [])
        await until_async(lambda: channels() == 0)
        monkeypatch.undo()  # the next one is used at once, however slow the machine is
        old = process.a.who
        with pytest.raises(RuntimeError, match="introduce"), caller(old):
            pass
        await process.a.introduced()
        assert process.a.who is not old
        assert await process.a.request() is None
        await process.delivered()
        (workflow,) = await asyncio.to_thread(process.own.admin.workflows)
        assert workflow["spent_nanousd"] == 2 * (PROMPT + 10) * TOKEN
        closers = process.runtime._background._closers
        assert len(closers) <= 2, "what is closed is forgotten"


async def test_the_rest_of_a_closed_account_is_written_off_the_loop(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served there meanwhile."""
    monkeypatch.setattr(callers, "IDLE_S", 0.0)
    monkeypatch.setattr(callers, "_SWEEP_S", 0.05)
    off_the_loop: list[bool] = []
    conclude = EventPipeline.conclude

    def concluded(events: EventPipeline, **how: bool) -> BreakerTransportError | None:
        off_the_loop.append(not events._background.is_own_thread)
        return conclude(events, **how)

    monkeypatch.setattr(EventPipeline, "conclude", concluded)
    async with process_for(gateway) as process:
        await until_async(lambda: process.runtime.callers.active == [])
        await until_async(lambda: len(off_the_loop) == 3)
    assert off_the_loop == [True] * 4  # that of the process too, at its end


async def test_a_signal_delivers_for_one_caller_although_anothers_events_stay(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One account that cannot deliver hides no other one, and is named."""
    async with process_for(gateway) as process:
        stays, deliver = process.a.who.events, EventPipeline.deliver

        async def fails(pipeline: EventPipeline, patience: Any, **how: Any) -> Any:
            if pipeline is stays:
                raise TimeoutError("no answer in time")
            return await deliver(pipeline, patience, **how)

        for each in (process.a, process.b):
            with caller(each.who):
                guard.track_llm(1, 1, model="m")
        with monkeypatch.context() as patched:
            patched.setattr(EventPipeline, "deliver", fails)
            with pytest.raises(BreakerTransportError, match="1 events are still buffered: no ans"):
                await asyncio.to_thread(process.runtime._flush_at_signal, WAIT_S)
        assert (stays.waiting, process.b.who.events.waiting) == (1, 0)


async def test_who_is_introduced_during_a_shutdown_is_refused(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account would not be among those whose events are delivered or counted."""
    async with process_for(gateway) as process:
        key = await asyncio.to_thread(process.own.admin.create_key, "late")
        opening, others_ended, decided = (threading.Event() for _ in range(3))
        open_verified, finish = Link.open_verified, process.runtime.events.finish

        async def slow(link: Link) -> Session:
            session = await open_verified(link)
            opening.set()
            await asyncio.to_thread(others_ended.wait, WAIT_S)
            return session

        def late(*args: Any, **how: Any) -> Any:
            others_ended.set()
            decided.wait(WAIT_S)
            return finish(*args, **how)

        monkeypatch.setattr(Link, "open_verified", slow)
        monkeypatch.setattr(process.runtime.events, "finish", late)
        introducing = asyncio.create_task(introduce(key))
        introducing.add_done_callback(lambda _: decided.set())
        assert await asyncio.to_thread(opening.wait, WAIT_S)
        await asyncio.to_thread(process.runtime.shutdown, WAIT_S)
        with pytest.raises(GuardTransportError) as caught:
            await introducing
        assert caught.value.error_code == SHUT_DOWN


async def test_events_on_the_disk_wait_for_whose_they_are(
    gateway: Gateway, between: ChaosProxy, tmp_path: Path
) -> None:
    """Also with another key of the proxy: what counts is the caller's."""
    settings: dict[str, Any] = {"spool_dir": tmp_path / "spool", "fallback_mode": "open"}
    async with process_for(gateway, between.url, **settings) as process:
        between.part("refuse")
        for each in (process.a, process.b):
            with caller(each.who):
                guard.track_event("kept", who=each.name)
        await asyncio.to_thread(process.runtime.shutdown, 1.0)
        between.fault = "none"
        admin = process.own.admin
        process.proxy = await asyncio.to_thread(
            admin.create_key, "second proxy", role="proxy", every_organisation=True
        )
        process.runtime = await GuardRuntime.start(process.proxy, process.url, **settings)
        await process.a.introduced()

        async def kept(of: Customer) -> list[Any]:
            found = await asyncio.to_thread(of.organisation.admin.events, type="kept")
            return [(each["data"]["who"], each["key_id"]) for each in found]

        async with asyncio.timeout(60):
            while not await kept(process.a):
                await asyncio.sleep(0.02)
        assert await kept(process.a) == [("a", process.a.key_id)]
        assert await kept(process.b) == []
        await process.b.introduced()
        async with asyncio.timeout(60):
            while not await kept(process.b):
                await asyncio.sleep(0.02)
        assert await kept(process.b) == [("b", process.b.key_id)]


FORKS = """
import asyncio, os, sys
import guard
from guard.contexts.caller import caller, introduce

@guard.protect
def act(): guard.track_event("made", child=os.getpid() != parent)

parent = os.getpid()
a, b = (asyncio.run(introduce(key)) for key in sys.argv[1:])
with caller(a, run_id="of a"):
    act()
    child = os.fork()
    if not child:
        act()
        with caller(b, run_id="of b"):
            act()
        guard.shutdown(60)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    act()
guard.shutdown(60)
"""


async def test_a_forked_child_works_for_the_same_callers(gateway: Gateway) -> None:
    async with process_for(gateway) as process:
        environ = {**os.environ, "GUARD_API_KEY": process.proxy, "GUARD_API_URL": process.url}
        keys = process.a.key, process.b.key
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FORKS, *keys, env=environ, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(done.communicate(), 120)
        assert done.returncode == 0, said
        found = {}
        for each in (process.a, process.b):
            events = await asyncio.to_thread(each.organisation.admin.events, type="made")
            found[each.name] = [(e["data"]["child"], e["run_id"], e["key_id"]) for e in events]
        own = [(of_child, "of a", process.a.key_id) for of_child in (False, False, True)]
        assert sorted(found["a"]) == own
        assert found["b"] == [(True, "of b", process.b.key_id)]


# -- secrets ---------------------------------------------------------------------------------------


async def test_no_callers_key_is_on_the_wire_in_a_log_or_on_the_disk(
    gateway: Gateway, between: ChaosProxy, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    with caplog.at_level(logging.DEBUG):
        async with process_for(gateway, between.url, spool_dir=spool) as process:
            for each in process.customers:
                assert await each.request() is None
            said = repr(process.a.who) + repr(process.runtime) + repr(guard.status())
            with pytest.raises(CallerRejectedError) as refused:
                await introduce("gdk_canary")
            said += repr(refused.value) + str(refused.value)
            between.cut()
            for each in process.customers:
                assert await each.request() is None
            await process.delivered()
    sent = bytes(between.bytes_up)
    kept = b"".join(path.read_bytes() for path in spool.rglob("*") if path.is_file())
    for each in process.customers:
        hashed = hashlib.sha256(each.key.encode()).hexdigest()
        assert each.key.encode() not in sent + kept
        assert f"{process.proxy}:{hashed}".encode() in sent
        assert hashed.encode() not in kept
        for secret in (each.key, hashed, process.proxy):
            assert secret not in caplog.text + said
    assert b"gdk_canary" not in sent


# -- exact money -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["auto", "http"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.generator("requests of three callers through lost connections: charged == billed")
async def test_each_is_charged_what_it_is_billed_and_within_its_limit(
    gateway: Gateway,
    between: ChaosProxy,
    seed: int,
    transport: str,
    count_cases: Callable[[int], None],
) -> None:
    dice = random.Random(seed)
    async with process_for(gateway, between.url, transport_mode=transport) as process:
        limits = {"own": 600_000, "other": 300_000}
        for name, limit in limits.items():
            organisation = getattr(process, name)
            await asyncio.to_thread(organisation.admin.set_budget, limit_nanousd=limit)
        outcomes: list[BaseException | None] = []

        async def work(each: Customer) -> None:
            # Where most are lost, on a busy machine, it takes more of them to use the money up.
            for number in itertools.count():
                refused = any(isinstance(outcome, GuardBudgetError) for outcome in outcomes)
                if number >= 12 and refused:
                    break
                tokens = dice.randrange(1, 20)
                outcomes.append(await each.request(run_id="same", max_tokens=tokens))
                if isinstance(outcomes[-1], GuardTransportError):
                    await asyncio.sleep(0.02)  # at once, while the circuit is open

        is_over = asyncio.Event()

        async def trouble() -> None:
            await until_async(lambda: None in outcomes)
            longest_s = 0.2
            while not is_over.is_set():
                await asyncio.sleep(dice.random() * longest_s)
                await asyncio.to_thread(between.cut)
                longest_s *= 1.02  # on a slow machine no further one would ever come through

        troubled = asyncio.create_task(trouble())
        await asyncio.gather(*(work(each) for each in process.customers for _ in range(4)))
        is_over.set()
        await troubled
        await process.delivered()
        count_cases(len(outcomes))
        assert {type(each) for each in outcomes if each is not None} <= {
            GuardBudgetError, GuardTransportError,
        }  # fmt: skip
        assert any(each is None for each in outcomes)
        assert any(isinstance(each, GuardBudgetError) for each in outcomes)
        billed = process.vendor.billed
        for organisation, bill in (
            (process.own, billed["a"] + billed["a2"]), (process.other, billed["b"]),
        ):  # fmt: skip
            charged = await asyncio.to_thread(organisation.committed)
            # What was granted in an answer that was lost is charged in doubt, and says so.
            assert charged - await asyncio.to_thread(organisation.in_doubt) == bill
        assert billed["a"] + billed["a2"] <= limits["own"]
        assert billed["b"] <= limits["other"]
