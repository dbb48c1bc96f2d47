"""When a budget will be used up at its present pace. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from guard.gateway.domain.records import BalanceView
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, UsedLately
from guard.gateway.domain.windows import length_ms

LEAST_HOUR_MS: Final = 10 * 60_000
LEAST_DAY_MS: Final = HOUR_MS
"""With less time of usage than this there is no forecast by the hour, or by the day."""

HORIZON_MS: Final = 366 * DAY_MS
"""What is used up later than this is not worth a date."""

Pace = Literal["last hour", "last day", "window so far"]


class Forecast(Struct):
    """The forecast for a budget.

    Args:
        at_ms: when it will be used up; ``None``: it lasts until its window ends.
        pace: the usage that the forecast extends.
    """

    at_ms: int | None
    pace: Pace


def forecast(balance: BalanceView, lately: Sequence[UsedLately], now_ms: int) -> Forecast | None:
    """Return the forecast for a budget; ``None`` if there is too little usage for one.

    For a window that is shorter than a day it extends the usage of the window so far, for others
    that of the last day. If that is not summed (tags, keys, calls of some tools only), it is the
    window so far.

    Args:
        balance: of the budget, in its current window.
        lately: the usage of its scope in each hour of the last day, oldest first.
        now_ms: the time.
    """
    left = balance.limit - balance.committed
    if balance.exhausted or left <= 0 or not balance.limit:
        return None
    is_summed = bool(lately) and not _is_short(balance) and not balance.counts
    found = _of_day(balance, lately, now_ms) if is_summed else _of_window(balance, now_ms)
    if found is None:
        return None
    used, passed_ms, pace = found
    at_ms = now_ms + left * passed_ms // used
    if balance.ends_ms is not None and at_ms >= balance.ends_ms:
        return Forecast(None, pace)
    return Forecast(at_ms, pace) if at_ms - now_ms <= HORIZON_MS else None


def _of_day(
    balance: BalanceView, lately: Sequence[UsedLately], now_ms: int
) -> tuple[int, int, Pace] | None:
    hours = [each for each in lately if _used(balance, each)]
    if not hours:
        return None
    # The pace of a program that began an hour ago is that of its hour, not of the whole day.
    passed_ms = now_ms - max(hours[0].since_ms, now_ms - DAY_MS)
    if passed_ms < LEAST_DAY_MS:
        return None
    return sum(_used(balance, each) for each in hours), passed_ms, "last day"


def _of_window(balance: BalanceView, now_ms: int) -> tuple[int, int, Pace] | None:
    if balance.ends_ms is None or balance.committed <= 0:
        return None
    passed_ms = now_ms - balance.epoch_ms
    if passed_ms < (LEAST_HOUR_MS if _is_short(balance) else LEAST_DAY_MS):
        return None
    pace: Pace = "last hour" if balance.window == "hour" else "window so far"
    return balance.committed, passed_ms, pace


def _is_short(balance: BalanceView) -> bool:
    return balance.window == "hour" or (length_ms(balance.window) or DAY_MS) < DAY_MS


def _used(balance: BalanceView, each: UsedLately) -> int:
    return {"usd": each.cost_nanousd, "tokens": each.tokens, "calls": each.calls}[balance.unit]
