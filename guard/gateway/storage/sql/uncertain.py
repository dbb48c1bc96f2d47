"""Charges in doubt by scope and hour: the part of the spend that the vendor may not have billed.

Few events are charged in doubt, so these sums have a table of their own: other charges write
nothing here, and reports read a row for each hour in which there was any doubt. The rows outlive
the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from guard.gateway.domain import models, records
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.lineage import lineage
from guard.gateway.domain.usage import HOUR_MS
from guard.gateway.domain.windows import DAY_MS
from guard.gateway.ledger.requests import IN_DOUBT
from guard.gateway.ledger.state import SCOPE_KINDS, ChargedHour, ScopeKeys
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.record import Table
from guard.gateway.storage.sql.tables import Tables

FOREVER: Final = 2**62
MODEL_USAGE: Final = "usage of model"
PROVIDER_USAGE: Final = "usage of provider"
_Scope = tuple[str, str, str, int]

_ADD: Final = Table("uncertain_hours").upsert(add=("cost_nanousd",))
_SUM: Final = "CAST(coalesce(sum(h.cost_nanousd), 0) AS BIGINT)"
_WITHIN: Final = (
    " FROM uncertain_hours h WHERE h.organisation_id = ? AND h.scope_kind = ?"
    " AND h.hour_ms >= ? AND h.hour_ms < ?"
)


def of_scope(owner: str, kind: str, scope_id: str) -> str:
    """Return SQL for all that was charged to a scope in doubt, in a row of another table.

    Args:
        owner: the organisation's column.
        kind: the kind of scope.
        scope_id: the column of the scope's id.
    """
    return (
        f"(SELECT {_SUM} FROM uncertain_hours h WHERE h.organisation_id = {owner}"  # noqa: S608 (constant text)
        f" AND h.scope_kind = '{kind}' AND h.scope_id = {scope_id})"
    )


_OF_BUDGET: Final = "CASE u.unit WHEN 'usd' THEN '' ELSE u.unit || ':' END || u.scope_kind"
"""The kind of scope under which the doubt of a budget's unit is stored."""

OF_BALANCE: Final = (
    f"(SELECT {_SUM} FROM uncertain_hours h WHERE h.organisation_id = u.organisation_id"  # noqa: S608 (constant text)
    f" AND h.scope_kind IN ({_OF_BUDGET}, 'below ' || {_OF_BUDGET}) AND h.scope_id = b.scope_id"
    f" AND h.hour_ms >= b.period_start_ms AND h.hour_ms < coalesce(b.ends_ms, {FOREVER}))"
)
"""The same for a balance ``b`` of a budget ``u``, in the balance's period; of tokens, if it is."""


def stored_kind(unit: records.BudgetUnit, scope_kind: str) -> str:
    """Return the kind of scope under which the doubt of a unit is stored."""
    return scope_kind if unit == "usd" else f"{unit}:{scope_kind}"


class UncertainHours:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        # Nano-dollars or tokens to add, by organisation, kind and id of the scope, and hour.
        # Negative when a vendor's bill has resolved a doubt.
        self._new: Counter[_Scope] = Counter()

    def count(
        self, organisation_id: str, keys: ScopeKeys, charged_at_ms: int, priced: PricedEvent
    ) -> None:
        """Add an event that was charged in doubt; all others change nothing."""
        if IN_DOUBT in priced.flags and priced.cost:
            self._add(organisation_id, _scopes(keys, priced), charged_at_ms, priced.cost)

    def count_tokens(
        self,
        organisation_id: str,
        keys: ScopeKeys,
        charged_at_ms: int,
        priced: PricedEvent,
        tokens: int,
    ) -> None:
        """Add the tokens of such an event, for budgets of tokens: in rows of kinds of their own."""
        if IN_DOUBT in priced.flags and tokens:
            kinds = {*SCOPE_KINDS, "organisation", "model"}
            scopes = [
                (f"below {stored_kind('tokens', 'key')}" if kind == "below key"
                 else stored_kind("tokens", kind), scope_id)
                for kind, scope_id in _scopes(keys, priced)
                if kind in kinds or kind == "below key"
            ]  # fmt: skip
            self._add(organisation_id, scopes, charged_at_ms, tokens)

    def _add(
        self,
        organisation_id: str,
        of: Iterable[tuple[str, str]],
        charged_at_ms: int,
        amount: int,
    ) -> None:
        hour_ms = charged_at_ms - charged_at_ms % HOUR_MS
        scopes = [(organisation_id, *scope, hour_ms) for scope in of]
        for scope in scopes:
            self._new[scope] += amount
        self._tables.on_undo(self._undo, scopes, amount)

    def resolve(self, organisation_id: str, hour: ChargedHour) -> None:
        """Subtract a resolved doubt from the sums that a vendor's bill covers."""
        names = models.names(hour.model)
        scopes = [
            (organisation_id, kind, scope_id, hour.hour_ms)
            for kind, scope_id in (
                ("organisation", ""),
                *(("model", name) for name in names),
                (MODEL_USAGE, hour.model),
                (PROVIDER_USAGE, hour.provider),
            )
        ]
        for scope in scopes:
            self._new[scope] -= hour.uncertain_nanousd
        self._tables.on_undo(self._undo, scopes, -hour.uncertain_nanousd)

    def _undo(self, scopes: list[_Scope], cost: int) -> None:
        for scope in scopes:
            if scope in self._new:  # not if it was written in this unit already
                self._new[scope] -= cost

    def flush(self) -> None:
        """Write the sums of this unit."""
        rows = [(*scope, cost) for scope, cost in self._new.items() if cost]
        if rows:
            self._tables.connection.change(_ADD, rows)
        self._new.clear()

    def forget(self) -> None:
        """Drop the sums that were not written."""
        self._new.clear()


