"""Reads vendors' bills: exports of usage and costs, as CSV or JSON. Pure.

The columns are found by their names, so the exports of OpenAI and Anthropic are read alike, as
files of their consoles (CSV) and as pages of their APIs (JSON), and so is a CSV of one's own.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from guard.core.model_names import family
from guard.core.wire import NANOUSD_PER_DOLLAR
from guard.core.wire.text import flaw_in_text
from guard.gateway.domain.windows import DAY_MS, HOUR_MS

ROWS_MAX: Final = 4_000
"""How many rows are booked at once: with them a request stays below a megabyte."""
_PROBLEMS_SHOWN: Final = 10
COST_MAX: Final = 10**15
TOKENS_MAX: Final = 10**12

_DAYS: Final = ("day", "date", "usage_date_utc")
_START: Final = ("hour", *_DAYS, "start_time", "starting_at", "start_time_iso")
_END: Final = ("end_time", "ending_at", "end_time_iso")
_MODEL: Final = ("model", "model_version", "line_item", "description")
_DOLLARS: Final = ("cost_usd", "amount_value", "amount.value")
_CENTS: Final = ("amount",)
_TOKENS: Final = {
    "input_tokens": ("input_tokens",),
    "fresh_tokens": ("uncached_input_tokens", "usage_input_tokens_no_cache"),
    "output_tokens": ("output_tokens", "usage_output_tokens"),
    "cache_read_tokens": ("cache_read_tokens", "cached_tokens", "input_cached_tokens",
                          "cache_read_input_tokens", "usage_input_tokens_cache_read"),
    "cache_write_tokens": ("cache_write_tokens", "cache_creation.ephemeral_5m_input_tokens",
                           "usage_input_tokens_cache_write_5m"),
    "cache_write_1h_tokens": ("cache_write_1h_tokens",
                              "cache_creation.ephemeral_1h_input_tokens",
                              "usage_input_tokens_cache_write_1h"),
}  # fmt: skip


class ExportError(ValueError):
    """A file that cannot be read; the text names its lines."""


_Count = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]


class BilledRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A vendor's bill for one model in one hour or day.

    ``cost_nanousd`` is ``None`` where the export has only tokens. ``input_tokens`` excludes those
    that were read from a cache or written to it, as everywhere in the protocol.
    """

    start_ms: Annotated[int, Meta(ge=0, le=2**53)]
    width_ms: Literal[3_600_000, 86_400_000]
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    cost_nanousd: Annotated[int, Meta(ge=0, le=COST_MAX)] | None = None
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cache_read_tokens: _Count = 0
    cache_write_tokens: _Count = 0
    cache_write_1h_tokens: _Count = 0


