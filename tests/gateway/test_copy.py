"""From a SQLite file to PostgreSQL: everything is there again, or nothing is."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import httpx
import psycopg
import pytest
from click.testing import CliRunner, Result

from guard.gateway.admin import AdminClient
from guard.gateway.cli.main import gateway as command
from guard.gateway.embedded import run_gateway
from guard.gateway.storage.postgres import migrations
from guard.gateway.storage.postgres.connection import connect
from guard.gateway.storage.postgres.copying import tables_of
from guard.gateway.storage.sqlite import schema
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres, release_0_7
from tests.support.asker import ask, asker, call
from tests.support.waiting import WAIT_S, until


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def copied(source: Path, target: str, *words: str) -> Result:
    return run("copy", "--from", f"sqlite:{source}", "--to", target, *words)


@attrs.define
class Origin:
    """The file of a gateway that has been stopped, and what it held."""

    path: Path
    organisation_id: str
    api_key: str
    reply: dict[str, Any]
    lease_id: str
    balances: list[dict[str, Any]]
    head: str


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    path = tmp_path / "g.sqlite3"
    with run_gateway(path) as gateway:
        tenant = new_tenant(gateway)
        tenant.admin.update_settings(lease_ttl_ms=3_600_000)  # nobody renews the lease below
        tenant.admin.set_budget(10_000)
        tenant.admin.set_budget(500, scope_kind="workflow", scope_id="*", window="day")
        tenant.admin.set_policy("p", tools_block=["rm"])
        tenant.send(tenant.llm(2_000_000_000, workflow_id="w"), tenant.llm(1000, workflow_id="nul"))
        reply = tenant.allowed(
            call_id="c-1", model="gpt-4o", max_input_tokens=10, max_output_tokens=10,
            headers={"Idempotency-Key": "once"},
        )  # fmt: skip
        lease_id = asyncio.run(lease(tenant))
        tenant.admin.kill("w", reason="enough")
        head = tenant.gateway.admin.audit_head()
        found = Origin(
            path, tenant.organisation_id, tenant.api_key, reply, lease_id, tenant.admin.ledger(),
            f"{head['seq']}:{head['hash']}",
        )  # fmt: skip
        tenant.http.close()
        tenant.admin.close()
    # Names could have one once.
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE usage SET scope_id = ? WHERE scope_id = 'nul'", ("nul\0l",))
    return found


async def lease(tenant: Tenant) -> str:
    async with asker(tenant.gateway.base_url, tenant.api_key) as client:
        body = call(1, lease={"demand_nanousd": 2_000_000_000, "demand_calls": 4})
        [(_, reply)] = await client.ask(ask("a", body))
        return str(reply["lease"]["lease_id"])


@pytest.fixture
def target(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


def rows_of(target: str, table: str) -> int:
    with psycopg.connect(target) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # type: ignore[arg-type]
        assert found is not None
        return int(found[0])


def test_a_gateway_goes_on_where_the_other_stopped(origin: Origin, target: str) -> None:
    result = copied(origin.path, target)
    assert result.exit_code == 0, result.output
    assert f"audit head: {origin.head}" in result.output
    assert "2 open reservations, 2 events, the same and correct" in result.output
    with run_gateway(target) as gateway:
        admin = gateway.admin
        assert admin.verify_audit(origin.head)["ok"]
        assert admin.verify_ledger()["problems"] == []
        headers = {"X-API-Key": origin.api_key, "X-Guard-Protocol": "3"}
        with httpx.Client(base_url=gateway.base_url, headers=headers) as http:
            body = {"call_id": "c-1", "kind": "call", "function": "work", "model": "gpt-4o",
                    "max_input_tokens": 10, "max_output_tokens": 10}  # fmt: skip
            again = http.post("/gate", json=body, headers={"Idempotency-Key": "once"})
            assert again.json() == origin.reply, "a repeat is a repeat"
            problem = http.post("/gate", json={**body, "workflow_id": "w"}).json()
            assert (problem["error_code"], problem["reason"]) == ("GD-W002", "enough")
            events = [{"event_id": "new", "type": "llm", "at_ms": 1,
                       "data": {"cost_nanousd": 5, "model": "gpt-4o"}}]  # fmt: skip
            batch = {"batch_id": "b", "sent_at_ms": 1, "events": events}
            assert http.post("/api/v1/events", json=batch).json()["accepted"] == 1
            update = {"lease_id": origin.lease_id, "unused_nanousd": 1, "close": True}
            assert http.post("/gate/lease", json=update).status_code == 200
        assert admin.verify_ledger()["problems"] == []


def test_the_balances_are_the_same(origin: Origin, target: str) -> None:
    assert copied(origin.path, target).exit_code == 0
    with run_gateway(target) as gateway:
        admin = AdminClient(
            gateway.base_url, gateway.admin_key, organisation=origin.organisation_id
        )
        assert admin.ledger() == origin.balances
        assert {"w", "nul\0l"} <= {each["workflow_id"] for each in admin.workflows()}
        admin.close()


def test_a_dry_run_leaves_nothing(origin: Origin, target: str) -> None:
    result = copied(origin.path, target, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "could copy" in result.output
    assert rows_of(target, "organisations") == rows_of(target, "events") == 0
    assert copied(origin.path, target).exit_code == 0


def fails(text: str, result: Result) -> None:
    assert result.exit_code == 1, result.output
    assert text in result.output.splitlines()[-1]


def test_only_into_an_empty_database(origin: Origin, target: str) -> None:
    assert copied(origin.path, target).exit_code == 0
    fails("not empty", copied(origin.path, target))


def test_only_from_a_stopped_gateway_of_this_version(
    origin: Origin, target: str, tmp_path: Path
) -> None:
    with run_gateway(origin.path):
        fails("another gateway is using this database", copied(origin.path, target))
    fails("no database at", copied(tmp_path / "none", target))
    old = tmp_path / "old.sqlite3"
    release_0_7.filled(old)
    fails("guard gateway migrate up", copied(old, target))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("UPDATE balances SET committed = committed + 1", "ledger of the file does not add up"),
        ("UPDATE audit SET actor = 'nobody' WHERE seq = 2", "wrong at entry 2"),
    ],
)
def test_a_file_with_something_wrong_is_not_copied(
    origin: Origin, target: str, change: str, text: str
) -> None:
    with contextlib.closing(sqlite3.connect(origin.path)) as connection, connection:
        connection.execute(change)
    fails(text, copied(origin.path, target))
    with psycopg.connect(target) as connection:
        found = connection.execute("SELECT to_regclass('organisations')").fetchone()
    assert found == (None,)


def test_a_copy_that_differs_is_taken_back(origin: Origin, target: str) -> None:
    """A trigger of somebody else's changes what arrives."""
    assert run("migrate", "up", "--database", target).exit_code == 0
    with psycopg.connect(target) as connection:
        connection.execute(
            "CREATE FUNCTION halve() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN NEW.committed := NEW.committed / 2; RETURN NEW; END'"
        )
        connection.execute(
            "CREATE TRIGGER halve BEFORE INSERT ON balances FOR EACH ROW EXECUTE FUNCTION halve()"
        )
    fails("is another one in the copy", copied(origin.path, target))
    assert rows_of(target, "balances") == rows_of(target, "organisations") == 0


