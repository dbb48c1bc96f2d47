"""Exports of vendors, read."""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guard.gateway.domain.usage_export import BilledRow, ExportError, read
from guard.gateway.domain.windows import DAY_MS, HOUR_MS

HOUR_S = 1_800_000_000
DAY_S = HOUR_S - HOUR_S % 86_400
OPENAI_USAGE = {
    "data": [
        {"start_time": HOUR_S, "end_time": HOUR_S + 3600, "results": [
            {"model": "gpt-4o", "input_tokens": 100, "input_cached_tokens": 60,
             "output_tokens": 5, "num_model_requests": 2},
            {"model": "gpt-4o", "input_tokens": 1, "output_tokens": 1, "input_cached_tokens": 0},
        ]},
    ]
}  # fmt: skip
ANTHROPIC_USAGE = {
    "data": [
        {"starting_at": "2027-01-15T00:00:00Z", "ending_at": "2027-01-16T00:00:00Z", "results": [
            {"model": "claude-sonnet-4-5", "uncached_input_tokens": 40, "output_tokens": 5,
             "cache_creation": {"ephemeral_1h_input_tokens": 7, "ephemeral_5m_input_tokens": 9},
             "cache_read_input_tokens": 60},
        ]},
    ]
}  # fmt: skip
ANTHROPIC_COSTS = {
    "data": [
        {"starting_at": "2027-01-15T00:00:00Z", "ending_at": "2027-01-16T00:00:00Z", "results": [
            {"amount": "123.5", "currency": "USD", "model": "claude-sonnet-4-5"},
            {"amount": "10", "currency": "USD", "model": None, "description": None},
        ]},
    ]
}  # fmt: skip
ANTHROPIC_CSV = (
    "usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,"
    "usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,"
    "usage_input_tokens_cache_read,usage_output_tokens\n"
    "2027-01-15,claude-sonnet-4-5,k,40,9,7,60,5\n"
)
SONNET = BilledRow(
    start_ms=DAY_S * 1000, width_ms=DAY_MS, model="claude-sonnet-4-5", input_tokens=40,
    output_tokens=5, cache_read_tokens=60, cache_write_tokens=16, cache_write_1h_tokens=7,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(OPENAI_USAGE),
         BilledRow(start_ms=HOUR_S * 1000, width_ms=HOUR_MS, model="gpt-4o", input_tokens=41,
                   output_tokens=6, cache_read_tokens=60)),
        (json.dumps(ANTHROPIC_USAGE), SONNET),
        (ANTHROPIC_CSV, SONNET),
        ("\ufeff" + ANTHROPIC_CSV, SONNET),
        (ANTHROPIC_CSV.replace("\n", "\r"), SONNET),
        (json.dumps(ANTHROPIC_COSTS),
         BilledRow(start_ms=DAY_S * 1000, width_ms=DAY_MS, model="claude-sonnet-4-5",
                   cost_nanousd=1_235_000_000)),
    ],
    ids=["openai usage", "anthropic usage", "anthropic csv", "byte order mark", "lines end with CR",
         "anthropic costs"],
)  # fmt: skip
def test_what_is_read(text: str, expected: BilledRow) -> None:
    assert read(text) == [expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column for a time"),
        ("hour,cost_usd\n", "no column for a model"),
        ("hour,model,cost_usd\nnow,m,1\n", "line 2: 'now' is no time"),
        ("hour,model,input_tokens\n2027-01-15T08:00Z,m,1.5\n", "'1.5' is no number of tokens"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,nan\n", "'nan' is no amount"),
        ("hour,model,cost_usd,currency\n2027-01-15T08:00Z,m,1,EUR\n", "EUR is not US dollars"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,1\n2027-01-15,m,1\n", "hours and days"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,1e999999999\n", "line 2: .* no amount"),
        (f"hour,model,cost_usd\n2027-01-15T08:00Z,{'m' * 200_000},1\n", "line 2: field larger"),
        (f"hour,model,{'m' * 200_000}\n", "line 1: field larger"),
        ("hour,model,cost_usd\n20270115,m,1\n2027-01-15T08:00Z,m,1\n", "hours and days"),
        ("day,model,cost_usd\n2027-01-15T00:00+02:00,m,1\n", "line 2: .* begins no day of UTC"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,1,234\n", "line 2: 4 fields"),
        ("hour,model,amount\n2027-01-15T08:00Z,m,1\n", "line 2: an amount without a currency"),
        (
            "day,model,cost_usd,input_tokens\n2027-01-15,gpt-4o,1,\n2027-01-15,gpt-4o-2024-08-06,,9\n",
            "line 3: .* export costs or tokens",
        ),
        ("day,model,cost_usd\n2027-01-15,,1\n", "no line names a model"),
        ("day,model,cost_usd\n" + "2027-01-15,m,900000\n" * 2, "line 3: Expected `int` <="),
        ("{", "no JSON"),
        ('{"data": 1}', "'data' is not a list"),
        (
            '[{"start_time": 1800000000, "end_time": 1800999999, "model": "m", "cost_usd": 1}]',
            "neither an hour nor a day",
        ),
    ],
)
def test_what_is_said_of_a_bad_file(text: str, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        read(text)


@example(text="\r0")
@given(st.text(max_size=200) | st.builds(json.dumps, st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["data", "results", "start_time", "model", "amount", "cost_usd"]), inner,
        max_size=4), max_leaves=10)))  # fmt: skip