def read(text: str) -> list[BilledRow]:
    """Return the rows of an export, summed by model and hour (or day).

    Raises:
        ExportError: it is not an export, or some lines are wrong.
    """
    found: dict[tuple[int, int, str], BilledRow] = {}
    has_cost: dict[tuple[int, str], bool] = {}
    problems: list[str] = []
    for where, record in _records(text.removeprefix("\ufeff"), problems):
        try:
            row = _row(record)
            if row is None:
                continue
            costs = row.cost_nanousd is not None
            if has_cost.setdefault((row.start_ms, family(row.model)), costs) != costs:
                raise ValueError(f"of {row.model} another line has a cost, or only tokens, for the "
                                 "same time: export costs or tokens")  # fmt: skip
            key = row.start_ms, row.width_ms, row.model
            found[key] = row if key not in found else _sum(found[key], row)
        except (ValueError, msgspec.ValidationError) as exc:
            problems.append(f"{where}: {exc}")
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN
        shown = problems[:_PROBLEMS_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        raise ExportError("\n".join(shown))
    if not found:
        raise ExportError("no line names a model: export grouped by model")
    if len(found) > ROWS_MAX:
        raise ExportError(f"more than {ROWS_MAX} rows: divide the file by time")
    if len({width_ms for _, width_ms, _ in found}) > 1:
        raise ExportError("hours and days in one file: export by the hour, or by the day")
    return list(found.values())


def _records(text: str, problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if text.lstrip()[:1] in ("{", "["):
        yield from _of_json(text)
        return
    reader = csv.reader(io.StringIO(text, newline=None))  # CR ends a line too
    try:
        names = [name.strip().lower() for name in next(reader, ())]
        for wanted, kind in ((_START, "a time (hour, day)"), (_MODEL, "a model")):
            if not set(wanted) & set(names):
                raise ExportError(f"line 1: no column for {kind}; there are: {', '.join(names)}")
        if twice := {name for name in names if name and names.count(name) > 1}:
            raise ExportError(f"line 1: two columns of one name: {', '.join(sorted(twice))}")
        for fields in reader:
            if not any(fields):
                continue
            where = f"line {reader.line_num}"
            if len(fields) == len(names):
                yield where, dict(zip(names, fields, strict=True))
            else:  # a comma within a number, or a file cut short
                problems.append(f"{where}: {len(fields)} fields, {len(names)} in the first line")
    except csv.Error as exc:
        raise ExportError(f"line {reader.line_num}: {exc}") from None


def _of_json(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the results of pages with buckets, or the objects of a list."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ExportError(f"no JSON: {exc}") from None
    pages = value if isinstance(value, list) else [value]
    for number, page in enumerate(pages, 1):
        if not isinstance(page, dict):
            raise ExportError(f"object {number}: an object expected")
        buckets = page.get("data", [page])
        if not isinstance(buckets, list):
            raise ExportError(f"object {number}: 'data' is not a list")
        for at, bucket in enumerate(buckets, 1):
            where = f"object {number}, bucket {at}" if "data" in page else f"object {number}"
            if not isinstance(bucket, dict):
                raise ExportError(f"{where}: an object expected")
            results = bucket.get("results", bucket.get("result", [{}]))
            if not isinstance(results, list) or not all(isinstance(r, dict) for r in results):
                raise ExportError(f"{where}: 'results' is not a list of objects")
            for result in results:
                yield where, {**_flat(bucket), **_flat(result)}


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, dict):
            found.update({f"{name}.{inner}": each for inner, each in part.items()})
        else:
            found[name] = part
    return found


def _row(record: Mapping[str, Any]) -> BilledRow | None:
    """Return one line; ``None`` for one that names no model, such as a fee or a total."""
    if not any(value not in (None, "") for value in record.values()):
        return None
    start_ms, width_ms = _time(record)
    model = str(_first(record, _MODEL) or "").partition(",")[0].strip()
    tokens = {name: _count(record, names) for name, names in _TOKENS.items()}
    cost = _cost(record)
    if not model:
        return None
    if (flaw := flaw_in_text(model)) is not None:
        raise ValueError(f"the name of the model {flaw}")
    if cost is None and not any(count is not None for count in tokens.values()):
        raise ValueError("neither a cost nor tokens")
    fresh = tokens.pop("fresh_tokens")
    counts = {name: count or 0 for name, count in tokens.items()}
    if fresh is not None:  # Anthropic's is without what a cache had
        counts["input_tokens"] = fresh
    else:
        counts["input_tokens"] -= counts["cache_read_tokens"]
        if counts["input_tokens"] < 0:
            raise ValueError("more cached tokens than input tokens")
    counts["cache_write_tokens"] += counts["cache_write_1h_tokens"]
    row = {"start_ms": start_ms, "width_ms": width_ms, "model": model, "cost_nanousd": cost}
    return msgspec.convert({**row, **counts}, BilledRow)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)


def _time(record: Mapping[str, Any]) -> tuple[int, int]:
    start = _first(record, _START)
    if start is None:
        raise ValueError("no time")
    start_ms, is_date = _moment(start)
    is_day = is_date or start is _first(record, _DAYS)
    width_ms = length_ms = DAY_MS if is_day else HOUR_MS
    end = _first(record, _END)
    if end is not None:
        length_ms = _moment(end)[0] - start_ms
        width_ms = HOUR_MS if length_ms <= HOUR_MS else DAY_MS
        if not 0 < length_ms <= HOUR_MS and not DAY_MS - HOUR_MS < length_ms <= DAY_MS:
            raise ValueError("neither an hour nor a day: export by the hour, or by the day")
    # What was charged is kept by the hours of UTC. A day of another zone has hours of two of its
    # days, and would be compared with the wrong one.
    if start_ms % width_ms + length_ms > width_ms:
        kind = "hour" if width_ms == HOUR_MS else "day"
        raise ValueError(f"{start!r} begins no {kind} of UTC: export times in UTC")
    return start_ms - start_ms % width_ms, width_ms


def _moment(value: Any) -> tuple[int, bool]:
    """Return Unix milliseconds, and whether it is only a date."""
    text = str(value).strip()
    is_unix = text.isdecimal() and len(text) != len("20261124")
    try:
        found = (dt.datetime.fromtimestamp(int(text), dt.UTC) if is_unix
                 else dt.datetime.fromisoformat(text))  # fmt: skip
    except (ValueError, OverflowError, OSError):
        found = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    if not 2000 <= found.year < 2100:  # others are milliseconds, or of a broken clock
        raise ValueError(f"{text!r} is no time; write 2026-11-24T13:00Z or 2026-11-24")
    found = found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
    return int(found.timestamp() * 1000), not is_unix and len(text) <= len("2026-11-24")


def _count(record: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    value = _first(record, names)
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if not 0 <= number <= TOKENS_MAX:
        raise ValueError(f"{value!r} is no number of tokens")
    return number


def _cost(record: Mapping[str, Any]) -> int | None:
    for names, unit in ((_DOLLARS, NANOUSD_PER_DOLLAR), (_CENTS, NANOUSD_PER_DOLLAR // 100)):
        value = _first(record, names)
        if value is None:
            continue
        currency = _first(record, ("currency", "amount_currency", "amount.currency"))
        if currency is None and names is _CENTS:
            raise ValueError("an amount without a currency: call it cost_usd if it is dollars")
        if str(currency or "usd").lower() != "usd":
            raise ValueError(f"{currency} is not US dollars")
        try:
            nanousd = Decimal(str(value)) * unit
        except ArithmeticError:
            raise ValueError(f"{value!r} is no amount of US dollars") from None
        if not nanousd.is_finite() or not 0 <= nanousd <= COST_MAX:
            raise ValueError(f"{value!r} is no amount of US dollars of zero or more")
        return round(nanousd)
    return None


def _sum(one: BilledRow, other: BilledRow) -> BilledRow:
    summed = {
        name: getattr(one, name) + getattr(other, name)
        for name in BilledRow.__struct_fields__
        if name.endswith("_tokens") or (name == "cost_nanousd" and one.cost_nanousd is not None)
    }
    return msgspec.convert({**msgspec.to_builtins(one), **summed}, BilledRow)