def test_a_target_that_cannot_be_reached(origin: Origin) -> None:
    result = copied(origin.path, "postgresql://guard:hunter2@127.0.0.1:1/guard")
    fails("the target failed", result)
    assert "hunter2" not in result.output
    assert run("copy", "--from", origin.path, "--to", "guard.sqlite3").exit_code == 2
    assert run("copy", "--from", "postgresql://a/b", "--to", "postgresql://a/b").exit_code == 2
    result = run("copy", "--from", "postgresql://guard:hunter2@127.0.0.1:1/guard", "--to", "new")
    fails("the source failed", result)
    assert "hunter2" not in result.output


# -- and back ------------------------------------------------------------------------------------


def contents(database: Path | str) -> dict[str, list[str]]:
    """Return the rows of every table that both engines have, in an order of their own."""
    tables = {}
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        schema.migrate(empty)
        names = tables_of(empty)
        columns = {t: [row[1] for row in empty.execute(f"PRAGMA table_info({t})")] for t in names}
    with contextlib.closing(
        sqlite3.connect(database) if isinstance(database, Path) else connect(database, "test")
    ) as connection:
        for table in names:
            listed = ", ".join(f'"{name}"' for name in columns[table])
            rows: Any = connection.execute(f"SELECT {listed} FROM {table}")  # type: ignore[arg-type]
            own = ("schema", "schema_oldest", "oldest_open")
            found = [tuple(row) for row in rows]
            tables[table] = sorted(
                repr(row) for row in found if table != "facts" or row[0] not in own
            )
    return tables