def test_anything_else_is_refused_or_read(text: str) -> None:
    try:
        found: Any = read(text)
    except ExportError:
        return
    assert all(isinstance(row, BilledRow) for row in found)


# -- odd exports --------------------------------------------------------------------------------

Bill = dict[tuple[int, int, str], tuple[int, ...]]
DAY = dt.datetime(2027, 1, 15, tzinfo=dt.UTC)
AMOUNTS = {  # by hour and model: dollars, then input, output, cached and written tokens
    (0, "m-large"): (Decimal("1234.56"), 1_200_000, 8_000, 40_000, 300),
    (0, "m-small"): (Decimal("0.0125"), 90, 5, 60, 0),
    (13, "m-large"): (Decimal("2.5"), 1_000, 10, 0, 0),
}
FORMATS = ("openai usage", "openai costs", "openai console", "anthropic usage", "anthropic costs",
           "anthropic console", "google", "azure", "bedrock", "openrouter",
           "one's own")  # fmt: skip


def _export(form: str) -> tuple[list[dict[str, Any]], Bill]:
    """Return the lines of a vendor's export, and what it bills; nothing for what is not read."""
    lines: list[dict[str, Any]] = []
    bill: Bill = {}
    is_hourly = form in ("openai usage", "anthropic usage", "one's own")
    for (hour, model), (cost, fresh, out, read_, written) in AMOUNTS.items():
        at = DAY + dt.timedelta(hours=hour if is_hourly else 0)
        end = at + dt.timedelta(hours=1 if is_hourly else 24)
        iso, iso_end = (f"{each:%Y-%m-%dT%H:%M:%SZ}" for each in (at, end))
        unix, unix_end = int(at.timestamp()), int(end.timestamp())
        tokens = (fresh, out, read_, written)
        match form:
            case "openai usage":
                line = {"start_time": unix, "end_time": unix_end, "model": model,
                        "input_tokens": fresh + read_, "output_tokens": out,
                        "input_cached_tokens": read_}  # fmt: skip
                tokens = (fresh, out, read_, 0)
            case "openai costs" | "openai console":
                line = {"start_time": unix, "end_time": unix_end, "amount_value": str(cost),
                        "amount_currency": "usd", "line_item": f"{model}, input"}  # fmt: skip
            case "anthropic usage":
                line = {"starting_at": iso, "ending_at": iso_end, "model": model,
                        "uncached_input_tokens": fresh, "output_tokens": out,
                        "cache_read_input_tokens": read_,
                        "cache_creation.ephemeral_5m_input_tokens": written}  # fmt: skip
            case "anthropic costs":
                line = {"starting_at": iso, "ending_at": iso_end, "model": model,
                        "amount": str(cost * 100), "currency": "USD"}  # fmt: skip
            case "anthropic console":
                line = {"usage_date_utc": f"{at:%Y-%m-%d}", "model_version": model,
                        "usage_input_tokens_no_cache": fresh, "usage_output_tokens": out,
                        "usage_input_tokens_cache_read": read_,
                        "usage_input_tokens_cache_write_5m": written}  # fmt: skip
            case "google":
                line = {"Usage start date": f"{at:%Y-%m-%d}", "SKU description": model,
                        "Cost ($)": str(cost)}  # fmt: skip
            case "azure":
                line = {
                    "Date": f"{at:%m/%d/%Y}",
                    "Model": model,
                    "MeterName": f"{model} Inp",
                    "CostInBillingCurrency": str(cost),
                    "BillingCurrencyCode": "USD",
                }
            case "bedrock":
                line = {"lineItem/UsageStartDate": iso, "lineItem/UsageType": f"USE1-{model}",
                        "lineItem/UnblendedCost": str(cost)}  # fmt: skip
            case "openrouter":
                line = {"date": f"{at:%Y-%m-%d}", "model": model, "usage": str(cost),
                        "prompt_tokens": fresh, "completion_tokens": out}  # fmt: skip
            case _:
                line = {"hour": iso, "model": model, "cost_usd": str(cost)}
        lines.append({**line, "project": "p"})
        key = int(at.timestamp()) * 1000, HOUR_MS if is_hourly else DAY_MS, model
        by_cost = "costs" in form or form in ("openai console", "one's own")
        amounts = (int(cost * 10**9),) if by_cost else tokens
        before = bill.get(key, (0,) * len(amounts))
        bill[key] = tuple(map(sum, zip(before, amounts, strict=True)))
    return lines, bill


