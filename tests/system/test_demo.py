"""The demo is the main job: its outcome, its inboxes, its errors."""

from __future__ import annotations

import contextlib
import json
import mailbox
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from guard.gateway.databases import temporary_schema
from guard.gateway.settings import DatabaseUrl
from guard.gateway.storage.postgres import temporary_schema as own_schema_module
from tests.support import postgres
from tests.support.commands import Command, run_commands
from tests.support.programs import ROOT, environment, killed_at_last
from tests.support.waiting import WAIT_S
from tests.system.conftest import Run

Done = subprocess.CompletedProcess[str]


def document_of(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    assert document["ok"] is True
    assert all(document["checks"].values())
    assert len(document["checks"]) == 7
    return document


def demo(*arguments: str, **more: Any) -> Command:
    return Command(("demo", *arguments), **more)


def mail(folder: Path) -> tuple[Path, Path]:
    """Write a message and a mailbox of three."""
    message = EmailMessage()
    message["Subject"] = "Réunion [red]demain[/]"
    message["From"] = "anna@example.com"
    message.set_content("Voici l'ordre du jour de la réunion.\n")
    message.add_alternative("<p>Voici</p>", subtype="html")
    eml = folder / "one.eml"
    eml.write_bytes(message.as_bytes())
    box = mailbox.mbox(folder / "many.mbox")
    for _ in range(3):
        box.add(message)
    box.close()
    return eml, folder / "many.mbox"


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """The demo with each inbox, told once each."""
    eml, box = mail(tmp_path_factory.mktemp("mail"))
    lines = "Lunch at noon on Friday?\n\nWIN a FREE prize now, call 0900-123-456!!!\n"
    commands = {
        "built in": demo("--json"),
        "for people": demo(),
        "standard input": demo("--json", "--inbox", "-", stdin=lines),
        "a message": demo("--json", "--inbox", str(eml)),
        "a mailbox": demo("--json", "--inbox", str(box)),
    }
    return dict(zip(commands, run_commands(*commands.values()), strict=True))


def test_a_missing_extra_is_named(run: Run) -> None:
    for extra, package in (("spam", "numpy"), ("gateway", "genai_prices")):
        code = (
            f"import sys; sys.modules[{package!r}] = None; sys.argv = ['guard', 'demo']\n"
            "from guard.__main__ import main; main()"
        )
        done = run("-c", code)
        assert done.returncode == 1
        assert f"needs the extra '{extra}', which is not installed" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_built_in_inbox(demos: dict[str, Done]) -> None:
    document = document_of(demos["built in"])
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
    assert killed[0]["output_tokens"] == 1024, "who does not know that it stopped charges its bound"
    assert not any(call["estimated"] for call in triage)
    assert document["kill_latency_ms"] > 0


def test_without_the_vendors_client(run: Run, tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text("raise ImportError('not here')\n")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    document = document_of(run("-m", "guard", "demo", "--json", env=env))
    assert document["llm"]["client"].startswith("httpx ")


@pytest.mark.parametrize(
    ("inbox", "messages"), [("standard input", 2), ("a message", 1), ("a mailbox", 3)]
)
def test_other_inboxes(demos: dict[str, Done], inbox: str, messages: int) -> None:
    assert document_of(demos[inbox])["messages"] == messages


def test_for_people(demos: dict[str, Done]) -> None:
    done = demos["for people"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("local stand-in", "REFUSED", "KILLED", "guard gateway kill", "The user reads"):
        assert words in done.stdout
    assert "MISSING" not in done.stdout
    assert "\x1b" not in done.stdout, "escape sequences in a pipe"


def test_an_unreadable_inbox_is_one_clear_line(tmp_path: Path) -> None:
    paths = [tmp_path / kind for kind in ("missing", "directory", "binary", "empty")]
    paths[1].mkdir()
    paths[2].write_bytes(b"\x7fELF\0\0\0")
    paths[3].write_text("\n \n")
    failed = run_commands(*(demo("--inbox", str(path)) for path in paths))
    for path, done in zip(paths, failed, strict=True):
        assert (done.returncode, done.stdout) == (1, "")
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


def test_on_postgresql_beside_what_is_there(database: str) -> None:
    for_machines, done = run_commands(
        demo("--json", "--database", database), demo("--database", database)
    )
    document = document_of(for_machines)
    assert document["database"].startswith("PostgreSQL, schema guard_demo_")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "PostgreSQL, schema guard_demo_" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_in_postgresql(database: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "guard", "demo", "--database", database],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with killed_at_last(process):
        for line in process.stdout:
            if "allowed" in line:
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == {signal.SIGINT: 1, signal.SIGTERM: 143}[number]
    assert "Traceback" not in errors
    assert "is left" not in errors


def test_sigterm_at_any_moment_ends_a_busy_loop(run: Run) -> None:
    program = """
import asyncio, os, random, signal, threading, time
from guard.demo.command import EndedBySigterm

async def turn():
    while True:
        await asyncio.sleep(0)

async def main():
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(turn())

def send(after_s):
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGTERM)

moments = random.Random(1)
for number in range(200):
    sender = threading.Thread(target=send, args=(moments.uniform(0, 0.003),))
    try:
        with EndedBySigterm() as running:
            sender.start()
            running.run(main())
    except SystemExit as exc:
        print(exc.code)
    sender.join()
"""
    done = run("-c", program, timeout_s=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["143"] * 200


# The interrupt may also come just before a connection is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_schema_whose_making_is_interrupted_is_dropped(database: str) -> None:
    """Ctrl-C at each line on the way to the schema, and at the first beyond it."""
    is_made = False
    for line in range(1, 100):
        reached = 0

        def interrupt(frame: FrameType, event: str, _: object, line: int = line) -> Any:
            nonlocal reached
            if frame.f_code.co_filename != own_schema_module.__file__:
                return None
            reached += event == "line"
            if reached == line:
                reached += 1
                raise KeyboardInterrupt
            return interrupt

        left: list[str] = []
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(interrupt)
            try:
                with temporary_schema(DatabaseUrl(database), "guard_demo", left.append):
                    sys.settrace(None)
                    is_made = True
            finally:
                sys.settrace(None)
        with psycopg.connect(database) as connection:
            assert (_schemas(connection), left) == ({"public"}, []), line
        if is_made:
            break
    assert is_made


def _fails(done: Done, code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert "canary" not in done.stderr
    for each in words:
        assert each in done.stderr


def test_a_database_that_cannot_be_used_is_one_clear_line() -> None:
    said: dict[str, tuple[int, tuple[str, ...]]] = {
        "guard.sqlite3": (2, ("postgresql://", "a SQLite file of its own")),
        "postgresql://g:canary-1@127.0.0.1:1/guard": (1, ("127.0.0.1:1/guard", "refused")),
        "postgresql://g:canary%zz@127.0.0.1:1/guard": (1, ("127.0.0.1:1/guard",)),
        "postgresql://g:canary@[::1/guard": (1, ("cannot be used",)),
        "postgresql://g:x/canary@127.0.0.1/guard": (1, ("127.0.0.1/guard cannot be used",)),
    }
    failed = run_commands(*(demo("--database", url) for url in said))
    for (code, words), done in zip(said.values(), failed, strict=True):
        assert "SQLite" in done.stderr or len(done.stderr.strip().splitlines()) == 1
        _fails(done, code, *words)


def test_a_database_without_its_driver_is_one_clear_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text(
        "raise ModuleNotFoundError('no psycopg', name='psycopg')\n"
    )
    url = "postgresql://g@127.0.0.1:1/g"
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run("-m", "guard", "demo", "--database", url, env=env)
    assert len(done.stderr.strip().splitlines()) == 1
    _fails(done, 1, "pip install 'agent-hard-stop[postgres]'")


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
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(
            "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE 'no'; END $$"
        )
        other.execute(
            "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('DROP SCHEMA')"
            " EXECUTE FUNCTION refuse()"
        )
        with temporary_schema(DatabaseUrl(database), "guard_demo", left.append) as schema:
            assert f"search_path%3D{schema.name}" in schema.url
        (text,) = left
        assert f"DROP SCHEMA {schema.name} CASCADE" in text
        other.execute("DROP FUNCTION refuse CASCADE")
        other.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema.name)))
