"""The table of events: each is stored once, and so is each LLM request's answer."""

from __future__ import annotations

import json
from typing import Any, Final

from guard.gateway.domain.commands import PricedEvent
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import ids_text
from guard.gateway.unit.tables import UnitBase

EVENTS: Final = Table("events")
COLUMNS: Final = [each for each in EVENTS.columns if each != "event_seq"]
"""The columns of :func:`event_row`, in the order of the schema."""

ADD_EVENT: Final = EVENTS.insert(COLUMNS, ignore=True)
NAME_REQUEST: Final = EVENTS.update(("request_id",))
_RESPONSE_SQL: Final = (
    "SELECT event_seq, request_id FROM events INDEXED BY events_response"
    " WHERE organisation_id = ?1 AND provider = ?2 AND response_id = ?3"
)
_REPEATED_SQL: Final = (
    f"SELECT * FROM ({_RESPONSE_SQL} AND request_id = ?4 LIMIT 1) same"
    f" UNION ALL SELECT * FROM ({_RESPONSE_SQL} AND request_id IS NULL LIMIT 1) unnamed"
)


def add_event(
    tables: UnitBase, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
    flags: str, balance_ids: tuple[int, ...],
) -> bool:  # fmt: skip
    """Record an event; ``False`` when its id or its response was recorded before."""
    if priced.response_id is not None and _is_repeated(tables, organisation_id, priced):
        return False
    row = event_row(
        tables.now_ms, organisation_id, key_id, priced, charged_at_ms, flags, balance_ids
    )
    return tables.write(ADD_EVENT, row).rowcount == 1


def event_row(
    now_ms: int, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
    flags: str, balance_ids: tuple[int, ...],
) -> tuple[Any, ...]:  # fmt: skip
    """Return the row of an event, in the order of ``COLUMNS``."""
    event = priced.event
    return (
        organisation_id, event.event_id, event.type, event.at_ms, now_ms,
        charged_at_ms, key_id, event.workflow_id, event.run_id, event.chain_id, event.agent,
        event.call_id, event.reservation_id, priced.provider, priced.model,
        priced.response_id, priced.input_tokens, priced.output_tokens, priced.cost,
        priced.price_source, flags, ids_text(balance_ids),
        priced.data_json.decode(), event.trace_id, event.span_id, event.parent_span_id,
        priced.request_id, event.user, _tags_text(event.tags),
    )  # fmt: skip


def _tags_text(tags: dict[str, str]) -> str | None:
    return json.dumps(tags, ensure_ascii=False) if tags else None


def _is_repeated(tables: UnitBase, organisation_id: str, priced: PricedEvent) -> bool:
    """Return whether the answer to the same request is stored already.

    An answer is identified by the vendor's id of it and by the request. A report that names no
    request counts as a report of any: it is a repeat if the answer is stored for any request, and
    the first request that is reported after it is taken for its own.
    """
    response = (organisation_id, priced.provider, priced.response_id)
    request_id = priced.request_id
    if request_id is None:
        return tables.row(f"{_RESPONSE_SQL} LIMIT 1", *response) is not None
    found = tables.row(_REPEATED_SQL, *response, request_id)
    if found is None:
        return False
    # The stored report names no request: it gets this one's id, and is its report from now on.
    if found[1] is None:
        tables.write(NAME_REQUEST, (request_id, found[0]))
    return True
