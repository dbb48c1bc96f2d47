"""What every scope has used: in all, by quarter hours and, for some days, by minutes.

One table has all of it. Its rows are collected in a unit of work and written with its commit, so
they are exact at any moment. A kind of scope may have fewer rows than others: those of runs and
chains, of which there are many, are kept in all only, and only times of the kinds that reports
divide by model are divided. Quarter hours are the widest steps of which the days of every time
zone consist.

What is in doubt is also kept as budgets count it, in kinds of their own: ``doubt of model`` under
every name of a model, ``doubt of tag``, ``doubt of key`` for the keys above the one that was used,
and ``doubt of chain`` by quarter hours. They have nothing but doubt, and are rare.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from msgspec import Struct

from guard.gateway.domain import models
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.key_hierarchy import SEPARATOR, counted_by, lineage
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, MINUTE_MS, QUARTER_MS
from guard.gateway.unit.record import Table
from guard.gateway.unit.state import IN_DOUBT, RUN, SCOPE_KINDS, ChargedHour, ScopeKeys
from guard.gateway.unit.tables import CACHE_MAX, UnitBase, restore_list

Rows = Callable[..., list[Any]]
FOREVER: Final = 2**62
FRESH_MS: Final = 1000
"""If nothing was spent, the last use of a run is written no more often than this."""

MINUTES_KEPT_MS: Final = 2 * DAY_MS
DOUBT: Final = "doubt of "
_AFTER: Final = chr(ord(SEPARATOR) + 1)
"""Behind a key's id, it comes after the ids of all keys below that key."""

TAG: Final = "tag:"
"""What the kind of scope of a tag's values begins with; the rest is the tag's name."""

BY_EVENT: Final = {"run": "run_id", "chain": "chain_id"}
"""The kinds without quarter hours, by the column of events that has their ids."""

NUMBERS: Final = (
    "cost_nanousd", "events", "llm_calls", "tool_calls", "input_tokens", "output_tokens",
    "unpriced", "doubt_nanousd", "doubt_tokens",
)  # fmt: skip
"""What is counted, in the order of an entry's numbers."""

_ALL: Final = (0,)
_QUARTERS: Final = (0, QUARTER_MS)
_MINUTES: Final = (0, QUARTER_MS, MINUTE_MS)
_SIZES: Final = {
    "organisation": _MINUTES, "workflow": _MINUTES, "run": _ALL, "chain": _ALL,
    "doubt of chain": (QUARTER_MS,),
}  # fmt: skip
"""The widths of a kind's rows, 0 for all time; those of every other kind are ``_QUARTERS``."""

_UNDIVIDED: Final = {"run", "chain", "agent", *(DOUBT + each for each in (
    "model", "tag", "key", "chain"
))}  # fmt: skip
_COLUMNS: Final = (
    "organisation_id", "scope_kind", "size_ms", "start_ms", "scope_id", "model", "provider", "type",
    *NUMBERS, "calls", "first_ms", "last_ms", "owner",
)  # fmt: skip
_USAGE: Final = Table("usage")
_ADD: Final = _USAGE.upsert(
    _COLUMNS,
    add=(*NUMBERS, "calls"),
    sets={
        "first_ms": "coalesce(usage.first_ms, excluded.first_ms)",
        "last_ms": "coalesce(excluded.last_ms, usage.last_ms)",
        "owner": "coalesce(usage.owner, excluded.owner)",
    },
)


class _Entry(Struct):
    """One event of the unit, not written yet.

    Attributes:
        organisation_id, at_ms: whose it is, and when it was charged.
        scopes: kinds and ids.
        parts: by what rows are divided: model, provider and type.
        numbers: in the order of ``NUMBERS``.
    """

    organisation_id: str
    at_ms: int
    scopes: list[tuple[str, str]]
    parts: tuple[str, str, str]
    numbers: tuple[int, ...]


class _Reading(Protocol):
    def rows(self, sql: str, *arguments: Any) -> list[Any]: ...


