"""Usage of each value of a tag by day and by hour, in the tables of scopes.

An event has up to 16 tags, as JSON that the engines read in different ways, so they are read here.
The kind of scope of a tag ``team`` is ``tag:team``, and its value is the id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, LiteralString

from guard.core.wire import NANOUSD_MAX
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.record import Table
from guard.gateway.storage.sql.scope_days import (
    DAYS,
    HOURS,
    NUMBERS,
    OF_EVENTS,
    EventSums,
    summed,
)
from guard.gateway.storage.sql.tables import Tables

TAGS_FACT: Final[LiteralString] = "summed_tags_seq"
KIND: Final = "tag:"
_AFTER_KINDS: Final = "tag;"
"""Sorts after the kinds of all tags."""

_COLUMNS: Final = ("organisation_id", "scope_kind", "scope_id")
_READ: Final = (
    f"SELECT organisation_id, charged_at_ms, tags, {OF_EVENTS} FROM events"  # noqa: S608 (constant text)
    " WHERE event_seq > ? AND event_seq <= ? AND tags IS NOT NULL"
)
_WAITING: Final = (
    "SELECT DISTINCT tags FROM events NOT INDEXED"  # noqa: S608 (constant text)
    f" WHERE event_seq > {summed(TAGS_FACT)} AND organisation_id = ? AND tags IS NOT NULL LIMIT ?"
)
_WAITING_MAX: Final = 1000


def kind_of(name: str) -> str:
    """Return the kind of scope of a tag."""
    return KIND + name


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Return the names and values of an event's stored tags."""
    yield from json.loads(text).items()


class TagSums(EventSums):
    """Sums of each value of each tag, for days and hours in one step."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables, TAGS_FACT)
        self._writes = [
            (
                sums.size_ms,
                Table(sums.table).upsert((*_COLUMNS, sums.begin, *NUMBERS), add=NUMBERS),
            )
            for sums in (DAYS, HOURS)
        ]

    def add(self, after: int, end: int) -> None:
        """Sum the events whose numbers are above ``after``, up to ``end``."""
        rows = self._tables.rows(_READ, after, end)
        for size_ms, change in self._writes:
            if rows:
                self._tables.write_many(change, _summed(rows, size_ms))


def _summed(rows: Iterable[Any], size_ms: int) -> list[tuple[Any, ...]]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for organisation_id, at_ms, tags, *numbers in rows:
        for name, value in pairs(tags):
            key = organisation_id, kind_of(name), value, at_ms - at_ms % size_ms
            known = found.setdefault(key, [0] * len(numbers))
            for place, number in enumerate(numbers):
                known[place] += number
    return [(*key, *(min(n, NANOUSD_MAX) for n in numbers)) for key, numbers in found.items()]


def tag_names(reading: Connection, organisation_id: str, limit: int) -> list[str]:
    """Return the names of the tags of stored events, in their order."""
    with reading.snapshot():
        waiting = reading.rows(_WAITING, organisation_id, _WAITING_MAX)
        found = {name for (tags,) in waiting for name, _ in pairs(tags)}
        kind: str | None = KIND
        while len(found) < limit:
            (kind,) = reading.rows(  # the next one, by the index: there are far more rows than tags
                "SELECT min(scope_kind) FROM scope_days"
                " WHERE organisation_id = ? AND scope_kind > ? AND scope_kind < ?",
                organisation_id, kind, _AFTER_KINDS,
            )[0]  # fmt: skip
            if kind is None:
                break
            found.add(kind.removeprefix(KIND))
    return sorted(found)[:limit]