def back(source: str, target: Path, *words: str) -> Result:
    return run("copy", "--from", source, "--to", f"sqlite:{target}", *words)


def test_there_and_back_every_table_is_the_same(
    origin: Origin, target: str, tmp_path: Path
) -> None:
    before = contents(origin.path)
    assert copied(origin.path, target).exit_code == 0
    returned = tmp_path / "back.sqlite3"
    result = back(target, returned)
    assert result.exit_code == 0, result.output
    assert f"audit head: {origin.head}" in result.output
    after = contents(returned)
    assert contents(target) == after
    # The schema of PostgreSQL begins with a period of its own for stored answers.
    before["facts"] = after["facts"]
    assert after == before
    assert sum(map(len, after.values())) > 30


def test_what_was_done_on_postgresql_goes_on_in_the_file(
    origin: Origin, target: str, tmp_path: Path
) -> None:
    assert copied(origin.path, target).exit_code == 0
    headers = {"X-API-Key": origin.api_key, "X-Guard-Protocol": "3"}
    body = {"call_id": "c-2", "kind": "call", "function": "work", "model": "gpt-4o",
            "max_input_tokens": 10, "max_output_tokens": 10}  # fmt: skip
    once = {**headers, "Idempotency-Key": "on postgres"}
    with run_gateway(target) as gateway:
        reply = httpx.post(f"{gateway.base_url}/gate", json=body, headers=once).json()
        head = gateway.admin.audit_head()
    returned = tmp_path / "back.sqlite3"
    result = back(target, returned)
    assert result.exit_code == 0, result.output
    with run_gateway(returned) as gateway:
        assert gateway.admin.verify_ledger()["problems"] == []
        assert gateway.admin.verify_audit(f"{head['seq']}:{head['hash']}")["ok"]
        again = httpx.post(f"{gateway.base_url}/gate", json=body, headers=once)
        assert again.json() == reply, "a repeat is a repeat"
        released = {"reservation_id": reply["reservation_id"]}
        done = httpx.post(f"{gateway.base_url}/gate/release", json=released, headers=headers)
        assert done.json()["released_nanousd"] > 0, "what was open is known"
        killed = httpx.post(
            f"{gateway.base_url}/gate", json={**body, "workflow_id": "w"}, headers=headers
        )
        assert killed.json()["error_code"] == "GD-W002"


def test_back_into_a_new_file_from_stopped_gateways(
    origin: Origin, target: str, tmp_path: Path
) -> None:
    assert copied(origin.path, target).exit_code == 0
    fails("is there already", back(target, origin.path))
    returned = tmp_path / "back.sqlite3"
    assert back(target, returned, "--dry-run").exit_code == 0
    assert not returned.exists()
    with run_gateway(target):
        fails("a gateway is running on this database", back(target, returned))
    assert not returned.exists()
    assert [each.name for each in tmp_path.iterdir() if "copying" in each.name] == []


def test_a_gateway_has_ended_although_the_server_has_not_ended_its_session_yet(
    origin: Origin, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "ENDING_S", WAIT_S)
    assert copied(origin.path, target).exit_code == 0
    session = psycopg.connect(target, autocommit=True)
    migrations.note_running(session)
    watching = psycopg.connect(target, autocommit=True)

    def end_once_it_is_asked() -> None:
        until(lambda: asks_who_runs(watching))
        time.sleep(0.3)  # in which it asks for this session's version too
        session.close()

    ends = threading.Thread(target=end_once_it_is_asked)
    ends.start()
    result = back(target, tmp_path / "back.sqlite3")
    ends.join(WAIT_S)
    watching.close()
    assert result.exit_code == 0, result.output


def asks_who_runs(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'guard-gateway-copy' AND query LIKE '%advisory_xact_lock%'"
    )
    return found.fetchone() is not None


def test_what_is_wrong_is_not_copied_back(origin: Origin, target: str, tmp_path: Path) -> None:
    assert copied(origin.path, target).exit_code == 0
    with psycopg.connect(target) as connection:
        connection.execute("UPDATE balances SET committed = committed + 1")
    returned = tmp_path / "back.sqlite3"
    fails("ledger of the source does not add up", back(target, returned))
    assert not returned.exists()
    empty = postgres.url_of(tmp_path / "empty")
    fails("the source's schema", back(empty, returned))
