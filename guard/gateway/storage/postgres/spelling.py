"""Rewrites the shared SQL for PostgreSQL. Pure, and cached: each text is rewritten once.

The shared text is SQLite's where the two engines differ:

- ``?`` and ``?1`` are places for arguments;
- ``INDEXED BY``, ``NOT INDEXED``, ``CROSS JOIN`` and a ``+`` in ``GROUP BY`` guide SQLite's planner
  and mean nothing here;
- ``json_each(x) j`` and ``json_extract(x, '$[0]')`` read a column of JSON text;
- ``min(a, b)``, ``max(a, b)`` and ``instr(a, b)`` are functions of our schema.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_NAMED: Final = re.compile(r"\?(\d+)")
_RULES: Final = (
    (re.compile(r"\bINDEXED BY \w+ ?"), ""),
    (re.compile(r"\bNOT INDEXED "), ""),
    (re.compile(r"\bCROSS JOIN\b"), "JOIN"),
    (re.compile(r"(?<=GROUP BY )\+(\w+), \+(\w+)"), r"\1, \2"),
    (
        re.compile(r"json_each\(([^)]+)\)( j)?"),
        r"jsonb_array_elements_text((\1)::jsonb) AS j(value)",
    ),
    (re.compile(r"json_extract\((\w+), '\$\[0\]'\)"), r"((\1)::jsonb ->> 0)"),
    (re.compile(r"^DELETE FROM (idempotency_\d)$"), r"TRUNCATE \1"),
)


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
    """Rewrite a statement.

    >>> spelled("SELECT x % 2 FROM t INDEXED BY i WHERE a = ?").text
    'SELECT x %% 2 FROM t WHERE a = %s'
    """
    for pattern, replacement in _RULES:
        sql = pattern.sub(replacement, sql)
    escaped = sql.replace("%", "%%")
    is_named = _NAMED.search(escaped) is not None
    text = _NAMED.sub(r"%(a\1)s", escaped) if is_named else escaped.replace("?", "%s")
    return Spelled(sql, text, is_named)


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
