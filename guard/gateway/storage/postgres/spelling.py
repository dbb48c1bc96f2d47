"""Translates the shared SQL for PostgreSQL. Pure, and cached: each text is translated once.

Where the two engines differ, the shared text is SQLite's. Each difference is a pair below, found by
its exact text. A difference that is not listed is a syntax error in PostgreSQL, which the tests of
the store find.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_PAIRS: Final = (
    # Hints for SQLite's planner. PostgreSQL plans by its statistics.
    ("INDEXED BY events_charged ", ""),
    ("INDEXED BY events_response ", ""),
    ("INDEXED BY events_flagged ", ""),
    ("INDEXED BY deliveries_due ", ""),
    ("INDEXED BY directives_runs ", ""),
    ("NOT INDEXED ", ""),
    ("CROSS JOIN ", "JOIN "),
    ("char(63)", "chr(63)"),
    ("GROUP BY +organisation_id, +", "GROUP BY organisation_id, "),
    # JSON that is stored as text, and lists of arguments.
    ("json_each(?1) j", "jsonb_array_elements_text((?1)::jsonb) AS j(value)"),
    ("json_each(e.balance_ids) j", "jsonb_array_elements_text(e.balance_ids::jsonb) AS j(value)"),
    ("json_each(r.balance_ids) j", "jsonb_array_elements_text(r.balance_ids::jsonb) AS j(value)"),
)
"""Texts for SQLite, each with the text for PostgreSQL."""

_PLACES_MAX: Final = 9
"""Numbered places for arguments have one digit."""


class Spelled(Struct, frozen=True):
    """A statement for psycopg.

    Attributes:
        plain: for a call without arguments.
        text: for a call with arguments.
        is_named: the arguments are a mapping from ``a1``, ``a2`` and so on.
    """

    plain: str
    text: str
    is_named: bool


@functools.lru_cache(maxsize=1024)
def spelled(sql: str) -> Spelled:
    """Return a statement of the shared SQL for PostgreSQL.

    >>> spelled("SELECT x % 2 FROM t NOT INDEXED WHERE a = ?").text
    'SELECT x %% 2 FROM t WHERE a = %s'
    >>> spelled("SELECT ?1 + ?2 + ?1").text
    'SELECT %(a1)s + %(a2)s + %(a1)s'
    """
    for theirs, ours in _PAIRS:
        sql = sql.replace(theirs, ours)
    # psycopg reads ``%`` as a placeholder, but only in a statement that has arguments.
    text = sql.replace("%", "%%")
    is_named = "?1" in text
    if is_named:
        for number in range(1, _PLACES_MAX + 1):
            text = text.replace(f"?{number}", f"%(a{number})s")
    return Spelled(sql, text.replace("?", "%s"), is_named)


# -- many rows in one statement --------------------------------------------------------------------

_INSERT: Final = re.compile(
    r"INSERT INTO (?P<table>\w+)(?P<alias> AS \w+)?(?: \((?P<columns>[\w, ]+)\))?"
    r" VALUES \((?:\?,)*\?\)(?P<rest>.*)",
    re.DOTALL,
)
_CHANGE: Final = re.compile(
    r"(?P<head>UPDATE (?P<updated>\w+) SET (?P<sets>.*?)|DELETE FROM (?P<deleted>\w+))"
    r" WHERE (?P<where>.*)",
    re.DOTALL,
)
_PLACE: Final = re.compile(r"(\w+) = ([^,?]*)\?")


class Bulk(Struct, frozen=True):
    """A statement that takes each column of many rows as one array.

    Attributes:
        text: for psycopg.
        types: of the columns.
    """

    text: str
    types: tuple[str, ...]


def bulk(sql: str, types: Mapping[str, Mapping[str, str]]) -> Bulk | None:
    """Rewrite a statement for one row into one for many; ``None`` if it has another form.

    Args:
        sql: an ``INSERT ... VALUES``, an ``UPDATE`` or a ``DELETE`` with ``?`` for each argument.
        types: of each table's columns, in their order.

    >>> bulk("DELETE FROM t WHERE a = ?", {"t": {"a": "bigint"}}).text
    'DELETE FROM t USING unnest(%s::bigint[]) AS v(c1) WHERE a = v.c1'
    """
    inserted = _INSERT.fullmatch(sql)
    if inserted is not None:
        table = types[inserted["table"]]
        named = inserted["columns"]
        count = sql[: inserted.start("rest")].count("?")
        columns = [c.strip() for c in named.split(",")] if named else list(table)[:count]
        of_columns = tuple(table[column] for column in columns)
        head = f"INSERT INTO {inserted['table']}{inserted['alias'] or ''}"
        rest = inserted["rest"].replace("%", "%%")
        source = f" SELECT * FROM {_arrays(of_columns)}{rest}"  # noqa: S608 (text of this package)
        text = f"{head} ({', '.join(_quoted(columns))}){source}"
        return Bulk(text, of_columns)
    changed = _CHANGE.fullmatch(sql)
    if changed is None:
        return None
    places = _PLACE.findall(sql)
    if len(places) != sql.count("?"):
        return None
    name = changed["updated"] or changed["deleted"]
    of_columns = tuple(types[name][column] for column, _ in places)
    number = iter(range(1, len(places) + 1))
    filled = re.sub(r"\?", lambda _: f"v.c{next(number)}", sql.replace("%", "%%"))
    names = ", ".join(f"c{each}" for each in range(1, len(places) + 1))
    source = f"{'FROM' if changed['updated'] else 'USING'} {_arrays(of_columns)} AS v({names})"
    head, _, where = filled.partition(" WHERE ")
    return Bulk(f"{head} {source} WHERE {where}", of_columns)


def _arrays(types: tuple[str, ...]) -> str:
    return f"unnest({', '.join(f'%s::{each}[]' for each in types)})"


def _quoted(columns: list[str]) -> list[str]:
    return [f'"{column}"' for column in columns]
