"""More comes than the store takes: memory stays bounded, calls go first, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from guard.gateway.embedded import run_gateway
from guard.gateway.services.load import REQUEST_BYTES, Load
from tests.support.prometheus import METRICS_KEY, metrics_of
from tests.support.waiting import until

_MB = 1 << 20
BATCH = 300
"""Events of a batch; of 2,700 bytes, so that bytes fill the store's queue, and not events."""


def batch(number: int, events: int, padding: int) -> bytes:
    made = [
        {"event_id": f"e-{number}-{n}", "type": "llm", "at_ms": 1,
         "data": {"model": "gpt-4o", "cost_nanousd": 1, "metadata": {"pad": "x" * padding}}}
        for n in range(events)
    ]  # fmt: skip
    return json.dumps({"batch_id": f"b-{number}", "sent_at_ms": 1, "events": made}).encode()


def figure(base_url: str, name: str) -> float:
    lines = metrics_of(base_url).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def nothing_is_held(base_url: str) -> None:
    """What a request held is given back after its answer."""
    until(lambda: figure(base_url, "guard_gateway_pending_bytes") == 0)


def test_events_leave_room_for_calls() -> None:
    load = Load(100)
    assert load.take("a", 40, events=True)
    assert not load.take("b", 20, events=True)
    assert load.take("b", 60)
    assert not load.take("c", 1)
    assert (load.in_flight, load.refused) == (100, 2)
    load.release("a", 40)
    load.release("b", 60)
    assert load.take("a", 1000, events=True)  # alone, so it has to fit


def test_one_organisation_leaves_room_for_the_others() -> None:
    load = Load(100)
    assert load.take("a", 40)
    assert not load.take("a", 20)
    assert load.take("b", 40)
    load.release("a", 40)
    assert load.take("a", 20)
    assert load.take("a", 30, held=20) is True, "its only request may grow past its share"


async def _flood(
    base_url: str, api_key: str, bodies: list[bytes], statuses: list[int]
) -> list[httpx.Response]:
    """Send all at once; ``statuses`` has those of the answers so far."""
    headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3", "Content-Type": "application/json"}
    # What arrives before the key is read counts for the address, which may hold 8 MB.
    limits = httpx.Limits(max_connections=24)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, timeout=120, trust_env=False
    ) as http:

        async def send(body: bytes) -> httpx.Response:
            reply = await http.post("/api/v1/events", content=body)
            statuses.append(reply.status_code)
            return reply

        return await asyncio.gather(*map(send, bodies))


@pytest.mark.fault
def test_a_stalled_store_refuses_events_before_memory_grows(serve: Any, tmp_path: Path) -> None:
    served = serve("--max-pending-bytes", "16MiB")
    process = psutil.Process(served.process.pid)
    headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
    bodies = [batch(number, BATCH, 2600) for number in range(120)]  # 100 MB
    with httpx.Client(base_url=served.base_url, headers=headers) as http:
        call = {"call_id": "warm", "kind": "call", "function": "f"}
        assert http.post("/gate", json=call).status_code == 200
        before = process.memory_info().rss
        blocker = sqlite3.connect(tmp_path / "gateway.sqlite3", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        replies: list[httpx.Response] = []

        async def stalled() -> None:
            seen: list[int] = []
            flood = asyncio.ensure_future(_flood(served.base_url, served.api_key, bodies, seen))
            async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as watching:
                looks = 0
                while looks < 10 or 429 not in seen:  # the loop answers while the store does not
                    assert (await watching.get("/healthz")).status_code == 200
                    looks += 1
                    await asyncio.sleep(0.05)
            blocker.execute("ROLLBACK")
            replies.extend(await flood)

        asyncio.run(stalled())
        blocker.close()
        statuses = {reply.status_code for reply in replies}
        # A store that is locked for 5 seconds fails, and nothing is lost either.
        assert {202, 429} <= statuses <= {202, 429, 503}
        refused = next(reply for reply in replies if reply.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error_code"] == "GD-R001"
        assert refused.json()["retry_after_ms"] == 1000
        assert process.memory_info().rss - before < 150 * _MB
        nothing_is_held(served.base_url)
        assert figure(served.base_url, "guard_gateway_overload_refusals_total") == sum(
            reply.status_code == 429 for reply in replies
        )
        left = [body for body, reply in zip(bodies, replies, strict=True)
                if reply.status_code != 202]  # fmt: skip
        for body in left:
            reply = http.post(
                "/api/v1/events", content=body, headers={"content-type": "application/json"}
            )
            assert (reply.status_code, reply.json()["accepted"]) == (202, BATCH)
    with contextlib.closing(sqlite3.connect(tmp_path / "gateway.sqlite3")) as reading:
        assert reading.execute("SELECT count(*), sum(cost_nanousd) FROM events").fetchone() == (
            120 * BATCH, 120 * BATCH,
        )  # fmt: skip


def test_a_strangers_body_takes_no_room() -> None:
    with run_gateway(max_pending_bytes=4 * REQUEST_BYTES, metrics_key=METRICS_KEY) as gateway:
        headers = {"X-API-Key": "gdk_stranger", "X-Guard-Protocol": "3"}
        url = f"{gateway.base_url}/api/v1/events"
        with httpx.Client(headers=headers) as http:
            for _ in range(3):  # refused by the key; the connection and the room stay
                reply = http.post(url, content=b"x" * 900_000)
                assert reply.status_code == 401
        nothing_is_held(gateway.base_url)


@pytest.mark.parametrize("path", ["/gate", "/api/v1/events", "/healthz"])
def test_requests_leave_nothing_to_the_garbage_collector(tenant: Any, path: str) -> None:
    def ask(number: int) -> None:
        if path == "/gate":
            tenant.allowed()
        elif path == "/healthz":
            tenant.http.get(path)
        else:
            tenant.send(tenant.llm(1))

    def alive() -> int:
        # Not by `isinstance`, which asks objects of anybody's: a dead weak proxy raises.
        return sum(type(each) is RequestResponseCycle for each in gc.get_objects())

    ask(0)
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for number in range(50):
            ask(number)
        assert alive() < before + 10
    finally:
        gc.enable()
