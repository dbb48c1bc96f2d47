"""No key takes with leases what the others need, and none keeps what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain.commands import GateCommand
from guard.gateway.ledger import directory
from guard.gateway.services.keys import make_key
from guard.gateway.services.recalls import Recalls
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.gateway.conftest import Tenant
from tests.support.asker import ask, asker, call
from tests.support.store import ACTOR, Store, decide, opened_store

LIMIT = 1_000_000


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        await store.budget(LIMIT)
        yield store


async def new_key(store: Store, owner_id: str | None = None) -> str:
    made = make_key(
        IdFactory(), store.clock.now, role="sdk", organisation_id=store.org, name="n",
        signed=False, owner_id=owner_id,
    )  # fmt: skip
    key = await store.storage.write(
        within(store.org), directory.create_key, ACTOR, made.key, made.key_hash, made.hmac_secret
    )
    return key.key_id


async def granted(
    store: Store, key_id: str, lane: str, amount: int = 10, demand: int = 10**12, **fields: Any
) -> int:
    """Return what a lease of a lane is granted; 0 when the call is refused."""
    small = fields.pop("small_lease", False)
    lease = wire.LeaseAsk(demand_nanousd=demand, **fields)
    asked = wire.GateRequest(call_id="c", kind="call", function="f", agent=lane, lease=lease)
    command = GateCommand(
        request=store.request(key_id=key_id), call=asked, declared_nanousd=amount,
        grants_lease=True, small_lease=small,
    )  # fmt: skip
    answer = await decide(store.storage, command)
    if answer.status != 200:
        return 0
    reply = wire.decode(answer.body, wire.GateReply)
    assert reply.lease is not None
    return reply.lease.granted_nanousd


async def held(store: Store) -> int:
    (balance,) = await store.storage.balances(store.org, current_only=True)
    return balance.reserved


@pytest.mark.asyncio
@pytest.mark.parametrize("demand", [10**12, LIMIT // 10, LIMIT // 3])
async def test_one_key_leaves_the_others_half(store: Store, demand: int) -> None:
    greedy, other = await new_key(store), await new_key(store)
    for number in range(25):
        assert await granted(store, greedy, f"lane-{number}", demand=demand) >= 10
    assert await held(store) <= LIMIT // 2 + 25 * 10
    assert await granted(store, other, "a", amount=LIMIT * 2 // 5) == LIMIT * 2 // 5


@pytest.mark.asyncio
async def test_leases_that_are_asked_for_at_once_are_counted_too(store: Store) -> None:
    """In one transaction, in which nothing is written yet."""
    greedy, other = await new_key(store), await new_key(store)
    lanes = [granted(store, greedy, f"lane-{number}") for number in range(25)]
    assert min(await asyncio.gather(*lanes)) == 10
    assert await held(store) <= LIMIT // 2 + 25 * 10
    again = [granted(store, greedy, f"again-{number}") for number in range(25)]
    assert set(await asyncio.gather(*again)) == {10}
    assert await granted(store, other, "a", amount=LIMIT * 2 // 5) == LIMIT * 2 // 5


@pytest.mark.asyncio
async def test_each_key_gets_half_of_what_the_others_have_left(store: Store) -> None:
    keys = [await new_key(store) for _ in range(4)]
    for count, key in enumerate(keys, start=1):
        for lane in range(20):
            await granted(store, key, f"lane-{lane}", amount=1)
        assert await held(store) <= LIMIT - (LIMIT >> count) + 20 * count


@pytest.mark.asyncio
async def test_no_call_is_refused_while_money_is_there(store: Store) -> None:
    greedy, _ = await new_key(store), await new_key(store)
    left = LIMIT
    while left:
        amount = min(left, 50_000)
        found = await granted(store, greedy, f"lane-{left}", amount=amount)
        assert found >= amount, "exactly the call's bound, or more"
        left -= found
    assert await granted(store, greedy, "last", amount=1) == 0


async def _alone(store: Store) -> str:
    return await new_key(store)


async def _with_one_below(store: Store) -> str:
    return await new_key(store, await new_key(store))


async def _beside_a_revoked_one(store: Store) -> str:
    own, other = await new_key(store), await new_key(store)
    await store.storage.write(within(store.org), directory.revoke_key, ACTOR, store.org, other)
    return own


@pytest.mark.asyncio
@pytest.mark.parametrize("made", [_alone, _with_one_below, _beside_a_revoked_one])
async def test_a_key_that_is_alone_gets_what_each_lease_may_have(
    store: Store, made: Callable[[Store], Any]
) -> None:
    key, left = await made(store), LIMIT
    for number in range(25):
        found = await granted(store, key, f"lane-{number}", amount=1)
        assert found == left // (number + 2)
        left -= found


@pytest.mark.asyncio
async def test_a_budget_of_a_key_is_its_own(store: Store) -> None:
    """Leases within it are limited by nothing that others could want of it."""
    key, _ = await new_key(store), await new_key(store)
    await store.budget(LIMIT // 100, scope_kind="key", scope_id=key)
    left = LIMIT // 100
    for number in range(10):
        found = await granted(store, key, f"lane-{number}", amount=1)
        assert found == left // (number + 2)
        left -= found


@pytest.mark.asyncio
async def test_small_leases_hold_the_calls_bound(store: Store) -> None:
    key = await new_key(store)
    assert await granted(store, key, "a", amount=70, small_lease=True) == 70


# -- recalls that are not answered -----------------------------------------------------------------


def _recalls(pushed: list[Mapping[str, Sequence[str]]]) -> Recalls:
    def push(organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int) -> int:
        pushed.append(leases)
        return 1

    return Recalls(push, wait_s=0.01, silence_s=60.0)


@pytest.mark.asyncio
async def test_a_key_that_ignores_a_recall_is_known_until_it_answers_one() -> None:
    pushed: list[Mapping[str, Sequence[str]]] = []
    recalls = _recalls(pushed)
    await recalls.recall("o", {"k": ["a"], "l": ["b"]})
    assert recalls.is_ignored_by("k")
    assert recalls.is_ignored_by("l")
    recalls.answered("other")
    assert recalls.is_ignored_by("k")
    recalls.answered("a")  # late, but it is there
    assert not recalls.is_ignored_by("k")
    assert recalls.is_ignored_by("l")


@pytest.mark.asyncio
async def test_a_key_that_ignored_a_recall_is_asked_again_with_its_next_lease() -> None:
    pushed: list[Mapping[str, Sequence[str]]] = []
    recalls = _recalls(pushed)
    recalls.ask_again("o", "k", "a")
    assert not pushed, "it has ignored nothing"
    await recalls.recall("o", {"k": ["a"]})
    recalls.ask_again("o", "k", "b")
    recalls.ask_again("o", "k", "b")
    assert pushed == [{"k": ["a"]}, {"k": ["b"]}]
    recalls.answered("b")
    assert not recalls.is_ignored_by("k")


@pytest.mark.asyncio
async def test_a_recall_for_another_replica_is_answered_too() -> None:
    recalls = _recalls([])
    recalls.asked_by_peer("o", {"k": ["a"], "l": ["b"]}, 0)
    recalls.answered("b")
    while recalls.is_recalled("a"):
        await asyncio.sleep(0.005)
    assert recalls.is_ignored_by("k")
    assert not recalls.is_ignored_by("l")


@pytest.mark.asyncio
async def test_a_renewal_long_after_a_recall_is_no_answer_to_it() -> None:
    recalls = Recalls(lambda *_: 1, wait_s=0.01, silence_s=0.01)
    await recalls.recall("o", {"k": ["a"]})
    await asyncio.sleep(0.05)
    recalls.answered("a")
    assert recalls.is_ignored_by("k")


@pytest.mark.asyncio
async def test_who_ignores_recalls_gets_small_leases(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tenant.gateway._server is not None
    recalls = tenant.gateway._server.app._recalls
    monkeypatch.setattr(recalls, "_silence_s", 3600.0)  # a late answer is one, however late it is
    await asyncio.to_thread(tenant.admin.set_budget, limit_nanousd=LIMIT)
    other_key = await asyncio.to_thread(tenant.admin.create_key, "other")

    def request(number: int, output: int, **fields: Any) -> dict[str, Any]:
        return call(number, kind="llm", function="openai", model="gpt-4o", max_input_tokens=0,
                    max_output_tokens=output, **fields)  # fmt: skip

    lease = {"demand_nanousd": 10**12}
    url = tenant.gateway.base_url
    async with asker(url, tenant.api_key) as holder, asker(url, other_key) as other:
        for number in range(25):
            fields: Any = {"agent": f"a{number}", "workflow_id": "w", "lease": lease}
            [(status, _)] = await holder.ask(ask(f"h{number}", request(number, 1, **fields)))
            assert status == 200
        [(status, _)] = await other.ask(ask("o", request(30, 25)))
        assert status == 200, "250,000 nano-dollars: the other key has its half"
        [(status, _)] = await other.ask(ask("p", request(31, 25)))
        assert status == 402, "the holder does not answer"
        [(_, reply)] = await holder.ask(ask("q", request(32, 1, agent="q", lease=lease)))
        assert reply["lease"]["granted_nanousd"] == 10_000
        while not any(reply["lease"]["lease_id"] in each.get("leases", ())
                      for each in holder.pushed):  # fmt: skip
            await holder.read()
        body = {"lease_id": reply["lease"]["lease_id"], "unused_nanousd": 10_000}
        await holder.ask(ask("r", body, "gate/lease"))
        await asyncio.to_thread(tenant.admin.set_budget, limit_nanousd=100 * LIMIT)
        [(_, reply)] = await holder.ask(ask("s", request(33, 1, agent="s", lease=lease)))
        assert reply["lease"]["granted_nanousd"] > LIMIT, "it has answered"
