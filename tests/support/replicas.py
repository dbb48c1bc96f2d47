"""Replicas over a PostgreSQL that a test breaks, under agents and an operator, closely watched."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import attrs
import httpx
import psycopg
import pytest

from guard.gateway.admin import AdminClient, AdminError
from tests.gateway.conftest import PROOF_SCALE, SERVE, Served
from tests.support.llm_vendor import vendor_process
from tests.support.private_server import Server, private_postgres  # noqa: F401  # a fixture
from tests.support.proxy import ChaosProxy
from tests.support.spending_agent import MODEL
from tests.support.waiting import WAIT_S, until

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
IMPATIENT = (
    """
from guard.gateway.storage.postgres import connection

connection.ANSWER_WAIT_S = 5.0
connection.STATEMENT_TIMEOUT_MS = 4_000
connection.CONNECT_TIMEOUT_S = 2
connection._DEFAULTS["connect_timeout"] = "2"
connection._SERVER_SETTINGS["lock_timeout"] = connection.LOCK_TIMEOUT_MS = 3_500
connection._SERVER_SETTINGS["idle_in_transaction_session_timeout"] = 2_000
connection.IDLE_TIMEOUT_MS = 2_000

from guard.gateway.storage.postgres import listener
from guard.gateway.storage.sql import engine

listener.ANSWER_WAIT_S = engine.LOOKUP_WAIT_S = 3.5

"""
    + SERVE
)
"""A gateway that waits for its database a third as long as others, in the same proportions."""

RAISE_NANOUSD = 400_000
"""By how much the limits rise at a time; a request costs up to 250,000."""

_BALANCES = (
    "SELECT u.scope_kind, b.scope_id, b.committed, b.reserved, b.overspend, u.limit_amount"
    " FROM balances b JOIN budgets u USING (budget_id)"
)
_numbers = itertools.count(1)


class Looks(threading.Thread):
    """Looks at every balance in the database itself, again and again.

    Attributes:
        looks: how often it has looked.
        wrong: the balances that held more than their limit, or less than nothing.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._ended = threading.Event()
        self.looks = 0
        self.wrong: list[Any] = []

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    while not self._ended.wait(0.02):
                        self._look(connection.execute(_BALANCES).fetchall())
            except psycopg.Error:  # the database is away
                self._ended.wait(0.05)

    def _look(self, rows: list[Any]) -> None:
        self.looks += 1
        self.wrong += [
            row for row in rows if row[2] + row[3] > row[5] or row[3] < 0 or row[4]
        ]  # fmt: skip

    def end(self) -> None:
        self._ended.set()
        self.join(60)


