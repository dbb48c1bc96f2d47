"""Each boundary of the money rules, to the nano-dollar."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.ledger import Balance, BudgetBalance, Reservation
from guard.gateway.domain.records import BudgetRule
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION
from tests.support.store import ACTOR, Clock, Store

TTL = 900_000


def account(limit: int, committed: int = 0, reserved: int = 0, **fields: Any) -> BudgetBalance:
    rule = BudgetRule(
        budget_id="b", organisation_id="o", limit=limit,
        **{"scope_kind": "organisation", "scope_id": "", "window": "total", **fields},
    )  # fmt: skip
    balance = Balance(
        1, "b", "", 0, None, committed=committed, reserved=reserved, authorized_max=limit
    )
    return BudgetBalance(rule, balance)


def reservation(held: int, **fields: Any) -> Reservation:
    return Reservation("r", "o", "k", "c", (1,), held, held, 0, TTL, **fields)


@pytest.mark.parametrize(
    ("left", "amount", "guess", "held"),
    [
        (100, 100, False, 100), (100, 101, False, None), (100, 99, False, 99),
        (100, 100, True, 100), (100, 101, True, 100), (1, 1, False, 1), (1, 2, False, None),
        (1, 1, True, 1), (1, 50, True, 1), (0, 1, False, None), (0, 1, True, None),
        (-5, 1, True, None),
    ],
)  # fmt: skip
def test_a_grant_takes_the_last_nano_dollar_and_none_beyond(
    left: int, amount: int, guess: bool, held: int | None
) -> None:
    accounts = [account(1000, 600, 400 - left), account(10**9)]
    judged = ledger.judge(accounts, amount, guess=guess)
    assert (judged.refused_by is accounts[0]) == (held is None)
    if held is not None:
        assert judged.amount == held
        ledger.reserve(accounts, judged.amount)
        assert accounts[0].room() == left - held


@pytest.mark.parametrize(("limit", "ceiling"), [(1000, 1200), (999, 1198), (4, 4)])
def test_a_chain_goes_exactly_to_its_ceiling(limit: int, ceiling: int) -> None:
    for amount, fits in ((ceiling, True), (ceiling + 1, False)):
        judged = ledger.judge([account(limit)], amount, guess=False, chain_over_permille=200)
        assert (judged.refused_by is None) == fits
        assert fits or judged.refused_by_chain
    own = account(limit, scope_kind="chain", scope_id="c")
    assert ledger.judge([own], limit + 1, guess=False, chain_over_permille=200).refused_by is own


def test_one_nano_dollar_over_the_limit_uses_the_chains_ceiling() -> None:
    inside = account(1000)
    ledger.reserve([inside], 1000, 200)
    assert inside.balance.authorized_max == 1000
    ledger.reserve([inside], 1, 200)
    assert inside.balance.authorized_max == 1200


@pytest.mark.parametrize(("cost", "over"), [(110, False), (111, True)])
def test_epsilon_is_forgiven_and_no_more(cost: int, over: bool) -> None:
    charged = ledger.charge([account(100, epsilon_nanousd=10)], cost, None, [], now_ms=0)
    assert charged.over == over


@pytest.mark.parametrize(("cost", "over"), [(50, False), (51, True)])
def test_what_was_held_may_be_spent_although_the_limit_went_down(cost: int, over: bool) -> None:
    lowered = account(10, reserved=50)
    charged = ledger.charge([lowered], cost, reservation(50), [lowered.balance], now_ms=0)
    assert charged.over == over


@pytest.mark.parametrize(("cost", "over"), [(55, False), (56, True)])
def test_strict_mode_forgives_epsilon_above_the_reservation(cost: int, over: bool) -> None:
    wide = account(10**6, reserved=50, epsilon_nanousd=5)
    charged = ledger.charge([wide], cost, reservation(50), [wide.balance], now_ms=0, strict=True)
    assert charged.over == over


@pytest.mark.parametrize(
    ("amount", "warning"),
    [(79, None), (80, "80% of budget used"), (100, "100% of budget used"), (101, "over budget")],
)
def test_a_warning_begins_at_its_share(amount: int, warning: str | None) -> None:
    soft = account(100, mode="soft", thresholds=[0.8, 1.0])
    warnings = ledger.judge([soft], amount, guess=False).warnings
    assert warnings[0].startswith(warning) if warning else not warnings, warnings


def test_a_threshold_is_crossed_once_and_at_its_share() -> None:
    watched = account(100, thresholds=[0.5, 1.0])
    crossed = []
    for cost in (49, 1, 49, 1, 1):
        charged = ledger.charge([watched], cost, None, [], now_ms=0)
        crossed.append([share for _, share in charged.crossed])
        assert watched.balance.overspend == max(0, watched.balance.committed - 100)
    assert crossed == [[], [0.5], [], [1.0], []]
    assert watched.balance.exhausted


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    clock = Clock()
    post_commit_events: list[Any] = []
    storage = storage_factory(tmp_path, clock_ms=clock)
    await storage.open(post_commit_events.extend)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    yield Store(storage, clock, org, lambda: None, post_commit_events)
    assert (await storage.verify_ledger()).problems == []
    await storage.close()


@pytest.mark.asyncio
async def test_programs_hear_of_an_exhausted_budget_when_nothing_is_left(store: Store) -> None:
    await store.budget(100)
    decisions = [
        wire.decode((await store.charge(f"e{cost}", cost)).body, wire.EventsReply).decision
        for cost in (98, 1)
    ]
    assert decisions == ["allow", "allow"]
    last = wire.decode((await store.charge("last", 1)).body, wire.EventsReply)
    assert last.decision == "exhausted"


@pytest.mark.asyncio
@pytest.mark.parametrize(("limit", "exhausted"), [(51, False), (50, True)])
async def test_a_limit_that_comes_down_to_what_was_spent_exhausts(
    store: Store, limit: int, exhausted: bool
) -> None:
    await store.budget(100)
    await store.charge("e", 50)
    store.post_commit_events.clear()
    await store.budget(limit)
    told = [event.message for event in store.post_commit_events if event.message.type == "budget"]
    assert [message.exhausted for message in told] == [True] * exhausted
    assert (await store.storage.balances(store.org, current_only=True))[0].exhausted == exhausted


@pytest.mark.asyncio
async def test_a_hold_ends_in_the_millisecond_that_it_says(store: Store) -> None:
    await store.budget(100)
    reply = wire.decode((await store.gate(60)).body, wire.GateReply)
    assert reply.expires_at_ms == store.clock.now + TTL
    store.clock.now += TTL - 1
    assert await store.storage.sweep() == 0
    assert (await store.gate(60)).status == 402
    store.clock.now += 1
    assert (await store.gate(60)).status == 200
