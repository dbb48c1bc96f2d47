"""When spend accelerates: by examples, and by properties of any run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guard.gateway.domain.acceleration import (
    BEFORE_MIN,
    LEAST_NANOUSD,
    STEPS,
    accelerates,
    usual,
)

DOLLAR = 10**9
amounts = st.integers(0, 10**13)


def steps(*newest_first: int) -> dict[int, int]:
    """Return what was spent, as the store does: steps without spend are missing."""
    return {step: amount for step, amount in enumerate(newest_first) if amount}


def test_a_run_that_doubles_and_doubles_again_accelerates() -> None:
    doubling = [DOLLAR // 8 * 3**number for number in range(9)]
    assert accelerates(steps(*reversed(doubling)))


def test_a_leap_after_a_quiet_time_accelerates() -> None:
    assert accelerates(steps(2 * DOLLAR, *[DOLLAR // 100] * 12))
    assert accelerates(steps(2 * DOLLAR, 0, 0, 0, 0, 0, 0, 0, 1))


def test_bursts_do_not_accelerate() -> None:
    burst = [9 * DOLLAR, 0, 0, 0]
    assert not accelerates(steps(*burst * 3))


@given(st.integers(LEAST_NANOUSD, 10**13), st.data())
def test_steady_runs_never_do(amount: int, data: st.DataObject) -> None:
    half = st.integers(amount // 2, amount)
    run = data.draw(st.lists(half, min_size=1, max_size=STEPS))
    assert not accelerates(steps(*run))


@given(st.lists(amounts, max_size=BEFORE_MIN))
def test_short_runs_never_do(run: list[int]) -> None:
    assert not accelerates(steps(*run))


@given(st.lists(amounts, max_size=STEPS), st.integers(0, LEAST_NANOUSD - 1))
def test_small_amounts_never_do(run: list[int], recent: int) -> None:
    assert not accelerates(steps(recent, *run[1:]))


@given(st.lists(amounts, min_size=1, max_size=STEPS), amounts)
def test_more_recent_spend_never_ends_an_acceleration(run: list[int], more: int) -> None:
    if accelerates(steps(*run)):
        assert accelerates(steps(run[0] + more, *run[1:]))


@given(st.lists(amounts, min_size=BEFORE_MIN + 1, max_size=STEPS), st.integers(2, 1000))
def test_dearer_models_do_not_change_what_accelerates(run: list[int], times: int) -> None:
    if accelerates(steps(*run)):
        assert accelerates(steps(*(amount * times for amount in run)))


@given(st.lists(amounts, max_size=STEPS))
def test_it_is_more_than_ever_before(run: list[int]) -> None:
    spent = steps(*run)
    if accelerates(spent):
        assert run[0] > 2 * max(run[1:])
        assert run[0] > usual(spent)
