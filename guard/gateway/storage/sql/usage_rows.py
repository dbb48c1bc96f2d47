"""All of what the scopes of one kind have used in a time, name by name, in pages."""

from __future__ import annotations

import operator
from typing import Any, Final

from guard.gateway.domain import records
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.usage import QUARTER_MS, is_kept_by_model
from guard.gateway.storage.sql.usage_report import OF_KEYS, SUMS, is_all, kept_since_ms, usage_row
from guard.gateway.unit.connection import Connection

_OF_ORGANISATION: Final = ("model", "provider")
_ROWS: Final = (
    "usage u LEFT JOIN keys k ON u.scope_kind = 'key' AND k.key_id = u.scope_id"
    " WHERE u.organisation_id = ? AND u.scope_kind = ? AND u.size_ms = ? AND u.start_ms >= ?"
    " AND u.start_ms < ? AND u.events > 0"
)
_EVENTS: Final = 0
_Place = tuple[str, str, int, int, int]


def usage_rows(
    connection: Connection, organisation_id: str, *, group_by: str, by_model: bool = False,
    since_ms: int = 0, until_ms: int = 2**53, after: str = "", after_model: str = "",
    limit: int = 1000,
) -> list[records.UsageRow]:  # fmt: skip
    """Return a page of what each scope of a kind has used, in the order of their names.

    The first page begins with what belongs to no scope of the kind, so that all pages together are
    what the organisation has used.

    Args:
        connection: where to read.
        organisation_id: the tenant.
        group_by: a kind of scope, ``model``, ``provider``, or ``tag:`` and a tag's name.
        by_model: whether there is a row for each model that a scope has used. What was used before
            a kind was kept by model has none.
        since_ms, until_ms: the time, in Unix milliseconds; widened to whole quarter hours.
        after, after_model: name and model of the last row of the page before.
        limit: rows of a page; those of no scope come on top.

    Raises:
        ConflictError: the kind is not kept by model.
    """
    kind = "key" if group_by in OF_KEYS else group_by
    if by_model and not is_kept_by_model(group_by):
        raise ConflictError(f"usage by {group_by} is not kept by model")
    own = "organisation" if kind in _OF_ORGANISATION else kind
    name = _name_of(group_by)
    model = "u.model" if by_model else "''"
    with connection.snapshot():
        if is_all(since_ms, until_ms) and not by_model:
            place: _Place = organisation_id, own, 0, 0, 1
        else:
            since_ms = max(since_ms, kept_since_ms(connection, organisation_id, kind))
            start_ms, end_ms = since_ms - since_ms % QUARTER_MS, -(-until_ms // QUARTER_MS)
            place = organisation_id, own, QUARTER_MS, start_ms, end_ms * QUARTER_MS
        rows = connection.rows(
            f"SELECT {name}, {model}, {SUMS} FROM {_ROWS} AND {name} <> ''"
            f" AND ({name} > ? OR {name} = ? AND {model} > ?) GROUP BY 1, 2 ORDER BY 1, 2 LIMIT ?",
            *place, after, after, after_model, limit,
        )  # fmt: skip
        if not after:
            rows = [*_of_none(connection, place, name, model), *rows]
    return [usage_row(named or None, numbers, of or None) for named, of, *numbers in rows]


def _name_of(group_by: str) -> str:
    if group_by in _OF_ORGANISATION:
        return f"u.{group_by}"
    return f"coalesce(k.{OF_KEYS[group_by]}, '')" if group_by in OF_KEYS else "u.scope_id"


def _of_none(connection: Connection, place: _Place, name: str, model: str) -> list[Any]:
    """Return the rows of what belongs to no scope of a kind: all, less what the named ones have."""
    own = f"SELECT {model}, {SUMS} FROM {_ROWS}"
    left = {of: numbers for of, *numbers in
            connection.rows(f"{own} GROUP BY 1", place[0], "organisation", *place[2:])}  # fmt: skip
    named = connection.rows(f"{own} AND {name} <> '' GROUP BY 1", *place)
    for of, *numbers in named:
        before = left.get(of, [0] * len(numbers))
        left[of] = list(map(operator.sub, before, numbers))
    # What was used before the kind was kept by model is named without one: then the models of the
    # rest are not known either.
    if any(numbers[_EVENTS] < 0 for numbers in left.values()):
        left = {"": [sum(column) for column in zip(*left.values(), strict=True)]}
    return [("", of, *numbers) for of, numbers in sorted(left.items()) if any(numbers)]
