"""What only the PostgreSQL store has: spelling, migrations, secrets, and other sessions' locks."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from guard.gateway.admin import AdminClient
from guard.gateway.bootstrap import first_run
from guard.gateway.cli.main import gateway as cli
from guard.gateway.domain.errors import StoreError, StoreLostError
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger import catalogue, directory
from guard.gateway.settings import DatabaseUrl, GatewaySettings
from guard.gateway.storage.postgres import listener
from guard.gateway.storage.postgres.connection import WRITER
from guard.gateway.storage.postgres.dialect import spelled
from guard.gateway.storage.postgres.migrations import PostgresMigrator, SchemaError
from guard.gateway.storage.postgres.silence_watchdog import AnswerWatch, WatchedSocket
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION, within
from tests.support import postgres
from tests.support.store import ACTOR
from tests.support.waiting import until, until_async


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        ("SELECT ?, a % 2 WHERE b LIKE '%x%'", "SELECT %s, a %% 2 WHERE b LIKE '%%x%%'"),
        ("SELECT ?1 + ?2 + ?1", "SELECT %(a1)s + %(a2)s + %(a1)s"),
        ("FROM e INDEXED BY events_charged WHERE x", "FROM e WHERE x"),
        ("FROM e NOT INDEXED WHERE x", "FROM e WHERE x"),
        ("FROM a CROSS JOIN b ON x", "FROM a JOIN b ON x"),
        ("GROUP BY +organisation_id, +b, c", "GROUP BY organisation_id, b, c"),
        ("FROM json_each(?1) j", "FROM jsonb_array_elements_text((%(a1)s)::jsonb) AS j(value)"),
    ],
)  # fmt: skip
def test_the_shared_sql_is_spelled_for_postgresql(shared: str, own: str) -> None:
    assert spelled(shared).text == own


def test_a_database_without_an_encoding() -> None:
    with run_gateway(postgres.database_without_encoding()) as gateway:
        gateway.admin.create_organisation("ключ 🎉")
        with contextlib.closing(
            AdminClient(gateway.base_url, gateway.admin_key, organisation="ключ 🎉")
        ) as admin:
            admin.create_key("é")
            (key,) = admin.keys()
            assert key["name"] == "é"


def test_a_database_that_cannot_keep_every_name_is_refused_at_the_start() -> None:
    """Else the first name outside of its encoding fails, long after."""
    dsn = postgres.own_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    said = "LATIN1.*ENCODING 'UTF8'"
    with pytest.raises((SchemaError, StoreError), match=said):
        asyncio.run(PostgresStorage(dsn).open(lambda _: None))
    result = CliRunner().invoke(cli, ["migrate", "status", "--database", dsn])
    assert result.exit_code == 1
    assert re.search(said, result.output)


def test_a_password_is_in_no_repr_and_no_error() -> None:
    url = "postgresql://guard:canary-word@127.0.0.1:1/guard?connect_timeout=1"
    assert "canary" not in repr(GatewaySettings(database=url))
    assert isinstance(GatewaySettings(database=url).database, DatabaseUrl)
    with pytest.raises(StoreError) as caught:
        asyncio.run(PostgresStorage(url).open(lambda _: None))
    assert "canary" not in str(caught.value)
    for command in (["backup", "x"], ["restore", __file__]):
        result = CliRunner().invoke(cli, [*command, "--database", url])
        assert result.exit_code == 2
        assert "pg_dump" in result.output
        assert "canary" not in result.output


@pytest.mark.asyncio
async def test_the_reason_is_named_why_it_cannot_be_opened() -> None:
    """Too many connections are a matter of the server's settings, and not of the network."""
    database = postgres.own_database()
    user = f"few_{secrets.token_hex(4)}"
    with psycopg.connect(database, autocommit=True) as connection:
        name = sql.Identifier(user)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 1").format(name))
        try:
            connection.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(name))
            few = urlsplit(database)
            host = f"{user}@{few.hostname}:{few.port}"
            store = PostgresStorage(few._replace(netloc=host).geturl())
            with pytest.raises(StoreError, match="too many connections for role"):
                await store.open(lambda _: None)
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
            connection.execute(sql.SQL("DROP ROLE {}").format(name))


