"""The part of the unit-of-work port that budgets which ask are written with."""

from __future__ import annotations

from typing import Protocol

from guard.gateway.domain import records


class RaiseStore(Protocol):
    """Raises of budgets, and the calls that wait for one."""

    def budget_raise(self, organisation_id: str, raise_key: str) -> records.BudgetRaise | None:
        """Return the raise with this key."""

    def add_raise(self, raised: records.BudgetRaise) -> None:
        """Insert a raise."""

    def budget_ask(self, balance_id: int, call_id: str) -> tuple[records.BudgetAsk, int] | None:
        """Return what a call asks of a balance, and when it asked last."""

    def is_asked(self, balance_id: int, since_ms: int) -> bool:
        """Tell whether any call has asked for more of a balance since a time."""

    def save_ask(self, ask: records.BudgetAsk) -> None:
        """Write what a call asks, which asks now."""

    def drop_asks(self, organisation_id: str, call_id: str) -> None:
        """Forget what a call has asked."""

    def drop_lapsed_asks(self, before_ms: int) -> None:
        """Forget what nobody has asked since a time."""
