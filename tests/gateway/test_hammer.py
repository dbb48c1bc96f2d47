"""Many processes against one gateway over HTTP, and a gateway that is killed again and again."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import queue
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest

from guard.gateway.admin import AdminClient
from tests.support import postgres
from tests.support.waiting import until

PROCESSES = 8
DEADLINE_S = 600
TTL_MS = 15_000
"""Of reservations: much longer than a worker takes for its call on a busy machine, since what is
spent after it is over may exceed a limit, and no longer than orphans are waited for at the end."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return postgres.url_of(tmp_path)
    return str(tmp_path / "gateway.sqlite3")


class _Caller:
    """A client that repeats a request until it is answered, as the SDK does."""

    def __init__(self, port: int, api_key: str, give_up_at: float) -> None:
        self._port = port
        self._api_key = api_key
        self._give_up_at = give_up_at
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: Any, key: str) -> tuple[int, Any]:
        headers = {"X-API-Key": self._api_key, "X-Guard-Protocol": "3", "Idempotency-Key": key,
                   "Content-Type": "application/json"}  # fmt: skip
        while True:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection("127.0.0.1", self._port, 60)
                self._connection.request("POST", path, json.dumps(body), headers)
                response = self._connection.getresponse()
                reply = json.loads(response.read())
                if response.status == 503:  # started again, and still opening its store
                    raise http.client.HTTPException(str(reply))
                return response.status, reply
            except (OSError, http.client.HTTPException, ValueError):
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                if time.monotonic() > self._give_up_at:
                    raise
                time.sleep(0.02)  # the gateway is away


def _hammer(seed: int, port: int, api_key: str, decisions: int, out: Queue[Any]) -> None:
    rng = random.Random(seed)
    caller = _Caller(port, api_key, time.monotonic() + DEADLINE_S * max(1, decisions / 300))
    charged: dict[str, int] = {}
    allowed = refused = 0
    for number in range(decisions):
        name = f"{seed}-{number}"
        tokens = rng.randrange(1, 50)
        call = {
            "call_id": name, "kind": "llm", "function": "f", "model": "m",
            "max_input_tokens": 0, "max_output_tokens": tokens,
            "workflow_id": f"w{rng.randrange(3)}", "agent": f"a{rng.randrange(2)}",
            "user": f"u{rng.randrange(4)}",
        }  # fmt: skip
        status, reply = caller.post("/gate", call, f"gate-{name}")
        if rng.random() < 0.1:
            again, repeated = caller.post("/gate", call, f"gate-{name}")
            assert (again, repeated) == (status, reply)
        if status != 200:
            assert status == 402, reply
            refused += 1
            continue
        allowed += 1
        own = reply["reservation_id"]
        fate = rng.random()
        if fate < 0.15:
            continue  # an orphan: it expires
        if fate < 0.3:
            caller.post("/gate/release", {"reservation_id": own}, f"release-{name}")
            caller.post("/gate/release", {"reservation_id": own}, f"release-again-{name}")
            continue
        cost = rng.randrange(1, tokens * 1000 + 1)
        event = {
            "event_id": name, "type": "llm", "at_ms": 1, "reservation_id": own,
            "data": {"model": "m", "cost_nanousd": cost},
        }  # fmt: skip
        final = {
            "event_id": f"{name}-final", "type": "span", "at_ms": 1, "reservation_id": own,
            "data": {"name": "f", "final": True},
        }  # fmt: skip
        batch = {"batch_id": name, "sent_at_ms": 1, "events": [event, event, final]}
        status, reply = caller.post("/api/v1/events", batch, f"events-{name}")
        assert status == 202, reply
        charged[name] = cost
        if rng.random() < 0.2:  # the same settlement under another key
            status, reply = caller.post("/api/v1/events", batch, f"events-again-{name}")
            assert (status, reply["accepted"]) == (202, 0)
    out.put((allowed, refused, charged))


