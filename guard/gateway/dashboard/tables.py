"""Rows as files: CSV for spreadsheets, JSON for programs. Pure.

Columns of amounts end in ``_nanousd`` and those of moments in ``at_ms``. JSON has both as whole
numbers, as the admin API does. CSV has dollars with their decimals, and moments in ISO 8601.
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

_AMOUNT: Final = "_nanousd"
_MOMENT: Final = "at_ms"
_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What makes spreadsheets take a text for a formula or a command, also in full width."""


def csv_head(columns: Sequence[str]) -> str:
    """Return the first line."""
    counts_units = "unit" in columns
    return _line([_heading(column, counts_units=counts_units) for column in columns])


def _heading(column: str, *, counts_units: bool) -> str:
    if column.endswith(_AMOUNT):
        return column.removesuffix(_AMOUNT) + ("" if counts_units else "_usd")
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
        if column.endswith(_AMOUNT) and row.get("unit", "usd") == "usd":
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