def test_migrations_are_shown_rehearsed_and_applied(tmp_path: Path) -> None:
    migrator = PostgresMigrator(postgres.dsn_of(tmp_path))
    before = migrator.status()
    assert before.version == 0
    assert before.pending[-1].number == before.newest
    assert migrator.up(dry_run=True) == before.pending
    assert migrator.status() == before
    assert migrator.up(dry_run=False) == before.pending
    assert migrator.status().version == before.newest
    assert migrator.up(dry_run=False) == []


def test_a_newer_schema_and_a_foreign_one_are_refused(tmp_path: Path) -> None:
    dsn = postgres.dsn_of(tmp_path)
    PostgresMigrator(dsn).up(dry_run=False)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE facts SET value = '1000' WHERE name LIKE 'schema%'")
        with pytest.raises(StoreError, match="newer than this gateway knows"):
            PostgresMigrator(dsn).status()
        connection.execute("UPDATE facts SET value = '1' WHERE name LIKE 'schema%'")
        with pytest.raises(StoreError, match="no release has written"):
            PostgresMigrator(dsn).status()
        connection.execute("DELETE FROM facts WHERE name = 'schema'")
        with pytest.raises(StoreError, match="not a gateway's database"):
            PostgresMigrator(dsn).status()


@pytest.mark.asyncio
async def test_replicas_that_start_at_once_on_nothing_make_one_organisation(tmp_path: Path) -> None:
    stores = [postgres.store(tmp_path) for _ in range(3)]
    await asyncio.gather(*(each.open(lambda _: None) for each in stores))
    made = await asyncio.gather(*(first_run(each, 1) for each in stores))
    assert sum(each is not None for each in made) == 1
    assert len(await stores[0].organisations()) == 1
    await asyncio.gather(*(each.close() for each in stores))


@pytest.mark.asyncio
async def test_nothing_is_left_of_a_store_that_loses_its_database_while_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = postgres.store(tmp_path)
    started: list[threading.Thread] = []

    start = listener.Listener.start

    def lost(own: listener.Listener) -> None:
        start(own)
        assert made._watch._thread is not None
        started.extend([own._thread, made._watch._thread])
        raise StoreLostError("the database cannot be reached")

    monkeypatch.setattr(listener.Listener, "start", lost)
    with pytest.raises(StoreError, match="cannot open the database"):
        await made.open(lambda _: None)
    assert len(started) == 2
    until(lambda: not any(thread.is_alive() for thread in started))
    assert made._unit is None


@pytest.mark.asyncio
async def test_organisations_do_not_wait_for_one_another(tmp_path: Path) -> None:
    store = postgres.store(tmp_path)
    await store.open(lambda _: None)
    held, free = [
        (
            await store.write(NO_ORGANISATION, directory.create_organisation, ACTOR, name)
        ).organisation_id
        for name in ("a", "b")
    ]
    with psycopg.connect(postgres.dsn_of(tmp_path)) as other:
        other.execute("SELECT 1 FROM organisations WHERE organisation_id = %s FOR UPDATE", (held,))
        await store.write(within(free), catalogue.put_price, ACTOR, _price(free))
        waiting: Any = asyncio.ensure_future(
            store.write(within(held), catalogue.put_price, ACTOR, _price(held))
        )
        await until_async(lambda: postgres.waits_for_a_lock(tmp_path))
        assert not waiting.done()
        other.rollback()
        await waiting
    await store.close()


