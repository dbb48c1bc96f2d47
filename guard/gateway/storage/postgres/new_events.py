"""The events of a unit of work: repeats are looked up, and rows written, for all of them at once.

The organisations of a unit are locked, so no other replica adds to their events meanwhile. An event
is a repeat if its id is recorded, or if its vendor's answer is: see
:mod:`guard.gateway.unit.event_table` for the rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from psycopg import Cursor

from guard.gateway.domain.commands import PricedEvent
from guard.gateway.storage.postgres.connection import WriteConnection
from guard.gateway.unit.event_table import (
    ADD_EVENT,
    COLUMNS,
    EVENTS,
    NAME_REQUEST,
    event_row,
)
from guard.gateway.unit.tables import UnitBase

Response = tuple[str, str | None, str | None]
"""Organisation, provider, and the vendor's id of an answer."""

_IDS: Final = (
    "SELECT organisation_id, event_id FROM events JOIN unnest(%s::text[], %s::text[])"
    " AS v(o, e) ON organisation_id = v.o AND event_id = v.e"
)
_OF_RESPONSE: Final = (
    "SELECT event_seq, request_id FROM events e WHERE e.organisation_id = v.o"
    " AND e.provider = v.p AND e.response_id = v.r"
)
_RESPONSES: Final = (
    "SELECT v.n, f.event_seq, f.request_id"
    " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[]) AS v(n, o, p, r, q)"
    f" CROSS JOIN LATERAL ((({_OF_RESPONSE} AND (v.q IS NULL OR e.request_id = v.q)) LIMIT 1)"
    f" UNION ALL (({_OF_RESPONSE} AND v.q IS NOT NULL AND e.request_id IS NULL) LIMIT 1)) f"
)
_NAME_NEW: Final = EVENTS.update(("request_id",), by=("organisation_id", "event_id"))
_REQUEST_ID: Final = COLUMNS.index("request_id")
"""Where a row of an event has its ``request_id``."""


class _Asked(NamedTuple):
    """Queries for some events: by their ids, and by the vendor's answers that they report."""

    ids: list[tuple[str, str]]
    same: Cursor[Any]
    answered: list[tuple[str, PricedEvent]]
    responses: Cursor[Any] | None


class NewEvents:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: UnitBase) -> None:
        self._tables = tables
        self.forget()

    def forget(self) -> None:
        """Begin a unit: drop the rows and the look-ups of the one before."""
        # Whether an event is recorded, in the table or in this unit, by organisation and id. Has
        # every event that a command of the unit names.
        self._looked_up: dict[tuple[str, str], bool] = {}
        # Three indexes of the vendors' answers that are recorded. All of them; those whose request
        # is known, by answer and request; and for each answer one record whose request is not
        # known: its number in the table, or its row below.
        self._responses: dict[Response, None] = {}
        self._named: dict[tuple[Response, str], None] = {}
        self._unnamed: dict[Response, int | list[Any]] = {}
        # The rows of this unit, in order; the first ``_written`` of them are in the table. Lists,
        # because the request of a row may become known before it is written.
        self._rows: list[list[Any]] = []
        self._written = 0

    def send_lookup(self, events: Iterable[tuple[str, PricedEvent]]) -> _Asked | None:
        """Query which events are recorded already; :meth:`take` reads the answer.

        Args:
            events: with their organisations.
        """
        found = list(events)
        if not found:
            return None
        connection = self._tables.connection
        assert isinstance(connection, WriteConnection)
        ids = [(own, priced.event.event_id) for own, priced in found]
        same = connection.ask(_IDS, tuple(map(list, zip(*ids, strict=True))))
        answered = [(own, each) for own, each in found if each.response_id is not None]
        if not answered:
            return _Asked(ids, same, answered, None)
        columns = (
            list(range(len(answered))),
            [own for own, _ in answered],
            [each.provider for _, each in answered],
            [each.response_id for _, each in answered],
            [each.request_id for _, each in answered],
        )
        return _Asked(ids, same, answered, connection.ask(_RESPONSES, columns))

    def take(self, asked: _Asked | None) -> None:
        """Read which events are recorded already."""
        if asked is None:
            return
        self._looked_up.update(dict.fromkeys(asked.ids, False))
        self._looked_up.update(dict.fromkeys(asked.same.fetchall(), True))
        for number, event_seq, request_id in () if asked.responses is None else asked.responses:
            own, priced = asked.answered[number]
            response = (own, priced.provider, priced.response_id)
            self._responses[response] = None
            if request_id is not None:
                self._named[response, request_id] = None
            elif priced.request_id is not None:
                self._unnamed[response] = event_seq

    def add(
        self, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
        flags: str, balance_ids: tuple[int, ...],
    ) -> bool:  # fmt: skip
        """Record an event; ``False`` when its id or its response was recorded before."""
        key = (organisation_id, priced.event.event_id)
        if key not in self._looked_up:  # no command of this unit has named it
            self.take(self.send_lookup([(organisation_id, priced)]))
        response = (organisation_id, priced.provider, priced.response_id)
        is_answer = priced.response_id is not None and priced.provider is not None
        if is_answer and self._is_repeated(response, priced.request_id):
            return False
        if self._looked_up[key]:
            return False
        tables = self._tables
        row = list(
            event_row(
                tables.now_ms, organisation_id, key_id, priced, charged_at_ms, flags, balance_ids
            )
        )
        self._rows.append(row)
        tables.on_undo(self._rows.pop)
        tables.cache_set(self._looked_up, key, True)
        if is_answer:
            tables.cache_set(self._responses, response, None)
            if priced.request_id is None:
                tables.cache_set(self._unnamed, response, row)
            else:
                tables.cache_set(self._named, (response, priced.request_id), None)
        return True

    def _is_repeated(self, response: Response, request_id: str | None) -> bool:
        """Return whether the answer to the same request is recorded; see ``event_table``."""
        # 1. A report without a request is a repeat of any record of the answer.
        if request_id is None:
            return response in self._responses
        # 2. The same request is recorded.
        if (response, request_id) in self._named:
            return True
        # 3. Nothing but other requests: a new event.
        unnamed = self._unnamed.get(response)
        if unnamed is None:
            return False
        # 4. A record without a request: it is taken for this request's, and gets its id.
        tables = self._tables
        del self._unnamed[response]
        tables.on_undo(self._unnamed.__setitem__, response, unnamed)
        tables.cache_set(self._named, (response, request_id), None)
        if isinstance(unnamed, int):
            tables.write(NAME_REQUEST, (request_id, unnamed))
            return True
        # Its row is of this unit, and perhaps not written yet.
        unnamed[_REQUEST_ID] = request_id
        tables.on_undo(unnamed.__setitem__, _REQUEST_ID, None)
        if any(row is unnamed for row in self._rows[: self._written]):
            tables.write(_NAME_NEW, (request_id, *unnamed[:2]))
        return True

    def write(self) -> None:
        """Write the rows, for a query in the middle of a unit."""
        rows = self._rows[self._written :]
        if rows:
            self._tables.write_many(ADD_EVENT, map(tuple, rows))
            self._tables.on_undo(setattr, self, "_written", self._written)
            self._written = len(self._rows)

    def flush(self) -> None:
        """Write the rows that are left, at the end of a unit."""
        rows = self._rows[self._written :]
        if rows:
            self._tables.connection.change(ADD_EVENT, map(tuple, rows))
            self._tables.changed_rows += len(rows)
