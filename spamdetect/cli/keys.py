"""``spamdetect keys``: create, list and revoke API keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table

from spamdetect.cli.options import Whole
from spamdetect.errors import SpamConfigError
from spamdetect.service.app import open_store
from spamdetect.service.keys import KeyRecord, KeySpec, StoreError, parse_key
from spamdetect.service.settings import read_service_settings
from spamdetect.service.store import KeyStore

R = TypeVar("R")

_DATABASE = click.option(
    "--database-url",
    help="Key store: sqlite:///PATH or postgresql://... (SPAMDETECT_DATABASE_URL).",
)


@click.group()
def keys_command() -> None:
    """Create, list and revoke API keys.

    Works on the key store itself, whether the service runs or not; what is revoked is refused
    at once.
    """


@keys_command.command("create")
@click.option("--label", default="", help="What the key is for, to recognise it in the list.")
@click.option("--rate-per-minute", type=Whole(0), help="0: no limit.")
@click.option("--quota-per-day", type=Whole(0), help="0: no limit.")
@_DATABASE
def create(
    label: str, rate_per_minute: int | None, quota_per_day: int | None, database_url: str | None
) -> None:
    """Make a key and print it, this once, alone on standard output."""
    spec = KeySpec(label, "", rate_per_minute, quota_per_day)
    new = _with_store(database_url, lambda store: store.create(spec))
    click.echo(f"Key {new.key_id}. It is shown this once; keep it.", err=True)
    click.echo(new.api_key)


@keys_command.command("list")
@click.option("--all", "show_revoked", is_flag=True, help="Revoked keys too.")
@_DATABASE
def list_keys(show_revoked: bool, database_url: str | None) -> None:
    """List the keys; the secrets are not stored and cannot be shown."""
    records = _with_store(database_url, lambda store: store.list_keys())
    shown = [record for record in records if show_revoked or record.revoked_s is None]
    if not shown:
        click.echo("No keys. Make one: spamdetect keys create --label NAME")
        return
    table = Table("Key id", "Label", "Owner", "Created", "Limits", box=None, pad_edge=False)
    for record in shown:
        state = f"revoked {_day(record.revoked_s)}" if record.revoked_s else _limits(record)
        table.add_row(record.key_id, record.label, record.owner, _day(record.created_s), state)
    Console().print(table)


@keys_command.command("revoke")
@click.argument("key_id")
@_DATABASE
def revoke(key_id: str, database_url: str | None) -> None:
    """Revoke KEY_ID (or the whole key): it is refused from now on."""
    parts = parse_key(key_id)
    wanted = parts[0] if parts else key_id
    if not _with_store(database_url, lambda store: store.revoke(wanted)):
        raise SpamConfigError(f"There is no active key {wanted}; see: spamdetect keys list --all")
    click.echo(f"Key {wanted} is revoked.")


def _with_store(database_url: str | None, use: Callable[[KeyStore], Awaitable[R]]) -> R:
    async def work() -> R:
        store = await open_store(read_service_settings(database_url=database_url).database_url)
        try:
            return await use(store)
        except StoreError as error:
            raise SpamConfigError(str(error)) from error
        except UnicodeEncodeError:
            raise SpamConfigError("What was given is not text in UTF-8.") from None
        finally:
            await store.close()

    return asyncio.run(work())


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")


def _limits(record: KeyRecord) -> str:
    parts = []
    if record.rate_per_minute is not None:
        parts.append(f"{record.rate_per_minute or 'no limit'}/min")
    if record.quota_per_day is not None:
        parts.append(f"{record.quota_per_day or 'no limit'}/day")
    return ", ".join(parts) or "default"