@attrs.define
class Site:
    """One organisation's replicas, agents and operator.

    Attributes:
        server: the database; ``dsn`` reaches it whatever else is broken.
        front: balances between the replicas that are in it.
        replicas: those that were started, dead ones included.
        is_patient: whether replicas wait for their database as long as they do in earnest, which is
            so in the long proofs.
        silence_ms: how long it takes them at most to notice that it is silent.
    """

    is_patient: ClassVar[bool] = PROOF_SCALE > 1
    silence_ms: ClassVar[int] = 15_000 if is_patient else 5_000
    server: Server
    dsn: str
    start: Callable[..., Served]
    front: ChaosProxy
    vendor: str
    looks: Looks
    replicas: list[Served] = attrs.field(factory=list)
    agents: list[subprocess.Popen[str]] = attrs.field(factory=list)
    ordered: list[_Ordered] = attrs.field(factory=list)
    limit: int = 0
    _raising: threading.Event = attrs.field(factory=threading.Event)
    _raiser: threading.Thread | None = None

    def replica(self, *arguments: str, database: str | None = None) -> Served:
        """Start a replica, and balance to it."""
        program = SERVE if self.is_patient else IMPATIENT
        served = self.start(*arguments, "--database", database or self.dsn, program=program)
        self.replicas.append(served)
        self.balance()
        return served

    def balance(self, *away: Served) -> None:
        """Balance between the replicas that run, without some; move their clients."""
        up = [each for each in self.replicas if each.process.poll() is None and each not in away]
        self.front.retarget(*(each.base_url for each in up))
        if away:
            self.front.cut()

    def kill(self, served: Served) -> None:
        """Kill a replica at once."""
        served.process.kill()
        served.process.wait(120)

    # -- the operator --------------------------------------------------------------------------

    def tell(self, what: Callable[[AdminClient], T], at: Served | None = None) -> T:
        """Have an operator do something until it is done, at one replica or at any."""
        first = self.replicas[0]
        ends = time.monotonic() + WAIT_S
        while True:
            admin = AdminClient(self.front.url if at is None else at.base_url, first.admin_key)
            try:
                return what(admin)
            except (AdminError, httpx.HTTPError):
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)
            finally:
                admin.close()

    def prepare(self, **settings: int) -> None:
        """Set prices and tight budgets that rise by and by, and begin to look."""
        self.tell(lambda admin: admin.update_settings(**settings))
        self.tell(
            lambda admin: admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=2 * 10**9)
        )
        self.raise_limits()
        self.looks.start()
        self._raiser = threading.Thread(target=self._raise, daemon=True)
        self._raiser.start()

    def raise_limits(self) -> None:
        self.limit += RAISE_NANOUSD
        for kind, scope, limit in (
            ("workflow", "storm-*", self.limit),
            ("agent", "storm-*", self.limit * 3 // 2),
            ("user", "storm-*", self.limit * 5 // 4),
            ("model", MODEL, self.limit * 3),
        ):
            self.tell(
                lambda admin, kind=kind, scope=scope, limit=limit: admin.set_budget(  # type: ignore[misc]
                    scope_kind=kind, scope_id=scope, limit_nanousd=limit
                )
            )

    def _raise(self) -> None:
        while not self._raising.wait(0.3):
            self.raise_limits()

    # -- agents --------------------------------------------------------------------------------

    def environment(self, **settings: str) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("GUARD_")}
        key = self.replicas[0].api_key
        return {**kept, "GUARD_API_URL": self.front.url, "GUARD_API_KEY": key, **settings}

    def spend(self, agents: int = 2) -> None:
        """Have agents spend all they can."""
        for _ in range(agents):
            command = ["-m", "tests.support.spending_agent", self.vendor, "100000"]
            self.agents.append(
                subprocess.Popen(
                    [sys.executable, *command, str(next(_numbers)), "until-input-ends"],
                    env=self.environment(), cwd=ROOT, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip

    def answered(self) -> int:
        """Return how many requests the vendor has answered."""
        return int(httpx.get(f"{self.vendor}/stats", timeout=120).json()["answered"])

    def goes_on(self, by: int = 40 if is_patient else 20, within_s: float = WAIT_S) -> None:
        """Wait until agents have spent some more."""
        before = self.answered()
        until(lambda: self.answered() >= before + by, within_s)

    def obey(self, *workflows: str) -> _Ordered:
        """Start bodies that run until they are told otherwise."""
        self.ordered.append(_Ordered(self, workflows))
        return self.ordered[-1]

    # -- the database --------------------------------------------------------------------------

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql.encode(), arguments).fetchall()

    def leased(self) -> int:
        """Return how many leases are out."""
        sql = "SELECT count(*) FROM reservations WHERE state = 'open' AND basis = 'lease'"
        return int(self.rows(sql)[0][0])

    def probe(self, served: Served, **fields: Any) -> tuple[int, str, float]:
        """Ask a replica for a call; return status, error code, and how long it took."""
        headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
        body = {"call_id": f"probe-{next(_numbers)}", "kind": "call", "function": "probe", **fields}
        started = time.monotonic()
        reply = httpx.post(f"{served.base_url}/gate", json=body, headers=headers, timeout=120)
        took_s = time.monotonic() - started
        return reply.status_code, reply.json().get("error_code", ""), took_s

    # -- the end -------------------------------------------------------------------------------

    def end(self) -> Counter[str]:
        """End the agents; return what became of their requests."""
        self._raising.set()
        if self._raiser is not None:
            self._raiser.join(90)
        for each in self.ordered:
            each.end()
        outcomes: Counter[str] = Counter()
        for agent in self.agents:
            assert agent.stdin is not None
            agent.stdin.close()
            agent.stdin = None
        for agent in self.agents:
            out, err = agent.communicate(timeout=180)
            assert agent.returncode == 0, err
            outcomes.update(json.loads(out.splitlines()[-1]))
        self.agents.clear()
        return outcomes

    def check(self, *, charged: bool = True) -> None:
        """End the agents, and check that nothing was overspent, held on to, or charged twice.

        Args:
            charged: whether every answer of the vendor has to be charged; no agent was killed.
        """
        outcomes = self.end()
        answered = self.answered()
        try:
            until(lambda: self.rows("SELECT 1 FROM reservations WHERE state = 'open'") == [])
        except AssertionError:
            late = "SELECT * FROM reservations WHERE state = 'open' ORDER BY created_at_ms"
            raise AssertionError(self.rows(late), time.time()) from None
        self.looks.end()
        # Besides them are charges in doubt of leases that expired while their holder was cut off.
        events = self.rows(
            "SELECT count(*), count(DISTINCT data::json ->> 'response_id') FROM events"
            " WHERE type = 'llm' AND left(event_id, 8) <> 'expired-'"
        )[0]
        print(f"{dict(outcomes)}; {answered} answered, {events} events; {self.looks.looks} looks")
        assert self.looks.looks
        assert self.looks.wrong == [], [*self.looks.wrong[:2], *self.looks.wrong[-1:]]
        report = self.tell(lambda admin: admin.verify_ledger())
        assert report["problems"] == []
        assert self.rows("SELECT * FROM balances WHERE reserved <> 0") == []
        assert outcomes["ran"]
        if charged:
            assert events == (answered, answered)
        seqs = [row[0] for row in self.rows("SELECT seq FROM control ORDER BY seq")]
        assert seqs == sorted(set(seqs))

    def close(self) -> None:
        """End everything that still runs."""
        self._raising.set()
        self.looks.end()
        for each in self.ordered:
            each.end()
        for agent in self.agents:
            agent.kill()
            agent.communicate()
        self.front.close()


class _Ordered:
    """A process whose bodies run until they are told otherwise; ``seen`` is what each has seen."""

    def __init__(self, site: Site, workflows: tuple[str, ...]) -> None:
        self.seen: dict[str, list[str]] = {each: [] for each in workflows}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ordered_agent", *workflows],
            env=site.environment(), cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        until(lambda: all(each[-1:] == ["running"] for each in self.seen.values()))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            workflow, what = json.loads(line)
            self.seen[workflow].append(what)

    def sees(self, workflow: str, what: str, within_s: float = WAIT_S) -> None:
        """Wait until a body's newest state is this one."""
        until(lambda: self.seen[workflow][-1] == what, within_s)

    def end(self) -> None:
        """Kill the process; no body was told twice that it is killed."""
        self.process.kill()
        self.process.wait(120)
        self._reading.join(120)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        for workflow, seen in self.seen.items():
            assert seen.count("killed") <= 1, (workflow, seen)


@pytest.fixture
def private_dsn(private_postgres: Server) -> Iterator[str]:  # noqa: F811
    """A database of the test's own on a server that it may kill."""
    private_postgres.start()
    name = f"site_{secrets.token_hex(4)}"
    with psycopg.connect(private_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield private_postgres.url.replace("/postgres?", f"/{name}?")
    private_postgres.start()
    with psycopg.connect(private_postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def through(proxy: ChaosProxy, dsn: str) -> str:
    """Return the URI of a database as a proxy gives it."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    return f"postgresql://postgres@{proxy.url.removeprefix('http://')}/{name}"


def socket_of(dsn: str) -> str:
    """Return a proxy's target: the socket of a private server."""
    return f"unix://{quote(str(psycopg.conninfo.conninfo_to_dict(dsn)['host']))}/.s.PGSQL.5432"


@pytest.fixture
def site(private_postgres: Server, private_dsn: str, serve: Any) -> Iterator[Site]:  # noqa: F811
    """A site without replicas yet."""
    with vendor_process() as vendor:
        front = ChaosProxy("http://127.0.0.1:9")
        found = Site(private_postgres, private_dsn, serve, front, vendor, Looks(private_dsn))
        yield found
        found.close()
