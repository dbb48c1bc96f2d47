"""Figures for metrics about money: sampled now and then in the background, never at a scrape.

The query of balances reads all open ones. So it is repeated only after a pause of many times its
duration, however many there are.
"""

from __future__ import annotations

from typing import Final

from guard.gateway.domain.records import BalanceView
from guard.gateway.domain.statistics import MoneySample, OrganisationSpend
from guard.gateway.domain.waiting import LAPSE_MS
from guard.gateway.storage.sql.admin_rows import OF_BALANCE, balance_view_from_row
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import BALANCES, BUDGETS
from guard.gateway.unit.usage import FOREVER

BUDGETS_MAX: Final = 100
"""How many budgets are shown, the fullest first."""
ORGANISATIONS_MAX: Final = 20
"""How many organisations are shown by name: the oldest, so that the sum of the others never
falls."""
COUNTED_MAX: Final = 10_000
"""Waiting calls and approvals are counted up to this number."""
PAUSES: Final = 50
"""The pause between two samples, in multiples of a sample's duration."""

_USED: Final = "CAST(b.committed + b.reserved AS DOUBLE PRECISION) / max(u.limit_amount, 1)"
_FULLEST: Final = (
    f"SELECT {BALANCES.names('b')}, {BUDGETS.names('u')}, {OF_BALANCE}, u.organisation_id FROM"
    " (SELECT balance_id, used FROM (SELECT b.balance_id, b.used, row_number() OVER"
    " (PARTITION BY b.budget_id ORDER BY b.used DESC, b.balance_id) AS place FROM"
    f" (SELECT b.balance_id, b.budget_id, {_USED} AS used FROM budgets u"
    " JOIN balances b USING (budget_id) WHERE coalesce(b.ends_ms, ?) > ?) b) ranked"
    " WHERE place = 1 ORDER BY used DESC, balance_id LIMIT ?) chosen"
    " JOIN balances b ON b.balance_id = chosen.balance_id"
    " JOIN budgets u ON u.budget_id = b.budget_id ORDER BY chosen.used DESC, b.balance_id"
)
_ORGANISATIONS: Final = (
    "SELECT o.organisation_id, CAST(coalesce(sum(t.cost_nanousd), 0) AS BIGINT),"
    " CAST(coalesce(sum(t.input_tokens + t.output_tokens), 0) AS BIGINT),"
    " CAST(coalesce(sum(t.llm_calls), 0) AS BIGINT)"
    " FROM organisations o LEFT JOIN usage t ON t.organisation_id = o.organisation_id"
    " AND t.scope_kind = 'organisation' AND t.size_ms = 0 AND t.start_ms = 0"
    " GROUP BY o.organisation_id ORDER BY o.organisation_id"
)


def read(connection: Connection, now_ms: int) -> MoneySample:
    """Read the figures.

    Args:
        connection: a connection.
        now_ms: the time.
    """
    rows = connection.rows(_FULLEST, FOREVER, now_ms, BUDGETS_MAX)
    budgets = [(str(row[-1]), _view(row)) for row in rows]
    spent: dict[str, OrganisationSpend] = {}
    for number, (organisation_id, *amounts) in enumerate(connection.rows(_ORGANISATIONS)):
        name = organisation_id if number < ORGANISATIONS_MAX else ""
        before = spent.get(name, OrganisationSpend(0, 0, 0))
        added = map(sum, zip(before, amounts, strict=True))
        spent[name] = OrganisationSpend(*added)
    [(count,)] = connection.rows("SELECT count(*) FROM budgets")
    [(asks,)] = connection.rows(
        "SELECT count(*) FROM (SELECT 1 FROM budget_asks WHERE ask_seen_ms >= ? LIMIT ?) asking",
        now_ms - LAPSE_MS, COUNTED_MAX,
    )  # fmt: skip
    [(approvals,)] = connection.rows(
        "SELECT count(*) FROM (SELECT 1 FROM approvals WHERE status = 'pending' LIMIT ?) waiting",
        COUNTED_MAX,
    )
    return MoneySample(budgets, spent, count, asks, approvals)


def _view(row: tuple[object, ...]) -> BalanceView:
    return balance_view_from_row(row[:-1])
