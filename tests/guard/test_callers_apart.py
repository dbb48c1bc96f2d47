"""One process works for several callers: two organisations apart in every respect, and two keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import (
    GuardAuthError,
    GuardBlockedException,
    GuardBudgetError,
    GuardToolBlockedError,
    RateLimitError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.contexts.caller import CallerRejectedError, caller, introduce
from guard.gateway.admin import AdminError
from guard.gateway.embedded import Gateway, run_gateway
from tests.support import postgres
from tests.support.many_callers import PROMPT, TOKEN, Customer, Process, process_for
from tests.support.waiting import until_async

COST = (PROMPT + 10) * TOKEN
"""Of one request."""
WORST = 5 * COST
"""At least what is set aside for one, and less than for one and what another has cost."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway of this file's own, on each engine."""
    database = None
    if request.param == "postgres":
        database = postgres.url_of(tmp_path_factory.mktemp("postgres"))
    with run_gateway(database) as gateway:
        yield gateway


async def _in_thread(function: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    return await asyncio.to_thread(function, *args, **fields)


def _is(found: BaseException | None, kind: type[BaseException] | None) -> bool:
    return found is None if kind is None else type(found) is kind


async def _until(
    refused: Callable[[], Awaitable[BaseException | None]], kind: type[BaseException] | None
) -> None:
    """Ask until the answer is of a kind: an operator's act is on its way."""
    async with asyncio.timeout(60):
        while not _is(await refused(), kind):
            await asyncio.sleep(0.01)


async def _all(process: Process, kinds: list[type[BaseException] | None]) -> None:
    """Check what a request of each of the three gets: ``a``, ``a2`` and ``b``."""
    found = [await each.request() for each in process.customers]
    assert all(map(_is, found, kinds)), (found, kinds)


# -- the things ------------------------------------------------------------------------------------

NONE3: list[type[BaseException] | None] = [None, None, None]


async def budget_of_an_organisation(process: Process) -> None:
    await _in_thread(process.own.admin.set_budget, limit_nanousd=COST - 1)
    await _in_thread(process.other.admin.set_budget, limit_nanousd=100 * COST)
    await _all(process, [GuardBudgetError, GuardBudgetError, None])
    await process.delivered()
    assert process.vendor.billed == {"b": COST}
    assert await _in_thread(process.other.committed) == COST
    assert await _in_thread(process.own.committed) == 0


async def budget_of_a_key(process: Process) -> None:
    for organisation in (process.own, process.other):
        await _in_thread(
            organisation.admin.set_budget,
            limit_nanousd=COST - 1, scope_kind="key", scope_id=process.a.key_id, anyway=True,
        )  # fmt: skip
    await _all(process, [GuardBudgetError, None, None])


async def budget_of_a_workflow(process: Process) -> None:
    """All three have a workflow of this name."""
    await _in_thread(
        process.own.admin.set_budget, limit_nanousd=WORST, scope_kind="workflow", scope_id="w"
    )
    assert await process.a.request() is None
    await process.delivered()
    await _all(process, [GuardBudgetError, GuardBudgetError, None])


async def leases(process: Process) -> None:
    for organisation in (process.own, process.other):
        await _in_thread(organisation.admin.set_budget, limit_nanousd=1000 * COST)
    for each in process.customers:
        assert await each.request() is None
    held = [set(each.who.leases._leases) for each in process.customers]
    assert not held[0] & held[1]
    assert not (held[0] | held[1]) & held[2]
    # What one uses up is none of the others'.
    for _ in range(5):
        assert await process.a.request() is None
    await process.delivered()
    assert await _in_thread(process.own.committed) == 7 * COST
    assert await _in_thread(process.other.committed) == COST


async def rate_loans(process: Process) -> None:
    """A lease lends calls of the cap: of its own organisation's, and of no other."""
    await _in_thread(process.own.admin.set_policy, rate_caps=[{"calls": 4}])
    found = [await process.a.request() for _ in range(4)]
    assert all(each is None or type(each) is RateLimitError for each in found)
    assert found.count(None) >= 1
    await _until(process.a.request, RateLimitError)
    assert all([await process.b.request() is None for _ in range(8)])
    await _until(process.a2.request, RateLimitError)


async def rate_of_a_key(process: Process) -> None:
    await _in_thread(process.own.admin.set_policy, rate_caps=[{"calls": 2, "by": "key"}])
    await _until(process.a.request, RateLimitError)
    await _all(process, [RateLimitError, None, None])


def killed(target: str) -> Callable[[Process], Awaitable[None]]:
    async def kill(process: Process) -> None:
        """Requests under way end, and nobody else's."""
        slow = [asyncio.ensure_future(each.request("slow")) for each in process.customers]
        await until_async(lambda: process.vendor.held == 3)
        await _in_thread(process.own.admin.kill, target, reason="enough")
        found = await asyncio.wait_for(asyncio.gather(slow[0], slow[1]), 60)
        assert [type(each) for each in found] == [WorkflowKilledInterrupt] * 2
        assert not slow[2].done()
        await _all(process, [WorkflowKilledInterrupt, WorkflowKilledInterrupt, None])
        process.vendor.goes_on.set()
        assert await slow[2] is None
        await _in_thread(process.own.admin.revive, target)
        await _until(process.a.request, None)
        await _until(process.a2.request, None)

    return kill


async def killed_run(process: Process) -> None:
    """Both organisations have a run of this id."""
    assert [await each.request(run_id="same") for each in process.customers] == NONE3
    await process.delivered()
    await _in_thread(process.own.admin.directive, "kill", "w", run_id="same")

    def same(each: Customer) -> Callable[[], Awaitable[BaseException | None]]:
        return lambda: each.request(run_id="same")

    await _until(same(process.a), WorkflowKilledInterrupt)
    await _until(same(process.a2), WorkflowKilledInterrupt)
    assert await process.b.request(run_id="same") is None
    assert await process.a.request(run_id="other") is None


async def pause(process: Process) -> None:
    await _in_thread(process.own.admin.pause, "w")
    await _until(process.a.request, WorkflowPausedException)
    await _until(process.a2.request, WorkflowPausedException)
    assert await process.b.request() is None
    await _in_thread(process.other.admin.resume, "w")
    assert _is(await process.a.request(), WorkflowPausedException), "another's resume is its own"
    await _in_thread(process.own.admin.resume, "w")
    await _until(process.a.request, None)


async def policy(process: Process) -> None:
    assert [await each.request() for each in process.customers] == NONE3
    await _in_thread(process.own.admin.set_policy, models_block=["many-*"])
    await _until(process.a.request, GuardBlockedException)
    await _until(process.a2.request, GuardBlockedException)
    assert await process.b.request() is None


async def policy_of_a_key(process: Process) -> None:
    await _in_thread(
        process.own.admin.set_policy, models_block=["many-*"],
        scope_kind="key", scope_id=process.a.key_id,
    )  # fmt: skip
    await _until(process.a.request, GuardBlockedException)
    await _all(process, [GuardBlockedException, None, None])


async def tools_in_answers(process: Process) -> None:
    """A rule for one key withholds the tool from its answers alone."""
    await _in_thread(
        process.own.admin.set_policy, tools_block=["rm"],
        scope_kind="key", scope_id=process.a.key_id,
    )  # fmt: skip
    await _until(lambda: process.a.request("use rm"), GuardToolBlockedError)
    for each in (process.a2, process.b):
        assert await each.request("use rm") is None
    assert await process.a.request("use ls") is None


async def protected_calls(process: Process) -> None:
    await _in_thread(process.own.admin.set_policy, tools_block=["act"])
    await _until(process.a.call, GuardToolBlockedError)
    await _until(process.a2.call, GuardToolBlockedError)
    assert await process.b.call() is None


async def approvals(process: Process) -> None:
    """Only its own operator sees a question, and answers it."""
    own, other = process.own.admin, process.other.admin
    await _in_thread(own.set_policy, approval_tools=["act"])
    await until_async(lambda: process.a.who.enforcement.control.tools is not None)
    await until_async(lambda: process.a2.who.enforcement.control.tools is not None)
    waits = [asyncio.ensure_future(each.call(run_id=each.name)) for each in (process.a, process.a2)]
    assert await process.b.call() is None
    async with asyncio.timeout(60):
        while len(pending := await _in_thread(own.approvals)) < 2:
            await asyncio.sleep(0.01)
    assert await _in_thread(other.approvals) == []
    asked = {each["run_id"]: each["approval_id"] for each in pending}
    with pytest.raises(AdminError, match="404"):
        await _in_thread(other.answer_approval, asked["a"], approved=True)
    await _in_thread(own.answer_approval, asked["a"], approved=True)
    assert await asyncio.wait_for(waits[0], 60) is None
    assert not waits[1].done(), "one key's approval is not another's"
    await _in_thread(own.answer_approval, asked["a2"], approved=False)
    assert isinstance(await asyncio.wait_for(waits[1], 60), GuardBlockedException)


async def chains(process: Process) -> None:
    """Each opens and ends its own, although the names are the same."""
    with contextlib.ExitStack() as stack:
        with caller(process.a.who):
            first = stack.enter_context(guard.chain("c"))
        with caller(process.b.who):
            with guard.chain("c"):
                pass
            assert first.chain_id == "c"
    await process.delivered()
    for organisation in (process.own, process.other):
        events = await _in_thread(organisation.admin.events, type="chain")
        assert [each["data"]["op"] for each in events] == ["start", "end"]


async def spend(process: Process) -> None:
    for each, times in zip(process.customers, (1, 2, 3), strict=True):
        assert [await each.request() for _ in range(times)] == [None] * times
    with caller(process.b.who):  # what its own programs have used is delivered by asking
        assert (await guard.aio.spend("w")).spent_nanousd == 3 * COST
    await process.delivered()
    for each in (process.a, process.a2):  # two keys of one organisation share its workflows
        with caller(each.who):
            assert (await guard.aio.spend("w")).spent_nanousd == 3 * COST
    for organisation, requests in ((process.own, 3), (process.other, 3)):
        (row,) = await _in_thread(organisation.admin.usage, "workflow")
        assert row["cost_nanousd"] == requests * COST


async def events(process: Process) -> None:
    for each in process.customers:
        with caller(each.who, run_id="given", agent="tool"):
            guard.track_event("note", who=each.name)
            guard.track_llm(5, model="many-callers")
            guard.track_tool("t")
    await process.delivered()
    for organisation, keys in (
        (process.own, {process.a.key_id, process.a2.key_id}), (process.other, {process.b.key_id}),
    ):  # fmt: skip
        found = await _in_thread(organisation.admin.events)
        assert {each["key_id"] for each in found} == keys
        assert {each["run_id"] for each in found} == {"given"}
        assert {each["agent"] for each in found} == {"tool"}
        assert len(found) == 3 * len(keys)


async def revoked_key(process: Process) -> None:
    assert [await each.request() for each in process.customers] == NONE3
    await _in_thread(process.own.admin.revoke_key, process.a.key_id)
    async with asyncio.timeout(60):
        while not isinstance(await process.a.request(), GuardAuthError):
            await asyncio.sleep(0.01)
    assert process.a.who.is_rejected
    with pytest.raises(CallerRejectedError):
        await introduce(process.a.key)
    for each in (process.a2, process.b):
        assert await each.request() is None
        assert await introduce(each.key) is each.who


async def lost_socket(process: Process) -> None:
    """One caller's socket is lost: it goes on over HTTP, and the others' leases stay good."""
    for organisation in (process.own, process.other):
        await _in_thread(organisation.admin.set_budget, limit_nanousd=1000 * COST)
    for each in process.customers:
        assert await each.request() is None
    session = process.a.who.link.session
    assert session is not None
    socket = session.subscriber._socket
    if socket is not None:
        process.runtime._background.call_soon(socket.transport.abort)
    for _ in range(5):
        for each in process.customers:
            assert await each.request() is None
    await process.delivered()
    assert await _in_thread(process.own.committed) == 12 * COST
    assert await _in_thread(process.other.committed) == 6 * COST


async def restart(process: Process) -> None:
    """What was spent stays whose it was; a key that has ended meanwhile is not let in again."""
    for organisation in (process.own, process.other):
        await _in_thread(organisation.admin.set_budget, limit_nanousd=1000 * COST)
    for each in process.customers:
        assert await each.request() is None
    settings = process.runtime.settings
    await _in_thread(process.runtime.shutdown, 60)
    assert await _in_thread(process.own.committed) == 2 * COST
    assert await _in_thread(process.other.committed) == COST
    await _in_thread(process.own.admin.revoke_key, process.a2.key_id)
    with pytest.raises(CallerRejectedError):
        await process.started(transport_mode=settings.transport_mode)
    await process.b.introduced()
    for each in (process.a, process.b):
        assert await each.request() is None
    await process.delivered()
    assert await _in_thread(process.own.committed) == 3 * COST
    assert await _in_thread(process.other.committed) == 2 * COST


THINGS: list[Callable[[Process], Awaitable[None]]] = [
    budget_of_an_organisation, budget_of_a_key, budget_of_a_workflow, leases, rate_loans,
    rate_of_a_key, killed("w"), killed("*"), killed("?"), killed_run, pause, policy,
    policy_of_a_key, tools_in_answers, protected_calls, approvals, chains, spend, events,
    revoked_key, lost_socket, restart,
]  # fmt: skip
_NAMES = [each.__name__ for each in THINGS]
_NAMES[6:9] = ["kill by name", "kill of all", "kill by glob"]


@pytest.mark.asyncio
@pytest.mark.parametrize("inside_a_call", [False, True], ids=["alone", "in a call"])
@pytest.mark.parametrize("transport", ["auto", "http"])
@pytest.mark.parametrize("thing", THINGS, ids=_NAMES)
@pytest.mark.generator("things of two organisations, and of two keys, in one process")
async def test_each_has_its_own(
    place: Gateway,
    thing: Callable[[Process], Awaitable[None]],
    transport: str,
    inside_a_call: bool,
) -> None:
    async with process_for(place, transport_mode=transport) as process:
        for each in process.customers:
            each.inside_a_call = inside_a_call
        await thing(process)
