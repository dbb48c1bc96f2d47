"""Translates the shared SQL for PostgreSQL. Pure, and cached: each text is translated once.

Where the two engines differ, the shared text is SQLite's. Each difference is a pair below, found by
its exact text. A difference that is not listed is a syntax error in PostgreSQL, which the tests of
the store find.
"""

from __future__ import annotations

import functools
from typing import Final

from msgspec import Struct

_PAIRS: Final = (
    # Hints for SQLite's planner. PostgreSQL plans by its statistics.
    ("INDEXED BY events_charged ", ""),
    ("INDEXED BY events_response ", ""),
    ("INDEXED BY events_flagged ", ""),
    ("INDEXED BY deliveries_due ", ""),
    ("INDEXED BY usage_doubt ", ""),
    ("INDEXED BY directives_runs ", ""),
    ("NOT INDEXED ", ""),
    # It expects few times, and would join all scopes of each instead of looking up a few by name.
    (
        "named ON true CROSS JOIN usage u ON ",
        "named ON true JOIN LATERAL (SELECT * FROM usage u WHERE ",
    ),
    ("= named.name GROUP BY", "= named.name OFFSET 0) u ON true GROUP BY"),
    ("CROSS JOIN ", "JOIN "),
    ("char(63)", "chr(63)"),
    ("GROUP BY +organisation_id, +", "GROUP BY organisation_id, "),
    # JSON that is stored as text, and lists of arguments.
    ("json_extract(data, '$.tool_name')", "(data::json ->> 'tool_name')"),
    ("json_extract(record, '$.key_id')", "(record::json ->> 'key_id')"),
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