def charged_hours(
    tables: Tables, organisation_id: str, since_ms: int, until_ms: int, provider: str | None
) -> list[ChargedHour]:
    """Return the charges of LLM requests, by hour, provider and model.

    Doubts are recorded by model only, so if several providers have one, the dearest of them gets
    all of its doubt.
    """
    rows = tables.rows(
        "SELECT bucket_ms, provider, model, CAST(sum(cost_nanousd) AS BIGINT),"
        " CAST(sum(events) AS BIGINT) FROM organisation_rollups"
        " WHERE organisation_id = ? AND size_ms = ? AND bucket_ms >= ? AND bucket_ms < ?"
        " AND type IN ('llm', 'adjustment') GROUP BY bucket_ms, provider, model ORDER BY 4 DESC",
        organisation_id, HOUR_MS, since_ms, until_ms,
    )  # fmt: skip
    doubts = {
        (hour_ms, model): cost
        for hour_ms, model, cost in tables.rows(
            "SELECT hour_ms, scope_id, cost_nanousd FROM uncertain_hours"
            " WHERE organisation_id = ? AND scope_kind = ? AND hour_ms >= ? AND hour_ms < ?",
            organisation_id, MODEL_USAGE, since_ms, until_ms,
        )
    }  # fmt: skip
    return [
        ChargedHour(hour_ms, of, model, cost, events, doubts.pop((hour_ms, model), 0))
        for hour_ms, of, model, cost, events in rows
        if provider in (None, of)
    ]


def _scopes(keys: ScopeKeys, priced: PricedEvent) -> Iterator[tuple[str, str]]:
    yield "organisation", ""
    for kind, scope_id in (*zip(SCOPE_KINDS, keys[:5], strict=True), ("run", priced.event.run_id)):
        yield (f"no {kind}", "") if scope_id is None else (kind, scope_id)
    for above in lineage(keys[4] or "")[1:]:
        # Budgets of the keys above count it; the usage of those keys themselves does not.
        yield "below key", above
    for tag in keys[5]:
        yield "tag", tag
    for name in keys[-1]:
        yield "model", name
    # As usage is grouped: budgets of models count those of their families too.
    yield MODEL_USAGE, priced.model or ""
    yield PROVIDER_USAGE, priced.provider or ""


def of_scopes(
    reading: Connection,
    organisation_id: str,
    kind: str,
    scope_ids: Sequence[str],
    since_ms: int = 0,
    until_ms: int = FOREVER,
) -> dict[str, int]:
    """Return the charges in doubt of some scopes, in all hours that overlap a time."""
    if not scope_ids:
        return {}
    places = ", ".join("?" * len(scope_ids))
    rows = reading.rows(
        f"SELECT h.scope_id, {_SUM}{_WITHIN} AND h.scope_id IN ({places}) GROUP BY h.scope_id",
        organisation_id, kind, _hour_of(since_ms), until_ms, *scope_ids,
    )  # fmt: skip
    return dict(rows)


def of_one(
    reading: Connection,
    organisation_id: str,
    kind: str,
    scope_id: str,
    since_ms: int = 0,
    until_ms: int = FOREVER,
) -> int:
    """Return the charges in doubt of one scope, in all hours that overlap a time."""
    found = of_scopes(reading, organisation_id, kind, [scope_id], since_ms, until_ms)
    return found.get(scope_id, 0)


def by_time(
    reading: Connection, organisation_id: str, width_ms: int, since_ms: int, until_ms: int
) -> dict[int, int]:
    """Return the charges in doubt of an organisation, by the start of hours or days."""
    rows = reading.rows(
        f"SELECT h.hour_ms - h.hour_ms % {int(width_ms)} AS start, {_SUM}{_WITHIN}"
        " AND h.scope_id = '' GROUP BY start",
        organisation_id, "organisation", _hour_of(since_ms), until_ms,
    )  # fmt: skip
    return dict(rows)


def of_groups(
    reading: Connection,
    organisation_id: str,
    group_by: str,
    groups: Sequence[Any],
    since_ms: int,
    until_ms: int,
) -> dict[Any, int]:
    """Return the charges in doubt of the groups of a usage report, by the groups' values."""
    asked = (reading, organisation_id)
    if group_by in ("hour", "day"):
        width_ms = HOUR_MS if group_by == "hour" else DAY_MS
        return by_time(*asked, width_ms, since_ms, until_ms)
    if group_by in ("total", "type"):  # only LLM calls are charged in doubt
        found = of_one(*asked, "organisation", "", since_ms, until_ms)
        return {None if group_by == "total" else "llm": found}
    kind = {"model": MODEL_USAGE, "provider": PROVIDER_USAGE}.get(group_by)
    named = [group for group in groups if group is not None]
    uncertain: dict[Any, int] = {}
    uncertain.update(of_scopes(*asked, kind or group_by, named, since_ms, until_ms))
    if len(named) < len(groups):
        uncertain[None] = of_one(*asked, kind or f"no {group_by}", "", since_ms, until_ms)
    return uncertain


def _hour_of(at_ms: int) -> int:
    return at_ms - at_ms % HOUR_MS