class UsageTable:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: UnitBase) -> None:
        self._tables = tables
        # Of this unit, in order: an undo removes the last one.
        self._entries: list[_Entry] = []
        # Workflows and runs that this unit has seen, by organisation, kind and id: calls, first and
        # last use, and the workflow of a run. The lists are changed in place.
        self._seen: dict[tuple[str, str, str], list[Any]] = {}
        # When runs were last written. Only saves writes, so it may forget.
        self._runs_seen_ms: dict[tuple[str, str, str], int] = {}

    # -- counting ------------------------------------------------------------------------------

    def count(
        self, organisation_id: str, keys: ScopeKeys, charged_at_ms: int, priced: PricedEvent
    ) -> None:
        """Add one event to the rows of its scopes."""
        in_doubt = IN_DOUBT in priced.flags and priced.cost != 0
        scopes = [*_scopes(keys, priced)]
        if in_doubt:
            scopes += _doubtful(keys)
        kind = priced.event.type
        numbers = (
            priced.cost, 1, int(kind == "llm"), int(kind == "tool"), priced.input_tokens,
            priced.output_tokens, int("unpriced" in priced.flags), priced.cost if in_doubt else 0,
            0,
        )  # fmt: skip
        parts = priced.model or "", priced.provider or "", kind
        self._append(_Entry(organisation_id, charged_at_ms, scopes, parts, numbers))

    def count_doubtful_tokens(
        self,
        organisation_id: str,
        keys: ScopeKeys,
        charged_at_ms: int,
        priced: PricedEvent,
        tokens: int,
    ) -> None:
        """Add the tokens of an event that was charged in doubt; all others change nothing."""
        if IN_DOUBT in priced.flags and tokens:
            scopes = [*_scopes(keys, priced), *_doubtful(keys)]
            parts = priced.model or "", priced.provider or "", priced.event.type
            numbers = *(0,) * (len(NUMBERS) - 1), tokens
            self._append(_Entry(organisation_id, charged_at_ms, scopes, parts, numbers))

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._tables.undo_log.append((self._drop,))

    def _drop(self) -> None:
        if self._entries:  # empty if it was written in this unit already
            self._entries.pop()

    def see(
        self, organisation_id: str, kind: str, scope_id: str, *, calls: int = 0,
        spent: bool = False, owner: str | None = None,
    ) -> None:  # fmt: skip
        """Note that a workflow or a run is in use, and the calls that it has made."""
        key, now_ms = (organisation_id, kind, scope_id), self._tables.now_ms
        seen = self._seen.get(key)
        if seen is not None:
            self._tables.undo_log.append((restore_list, seen, seen[:]))
            seen[0] += calls
            return
        if kind == "run" and not spent and now_ms - self._seen_at_ms(key) < FRESH_MS:
            return
        self._seen[key] = [calls, now_ms, now_ms, owner]
        self._tables.undo_log.append((self._seen.pop, key, None))

    def _seen_at_ms(self, key: tuple[str, str, str]) -> int:
        return self._runs_seen_ms.get(key, -FRESH_MS)

    def flush(self) -> None:
        """Write what the unit has counted, one change for each row."""
        if not self._entries and not self._seen:
            return
        rows: dict[tuple[Any, ...], list[Any]] = {}
        for entry in self._entries:
            for key in _keys(entry):
                row = rows.get(key)
                if row is None:
                    rows[key] = [*entry.numbers, 0, None, None, None]
                else:
                    for at, number in enumerate(entry.numbers):
                        row[at] += number
        for (organisation_id, kind, scope_id), seen in self._seen.items():
            key = organisation_id, kind, 0, 0, scope_id, "", "", ""
            row = rows.setdefault(key, [*(0,) * len(NUMBERS), 0, None, None, None])
            row[len(NUMBERS) :] = seen
            if kind == "run":
                if len(self._runs_seen_ms) >= CACHE_MAX:
                    self._runs_seen_ms.clear()
                self._runs_seen_ms[organisation_id, kind, scope_id] = self._tables.now_ms
        self._tables.connection.change(_ADD, [(*key, *row) for key, row in rows.items()])
        self._entries.clear()
        self._seen.clear()

    def forget(self) -> None:
        """Drop what was not written."""
        self._entries.clear()
        self._seen.clear()
        self._runs_seen_ms.clear()

    # -- reading within the unit ---------------------------------------------------------------

    def used(
        self, organisation_id: str, kind: str, scope_id: str, start_ms: int, end_ms: int | None,
        pattern: str = "*",
    ) -> tuple[int, int]:  # fmt: skip
        """Return the nano-dollars and tokens that a scope has used in a period up to now.

        Args:
            organisation_id: whose scope it is.
            kind: which kind of scope.
            scope_id: the concrete id, empty for the organisation.
            start_ms: when the period begins.
            end_ms: when it ends; ``None`` for the one that never does.
            pattern: what the budget of a key is for, which decides whether keys below it count.
        """
        if kind in BY_EVENT and end_ms is not None:
            self._tables.write_events()
        until_ms = None if end_ms is None else min(end_ms, self._tables.now_ms + DAY_MS)
        scope = (organisation_id, kind, scope_id)
        cost, tokens = used(self._tables.rows, *scope, start_ms, until_ms, pattern)
        if kind in BY_EVENT and end_ms is not None:
            return cost, tokens
        own = organisation_id, *place_of(kind, scope_id)
        for entry in self._entries:
            if entry.organisation_id == organisation_id and (
                end_ms is None or start_ms <= entry.at_ms < end_ms
            ):
                counts = own[1:] in entry.scopes
                if kind == "key":
                    counts = any(
                        each == kind and counted_by(pattern, own_id) == scope_id
                        for each, own_id in entry.scopes
                    )
                if kind == "model":
                    counts = scope_id in models.names(entry.parts[0])
                if counts:
                    cost += entry.numbers[0]
                    tokens += entry.numbers[4] + entry.numbers[5]
        return cost, tokens

    def resolve(self, organisation_id: str, hour: ChargedHour) -> None:
        """Take a doubt that a vendor's bill has resolved out of the rows that the bill covers."""
        self.flush()
        rows = self._tables.rows(
            "SELECT start_ms, type, doubt_nanousd FROM usage WHERE organisation_id = ?"
            f" AND scope_kind = 'organisation' AND size_ms = {QUARTER_MS} AND start_ms >= ?"
            " AND start_ms < ? AND model = ? AND provider = ? AND doubt_nanousd <> 0",
            organisation_id, hour.hour_ms, hour.hour_ms + HOUR_MS, hour.model, hour.provider,
        )  # fmt: skip
        scopes = [("organisation", "")]
        scopes += [(f"{DOUBT}model", name) for name in models.names(hour.model)]
        for start_ms, kind, doubt in rows:
            numbers = *(0,) * (len(NUMBERS) - 2), -doubt, 0
            parts = hour.model, hour.provider, kind
            self._append(_Entry(organisation_id, start_ms, scopes, parts, numbers))

    def prune(self, organisation_ids: Iterable[str]) -> None:
        """Drop minutes that are no longer shown, an hour's rows of each kind."""
        end_ms = self._tables.now_ms - MINUTES_KEPT_MS
        where = f"organisation_id = ? AND scope_kind = ? AND size_ms = {MINUTE_MS}"
        for own in itertools.product(organisation_ids, ("organisation", "workflow")):
            sql = f"SELECT min(start_ms) FROM usage WHERE {where}"
            (oldest_ms,) = self._tables.row(sql, *own)
            if oldest_ms is not None and oldest_ms < end_ms:
                sql = f"DELETE FROM usage WHERE {where} AND start_ms < ?"
                self._tables.write(sql, (*own, min(end_ms, oldest_ms + HOUR_MS)))


