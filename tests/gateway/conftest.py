"""A gateway shared by the folder, and an organisation of its own for each test."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import httpx
import pytest

from guard.gateway import admin
from guard.gateway.admin import AdminClient
from guard.gateway.cli import alerts
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.ledger import asks
from guard.gateway.services import waiting_line, webhooks
from guard.gateway.services.channels import mail
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sql import queries
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.support import postgres
from tests.support.prometheus import METRICS_KEY
from tests.support.receivers import Mailbox, Receiver, http_receiver, mail_server
from tests.support.two_organisations import World, two_organisations

_numbers = itertools.count(1)

SERVE = "import sys; from guard.gateway.cli.main import gateway; gateway(sys.argv[1:])"
PROOF_SCALE = float(os.environ.get("GUARD_PROOF_SCALE", "1"))
T = TypeVar("T")


@pytest.fixture(scope="session", autouse=True)
def _patient_gateway() -> Iterator[None]:
    """Deadlines that are no test's subject, and that a busy machine would reach.

    A message that arrives late would be sent again, and a kill does not ask for long whether its
    target is known.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhooks, "_TIMEOUT_S", 120.0)
        patch.setattr(mail, "ANSWER_WAIT_S", 120.0)
        patch.setattr(mail, "TOTAL_S", 120.0)
        patch.setattr(alerts, "_OUTCOME_S", 120.0)
        patch.setattr(admin, "_KNOWN_S", 60.0)
        yield


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Answers what is posted to it, and keeps it."""
    with http_receiver() as running:
        yield running


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """Takes mail, and keeps it."""
    with mail_server() as running:
        yield running


@pytest.fixture(scope="session")
def proof_scale() -> float:
    """How much longer than usual the long proofs run (``GUARD_PROOF_SCALE``; 1 is a short run)."""
    return PROOF_SCALE


def cases(usual: Sequence[T], others: Sequence[T]) -> list[T]:
    """Return what a slow test is tried with: the usual, and in the long proofs the others too."""
    return [*usual, *(others if PROOF_SCALE > 1 else ())]


def _sqlite(folder: Path, **options: Any) -> Storage:
    return SqliteStorage(folder / "gateway.sqlite3", **options)


def _sqlite_durable(folder: Path, **options: Any) -> Storage:
    return SqliteStorage(folder / "gateway.sqlite3", durable=True, **options)


def _postgres(folder: Path, **options: Any) -> Storage:
    return postgres.store(folder, **options)


def examples_of(factory: Callable[..., Storage], proof_scale: float) -> int:
    """Return how many runs a model gets.

    Those over PostgreSQL take ten times as long; a sync of each commit changes no rule.
    """
    return max(1, round((6 if factory in (_postgres, _sqlite_durable) else 25) * proof_scale))


@pytest.fixture(scope="session", params=[_sqlite, _sqlite_durable], ids=lambda make: make.__name__)
def sqlite_factory(request: pytest.FixtureRequest) -> Callable[..., Storage]:
    """The embedded store, with and without a sync of each commit."""
    return cast("Callable[..., Storage]", request.param)


@pytest.fixture(
    scope="session",
    params=[_sqlite, _sqlite_durable, _postgres],
    ids=lambda make: make.__name__,
)
def storage_factory(request: pytest.FixtureRequest) -> Callable[..., Storage]:
    """Every storage that has to pass the conformance suite."""
    return cast("Callable[..., Storage]", request.param)


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Gateway]]:
    """Gateways in this process, one on each engine that is asked for.

    Both stay: in random order each test may want the other one, and it would be started anew.
    Sweeps are rare enough to cost next to nothing while other tests run.
    """
    with contextlib.ExitStack() as running:

        @functools.cache
        def on(engine: str) -> Gateway:
            database = None
            if engine == "postgres":
                database = postgres.url_of(tmp_path_factory.mktemp("postgres"))
            return running.enter_context(
                run_gateway(
                    database,
                    control_ping_interval_ms=200,
                    sweep_interval_ms=250,
                    metrics_key=METRICS_KEY,
                )
            )

        yield on


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def gateway(request: pytest.FixtureRequest, gateways: Callable[[str], Gateway]) -> Gateway:
    """A gateway in this process, on each engine."""
    return gateways(request.param)


@attrs.define
class Tenant:
    """One organisation with a key, and the SDK's calls as plain HTTP."""

    gateway: Gateway
    organisation_id: str
    admin: AdminClient
    api_key: str
    http: httpx.Client

    def gate(self, **fields: Any) -> httpx.Response:
        """Ask for a call."""
        headers = fields.pop("headers", {})
        number = next(_numbers)
        body = {"call_id": f"call-{number}", "kind": "call", "function": "work", **fields}
        return self.http.post("/gate", json=body, headers=headers)

    def allowed(self, **fields: Any) -> dict[str, Any]:
        """Ask for a call that has to be allowed."""
        response = self.gate(**fields)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        assert reply["decision"] == "allow"
        return reply

    def refused(self, status: int, error_code: str, **fields: Any) -> dict[str, Any]:
        """Ask for a call that has to be refused in this way."""
        response = self.gate(**fields)
        problem: dict[str, Any] = response.json()
        assert (response.status_code, problem.get("error_code")) == (status, error_code), problem
        assert response.headers["content-type"] == "application/problem+json"
        assert problem["status"] == status
        return problem

    def send(self, *events: dict[str, Any], headers: Any = None) -> httpx.Response:
        """Send events."""
        body = {"batch_id": f"batch-{next(_numbers)}", "sent_at_ms": 1, "events": list(events)}
        return self.http.post("/api/v1/events", json=body, headers=headers)

    @staticmethod
    def llm(cost_nanousd: int | None = None, **fields: Any) -> dict[str, Any]:
        """Make an ``llm`` event."""
        data = {"model": "gpt-4o", **fields.pop("data", {})}
        if cost_nanousd is not None:
            data["cost_nanousd"] = cost_nanousd
        event_id = fields.pop("event_id", f"event-{next(_numbers)}")
        return {"event_id": event_id, "type": "llm", "at_ms": 1, "data": data, **fields}

    @staticmethod
    def final(reservation_id: str) -> dict[str, Any]:
        """Make the span event that closes a reservation."""
        data = {"name": "work", "final": True}
        return {"event_id": f"event-{next(_numbers)}", "type": "span", "at_ms": 1, "data": data,
                "reservation_id": reservation_id}  # fmt: skip

    def balance(self, **fields: Any) -> dict[str, Any]:
        """Return the one balance with these fields."""
        found = [b for b in self.admin.ledger() if fields.items() <= b.items()]
        assert len(found) == 1, found
        return found[0]


