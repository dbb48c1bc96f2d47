"""Recalls: nothing is refused while another process holds what it does not use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import GateCommand, LeaseCommand
from guard.gateway.domain.waiting import Place
from guard.gateway.services.recalls import Recalls
from guard.gateway.storage.port import Storage
from tests.gateway.conftest import Tenant
from tests.support.asker import Asker, ask, asker, call
from tests.support.store import Store, decide, opened_store, update_lease


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        await store.budget(100)
        yield store


def question(store: Store, workflow: str, amount: int, **fields: Any) -> GateCommand:
    lease = wire.LeaseAsk(**fields)
    asked = wire.GateRequest(
        call_id="c", kind="call", function="f", workflow_id=workflow, lease=lease
    )
    return GateCommand(
        request=store.request(f"{workflow}-{amount}"), call=asked, declared_nanousd=amount,
        grants_lease=True, recalls=True,
    )  # fmt: skip


async def held(store: Store) -> int:
    (balance,) = await store.storage.balances(store.org, current_only=True)
    return balance.reserved


@pytest.mark.asyncio
async def test_a_refusal_names_the_leases_that_hold_the_room(store: Store) -> None:
    first = await decide(store.storage, question(store, "a", 10, demand_nanousd=40))
    lease_id = wire.decode(first.body, wire.GateReply).reservation_id
    asked = question(store, "b", 70)
    answer = await decide(store.storage, asked)
    assert (answer.status, answer.recall) == (0, {"k": [lease_id]})
    update = wire.LeaseUpdate(str(lease_id), unused_nanousd=30)
    await update_lease(store.storage, LeaseCommand(request=store.request(), update=update))
    asked = msgspec.structs.replace(asked, is_rerun=True)
    assert (await decide(store.storage, asked)).status == 200
    assert await held(store) == 80
    again = question(store, "b", 21)
    assert set((await decide(store.storage, again)).recall["k"]) > {lease_id}
    again = msgspec.structs.replace(again, is_rerun=True)
    answer = await decide(store.storage, again)
    assert (answer.status, answer.recall) == (402, {})


@pytest.mark.asyncio
async def test_whoever_was_told_to_wait_is_granted_nothing_under_the_same_key(store: Store) -> None:
    """A repeat overtakes the first run, which waits for holders: its caller asks anew after it."""
    first = await decide(store.storage, question(store, "a", 10, demand_nanousd=40))
    lease_id = wire.decode(first.body, wire.GateReply).reservation_id
    asked = question(store, "b", 70)
    assert (await decide(store.storage, asked)).recall == {"k": [lease_id]}
    place = Place(store.clock.now, store.clock.now, 60_000)
    repeat = msgspec.structs.replace(asked, recalls=False, place=place)
    told = await decide(store.storage, repeat)
    assert wire.decode(told.body, wire.GateReply).decision == "waiting"
    update = wire.LeaseUpdate(str(lease_id), unused_nanousd=30)
    await update_lease(store.storage, LeaseCommand(request=store.request(), update=update))
    rerun = msgspec.structs.replace(asked, is_rerun=True, place=place)
    answer = await decide(store.storage, rerun)
    assert (answer.status, answer.body) == (200, told.body)
    assert await held(store) == 10
    anew = msgspec.structs.replace(asked, request=store.request("b-70-1"), place=place)
    assert wire.decode((await decide(store.storage, anew)).body, wire.GateReply).decision == "allow"


@pytest.mark.asyncio
async def test_nobody_is_asked_for_what_is_not_there(store: Store) -> None:
    await store.gate(90)
    own = await decide(store.storage, question(store, "a", 10, demand_nanousd=10))
    own_id = wire.decode(own.body, wire.GateReply).reservation_id
    answer = await decide(store.storage, question(store, "a", 50, lease_id=own_id))
    assert (answer.status, answer.recall) == (402, {})


@pytest.mark.asyncio
async def test_a_question_that_is_decided_twice_gives_back_once(store: Store) -> None:
    await decide(store.storage, question(store, "a", 10, demand_nanousd=20))
    first = await decide(store.storage, question(store, "b", 10, demand_nanousd=20))
    lease_id = wire.decode(first.body, wire.GateReply).reservation_id
    assert await held(store) == 40

    def asked() -> GateCommand:
        return question(store, "b", 95, lease_id=lease_id, unused_nanousd=5)

    assert (await decide(store.storage, asked())).recall
    assert await held(store) == 35
    repeat = await decide(store.storage, asked())  # as after a lost connection
    assert (repeat.status, repeat.recall, repeat.replay) == (402, {}, False)
    assert await held(store) == 35
    repeat = await decide(store.storage, asked())
    assert (repeat.status, repeat.replay) == (402, True)


# -- over the socket -------------------------------------------------------------------------------


def opened(tenant: Tenant) -> Any:
    return asker(tenant.gateway.base_url, tenant.api_key)


def request(number: int, output: int, **fields: Any) -> dict[str, Any]:
    return call(number, kind="llm", function="openai", model="gpt-4o", max_input_tokens=0,
                max_output_tokens=output, **fields)  # fmt: skip


async def recalled(client: Asker) -> list[str]:
    while True:
        for message in client.pushed:
            if message["type"] == "recall":
                client.pushed.remove(message)
                return list(message["leases"])
        await client.read()


@pytest.mark.usefixtures("patient_recalls")
@pytest.mark.asyncio
async def test_what_a_holder_does_not_use_comes_back_before_a_refusal(tenant: Tenant) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, limit_nanousd=1_000_000)
    async with opened(tenant) as holder, opened(tenant) as other:
        lease = {"demand_nanousd": 600_000}
        [(_, reply)] = await holder.ask(ask("h", request(1, 10, workflow_id="a", lease=lease)))
        lease_id = reply["lease"]["lease_id"]
        assert reply["lease"]["granted_nanousd"] == 500_000, "half of the room"
        assert (reply["lease"]["ttl_ms"], reply["reserved_nanousd"]) == (30_000, 100_000)
        assert reply["lease"]["rates"] == reply["rates"]
        asking = asyncio.create_task(
            other.ask(ask("o", request(2, 90, workflow_id="b", lease={"demand_nanousd": 1})))
        )
        assert await recalled(holder) == [lease_id]
        body = {"lease_id": lease_id, "unused_nanousd": 400_000}
        [(status, state)] = await holder.ask(ask("u", body, "gate/lease"))
        assert (status, state["held_nanousd"]) == (200, 100_000)
        [(status, granted)] = await asking
        assert (status, granted["reserved_nanousd"]) == (200, 900_000)


@pytest.mark.usefixtures("patient_recalls")
@pytest.mark.asyncio
async def test_what_is_assumed_of_a_request_is_worth_a_recall_too(tenant: Tenant) -> None:
    await asyncio.to_thread(tenant.admin.update_settings, unbounded_output="learned")
    await asyncio.to_thread(tenant.admin.set_budget, limit_nanousd=41_000_000)
    async with opened(tenant) as holder, opened(tenant) as other:
        lease = {"demand_nanousd": 20_000_000}
        [(_, reply)] = await holder.ask(ask("h", request(1, 4, workflow_id="a", lease=lease)))
        body = call(2, kind="llm", function="openai", model="gpt-4o", max_input_tokens=0)
        asking = asyncio.create_task(other.ask(ask("o", body)))
        assert await recalled(holder) == [reply["lease"]["lease_id"]]
        update = {"lease_id": reply["lease"]["lease_id"], "unused_nanousd": 19_960_000}
        await holder.ask(ask("u", update, "gate/lease"))
        [(status, granted)] = await asking
        assert (status, granted["reserved_nanousd"]) == (200, 4096 * 10_000)


@pytest.mark.asyncio
async def test_a_call_is_refused_when_the_holder_uses_it_all_or_is_silent(
    tenant: Tenant, patient_recalls: Recalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, limit_nanousd=1_000_000)
    async with opened(tenant) as holder, opened(tenant) as other:
        lease = {"demand_nanousd": 600_000}
        await holder.ask(ask("h", request(1, 50, workflow_id="a", lease=lease)))
        asking = asyncio.create_task(other.ask(ask("o", request(2, 60, workflow_id="b"))))
        [lease_id] = await recalled(holder)
        await holder.ask(ask("u", {"lease_id": lease_id}, "gate/lease"))
        [(status, problem)] = await asking
        assert (status, problem["error_code"]) == (402, "GD-B004")
        monkeypatch.setattr(patient_recalls, "_wait_s", 0.1)
        [(status, _)] = await other.ask(ask("p", request(3, 60, workflow_id="b")))
        assert status == 402
        assert await recalled(holder) == [lease_id]


@pytest.mark.asyncio
async def test_leases_are_granted_where_nobody_has_to_be_asked(tenant: Tenant) -> None:
    policy: Any = {"sensitive_tools": ["pay"], "approval_tools": ["wire"]}
    await asyncio.to_thread(tenant.admin.set_policy, **policy)
    lease = {"demand_nanousd": 600_000}
    bodies = [
        call(1, lease=lease),
        call(2, lease=lease, kind="tool", tool_name="pay"),
        call(3, lease=lease, sensitive=True),
        call(4, lease=lease, kind="tool", tool_name="wire"),
        call(5),
    ]
    async with opened(tenant) as client:
        answers = await client.ask(*(ask(f"a{n}", body) for n, body in enumerate(bodies)))
        assert ["lease" in reply for _, reply in answers] == [True, False, False, False, False]
        version = answers[0][1]["lease"]["policy_version"]
        await asyncio.to_thread(tenant.admin.set_policy, tools_block=["x"])
        [(_, reply)] = await client.ask(ask("b", call(6, lease=lease)))
        assert reply["lease"]["policy_version"] != version


# -- the recalls of a process ----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_many_refused_calls_share_one_recall() -> None:
    pushed: list[Mapping[str, Sequence[str]]] = []

    def push(organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int) -> int:
        pushed.append(leases)
        return 1

    recalls = Recalls(push, wait_s=60.0)
    waiting = [asyncio.create_task(recalls.recall("o", {"k": ["a", "b"]})) for _ in range(100)]
    waiting.append(asyncio.create_task(recalls.recall("o", {"k": ["b", "c"]})))
    await asyncio.sleep(0)
    assert pushed == [{"k": ["a", "b"]}, {"k": ["c"]}]
    recalls.answered("b")
    recalls.answered("c")
    await waiting.pop()
    assert not any(task.done() for task in waiting)
    recalls.answered("a")
    await asyncio.gather(*waiting)


@pytest.mark.asyncio
async def test_nobody_waits_where_no_holder_can_be_reached() -> None:
    asked: list[str] = []

    def push(organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int) -> int:
        asked.append(organisation_id)
        return 0

    recalls = Recalls(push, wait_s=60.0)
    await asyncio.wait_for(recalls.recall("o", {"k": ["a"]}), 30.0)
    await asyncio.wait_for(recalls.recall("o", {"k": ["a"]}), 30.0)
    assert asked == ["o", "o"]


@pytest.mark.asyncio
async def test_a_silent_holder_is_left_alone_for_a_while() -> None:
    asked: list[Mapping[str, Sequence[str]]] = []

    def push(organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int) -> int:
        asked.append(leases)
        return 1

    recalls = Recalls(push, wait_s=0.01, silence_s=60.0)
    await recalls.recall("o", {"k": ["a"]})  # waits in vain
    await recalls.recall("o", {"k": ["a"]})
    assert len(asked) == 1
    recalls.answered("a")  # late, but it is there
    waiting = asyncio.create_task(recalls.recall("o", {"k": ["a"]}))
    await asyncio.sleep(0)
    assert len(asked) == 2
    recalls.answered("a")
    await waiting
