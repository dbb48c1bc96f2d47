"""``guard gateway reconcile``: what a vendor has billed replaces what was charged in doubt."""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path
from typing import Any

import click
import msgspec

from guard.core.wire import dollars
from guard.gateway.admin import AdminClient
from guard.gateway.cli.files import FILE
from guard.gateway.cli.output import note, show, wants_json, where, with_client
from guard.gateway.domain import usage_export
from guard.gateway.domain.windows import HOUR_MS

_SHOWN = ("time", "model", "charged", "uncertain", "billed", "adjustment", "note")


@click.command()
@click.argument("file", type=FILE)
@click.option("--provider", help="Compare with this vendor's charges only: openai, anthropic.")
@click.option("--dry-run", is_flag=True, help="Only print what would be booked.")
@with_client
def reconcile(client: AdminClient, file: Path, provider: str | None, dry_run: bool) -> None:
    """Book what a vendor has billed, from FILE, its export of usage or costs (CSV or JSON).

    For each model and hour (or day) one signed adjustment brings what was charged to what was
    billed. First it shows what it would book. Booking the same file again changes nothing; after a
    failure in the middle, it books the rest. A line that cannot be read is named, and then nothing
    is booked.

    \b
    Examples:
      guard gateway reconcile costs.csv --provider openai --dry-run
      guard gateway reconcile usage.json --provider anthropic
    """
    data = file.read_bytes()
    try:
        found = usage_export.read(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise click.ClickException(f"{file.name} is not UTF-8 text") from None
    except usage_export.ExportError as exc:
        raise click.ClickException(f"{file.name}, nothing was booked:\n{exc}") from None
    source = f"{file.name[:180]} sha256:{hashlib.sha256(data).hexdigest()}"
    rows = [msgspec.to_builtins(row) for row in found]
    made = client.reconcile(rows, source=source, provider=provider, dry_run=True)
    if not wants_json():
        show([_for_people(each) for each in made], _SHOWN)
    if not dry_run:
        made = client.reconcile(rows, source=source, provider=provider, dry_run=False)
    if wants_json():
        show(made, _SHOWN)
        return
    booked = [each["adjustment_nanousd"] for each in made if each["adjustment_nanousd"]]
    tense = "would be booked" if dry_run else "booked"
    plural = "" if len(booked) == 1 else "s"
    said = f"{len(booked)} adjustment{plural} {tense}, {_signed(sum(booked))} in all"
    note(f"{said}, on {where()}", {})


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    at = dt.datetime.fromtimestamp(row["start_ms"] / 1000, dt.UTC)
    is_hour = row["width_ms"] == HOUR_MS
    return {
        "time": at.strftime("%Y-%m-%dT%H:00Z" if is_hour else "%Y-%m-%d"),
        "model": row["model"],
        "charged": _signed(row["charged_nanousd"]).removeprefix("+"),
        "uncertain": dollars(row["uncertain_nanousd"]),
        "billed": dollars(row["billed_nanousd"]),
        "adjustment": _signed(row["adjustment_nanousd"]) if row["adjustment_nanousd"] else "",
        "note": row["note"],
    }


def _signed(nanousd: int) -> str:
    return f"{'-' if nanousd < 0 else '+'}{dollars(abs(nanousd))}"
