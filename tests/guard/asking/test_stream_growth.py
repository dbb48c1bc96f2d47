"""A stream that grows holds what all of it can cost, at the rates that its request can meet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from guard.asking.request_hold import RequestHold, granted_nanousd
from guard.core.leases import Grant, Hold, Lease, LeaseBook, worst_case
from guard.core.rates import Terms
from guard.core.request_bound import RequestBound
from guard.core.wire import ModelRates, RateRow
from guard.scope.scope import Entry, Scope

ROWS = [
    RateRow("", -1, 2_000, 10_000, 200, 2_500, 4_000, 10_000, 0),
    RateRow("", 200_000, 4_000, 15_000, 400, 5_000, 8_000, 15_000, 0),
    RateRow("priority", -1, 5_000, 25_000, 500, 6_000, 9_000, 25_000, 0),
    RateRow("priority", 200_000, 7_000, 33_000, 700, 7_000, 9_900, 33_000, 0),
]
RATES = ModelRates(2_000, 10_000, 200, 2_500, 10_000, 10_000, 9_900, 33_000, rows=ROWS,
                   context_tokens=1_000_000)  # fmt: skip


class Asked:
    """Notes what is asked for, and grants nothing."""

    def __init__(self) -> None:
        self.bounds: list[RequestBound] = []
        self.are_rates_wrong = False

    def begin(self, reservation_id: str, amount: int, model: str | None) -> None:
        return None

    def release(self, grant: Grant) -> None:
        raise AssertionError

    def lets_grow(self, scope: Scope, error: Any) -> bool:
        raise AssertionError

    def rates_changed(self, scope: Scope) -> None:
        self.are_rates_wrong = True

    def ask_more(self, scope: Scope, bound: RequestBound, answered: Callable[..., None]) -> None:
        self.bounds.append(bound)


def held(bound: RequestBound, asked: Asked, free: int) -> RequestHold:
    worst = worst_case(RATES, bound)
    assert worst is not None
    lease = Lease("lease-1", ("w", None, None, None, "m"), 0.0)
    lease.is_current, lease.free = True, free
    lease.take(0, 0.0)
    hold = Hold(LeaseBook(), lease, worst[0])
    return RequestHold(
        asked, Scope(workflow_id="w", run_id="r", entry=Entry(Scope())), bound,
        Grant(None, hold, RATES, bound.output_tokens),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_a_lease_is_drawn_on_for_all_of_it(seed: int) -> None:
    rng = random.Random(seed)
    asked = Asked()
    bound = RequestBound(
        "openai",
        "m",
        rng.choice([None, 1, 1_000, 200_000, 200_001, 900_000]),
        rng.choice([256, 4096]),
        streams=True,
        fees=rng.choice([None, {"openai.search": 1}]),
        terms=Terms(rng.choice(["", "priority", "flex"]), rng.choice([0, 1, 2]),
                    rng.choice([True, False]), rng.choice([1000, 1100])),
    )  # fmt: skip
    hold = held(bound, asked, 10**15)
    for _ in range(rng.randrange(1, 4)):
        hold.grow((hold.output_tokens or 0) * 9 // 10)
    whole = worst_case(RATES, msgspec.structs.replace(bound, output_tokens=hold.output_tokens))
    assert whole is not None
    assert hold.amount_nanousd is not None
    assert hold.amount_nanousd >= whole[0]
    assert (hold.output_tokens or 0) > (bound.output_tokens or 0)
    assert asked.bounds == []


def test_the_gateway_is_asked_at_the_same_terms() -> None:
    asked = Asked()
    terms = Terms("priority", 0, True)
    hold = held(RequestBound("openai", "m", 10, 256, streams=True, terms=terms), asked, 0)
    hold.grow(250)
    (more,) = asked.bounds
    assert more.terms == terms
    assert granted_nanousd(hold._grant) > 0
