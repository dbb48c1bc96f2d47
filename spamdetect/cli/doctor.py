"""``spamdetect doctor``: checks that everything works, and says what to do where it does not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

import attrs
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spamdetect.errors import SpamError
from spamdetect.service.settings import ServiceSettings, read_service_settings
from spamdetect.settings import read_client_settings
from spamdetect.version import installs

_COLOURS: Final = {"ok": "green", "note": "yellow", "wrong": "red"}
_PROBE_TIMEOUT_S: Final = 3.0


@attrs.frozen
class _Finding:
    subject: str
    state: str
    text: str


@click.command()
@click.option("--base-url", help="Also ask this service (else SPAMDETECT_BASE_URL, if set).")
def doctor_command(base_url: str | None) -> int:
    """Check the engine, the key store, the optional parts and a service."""
    checks: list[Callable[[], _Finding]] = [
        _engine,
        _speedups,
        _key_store,
        _redis,
        lambda: _optional("psycopg", "PostgreSQL key store", "psycopg[binary]"),
        lambda: _optional("redis", "limits shared by replicas"),
        lambda: _optional("telegram", "the key bot", "python-telegram-bot"),
        lambda: _optional("pyarrow", "Parquet output"),
        lambda: _service(base_url),
    ]
    findings = [check() for check in checks]
    table = Table("What", "State", "Details", box=None, pad_edge=False, show_header=False)
    for finding in findings:
        colour = _COLOURS[finding.state]
        table.add_row(Text(finding.subject), Text(finding.state, style=colour), Text(finding.text))
    Console().print(table)
    wrong = sum(finding.state == "wrong" for finding in findings)
    if wrong:
        click.echo(f"\n{wrong} of {len(findings)} checks failed.")
        return 1
    click.echo("\nEverything that is set up works.")
    return 0


def _engine() -> _Finding:
    subject = "Engine"
    try:
        from spamdetect.engine import Engine, ModelError
    except ImportError as error:
        return _Finding(subject, "wrong", f"{error.name} is missing: {installs('spam')}.")
    started_s = time.perf_counter()
    try:
        engine = Engine.load()
        loaded_ms = (time.perf_counter() - started_s) * 1000
        engine.predict("You won! Claim your prize now")
    except (ModelError, OSError) as error:
        return _Finding(subject, "wrong", f"The model cannot be loaded: {error}")
    return _Finding(
        subject,
        "ok",
        f"model {engine.model_version}, threshold {engine.threshold:g}, loaded in "
        f"{loaded_ms:.0f} ms.",
    )


def _speedups() -> _Finding:
    subject = "Speed-ups"
    try:
        from spamdetect.engine import native
    except ImportError as error:
        return _Finding(subject, "note", f"not loaded: {error.name} is missing.")
    if not native.wanted():
        return _Finding(subject, "note", "switched off by SPAMDETECT_SPEEDUPS=0.")
    if native.compiled is None:
        return _Finding(
            subject,
            "note",
            "not compiled: the engine takes nearly twice as long for a short text. Install a C "
            "compiler and the headers of Python, then install guard again.",
        )
    return _Finding(subject, "ok", "compiled and in use.")


def _settings() -> ServiceSettings:
    return read_service_settings()


def _key_store() -> _Finding:
    from spamdetect.service.app import open_store

    async def look() -> int:
        store = await open_store(_settings().database_url)
        try:
            return sum(key.revoked_s is None for key in await store.list_keys())
        finally:
            await store.close()

    try:
        settings = _settings()
        kind = settings.database_url.partition(":")[0]
        if kind == "sqlite" and not os.path.exists(settings.database_url[len("sqlite:///") :]):
            return _Finding("Key store", "note", "none yet; `spamdetect serve` makes it.")
        count = asyncio.run(look())
    except SpamError as error:
        return _Finding("Key store", "wrong", error.message)
    return _Finding("Key store", "ok", f"{kind}, {count} active keys.")


def _redis() -> _Finding:
    try:
        url = _settings().redis_url
    except SpamError as error:
        return _Finding("Limits", "wrong", error.message)
    if not url:
        return _Finding("Limits", "ok", "counted in the process; replicas need --redis-url.")
    try:
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError:
        return _Finding("Limits", "wrong", "redis is missing: pip install 'redis[hiredis]'.")
    try:
        client = Redis.from_url(
            url, socket_timeout=_PROBE_TIMEOUT_S, socket_connect_timeout=_PROBE_TIMEOUT_S
        )
        client.ping()
        client.close()
    except (RedisError, OSError, ValueError) as error:
        # Only the type: the message can contain the URL and so a password.
        return _Finding("Limits", "wrong", f"Redis cannot be reached: {type(error).__name__}.")
    return _Finding("Limits", "ok", "Redis answers.")


def _optional(module: str, purpose: str, distribution: str = "") -> _Finding:
    if find_spec(module) is not None:
        return _Finding(distribution or module, "ok", f"installed, for {purpose}.")
    return _Finding(
        distribution or module,
        "note",
        f"not installed; needed for {purpose}: pip install {distribution or module}.",
    )


def _service(base_url: str | None) -> _Finding:
    subject = "Service"
    if base_url is None and not os.environ.get("SPAMDETECT_BASE_URL"):
        return _Finding(subject, "note", "not asked; pass --base-url or set SPAMDETECT_BASE_URL.")
    from spamdetect.sync import SpamClient

    try:
        settings = read_client_settings(base_url)
        started_s = time.perf_counter()
        with SpamClient(base_url, timeout=_PROBE_TIMEOUT_S, retries=0) as spam:
            spam.predict("Is anybody there?")
    except SpamError as error:
        return _Finding(subject, "wrong", error.message)
    elapsed_ms = (time.perf_counter() - started_s) * 1000
    return _Finding(subject, "ok", f"{settings.base_url} answers in {elapsed_ms:.0f} ms.")