def _start(target: Callable[..., None], *arguments: Any) -> tuple[list[Any], Any]:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [
        context.Process(target=target, args=(seed, *arguments, out), daemon=True)
        for seed in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    return workers, out


def _results(workers: list[Any], out: Any) -> list[Any]:
    """Return what each worker has put; one that has died puts nothing, and is not waited for."""
    found: list[Any] = []
    while len(found) < len(workers):
        with contextlib.suppress(queue.Empty):
            found.append(out.get(timeout=1))
        assert not any(worker.exitcode for worker in workers), "a worker has died"
    for worker in workers:
        worker.join(60)
    return found


def _prepare(served: Any) -> AdminClient:
    admin = AdminClient(served.base_url, served.admin_key)
    admin.update_settings(reservation_ttl_ms=TTL_MS)
    admin.set_price("m", input_per_mtok=0, output_per_mtok=1000 * 1_000_000)
    # Five scopes, three of them tight, so that many calls are refused.
    admin.set_budget(limit_nanousd=2**40)
    admin.set_budget(scope_kind="workflow", scope_id="*", limit_nanousd=4_000_000)
    admin.set_budget(scope_kind="agent", scope_id="*", limit_nanousd=6_000_000, window="month")
    admin.set_budget(scope_kind="user", scope_id="u*", limit_nanousd=3_000_000, window="day")
    admin.set_budget(scope_kind="model", scope_id="m", limit_nanousd=2**39, window="day")
    return admin


def _check(admin: AdminClient, charged: dict[str, int]) -> None:
    until(lambda: admin.verify_ledger()["reservations_open"] == 0)
    report = admin.verify_ledger()
    assert report["problems"] == []
    for balance in admin.request("GET", "/ledger", all=True):
        assert balance["overshoot"] == 0
        assert balance["committed"] <= balance["limit"]
        assert balance["reserved"] == 0
    stored: dict[str, int] = {}
    after = 0
    while page := admin.events(after=after, type="llm"):
        after = page[-1]["event_seq"]
        stored |= {event["event_id"]: event["cost_nanousd"] for event in page}
    # Orphans are charged in doubt; nothing was sent for them.
    orphans = [name for name in stored if name.startswith("expired-")]
    for name in orphans:
        del stored[name]
        admin.settle_doubt(name, 0)
    assert stored == charged
    assert admin.verify_ledger()["problems"] == []
    total = next(b for b in admin.ledger() if b["scope_kind"] == "organisation")
    assert total["committed"] == sum(charged.values())


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_hammer(serve: Any, proof_scale: float) -> None:
    served = serve()
    admin = _prepare(served)
    port = int(served.base_url.rsplit(":", 1)[1])
    decisions = max(1, round(150 * proof_scale))
    workers, out = _start(_hammer, port, served.api_key, decisions)
    results = _results(workers, out)
    charged = {k: v for _, _, own in results for k, v in own.items()}
    allowed, refused = (sum(r[i] for r in results) for i in (0, 1))
    assert allowed + refused == decisions * PROCESSES
    assert charged
    _check(admin, charged)
    admin.close()


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_killed_gateway_keeps_its_books(serve: Any, proof_scale: float) -> None:
    kills = max(1, round(4 * proof_scale))
    served = serve()
    _prepare(served).close()
    port = int(served.base_url.rsplit(":", 1)[1])
    rng = random.Random(7)
    decisions = 60 * kills
    workers, out = _start(_hammer, port, served.api_key, decisions)
    for _ in range(kills):
        time.sleep(rng.uniform(0.2, 0.8))  # a random moment is the point
        served.process.send_signal(signal.SIGKILL)
        served.process.wait(60)
        served = serve(port=port)
    admin = AdminClient(served.base_url, served.admin_key)
    assert admin.verify_ledger()["problems"] == []
    results = _results(workers, out)
    charged = {k: v for _, _, own in results for k, v in own.items()}
    _check(admin, charged)
    admin.close()