def _each(change: Callable[[str, Any], Any]) -> Callable[[list[dict[str, Any]]], None]:
    def apply(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line.update({name: change(name, value) for name, value in line.items()})

    return apply


def _is_amount(name: str, value: Any) -> bool:
    return "token" in name or ("amount" in name and "currency" not in name) or name == "cost_usd"


def _is_time(name: str) -> bool:
    return name in (
        "hour",
        "start_time",
        "starting_at",
        "usage_date_utc",
        "date",
    ) or name.startswith("end")


def _amounts(change: Callable[[str], Any]) -> Callable[[list[dict[str, Any]]], None]:
    return _each(lambda name, value: change(str(value)) if _is_amount(name, value) else value)


def _times(change: Callable[[dt.datetime], Any]) -> Callable[[list[dict[str, Any]]], None]:
    def moved(name: str, value: Any) -> Any:
        if not _is_time(name):
            return value
        at = str(value)
        found = dt.datetime.fromtimestamp(int(at), dt.UTC) if at.isdecimal() else None
        return change(found or dt.datetime.fromisoformat(at).replace(tzinfo=dt.UTC))

    return _each(moved)


def _add(lines: list[dict[str, Any]], has_tokens: bool | None, **changes: Any) -> None:
    """Add a line beside the last, if the lines have tokens, or none."""
    if has_tokens is None or has_tokens == any("token" in name for name in lines[-1]):
        lines.append({**lines[-1], **changes})


ZONE = dt.timezone(dt.timedelta(hours=2))
HALF = dt.timezone(dt.timedelta(hours=5, minutes=30))
LINES: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "as it is": lambda lines: None,
    "thousands": _amounts(lambda text: f"{Decimal(text):,}"),
    "dollar signs": _amounts(lambda text: f"${text}"),
    "decimal commas": _amounts(lambda text: text.replace(".", ",")),
    "exponents": _amounts(lambda text: f"{Decimal(text):e}"),
    "huge": _amounts(lambda text: "1e999999999"),
    "many digits": _amounts(lambda text: "9" * 5_000),
    "not a number": _amounts(lambda text: "nan"),
    "refunds": _amounts(lambda text: f"-{text}"),
    "nothing": _amounts(lambda text: ""),
    "padded": _amounts(lambda text: f" {text} "),
    "another zone": _times(lambda at: at.astimezone(ZONE).isoformat()),
    "local days": _times(lambda at: at.replace(tzinfo=ZONE).isoformat()),
    "half hours": _times(lambda at: at.replace(tzinfo=HALF).isoformat()),
    "basic": _times(lambda at: f"{at:%Y%m%d}" if at.hour == 0 else f"{at:%Y%m%dT%H%M}Z"),
    "basic dates only": _times(lambda at: f"{at:%Y%m%d}"),
    "american": _times(lambda at: f"{at:%m/%d/%Y %H:%M}"),
    "milliseconds": _times(lambda at: int(at.timestamp() * 1000)),
    "seconds": _times(lambda at: int(at.timestamp())),
    "midnight": _times(lambda at: f"{at:%Y-%m-%dT%H:%M}"),
    "long ago": _times(lambda at: "0001-01-01T00:00+14:00"),
    "a long project": _each(lambda name, value: value * 200_000 if name == "project" else value),
    "a project of two lines": _each(lambda n, value: "a\r\nb" if n == "project" else value),
    "a name not of text": _each(lambda n, value: "\ud800" if "model" in n.lower() else value),
    "a long name": _each(lambda n, value: "m" * 300 if "model" in n.lower() else value),
    "a total": lambda lines: lines.append({**dict.fromkeys(lines[0], ""), "project": "Total"}),
    "a fee": lambda lines: _add(lines, None, model="", model_version="", line_item="", cost_usd=1),
    "a cost beside tokens": lambda lines: _add(lines, True, cost_usd="5"),
    "tokens beside a cost": lambda lines: _add(
        lines, False, cost_usd="", amount="", amount_value="", input_tokens="7"
    ),
    "euros": _each(lambda n, v: "EUR" if "currency" in n.lower() else v),
}
OTHER_TIMES = ("local days", "basic dates only")  # which an export by the hour bills rightly
TEXTS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "byte order mark": lambda text: "\ufeff" + text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "empty lines": lambda text: text.replace("\n", "\n\n"),
    "trailing commas": lambda text: text.replace("\n", ",,\n"),
    "no last end": lambda text: text.rstrip("\n"),
    "cut short": lambda text: text[: len(text) - 12],
    "a preamble": lambda text: "Exported by me\n\n" + text,
    "semicolons": lambda text: text.replace(",", ";"),
    "tabs": lambda text: text.replace(",", "\t"),
    "no quotes": lambda text: text.replace('"', ""),
    "upper case": lambda text: text.split("\n", 1)[0].upper() + "\n" + text.split("\n", 1)[1],
    "a column twice": lambda text: text.replace("project", "cost_usd", 1),
    "NUL": lambda text: text.replace("m-", "m\0-"),
}


