"""Operating a gateway: its log, its probes, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import httpx
import psycopg
import pytest

from guard.core.ids import IdFactory
from guard.gateway import app as app_module
from guard.gateway.api import health
from guard.gateway.api.socket import CLOSE_GOING_AWAY
from guard.gateway.app import GatewayApp
from guard.gateway.cli.serve import _serving
from guard.gateway.domain import records
from guard.gateway.domain.errors import StoreError
from guard.gateway.embedded import Gateway
from guard.gateway.server import GatewayServer, bind
from guard.gateway.services import logs
from guard.gateway.services.keys import make_key
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.postgres import migrations
from guard.gateway.storage.postgres.connection import (
    _SERVER_SETTINGS,
    IDLE_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    STATEMENT_TIMEOUT_MS,
)
from guard.gateway.storage.postgres.schema import MIGRATE
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.unit.state import ALL_ORGANISATIONS, Touches
from tests.gateway.conftest import SERVE, Served, Tenant
from tests.support import postgres
from tests.support.asker import asker, close_code
from tests.support.prometheus import METRICS_KEY
from tests.support.waiting import until, until_async

# -- log -------------------------------------------------------------------------------------------

KEY = "gdk_qYxm-k2_9vF3"


def line_of(message: str, *arguments: Any, **fields: Any) -> dict[str, str]:
    record = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, arguments, None)
    vars(record).update(fields)
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, str] = json.loads(text)
    return found


def test_a_line_is_an_object() -> None:
    found = line_of("%s\n%s", "one", "two", created=1_800_000_000.5)
    assert found == {"time": "2027-01-15T08:00:00.500Z", "level": "warning", "logger": "a.b",
                     "message": "one\ntwo"}  # fmt: skip


def test_secrets_are_not_in_either_format() -> None:
    try:
        raise ValueError(f"key {KEY} at postgresql://guard:hunter2@db/guard, whsec_AbC+/d=")
    except ValueError:
        record = logging.LogRecord("a", 40, "f", 1, "failed with %s", (KEY,), sys.exc_info())
    for formatter in (logs.JsonFormatter(), logs.TextFormatter()):
        text = formatter.format(record)
        assert "Traceback" in text
        assert "gdk_..." in text
        assert "postgresql://guard:...@db/guard" in text
        for secret in (KEY, KEY.removeprefix("gdk_"), "hunter2", "AbC"):
            assert secret not in text


@pytest.mark.parametrize("level", ["info", "debug"])
def test_no_address_of_a_channel_is_in_the_log(level: str) -> None:
    """Who knows one of Slack may write there; the client of HTTP logs those that it calls."""
    program = """if True:
        import httpx, sys
        from guard.gateway.services import logs
        logs.configure(sys.argv[1], "text")
        transport = httpx.MockTransport(lambda request: httpx.Response(200))
        httpx.Client(transport=transport).post("https://hooks.slack.com/services/T0/B0/hidden")
    """
    done = subprocess.run(
        [sys.executable, "-c", program, level], check=True, capture_output=True, text=True
    )
    assert "hidden" not in done.stdout + done.stderr


def test_a_failed_request_names_its_organisation(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, str]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(logs.JsonFormatter().format(record)))

    def fail(*_: Any) -> Any:
        raise RuntimeError(f"it broke with {tenant.api_key}")

    handler, failures = Lines(), logging.getLogger("uvicorn.error")
    # Another test may have let a uvicorn of its own set up the logging of this process.
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    level = failures.level
    failures.setLevel(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        monkeypatch.setattr("guard.gateway.services.gatekeeper.Gatekeeper.release", fail)
        headers = {"X-Request-Id": "r-1"}
        reply = tenant.http.post("/gate/release", json={"reservation_id": "r"}, headers=headers)
        assert reply.status_code == 500

        async def over_the_socket() -> None:
            async with asker(gateway.base_url, tenant.api_key) as client:
                wrong = {"id": "a-1", "op": "gate/release", "body": {"reservation_id": "r"}}
                [(status, _)] = await client.ask(wrong)
                assert status == 500

        asyncio.run(over_the_socket())
    finally:
        logging.getLogger().removeHandler(handler)
        failures.setLevel(level)
    errors = [line for line in lines if line["level"] == "error"]
    assert [(e["organisation_id"], e["request_id"]) for e in errors] == [
        (tenant.organisation_id, "r-1"), (tenant.organisation_id, "a-1"),
    ]  # fmt: skip
    assert all("it broke with gdk_..." in each["exception"] for each in errors)
    assert tenant.api_key not in json.dumps(lines)


def test_everything_on_standard_error_is_json(tmp_path: Path) -> None:
    """What is said once, before a fault ends it, and the fault."""
    (tmp_path / "g.sqlite3").write_bytes(b"no database at all, but a long enough text" * 99)
    done = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--port", "0", "--log-format", "json",
         "--log-level", "info", "--database", str(tmp_path / "g.sqlite3")],
        env={**os.environ, "GUARD_GATEWAY_DURABEL": "1"}, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert "did you mean GUARD_GATEWAY_DURABLE?" in lines[0]["message"]
    assert (lines[-1]["level"], lines[-1]["message"]) == (
        "critical", f"cannot open the database {tmp_path / 'g.sqlite3'}: file is not a database",
    )  # fmt: skip


def test_an_unreachable_server_is_one_json_line_without_the_password() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--port", "0", "--log-format", "json",
         "--database", "postgresql://guard:canary@127.0.0.1:1/guard"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert line["level"] == "critical"
    assert "cannot open the database" in line["message"]
    assert "canary" not in done.stderr + done.stdout


POOLED = 4
"""How many connections read for look-ups and reports."""


# -- probes ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def opening(path: Path | str) -> AsyncIterator[tuple[GatewayApp, httpx.AsyncClient]]:
    """Serve an application that is not open yet."""
    app = GatewayApp(GatewaySettings(database=path, metrics_key=METRICS_KEY))
    with contextlib.closing(bind("127.0.0.1", 0)) as listening:
        server = GatewayServer(app, listening)
        async with _serving(server) as served:
            async with httpx.AsyncClient(base_url=server.base_url, trust_env=False) as http:
                yield app, http
            server.stop()
            await served


def _connect_patiently(connect: Callable[..., Any], *names: Any, **options: Any) -> Any:
    return connect(*names, **{**options, "timeout": 120.0})


@pytest.mark.asyncio
async def test_not_ready_while_migrating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_OPEN_WAIT_S", 0.2)
    monkeypatch.setattr(health, "READY_WAIT_S", 60.0)  # a busy machine is no fault
    path = tmp_path / "g.sqlite3"
    other = sqlite3.connect(path, isolation_level=None)
    # Nor does the migration give up while a busy machine asks what is asked here.
    patient = functools.partial(_connect_patiently, sqlite3.connect)
    monkeypatch.setattr(sqlite3, "connect", patient)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")  # the migration waits for this one
    async with opening(path) as (app, http):
        open_it = asyncio.create_task(app.open())
        assert (await http.get("/healthz")).status_code == 200
        starting = await http.get("/readyz")
        assert (starting.status_code, starting.json()["error_code"]) == (503, "GD-B002")
        assert (
            "guard_gateway_build_info"
            in (await http.get("/metrics", headers={"Authorization": f"Bearer {METRICS_KEY}"})).text
        )
        early = await http.post("/gate", json={})
        assert (early.status_code, early.headers["retry-after"]) == (503, "1"), "it waited in vain"
        monkeypatch.setattr(app_module, "_OPEN_WAIT_S", 60.0)
        arrived, opens_soon = asyncio.Event(), app._opens_soon

        async def noted(scope: Any) -> bool:
            arrived.set()
            return await opens_soon(scope)

        monkeypatch.setattr(app, "_opens_soon", noted)
        waiting = asyncio.create_task(http.post("/gate", json={}))
        await arrived.wait()
        other.execute("ROLLBACK")
        other.close()
        await open_it
        assert (await waiting).status_code == 400, "answered once it is open: no protocol is named"
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_not_ready_without_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(health, "READY_WAIT_S", 60.0)  # a busy machine is no fault
    # The server ends a transaction of who says nothing for a while, which is not meant here.
    monkeypatch.setitem(_SERVER_SETTINGS, "idle_in_transaction_session_timeout", 60_000)
    go_on = threading.Event()
    database = tmp_path / "g.sqlite3" if engine == "sqlite" else postgres.url_of(tmp_path)
    async with opening(database) as (app, http):
        await app.open()
        assert (await http.get("/readyz")).status_code == 200
        stuck = app.storage.write(Touches(weight=10_000), lambda _: go_on.wait(60))  # type: ignore[attr-defined]
        monkeypatch.setattr(health, "READY_WAIT_S", 0.2)
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        go_on.set()
        await stuck
        monkeypatch.setattr(health, "READY_WAIT_S", 60.0)
        assert (await http.get("/readyz")).status_code == 200
        await app.storage.close()
        assert (await http.get("/readyz")).status_code == 503


@pytest.mark.asyncio
async def test_not_ready_while_another_replica_migrates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "_OPEN_WAIT_S", 0.2)
    monkeypatch.setattr(health, "READY_WAIT_S", 60.0)  # a busy machine is no fault
    monkeypatch.setattr(migrations, "RETRY_S", 0.1)
    lock = "SELECT pg_advisory_lock(%s::int, hashtext(current_schema()))"
    asks = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND query LIKE '%pg_try_advisory_lock%'"
    )
    async with opening(postgres.url_of(tmp_path)) as (app, http):
        with psycopg.connect(postgres.dsn_of(tmp_path), autocommit=True) as other:
            other.execute(lock, (MIGRATE,))
            open_it = asyncio.create_task(app.open())
            await until_async(lambda: other.execute(asks).fetchall())
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/readyz")).status_code == 503
            assert (await http.post("/gate", json={})).status_code == 503
            assert not open_it.done()
        await open_it
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.asyncio
async def test_a_replica_has_nine_connections_with_limits() -> None:
    """As the page on PostgreSQL says."""
    database = postgres.own_database()
    async with opening(database) as (app, _):
        await app.open()
        store = app.storage
        assert isinstance(store, PostgresStorage)

        asked, go_on = threading.Semaphore(0), threading.Event()

        def slow(reading: Any) -> None:
            reading.rows("SELECT 1")
            asked.release()
            assert go_on.wait(60)

        questions = [ask(slow) for ask in (store.look_up, store.report) for _ in range(6)]
        running = asyncio.gather(*questions)
        for _ in range(POOLED):  # as many as the pools hold read at once
            assert await asyncio.to_thread(asked.acquire, timeout=60)
        with psycopg.connect(database) as other:
            row = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name LIKE 'guard-gateway%'"
            ).fetchone()
        assert row is not None
        assert row[0] <= 9
        go_on.set()
        await running

        def limits(unit: Any) -> list[str]:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            return [unit.connection.psycopg.execute(f"SHOW {name}").fetchone()[0] for name in names]

        wanted = [STATEMENT_TIMEOUT_MS, LOCK_TIMEOUT_MS, IDLE_TIMEOUT_MS]
        assert await store.write(ALL_ORGANISATIONS, limits) == [
            f"{each // 1000}s" for each in wanted
        ]


@pytest.mark.asyncio
async def test_a_store_that_cannot_be_opened_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "g.sqlite3").mkdir()
    with pytest.raises(StoreError):
        async with opening(tmp_path / "g.sqlite3") as (app, _):
            await app.open()


# -- the end ---------------------------------------------------------------------------------------


def begin(served: Served, size: int) -> socket.socket:
    """Send the head of a request whose body of that size does not come."""
    host, port = served.base_url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=60)
    raw.sendall(
        f"POST /gate HTTP/1.1\r\nhost: {host}\r\nx-api-key: {served.api_key}\r\n"
        f"x-guard-protocol: 3\r\ncontent-type: application/json\r\n"
        f"content-length: {size}\r\n\r\n".encode()
    )
    return raw


def test_a_request_under_way_is_answered_and_no_other_is_taken(
    serve: Callable[..., Served],
) -> None:
    served = serve("--drain-timeout-ms", "60000")
    body = json.dumps({"call_id": "c", "kind": "call", "function": "f"}).encode()
    raw = begin(served, len(body))
    httpx.get(f"{served.base_url}/healthz")
    served.process.send_signal(signal.SIGTERM)
    until(lambda: not _accepts(served.base_url))
    raw.sendall(body)
    answer = b""
    while b"}" not in answer:  # head and body may come one by one
        read = raw.recv(65_536)
        assert read, answer
        answer += read
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"decision":"allow"' in answer
    assert served.process.wait(60) == 0
    raw.close()


def test_a_request_that_does_not_end_does_not_hold_it(serve: Callable[..., Served]) -> None:
    served = serve("--drain-timeout-ms", "200", "--request-deadline-ms", "600000")
    raw = begin(served, 100)
    httpx.get(f"{served.base_url}/healthz")
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) == 0, "far below the deadline of the request"
    raw.close()


def test_ready_says_no_before_it_stops_accepting(serve: Callable[..., Served]) -> None:
    served = serve("--drain-delay-ms", "60000")
    served.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(f"{served.base_url}/readyz").status_code == 503)
    headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
    body = {"call_id": "c", "kind": "call", "function": "f"}
    reply = httpx.post(f"{served.base_url}/gate", json=body, headers=headers)
    assert reply.status_code == 200, "requests are served in the meantime"
    served.process.send_signal(signal.SIGTERM)  # whoever asks twice does not want to wait
    assert served.process.wait(60) == 0


@pytest.mark.asyncio
async def test_sockets_are_told_to_move_one_after_another(serve: Callable[..., Served]) -> None:
    # Within half a minute, of which the test waits for the first only: a machine that stands still
    # for some seconds does not make it one moment.
    program = f"from guard.gateway.services import fanout; fanout.MOVE_S = 0.3\n{SERVE}"
    served = await asyncio.to_thread(
        functools.partial(serve, "--drain-timeout-ms", "60000", program=program)
    )
    count = 100
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(asker(served.base_url, served.api_key))
            for _ in range(count)
        ]
        for client in clients:
            await client.read()  # the hello
        waiting = [asyncio.create_task(close_code(client.channel)) for client in clients]
        served.process.send_signal(signal.SIGTERM)
        first, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result() for each in first} == {CLOSE_GOING_AWAY}
        assert len(others) > count / 2, "spread, not all at one moment"
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)  # by itself as well
        served.process.send_signal(signal.SIGTERM)  # the rest at once
        assert set(await asyncio.gather(*waiting)) == {CLOSE_GOING_AWAY}
    assert await asyncio.to_thread(served.process.wait, 60) == 0


def _accepts(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("role", get_args(records.Role))
def test_no_key_of_any_role_is_in_a_redacted_text(role: records.Role) -> None:
    made = make_key(IdFactory(), 1, role=role, organisation_id="own", name="name")
    text = logs.redacted(f"refused: {made.api_key}")
    assert made.api_key[4:] not in text
    assert text == f"refused: {made.api_key[:4]}..."