def _scopes(keys: ScopeKeys, priced: PricedEvent) -> Iterator[tuple[str, str]]:
    yield "organisation", ""
    for kind, scope_id in zip(SCOPE_KINDS, keys[:5], strict=True):
        if scope_id or kind == "chain":
            yield kind, scope_id or ""
    yield "run", priced.event.run_id or ""
    if priced.event.type == "tool" and (tool := priced.event.data.get("tool_name")):
        yield "tool", tool
    for name, value in priced.event.tags.items():
        yield TAG + name, value


def _doubtful(keys: ScopeKeys) -> Iterator[tuple[str, str]]:
    """The scopes whose budgets count an event that is not theirs alone."""
    for above in lineage(keys[4] or "")[1:]:
        yield f"{DOUBT}key", above
    if keys[2] is not None:
        yield f"{DOUBT}chain", keys[2]
    for tag in keys[5]:
        if not tag.startswith(RUN):
            yield f"{DOUBT}tag", tag
    for name in keys[-1]:
        yield f"{DOUBT}model", name


def _keys(entry: _Entry) -> Iterator[tuple[Any, ...]]:
    """Return the keys of the rows that an entry is added to."""
    own, at_ms = entry.organisation_id, entry.at_ms
    model = entry.parts[0]
    for kind, scope_id in entry.scopes:
        for size_ms in _SIZES.get(kind, _QUARTERS):
            start_ms = at_ms - at_ms % size_ms if size_ms else 0
            if kind == "organisation":
                yield own, kind, size_ms, start_ms, scope_id, *entry.parts
            elif size_ms and kind not in _UNDIVIDED:
                yield own, kind, size_ms, start_ms, scope_id, model, "", ""
            else:
                yield own, kind, size_ms, start_ms, scope_id, "", "", ""


