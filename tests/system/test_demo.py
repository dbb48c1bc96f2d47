"""The demo is the main job: its outcome, its inboxes, its errors."""

from __future__ import annotations

import json
import mailbox
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from guard.gateway.databases import own_schema
from guard.gateway.settings import DatabaseUrl
from tests.support import postgres
from tests.support.programs import environment
from tests.system.conftest import Run


def demo(run: Run, *arguments: str, **options: Any) -> dict[str, Any]:
    done = run("-m", "guard", "demo", "--json", *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    assert document["ok"] is True
    assert all(document["checks"].values())
    assert len(document["checks"]) == 7
    return document


def test_the_built_in_inbox(run: Run) -> None:
    document = demo(run)
    assert document["llm"]["stand_in"] is True
    assert document["llm"]["client"].startswith("openai ")
    assert 0 < document["spam"] < document["classified"] <= document["messages"] == 12
    triage = [call for call in document["calls"] if call["workflow"] == "inbox-triage"]
    killed = [call for call in document["calls"] if call["workflow"] == "inbox-digest"]
    assert (
        sum(call["cost_nanousd"] for call in triage) == document["ledger_nanousd"]["inbox-triage"]
    )
    # The last call was admitted on an estimate while there was room, and is charged in full.
    before_the_last = sum(call["cost_nanousd"] for call in triage[:-1])
    assert before_the_last < document["budget_nanousd"]
    assert len(killed) == 1
    assert killed[0]["estimated"] is True
    assert killed[0]["output_tokens"] < 200, "the stream ran on after the kill"
    assert not any(call["estimated"] for call in triage)
    assert document["kill_latency_ms"] > 0


def test_without_the_vendors_client(run: Run, tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text("raise ImportError('not here')\n")
    root = str(Path(__file__).parents[2])
    document = demo(run, env={"PYTHONPATH": f"{tmp_path}:{root}"})
    assert document["llm"]["client"].startswith("httpx ")


def test_inbox_from_standard_input(run: Run) -> None:
    lines = "Lunch at noon on Friday?\n\nWIN a FREE prize now, call 0900-123-456!!!\n"
    document = demo(run, "--inbox", "-", stdin=lines)
    assert document["messages"] == 2


def test_inbox_of_mail(run: Run, tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["Subject"] = "Réunion [red]demain[/]"
    mail["From"] = "anna@example.com"
    mail.set_content("Voici l'ordre du jour de la réunion.\n")
    mail.add_alternative("<p>Voici</p>", subtype="html")
    eml = tmp_path / "one.eml"
    eml.write_bytes(mail.as_bytes())
    box = mailbox.mbox(tmp_path / "many.mbox")
    for _ in range(3):
        box.add(mail)
    box.close()
    assert demo(run, "--inbox", str(eml))["messages"] == 1
    assert demo(run, "--inbox", str(tmp_path / "many.mbox"))["messages"] == 3


def test_for_people(run: Run) -> None:
    done = run("-m", "guard", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("local stand-in", "REFUSED", "KILLED", "guard gateway kill", "The user reads"):
        assert words in done.stdout
    assert "MISSING" not in done.stdout
    assert "\x1b" not in done.stdout, "escape sequences in a pipe"


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "empty"])
def test_an_unreadable_inbox_is_one_clear_line(run: Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "inbox.txt"
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\x7fELF\0\0\0")
    elif kind == "empty":
        path.write_text("\n \n")
    done = run("-m", "guard", "demo", "--inbox", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def database() -> Iterator[str]:
    """A database with a table of somebody else's, which has to be there in the end as it was."""
    url = postgres.own_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (words text)")
        connection.execute("INSERT INTO events VALUES ('mine')")
        yield url
        assert connection.execute("SELECT words FROM events").fetchall() == [("mine",)]
        assert _schemas(connection) == {"public"}
        tables = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone()
        assert tables == (1,)


def _schemas(connection: psycopg.Connection[Any]) -> set[str]:
    found = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> %s",
        ("information_schema",),
    )
    return {row[0] for row in found}


def test_on_postgresql_beside_what_is_there(run: Run, database: str) -> None:
    document = demo(run, "--database", database)
    assert document["database"].startswith("PostgreSQL, schema guard_demo_")


def test_on_postgresql_for_people(run: Run, database: str) -> None:
    done = run("-m", "guard", "demo", "--database", database)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "PostgreSQL, schema guard_demo_" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_in_postgresql(database: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "guard", "demo", "--database", database],
        env=environment(None), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if "allowed" in line:
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 1, signal.SIGTERM: 143}[number]
    assert "Traceback" not in errors
    assert "is left" not in errors


def _fails(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert "canary" not in done.stderr
    for each in words:
        assert each in done.stderr


def test_a_database_that_cannot_be_used_is_one_clear_line(run: Run, tmp_path: Path) -> None:
    def failed(url: str, **options: Any) -> subprocess.CompletedProcess[str]:
        done = run("-m", "guard", "demo", "--database", url, **options)
        assert "SQLite" in done.stderr or len(done.stderr.strip().splitlines()) == 1
        return done

    _fails(failed("guard.sqlite3"), 2, "postgresql://", "a SQLite file of its own")
    _fails(failed("postgresql://g:canary-1@127.0.0.1:1/guard"), 1, "127.0.0.1:1/guard", "refused")
    _fails(failed("postgresql://g:canary%zz@127.0.0.1:1/guard"), 1, "127.0.0.1:1/guard")
    _fails(failed("postgresql://g:canary@[::1/guard"), 1, "cannot be used")
    _fails(failed("postgresql://g:x/canary@127.0.0.1/guard"), 1, "127.0.0.1/guard cannot be used")
    (tmp_path / "psycopg.py").write_text(
        "raise ModuleNotFoundError('no psycopg', name='psycopg')\n"
    )
    root = str(Path(__file__).parents[2])
    without = failed("postgresql://g@127.0.0.1:1/g", env={"PYTHONPATH": f"{tmp_path}:{root}"})
    _fails(without, 1, "pip install 'guard[postgres]'")


def test_a_user_who_may_make_no_schema_is_told(run: Run, database: str) -> None:
    name = f"guard_demo_test_{os.getpid()}"
    user = sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(user))
        try:
            parts = urlsplit(database)
            host = parts.netloc.rpartition("@")[2]
            done = run(
                "-m", "guard", "demo", "--database", f"postgresql://{name}@{host}{parts.path}"
            )
            _fails(done, 1, "may not make a schema", "GRANT CREATE ON DATABASE")
        finally:
            connection.execute(sql.SQL("DROP ROLE {}").format(user))


def test_a_schema_that_cannot_be_dropped_is_named(database: str) -> None:
    left: list[str] = []
    with own_schema(DatabaseUrl(database), "guard_demo", left.append) as schema:
        assert f"search_path%3D{schema.name}" in schema.url
        with psycopg.connect(database, autocommit=True) as connection:
            drop = sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema.name))
            connection.execute(drop)
    (text,) = left
    assert f"DROP SCHEMA {schema.name} CASCADE" in text
