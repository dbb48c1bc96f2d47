"""What the budgets on a page head for, by what their scopes have used lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from guard.gateway.dashboard.forecasts import Forecast, forecast
from guard.gateway.domain.records import BalanceView
from guard.gateway.domain.usage import UsedLately
from guard.gateway.storage.port import Storage

SCOPES_MAX: Final = 30
"""Scopes of one page whose usage is looked up."""


async def budget_forecasts(
    storage: Storage, organisation_id: str, balances: Iterable[BalanceView], now_ms: int
) -> dict[int, Forecast]:
    """Return forecasts by balance, for those with enough usage."""
    lately: dict[tuple[str, str], list[UsedLately]] = {}
    found = {}
    for balance in balances:
        scope = balance.scope_kind, balance.scope_id
        if scope not in lately:
            if len(lately) >= SCOPES_MAX:
                continue
            lately[scope] = await storage.used_lately(organisation_id, *scope)
        if (heads_for := forecast(balance, lately[scope], now_ms)) is not None:
            found[balance.balance_id] = heads_for
    return found