@pytest.mark.generator("odd exports of vendors")
@pytest.mark.parametrize("form", FORMATS)
def test_an_odd_export_bills_what_it_says_or_is_refused(
    form: str, count_cases: Callable[[int], None]
) -> None:
    """A sum that is wrong is booked as money, so there is no third outcome, a traceback least."""
    readable = 0
    for change, (ending, written) in itertools.product(LINES, itertools.product("cj", TEXTS)):
        lines, bill = _export(form)
        if change in OTHER_TIMES and HOUR_MS in {width_ms for _, width_ms, _ in bill}:
            continue
        LINES[change](lines)
        text = io.StringIO()
        writer = csv.DictWriter(
            text, {name: 0 for line in lines for name in line}, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(lines)
        data = json.dumps({"data": lines}, indent=1) if ending == "j" else text.getvalue()
        count_cases(1)
        try:
            found = read(TEXTS[written](data))
        except ExportError:
            continue
        readable += 1
        json.dumps([row.model for row in found]).encode()
        said = {
            (row.start_ms, row.width_ms, row.model): (
                (row.cost_nanousd,)
                if row.cost_nanousd is not None
                else (row.input_tokens, row.output_tokens, row.cache_read_tokens,
                      row.cache_write_tokens)
            )
            for row in found
        }  # fmt: skip
        assert said == bill, (change, ending, written, data)
    assert readable or form in ("google", "azure", "bedrock", "openrouter")
