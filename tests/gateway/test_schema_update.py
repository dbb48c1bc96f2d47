"""An update to a release with another schema: replicas of two versions on one database."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import httpx
import psycopg
import pytest
from click.testing import CliRunner

from guard.gateway.admin import AdminClient
from guard.gateway.app import GatewayApp
from guard.gateway.cli.main import gateway as cli
from guard.gateway.cli.password import greet
from guard.gateway.domain.errors import StoreError
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.postgres import migrations, schema
from guard.gateway.storage.postgres.migrations import PostgresMigrator
from guard.gateway.storage.postgres.schema import Migration
from guard.gateway.storage.sqlite import schema as sqlite_schema
from guard.gateway.unit.record import Table
from guard.runtime.runtime import GuardRuntime
from tests.gateway.conftest import Served
from tests.support import newer_gateway, postgres
from tests.support.newer_gateway import LAST, NEXT, PRESENT
from tests.support.proxy import ChaosProxy
from tests.support.steady_worker import SteadyWorker
from tests.support.waiting import WAIT_S, until

Serve = Callable[..., Served]
pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
_ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


@attrs.frozen
class Newer:
    """A replica of a later release, perhaps still migrating."""

    process: subprocess.Popen[str]
    base_url: str

    def ready(self) -> int:
        """Return the status of ``/readyz``."""
        return httpx.get(f"{self.base_url}/readyz", timeout=60).status_code


def newer(release: str, *arguments: str, pause_s: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.newer_gateway", release, *arguments],
        cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PAUSE_S": str(pause_s)},
    )  # fmt: skip


@pytest.fixture
def start_newer(database: str) -> Iterator[Callable[..., Newer]]:
    """Start ``serve`` of a later release; returns as soon as it listens."""
    with contextlib.ExitStack() as stack:

        def start(release: str, **options: Any) -> Newer:
            process = newer(release, "serve", "--port", "0", "--database", database, **options)
            stack.enter_context(process)  # closes its pipes
            stack.callback(process.kill)
            assert process.stdout is not None
            return Newer(process, process.stdout.readline().strip())

        yield start


def migrated(release: str, database: str) -> tuple[int, str]:
    """Run ``migrate up`` of a later release to its end."""
    with newer(release, "migrate", "up", "--database", database) as process:
        out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out + err


class Load:
    """Calls and charges at replicas, without a break; what is asked of one is charged at another.

    Attributes:
        urls: of the replicas.
        failures: whatever was answered otherwise than it should.
        charged: events that were accepted.
        refused: calls for which there was no room.
    """

    def __init__(self, served: Served) -> None:
        self.urls = [served.base_url]
        self.failures: list[str] = []
        self.charged = self.refused = 0
        self._headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of the numbers, the URLs, and:
        self._under_way: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def drop(self, url: str) -> None:
        """Stop asking a replica; returns when nothing is under way there."""
        with self._lock:
            self.urls.remove(url)
        until(lambda: self._under_way[url] == 0)

    def _run(self, number: int) -> None:
        with httpx.Client(headers=self._headers, trust_env=False, timeout=60) as http:
            while not self._ended.is_set():
                try:
                    self._call(http, f"{number}-{next(_numbers)}")
                except Exception as exc:
                    self.failures.append(repr(exc))
                    return

    def _post(self, http: httpx.Client, at: int, path: str, body: Any, *statuses: int) -> Any:
        with self._lock:
            url = self.urls[at % len(self.urls)]
            self._under_way[url] += 1
        try:
            reply = http.post(f"{url}{path}", json=body)
        finally:
            with self._lock:
                self._under_way[url] -= 1
        if reply.status_code not in statuses:
            self.failures.append(f"{path}: {reply.status_code} {reply.text}")
        return reply

    def _call(self, http: httpx.Client, name: str) -> None:
        at = next(_numbers)
        tight = {"kind": "llm", "model": "gpt-4o", "max_input_tokens": 0, "max_output_tokens": 10}
        body = {"call_id": name, "function": "f", "workflow_id": "tight", **tight}
        reply = self._post(http, at, "/gate", body, 200, 402)
        with self._lock:
            self.refused += reply.status_code == 402
        body = {"call_id": f"{name}-w", "kind": "call", "function": "f", "workflow_id": "wide"}
        reply = self._post(http, at, "/gate", body, 200)
        held = {"workflow_id": "wide", "reservation_id": reply.json()["reservation_id"], "at_ms": 1}
        cost = {"model": "gpt-4o", "cost_nanousd": 7}
        events = [
            {"event_id": f"{name}-e", "type": "llm", "data": cost},
            {"event_id": f"{name}-s", "type": "span", "data": {"name": "f", "final": True}},
        ]  # fmt: skip
        batch = {"batch_id": name, "sent_at_ms": 1, "events": [{**each, **held} for each in events]}
        for again in range(2):  # each twice, and at two replicas: charged once
            reply = self._post(http, at + 1 + again, "/api/v1/events", batch, 202)
        with self._lock:
            self.charged += 1
        time.sleep(0.005)


class Looker:
    """Looks at every balance again and again: nothing is ever overspent."""

    def __init__(self, served: Served) -> None:
        self.looks = 0
        self.problems: list[str] = []
        self._admin = AdminClient(served.base_url, served.admin_key)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        self._admin.close()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                for b in self._admin.ledger():
                    if b["committed"] + b["reserved"] > b["limit"]:
                        self.problems.append(str(b))
                self.looks += 1
            except Exception as exc:
                self.problems.append(repr(exc))
                return


def version_of(database: str) -> int:
    return PostgresMigrator(database).status().version


def test_two_schemas_side_by_side(
    serve: Serve, start_newer: Callable[..., Newer], database: str
) -> None:
    """No decision is lost, nothing is overspent, each event is charged once, leases go on."""
    old = serve()
    proxy = ChaosProxy(old.base_url)
    with contextlib.closing(AdminClient(old.base_url, old.admin_key)) as admin:
        admin.set_budget(limit_nanousd=10**12)
        admin.set_budget(scope_kind="workflow", scope_id="tight", limit_nanousd=2_000_000)
    runtime = GuardRuntime(old.api_key, proxy.url, timeout_ms=60_000).open()
    load, looker = Load(old), Looker(old)
    worker = SteadyWorker("leased").start()
    try:
        until(lambda: runtime.status().leases > 0 and load.charged > 200, WAIT_S)
        with psycopg.connect(database) as report:
            report.execute("SELECT count(*) FROM events")  # what the migration waits for
            one = start_newer("next", pause_s=0.1)
            assert one.ready() == 503
            assert httpx.get(f"{one.base_url}/healthz").status_code == 200
            assert version_of(database) < NEXT, "while it migrates"
        until(lambda: one.ready() == 200, WAIT_S)
        assert version_of(database) == NEXT
        load.urls.append(one.base_url)
        again = serve()  # a replica of the present release that is started anew
        load.urls.append(again.base_url)
        proxy.retarget(again.base_url)
        proxy.cut()
        before = load.charged, worker.done
        until(lambda: load.charged > before[0] + 200 and worker.done > before[1] + 20, WAIT_S)
        until(lambda: runtime.status().leases > 0 and looker.looks > 5, WAIT_S)
        two = start_newer("next")
        until(lambda: two.ready() == 200, WAIT_S)
        load.urls.append(two.base_url)
        proxy.retarget(two.base_url)
        looker.end()
        looks, problems = looker.looks, looker.problems
        looker = Looker(attrs.evolve(old, base_url=two.base_url))
        for each in (old, again):
            load.drop(each.base_url)
            each.process.send_signal(signal.SIGTERM)
            assert each.process.wait(60) == 0
        before = load.charged, worker.done
        until(lambda: load.charged > before[0] + 200 and worker.done > before[1] + 20, WAIT_S)
        until(lambda: runtime.status().leases > 0 and looker.looks > 5, WAIT_S)
    finally:
        for end in (worker.end, load.end, looker.end):
            end()
        runtime.flush(WAIT_S)
        runtime.shutdown(5)
        proxy.close()
    assert (load.failures, worker.failures, problems, looker.problems) == ([], [], [], [])
    assert min(looks, looker.looks) > 5
    assert load.refused > 100, "the tight budget was full"
    with contextlib.closing(AdminClient(two.base_url, old.admin_key)) as admin:
        assert admin.verify_ledger()["problems"] == []
        usage = {each["group"]: each for each in admin.usage("workflow")}
        assert usage["wide"]["llm_calls"] == load.charged
        assert usage["wide"]["cost_nanousd"] == 7 * load.charged
        assert usage["leased"]["llm_calls"] == worker.done
    with psycopg.connect(database) as connection:
        ways = dict(connection.execute("SELECT events_added, count(*) FROM events GROUP BY 1"))
    assert min(ways.get(way, 0) for way in ("by batch", "by trigger")) > 50


def test_a_killed_migration_goes_on_where_it_was(serve: Serve, database: str) -> None:
    old = serve()
    load = Load(old)
    until(lambda: load.charged > 200, WAIT_S)  # eight batches
    with newer("next", "migrate", "up", "--database", database, pause_s=2) as dying:
        until(lambda: version_of(database) == PRESENT + 1, WAIT_S)
        with psycopg.connect(database, autocommit=True) as looking:
            filled = "SELECT 1 FROM events WHERE events_added = 'by batch'"
            until(lambda: looking.execute(filled).fetchone())  # the first of them
        dying.kill()
    assert version_of(database) == PRESENT + 1
    status, said = migrated("next", database)
    load.end()
    assert status == 0, said
    assert said.splitlines() == [
        f"applied: {PRESENT + 2} fill the new column",
        f"applied: {PRESENT + 3} rely on the new column",
    ]
    assert load.failures == []


def test_replicas_that_migrate_at_once_take_turns(
    serve: Serve, start_newer: Callable[..., Newer], database: str
) -> None:
    old = serve()
    load = Load(old)
    until(lambda: load.charged > 50, WAIT_S)
    both = [start_newer("next", pause_s=0.1) for _ in range(2)]
    until(lambda: [each.ready() for each in both] == [200, 200], WAIT_S)
    load.urls += [each.base_url for each in both]
    before = load.charged
    until(lambda: load.charged > before + 50 or bool(load.failures), WAIT_S)
    load.end()
    assert (version_of(database), load.failures) == (NEXT, [])


def test_what_an_older_gateway_needs_is_not_taken_away_while_one_runs(
    serve: Serve, start_newer: Callable[..., Newer], database: str
) -> None:
    old = serve()
    status, said = migrated("last", database)
    assert status == 1
    assert f"knows schema {PRESENT}, and {NEXT} is needed" in said
    assert version_of(database) == NEXT, "the steps before it are there, and harm nobody"
    until(lambda: httpx.get(f"{old.base_url}/readyz").status_code == 200)
    bearing = start_newer("next")
    until(lambda: bearing.ready() == 200, WAIT_S)
    old.process.send_signal(signal.SIGTERM)
    assert old.process.wait(60) == 0
    assert migrated("last", database) == (0, f"applied: {LAST} take the trigger away\n")
    assert bearing.ready() == 200
    with pytest.raises(StoreError, match=f"schema {NEXT} is the least that runs on it"):
        PostgresMigrator(database).status()
    refused = subprocess.run(
        [sys.executable, "-m", "guard", "gateway", "serve", "--port", "0", "--database", database],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "newer than this gateway knows" in refused.stderr


def test_a_replica_that_was_cut_off_meanwhile_serves_no_longer(
    database: str, tmp_path: Path
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(database)
    proxy = ChaosProxy(f"http://{parts['host']}:{parts.get('port', 5432)}")
    through = database.replace(f"{parts['host']}:{parts.get('port', 5432)}", proxy.url[7:])
    log = tmp_path / "log"
    with log.open("w") as stderr:
        replica = subprocess.Popen(
            [sys.executable, "-m", "guard", "gateway", "serve", "--port", "0",
             "--database", through],
            stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    try:
        assert replica.stdout is not None
        url = replica.stdout.readline().split()[-1]
        until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
        proxy.fault = "refuse"
        proxy.cut()
        until(lambda: migrated("last", database)[0] == 0, WAIT_S)  # the server notices first
        proxy.fault = "none"
        # To ask whether it is ready makes it connect, whatever its own next try waits for.
        until(lambda: httpx.get(f"{url}/readyz", timeout=WAIT_S).status_code == 503
              and "this gateway serves no longer" in log.read_text())  # fmt: skip
        assert httpx.get(f"{url}/healthz").status_code == 200
    finally:
        replica.kill()
        replica.communicate()
        proxy.close()


def test_a_baseline_that_changes_has_another_number() -> None:
    """A store of the same number with other tables would open, and fail at its first use.

    Whoever changes the tables raises both numbers and writes the new digest.
    """
    text = resources.files("guard.gateway.unit").joinpath("baseline.sql").read_bytes()
    known = (sqlite_schema.BASELINE, schema.FIRST, hashlib.sha256(text).hexdigest()[:16])
    assert known == (37, 31, "92efdc9c543890b5")


@pytest.mark.asyncio
async def test_a_store_that_fails_as_operators_are_looked_up_ends_no_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = GatewayApp(GatewaySettings(database=str(tmp_path / "g.sqlite3")))
    await app.open()
    await app.close()
    await greet(app, "http://127.0.0.1:1")
    said = capsys.readouterr().err
    assert said.startswith("Dashboard: http://127.0.0.1:1/ (")
    assert "guard gateway password" in said


def test_an_older_gateway_says_that_it_can_run_on_a_newer_schema(database: str) -> None:
    assert migrated("next", database)[0] == 0
    result = CliRunner().invoke(cli, ["migrate", "status", "--database", database])
    assert result.output == f"schema {NEXT}; this gateway knows {PRESENT}, and can run on it\n"
    assert PostgresMigrator(database).up(dry_run=False) == []
    assert version_of(database) == NEXT


def test_a_rehearsal_takes_everything_back(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PostgresMigrator(database).up(dry_run=False)
    more = newer_gateway.migrations("last")
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS + more)
    steps = PostgresMigrator(database).up(dry_run=True)
    assert [step.name for step in steps] == [each.name for each in more]
    assert version_of(database) == PRESENT


@pytest.fixture
def outdated(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of this release, which has got one more step."""
    PostgresMigrator(database).up(dry_run=False)
    step = Migration("expand", "ALTER TABLE events ADD COLUMN events_added text")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
    return database


