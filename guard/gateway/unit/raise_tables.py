"""Raises of budgets, and the calls that wait for one, of a unit of work over SQL."""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import RAISES

_ASKS: Final = Table("budget_asks")
_WIND_DOWNS: Final = Table("wind_downs")
_WIND_DOWN: Final = _WIND_DOWNS.upsert(
    keep=("begun_ms",),
    sets={"last_call": "coalesce(nullif(wind_downs.last_call, ''), excluded.last_call)"},
)


class RaiseTables(UnitPart):
    """Raises of budgets, the calls that wait for one, and the runs that wind down."""

    def budget_raise(self, organisation_id: str, raise_key: str) -> records.BudgetRaise | None:
        """Return the raise with this key."""
        row = self._unit.row(
            f"{RAISES.select()} WHERE organisation_id = ? AND raise_key = ?",
            organisation_id, raise_key,
        )  # fmt: skip
        return None if row is None else RAISES.read(row)

    def add_raise(self, raised: records.BudgetRaise) -> None:
        """Insert a raise."""
        self._unit.tally.add("raise", raised.unit)
        self._unit.write(RAISES.insert(), RAISES.row(raised))

    def budget_ask(self, balance_id: int, call_id: str) -> tuple[records.BudgetAsk, int] | None:
        """Return a call's question to a balance, and when it last asked."""
        row = self._unit.row(
            "SELECT ask, ask_seen_ms FROM budget_asks WHERE balance_id = ? AND asking_call = ?",
            balance_id, call_id,
        )  # fmt: skip
        return None if row is None else (wire.decode(row[0], records.BudgetAsk), int(row[1]))

    def is_asked(self, balance_id: int, limit: int, since_ms: int) -> bool:
        """Return whether any call has asked for more than a limit since a time."""
        # No name that a program gives looks like the pattern: JSON escapes its quotes.
        return bool(
            self._unit.row(
                "SELECT 1 FROM budget_asks WHERE balance_id = ? AND ask_seen_ms >= ?"
                " AND ask LIKE ? LIMIT 1",
                balance_id, since_ms, f'%"limit":{limit},%',
            )
        )  # fmt: skip

    def save_ask(self, ask: records.BudgetAsk) -> None:
        """Write what a call asks, and that it has asked at the unit's time."""
        self._unit.write(
            _ASKS.upsert(keep=("organisation_id",)),
            (ask.balance_id, ask.call_id, ask.organisation_id, self._unit.now_ms,
             wire.encode(ask).decode()),
        )  # fmt: skip

    def drop_asks(self, organisation_id: str, call_id: str) -> None:
        """Delete a call's questions."""
        self._unit.write(
            _ASKS.delete(("organisation_id", "asking_call")), (organisation_id, call_id)
        )

    def drop_lapsed_asks(self, before_ms: int) -> None:
        """Delete questions that were not repeated since a time."""
        if self._unit.row("SELECT 1 FROM budget_asks WHERE ask_seen_ms < ? LIMIT 1", before_ms):
            self._unit.write("DELETE FROM budget_asks WHERE ask_seen_ms < ?", (before_ms,))

    # -- winding down --------------------------------------------------------------------------

    def last_call(self, balance_id: int, run: str) -> str | None:
        """Return the last call of a run that winds down, empty before it; ``None``: none does."""
        row = self._unit.row(
            "SELECT last_call FROM wind_downs WHERE balance_id = ? AND winding_run = ?",
            balance_id, run,
        )  # fmt: skip
        return None if row is None else str(row[0])

    def wind_down(self, balance_id: int, run: str, last_call: str) -> None:
        """Record that a run winds down, and its last call; a last call that is recorded stays."""
        self._unit.write(_WIND_DOWN, (balance_id, run, self._unit.now_ms, last_call))

    def end_wind_downs(self, balance_id: int) -> None:
        """Delete the record of runs that wind down on a balance: its limit has changed."""
        self._unit.write(_WIND_DOWNS.delete(("balance_id",)), (balance_id,))

    def drop_wind_downs(self, before_ms: int) -> None:
        """Delete the record of runs that began to wind down before a time."""
        if self._unit.row("SELECT 1 FROM wind_downs WHERE begun_ms < ? LIMIT 1", before_ms):
            self._unit.write("DELETE FROM wind_downs WHERE begun_ms < ?", (before_ms,))
