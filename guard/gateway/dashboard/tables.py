"""Rows as files: CSV for spreadsheets, JSON for programs. Pure.

Columns of money end in ``_nanousd`` and those of moments in ``at_ms``; amounts of a budget are in
its ``unit``. JSON has all as whole numbers, as the admin API does. CSV has dollars with their
decimals, and moments in ISO 8601.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from guard.core.visible import visible
from guard.core.wire.fields import decimal_dollars
from guard.gateway.dashboard.formatting import iso

Row = Mapping[str, Any]

USAGE_COLUMNS: Final = (
    "by", "group", "key_name", "model", "cost_nanousd", "uncertain_nanousd", "llm_calls",
    "tool_calls", "input_tokens", "output_tokens", "unpriced",
)  # fmt: skip
"""Of all rows of usage, here and on the command line."""

_AMOUNT: Final = "_nanousd"
_IN_UNIT: Final = {"limit", "committed", "reserved", "remaining", "uncertain"}
_MOMENT: Final = "at_ms"
_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What makes spreadsheets take a text for a formula or a command, also in full width."""


def csv_head(columns: Sequence[str]) -> str:
    """Return the first line."""
    return _line([_heading(column) for column in columns])


def _heading(column: str) -> str:
    if column.endswith(_AMOUNT):
        return column.removesuffix(_AMOUNT) + "_usd"
    return column.removesuffix("_ms") if column.endswith(_MOMENT) else column


def csv_lines(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a line for each row."""
    return "".join(_line([_cell(column, row) for column in columns]) for row in rows)


def json_rows(rows: Iterable[Row], *, is_first: bool) -> bytes:
    """Return rows as items of an array that is opened and closed around them."""
    encoded = b",\n".join(map(msgspec.json.encode, rows))
    return encoded if is_first or not encoded else b",\n" + encoded


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _cell(column: str, row: Row) -> str:
    value = row[column]
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        if column.endswith(_AMOUNT) or (column in _IN_UNIT and row.get("unit") == "usd"):
            return decimal_dollars(int(value))
        return iso(int(value)) if column.endswith(_MOMENT) else str(value)
    if isinstance(value, list):
        return harmless(" ".join(map(str, value)))
    if isinstance(value, dict):
        return harmless(json.dumps(value, ensure_ascii=False)) if value else ""
    return harmless(str(value))


def harmless(text: str) -> str:
    """Return text, visible, that no spreadsheet takes for a formula: with an apostrophe before one.

    >>> harmless("=1+1"), harmless(" @sum(a1)"), harmless("plain-text")
    ("'=1+1", "' @sum(a1)", 'plain-text')
    """
    shown = visible(text)
    if text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(_FORMULA):
        return f"'{shown}"
    return shown
