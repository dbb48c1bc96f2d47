"""The part of the unit-of-work port for budgets that ask, and for winding down."""

from __future__ import annotations

from typing import Protocol

from guard.gateway.domain import records


class RaiseStore(Protocol):
    """Raises of budgets, the calls that wait for one, and the runs that wind down."""

    def budget_raise(self, organisation_id: str, raise_key: str) -> records.BudgetRaise | None:
        """Return the raise with this key."""

    def add_raise(self, raised: records.BudgetRaise) -> None:
        """Insert a raise."""

    def budget_ask(self, balance_id: int, call_id: str) -> tuple[records.BudgetAsk, int] | None:
        """Return what a call asks of a balance, and when it asked last."""

    def is_asked(self, balance_id: int, limit_nanousd: int, since_ms: int) -> bool:
        """Return whether any call has asked for more than a balance's limit since a time."""

    def save_ask(self, ask: records.BudgetAsk) -> None:
        """Write what a call asks, and that it has asked at the unit's time."""

    def drop_asks(self, organisation_id: str, call_id: str) -> None:
        """Delete what a call has asked."""

    def drop_lapsed_asks(self, before_ms: int) -> None:
        """Delete the questions of calls that have not asked since a time."""

    def last_call(self, balance_id: int, run: str) -> str | None:
        """Return the last call of a run that winds down, or empty; ``None`` if it does not."""

    def wind_down(self, balance_id: int, run: str, last_call: str) -> None:
        """Note that a run winds down, and its last call; a last call that is known stays."""

    def end_wind_downs(self, balance_id: int) -> None:
        """Delete the notes on runs that wind down on a balance, whose limit has changed."""

    def drop_wind_downs(self, before_ms: int) -> None:
        """Delete the notes on runs that began to wind down before a time."""