def new_tenant(gateway: Gateway, **key_fields: Any) -> Tenant:
    """Make an organisation and a key."""
    root = AdminClient(gateway.base_url, gateway.admin_key)
    organisation = root.create_organisation(f"org-{next(_numbers)}")["organisation_id"]
    root.close()
    admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=organisation)
    api_key = admin.create_key("test", **key_fields)
    headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3"}
    http = httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False)
    return Tenant(gateway, organisation, admin, api_key, http)


@pytest.fixture
def make_tenant(gateway: Gateway) -> Iterator[Callable[..., Tenant]]:
    """Make tenants; the ledger has to be right when the test ends."""
    made: list[Tenant] = []

    def make(**key_fields: Any) -> Tenant:
        made.append(new_tenant(gateway, **key_fields))
        return made[-1]

    yield make
    for tenant in made:
        tenant.http.close()
        tenant.admin.close()
    assert gateway.admin.verify_ledger()["problems"] == []


@pytest.fixture
def tenant(make_tenant: Callable[..., Tenant]) -> Tenant:
    """One tenant."""
    return make_tenant()


@pytest.fixture
def lasting_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is not taken for gone, however late a busy machine lets it ask again."""
    for module in (asks, queries, waiting_line):
        monkeypatch.setattr(module, "LAPSE_MS", 600_000)


@pytest.fixture
def patient_recalls(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have a refusal wait for the holders of leases as long as a busy machine needs."""
    assert gateway._server is not None
    recalls = gateway._server.app._recalls
    monkeypatch.setattr(recalls, "_wait_s", 60.0)
    return recalls


@attrs.define
class Served:
    """A gateway in a process of its own."""

    process: subprocess.Popen[str]
    base_url: str
    api_key: str
    admin_key: str


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Where ``serve`` stores; a file can make it the URI of a PostgreSQL schema."""
    return str(tmp_path / "gateway.sqlite3")


@pytest.fixture
def serve(database: str) -> Iterator[Callable[..., Served]]:
    """Start ``guard gateway serve`` on a database that stays the same within the test."""
    with serving(database) as start:
        yield start


@contextlib.contextmanager
def serving(database: str) -> Iterator[Callable[..., Served]]:
    """Start ``guard gateway serve`` on a database, until the block ends."""
    started: list[subprocess.Popen[str]] = []
    keys: dict[str, str] = {}

    def start(*arguments: str, port: int = 0, program: str = SERVE) -> Served:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--port", str(port),
             "--database", database, *arguments],
            env={**os.environ, "GUARD_GATEWAY_METRICS_KEY": METRICS_KEY},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("guard gateway on "), first
        if not keys:
            process.stdout.readline()
            for _ in range(2):
                name, _, value = process.stdout.readline().strip().partition("=")
                keys[name] = value
        return Served(process, first.split()[-1], keys["GUARD_API_KEY"], keys["GUARD_ADMIN_KEY"])

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Two organisations on a gateway, on each engine."""
    with two_organisations(request.param, tmp_path) as made:
        yield made