def test_a_step_that_waits_for_a_table_holds_no_query_up(outdated: str) -> None:
    """Behind a long report, queries go on; the step is tried again."""
    up = threading.Thread(target=lambda: PostgresMigrator(outdated).up(dry_run=False))
    with (
        psycopg.connect(outdated) as report,
        psycopg.connect(outdated, autocommit=True) as other,
    ):
        report.execute("SELECT count(*) FROM events")  # and its lock, until the transaction ends
        up.start()
        behind = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'events'::regclass"
        tries = 0
        while tries < 3:  # the step waits for the table, gives up, and tries again
            until(lambda: other.execute(behind).fetchone() != (0,))
            other.execute("SELECT count(*) FROM events")  # behind a step that waits: for ever
            until(lambda: other.execute(behind).fetchone() == (0,))
            tries += 1
        assert up.is_alive()
        report.rollback()
        up.join(WAIT_S)
    assert not up.is_alive()
    assert version_of(outdated) == PRESENT + 1


def test_a_step_whose_table_stays_in_use_says_so(
    outdated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "PATIENCE_S", 0.5)
    with psycopg.connect(outdated) as report:
        report.execute("SELECT count(*) FROM events")
        for dry_run in (True, False):
            with pytest.raises(StoreError, match="something else keeps locked"):
                PostgresMigrator(outdated).up(dry_run=dry_run)
    assert version_of(outdated) == PRESENT


def test_both_engines_have_the_columns_of_the_schema(database: str) -> None:
    """In its order; what a newer gateway adds comes after them, and is not read."""
    PostgresMigrator(database).up(dry_run=False)
    sqlite = sqlite3.connect(":memory:")
    sqlite_schema.migrate(sqlite)
    with psycopg.connect(database) as connection:
        for (name,) in sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            columns = list(Table(name).columns)
            info = sqlite.execute(f"PRAGMA table_info({name})").fetchall()
            assert [row[1] for row in info] == columns
            cursor = connection.execute(f"SELECT * FROM {name} LIMIT 0".encode())
            assert [each.name for each in cursor.description or ()][: len(columns)] == columns
    sqlite.close()