def place_of(kind: str, scope_id: str) -> tuple[str, str]:
    """Return where the usage of a budget's scope is kept."""
    if kind != "tag":
        return kind, scope_id
    name, _, value = scope_id.partition("=")
    return TAG + name, value


_USED: Final = (
    "SELECT CAST(coalesce(sum(u.cost_nanousd), 0) AS BIGINT),"
    " CAST(coalesce(sum(u.input_tokens + u.output_tokens), 0) AS BIGINT)"
)
TIMES: Final = (
    f"WITH RECURSIVE times (at_ms) AS (SELECT ?4 UNION ALL SELECT at_ms + {QUARTER_MS} FROM times"
    f" WHERE at_ms + {QUARTER_MS} < ?5)"
)
OF_ONE: Final = (
    " FROM times CROSS JOIN usage u ON u.organisation_id = ?1 AND u.scope_kind = ?2"
    f" AND u.size_ms = {QUARTER_MS} AND u.start_ms = at_ms AND u.scope_id = ?3"
)
"""The quarter hours of one scope, looked up one by one: rows of a time hold all scopes."""


def used(
    rows: Rows,
    organisation_id: str,
    kind: str,
    scope_id: str,
    start_ms: int,
    end_ms: int | None,
    pattern: str = "*",
) -> tuple[int, int]:
    """Return the nano-dollars and tokens that a scope has used, of rows that are written.

    Args:
        rows: runs a query.
        organisation_id, kind, scope_id: the scope, as a budget names it.
        start_ms, end_ms: the time, from and to a quarter hour; without an end, all time.
        pattern: what the budget of a key is for, which decides whether keys below it count.
    """
    if kind == "key" and pattern != "*":
        return _with_those_below(rows, organisation_id, scope_id, start_ms, end_ms, pattern)
    if kind == "model":  # the organisation's rows are divided by model
        named = rows(
            "SELECT DISTINCT model FROM usage WHERE organisation_id = ?"
            " AND scope_kind = 'organisation' AND size_ms = 0",
            organisation_id,
        )
        found = [model for (model,) in named if scope_id in models.names(model)]
        if not found:
            return 0, 0
        places = ", ".join("?" * len(found))
        where = f" AND u.model IN ({places})"
        return _of_organisation(rows, organisation_id, start_ms, end_ms, where, found)
    if kind == "organisation":
        return _of_organisation(rows, organisation_id, start_ms, end_ms, "", [])
    kind, scope_id = place_of(kind, scope_id)
    in_all = rows(
        f"{_USED} FROM usage u WHERE organisation_id = ? AND scope_kind = ? AND size_ms = 0"
        " AND start_ms = 0 AND scope_id = ?",
        organisation_id, kind, scope_id,
    )[0]  # fmt: skip
    if end_ms is None or not any(in_all):
        return tuple(in_all)
    if kind in BY_EVENT:
        return tuple(
            rows(
                f"{_USED} FROM events u WHERE organisation_id = ? AND {BY_EVENT[kind]} = ?"
                " AND charged_at_ms >= ? AND charged_at_ms < ?",
                organisation_id, scope_id, start_ms, end_ms,
            )[0]
        )  # fmt: skip
    return tuple(
        rows(f"{TIMES} {_USED}{OF_ONE}", organisation_id, kind, scope_id, start_ms, end_ms)[0]
    )