@pytest.mark.asyncio
async def test_a_frozen_replica_stops_nobody_for_long(tmp_path: Path) -> None:
    """The server ends the transaction of who says nothing for a while."""
    frozen, live = postgres.store(tmp_path), postgres.store(tmp_path)
    for each in (frozen, live):
        await each.open(lambda _: None)
    own = (
        await live.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    is_frozen, go_on = threading.Event(), threading.Event()

    def freeze(unit: Any) -> None:
        # Sooner than by the store's own setting. For this transaction only: on a busy machine any
        # other is silent for so long, too.
        unit.connection.psycopg.execute("SET idle_in_transaction_session_timeout = 500")
        is_frozen.set()
        assert go_on.wait(60)

    stuck: Any = frozen.write(ALL_ORGANISATIONS, freeze)
    await asyncio.to_thread(is_frozen.wait, 60)
    await live.write(within(own), catalogue.put_price, ACTOR, _price(own))
    go_on.set()
    with pytest.raises(StoreError):
        await stuck
    assert await frozen.ready(), "it connects again"
    await asyncio.gather(frozen.close(), live.close())


@pytest.mark.asyncio
async def test_a_replica_that_froze_in_the_middle_of_a_pipeline_stops_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the rest, which it does not call idle."""
    monkeypatch.setattr(listener, "IDLE_TIMEOUT_MS", 1000)
    monkeypatch.setattr(listener, "ASK_S", 0.5)
    live = postgres.store(tmp_path)
    await live.open(lambda _: None)
    own = (
        await live.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    dsn = postgres.dsn_of(tmp_path)
    with psycopg.connect(dsn, autocommit=True, application_name=WRITER) as frozen:
        frozen.pgconn.enter_pipeline_mode()
        frozen.pgconn.send_query_params(b"BEGIN", None)
        frozen.pgconn.send_query_params(b"SELECT 1 FROM organisations FOR UPDATE", None)
        frozen.pgconn.send_flush_request()
        frozen.pgconn.flush()
        async with asyncio.timeout(60):
            while True:
                try:
                    await live.write(within(own), catalogue.put_price, ACTOR, _price(own))
                    break
                except StoreError:  # a busy machine is not as quick
                    continue
        frozen.pgconn.finish()  # it cannot say good-bye in the middle of a pipeline
    await live.close()


@pytest.mark.asyncio
async def test_the_server_looks_whether_a_silent_replica_is_there(tmp_path: Path) -> None:
    store = postgres.store(tmp_path)
    await store.open(lambda _: None)
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    found = await store.write(
        ALL_ORGANISATIONS, lambda unit: [unit.row(f"SHOW {name}")[0] for name in names]
    )
    read = await store.look_up(lambda reading: [reading.rows(f"SHOW {n}")[0][0] for n in names])
    await store.close()
    if "host=/" in postgres.dsn_of(tmp_path):
        pytest.skip("a socket in a folder has no such settings")
    assert found == read == ["5", "2", "3"]


def test_a_silent_server_is_a_lost_connection() -> None:
    watch = AnswerWatch()
    watch.start()
    here, there = socket.socketpair()
    line = WatchedSocket(here.fileno())
    watch.add(line)
    here.settimeout(60)
    line.expect(60)
    there.sendall(b"x")
    assert here.recv(1) == b"x"
    line.expect(0.1)
    assert here.recv(1) == b"", "cut under whoever waits"
    watch.remove(line)
    watch.close()
    here.close()
    there.close()


@pytest.mark.asyncio
async def test_a_server_that_answers_each_statement_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit of thousands of statements took longer on a busy machine than one answer may."""
    store = postgres.store(tmp_path)
    await store.open(lambda _: None)
    expect = WatchedSocket.expect
    monkeypatch.setattr(WatchedSocket, "expect", lambda line, within_s: expect(line, 2.0))
    slow = "SELECT 1 FROM (SELECT pg_sleep(.25)) slow"
    assert await store.write(
        ALL_ORGANISATIONS, lambda unit: [unit.row(slow)[0] for _ in range(12)]
    ) == ([1] * 12)
    await store.close()


def _price(organisation_id: str) -> Any:
    from guard.gateway.domain.records import Price, Rates

    return Price(price_id="", organisation_id=organisation_id, provider="*", model="m",
                 rates=Rates(input_per_mtok=1, output_per_mtok=1))  # fmt: skip