def _with_those_below(
    rows: Rows, organisation_id: str, key_id: str, start_ms: int, end_ms: int | None, pattern: str
) -> tuple[int, int]:
    """Return what a key and the keys below it have used, as far as its balance counts them."""
    if end_ms is None:
        start_ms, end_ms, size_ms = 0, 1, 0
    else:
        size_ms = QUARTER_MS
    found = rows(
        f"{TIMES} {_USED}, u.scope_id FROM times CROSS JOIN usage u ON u.organisation_id = ?1"
        " AND u.scope_kind = ?2 AND u.size_ms = ?6 AND u.start_ms = at_ms AND u.scope_id >= ?3"
        " AND u.scope_id < ?7 GROUP BY u.scope_id",
        organisation_id, "key", key_id, start_ms, end_ms, size_ms, f"{key_id}{_AFTER}",
    )  # fmt: skip
    own = [row for row in found if counted_by(pattern, row[2]) == key_id]
    return sum(row[0] for row in own), sum(row[1] for row in own)


def _of_organisation(
    rows: Rows,
    organisation_id: str,
    start_ms: int,
    end_ms: int | None,
    where: str,
    found: list[str],
) -> tuple[int, int]:
    size_ms = 0 if end_ms is None else QUARTER_MS
    cost, tokens = rows(
        f"{_USED} FROM usage u WHERE organisation_id = ? AND scope_kind = 'organisation'"
        f" AND size_ms = ? AND start_ms >= ? AND start_ms < ?{where}",
        organisation_id, size_ms, start_ms if size_ms else 0, FOREVER if end_ms is None else end_ms,
        *found,
    )[0]  # fmt: skip
    return cost, tokens


def doubt_of(connection: _Reading, account: BudgetBalance) -> int:
    """Return what a balance was charged in doubt, but for what this unit has not written yet."""
    budget, scope_id = account.rule, account.balance.scope_id
    start_ms, end_ms = account.balance.period_start_ms, account.balance.ends_ms
    # A budget for each key counts the keys below one for themselves.
    also = "" if budget.scope_kind == "key" and budget.scope_id != scope_id else DOUBT
    rows = connection.rows(
        "SELECT coalesce(sum(doubt_nanousd), 0), coalesce(sum(doubt_tokens), 0) FROM usage"
        " INDEXED BY usage_doubt"
        " WHERE organisation_id = ? AND scope_kind IN (?, ?) AND scope_id = ? AND size_ms = ?"
        " AND start_ms >= ? AND start_ms < ? AND (doubt_nanousd <> 0 OR doubt_tokens <> 0)",
        budget.organisation_id, budget.scope_kind, also + budget.scope_kind, scope_id,
        QUARTER_MS if start_ms else 0, start_ms - start_ms % QUARTER_MS, end_ms or FOREVER,
    )  # fmt: skip
    money, tokens = rows[0]
    return int({"usd": money, "tokens": tokens}.get(budget.unit, 0))


def charged_hours(
    connection: _Reading, organisation_id: str, since_ms: int, until_ms: int, provider: str | None
) -> list[ChargedHour]:
    """Return the charges of LLM requests, by hour, provider and model, the dearest first."""
    rows = connection.rows(
        f"SELECT start_ms - start_ms % {HOUR_MS} AS hour_ms, provider, model,"
        " CAST(sum(cost_nanousd) AS BIGINT), CAST(sum(events) AS BIGINT),"
        " CAST(sum(doubt_nanousd) AS BIGINT) FROM usage WHERE organisation_id = ?"
        f" AND scope_kind = 'organisation' AND size_ms = {QUARTER_MS} AND start_ms >= ?"
        " AND start_ms < ? AND type IN ('llm', 'adjustment')"
        " GROUP BY hour_ms, provider, model ORDER BY 4 DESC",
        organisation_id, since_ms, until_ms,
    )  # fmt: skip
    return [
        ChargedHour(hour_ms, of, model, cost, events, doubt)
        for hour_ms, of, model, cost, events, doubt in rows
        if provider in (None, of)
    ]
