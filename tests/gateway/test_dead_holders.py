"""Processes that are killed, or stand still, while they hold money; and those that go on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Tenant
from tests.support.cutting_vendor import CuttingVendor, cutting_vendor
from tests.support.programs import environment
from tests.support.prometheus import metrics_of
from tests.support.waiting import WAIT_S, until

LIFE_S = 5.0
"""Of a lease. It is renewed after a third, and a busy machine may be late."""

HANG_S = 600.0
"""The vendor never answers within a test."""

BUDGET = 1_000_000
"""A tenth of a cent; it pays for one of the requests below at a time."""

PROGRAM = """
import sys, threading
import guard, httpx
from guard.runtime import active_runtime

guard.init()
ask = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}

def send():
    with guard.workflow("w"):
        httpx.post(sys.argv[1] + "/v1/chat/completions", json=ask, timeout=300)

for _ in range(int(sys.argv[2])):
    threading.Thread(target=send, daemon=True).start()
for line in sys.stdin:  # whether the gateway has answered that it knows of all that is under way
    leases = active_runtime().leases
    with leases.lock:
        held = list(leases._leases.values())
        told = sum(each.reported for each in held)
        is_answered = all(each.expires_s >= each.renewed_s + each.ttl_s for each in held)
    known = sum(amount for _, amount in list(leases.unwritten.values()))
    is_told = is_answered and told == known
    print(guard.status().journal, len(leases.unwritten), int(is_told), known, flush=True)
"""

STANDS_STILL = """
import asyncio, os, signal, socket, sys
import guard

url, client = sys.argv[1].replace("127.0.0.1", "localhost") + "/v1/chat/completions", sys.argv[2]
ask = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
find = socket.getaddrinfo

def stopped(host, *args, **options):  # its money is set aside, and nothing of it has left
    if host in ("localhost", b"localhost"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return find(host, *args, **options)

def with_httpx():
    import httpx
    httpx.post(url, json=ask)

def with_requests():
    import requests
    requests.post(url, json=ask)

async def with_httpx_async():
    import httpx
    async with httpx.AsyncClient() as client:
        await client.post(url, json=ask)

async def with_aiohttp():
    import aiohttp
    async with aiohttp.ClientSession() as session:
        await session.post(url, json=ask)

guard.init()
send = globals()["with_" + client]
socket.getaddrinfo = stopped
try:
    with guard.workflow("w"):
        asyncio.run(send()) if asyncio.iscoroutinefunction(send) else send()
except Exception as exc:
    print(exc)
"""


@contextlib.contextmanager
def program(
    tenant: Tenant,
    vendor: CuttingVendor,
    settings: dict[str, str],
    what: int | str = 1,
    code: str = PROGRAM,
) -> Iterator[subprocess.Popen[str]]:
    env = environment(
        {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_API_KEY": tenant.api_key, **settings}
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, vendor.url, str(what)],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def seen_by(process: subprocess.Popen[str]) -> tuple[str, int, bool, int]:
    """Return its journal's state, and what it has under way, and has told the gateway."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    journal, requests, is_told, amount = process.stdout.readline().split()
    return journal, int(requests), bool(int(is_told)), int(amount)


def waiting_calls(tenant: Tenant) -> float:
    """Return how many calls wait in line at the gateway."""
    lines = metrics_of(tenant.gateway.base_url).splitlines()
    name = "guard_gateway_waiting_calls "
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_money_of_a_dead_holder_comes_back_before_a_wait_ends(
    tenant: Tenant, tmp_path: Path
) -> None:
    tenant.admin.update_settings(lease_ttl_ms=int(1000 * LIFE_S))
    tenant.admin.set_budget(limit_nanousd=BUDGET)
    over_http = {"GUARD_TRANSPORT_MODE": "http"}
    waits = {"GUARD_WAIT_FOR_ROOM_MS": "600000"}
    with cutting_vendor("no answer", "hang", HANG_S) as vendor:
        spool = {"GUARD_SPOOL_DIR": str(tmp_path / "spool")}
        with program(tenant, vendor, over_http | spool) as holder:
            until(lambda: vendor.received == 1)
            held = tenant.balance()["reserved"]
            assert BUDGET / 2 < held <= BUDGET
            with program(tenant, vendor, over_http | waits):
                until(lambda: waiting_calls(tenant) == 1)
                ends_s = time.monotonic() + 1.5 * LIFE_S
                until(lambda: time.monotonic() > ends_s)
                assert vendor.received == 1, "a living holder renews what it holds"
                assert seen_by(holder)[:2] == ("open", 0)
                kill(holder)
                until(lambda: vendor.received == 2)  # long before the wait ends
    assert tenant.balance()["committed"] == 0, "its journal is for others to charge"


@pytest.mark.parametrize("mode", ["http", "websocket"])
def test_without_a_journal_what_was_under_way_is_charged_once(tenant: Tenant, mode: str) -> None:
    tenant.admin.update_settings(lease_ttl_ms=int(1000 * LIFE_S))
    tenant.admin.set_budget(1)
    with (
        cutting_vendor("no answer", "hang", HANG_S) as vendor,
        program(tenant, vendor, {"GUARD_TRANSPORT_MODE": mode}, 3) as holder,
    ):
        until(lambda: vendor.received == 3)
        if mode == "websocket":
            until(lambda: seen_by(holder)[2])
        journal, requests, _, amount = seen_by(holder)
        assert (journal, requests) == ("none", 3)
        kill(holder)
        until(lambda: not tenant.balance()["reserved"])
    found: list[Any] = tenant.admin.events(flag="in_doubt")
    assert sum(each["cost_nanousd"] for each in found) == amount >= 3 * 500_000
    assert tenant.balance()["committed"] == amount
    assert {each["workflow_id"] for each in found} == {"w"}


@pytest.mark.parametrize("mode", ["http", "websocket"])
def test_what_is_under_way_stays_held_for_as_long_as_it_takes_while_others_wait(
    tenant: Tenant, mode: str
) -> None:
    """Two of five requests fit, and are answered long after a lease's time."""
    tenant.admin.update_settings(lease_ttl_ms=int(1000 * LIFE_S))
    tenant.admin.set_budget(limit_nanousd=BUDGET * 3 // 2)
    waits = {"GUARD_TRANSPORT_MODE": mode, "GUARD_WAIT_FOR_ROOM_MS": "600000"}
    with (
        cutting_vendor("no answer", "hang", HANG_S) as vendor,
        program(tenant, vendor, waits, 5) as holder,
    ):
        until(lambda: vendor.received == 2)
        until(lambda: waiting_calls(tenant) >= 1)
        held = tenant.balance()["reserved"]
        ends_s = time.monotonic() + 1.5 * LIFE_S
        until(lambda: time.monotonic() > ends_s)
        assert (vendor.received, seen_by(holder)[1]) == (2, 2)
        # Both, more than two thirds of less than three; room beside them may have gone back.
        assert tenant.balance()["reserved"] > held * 2 // 3


@pytest.mark.parametrize("mode", ["http", "websocket"])
@pytest.mark.parametrize("client", ["httpx", "httpx_async", "requests", "aiohttp"])
def test_who_stood_still_asks_before_it_sends(
    tenant: Tenant, tmp_path: Path, client: str, mode: str
) -> None:
    """Its money has gone to others meanwhile."""
    tenant.admin.update_settings(lease_ttl_ms=2000)
    tenant.admin.set_budget(limit_nanousd=BUDGET)
    settings = {"GUARD_TRANSPORT_MODE": mode, "GUARD_SPOOL_DIR": str(tmp_path / "spool")}
    with (
        cutting_vendor("no answer", "hang", HANG_S) as vendor,
        program(tenant, vendor, settings, client, STANDS_STILL) as holder,
    ):
        until(lambda: is_stopped(holder))
        until(lambda: not tenant.balance()["reserved"])
        tenant.send(tenant.llm(cost_nanousd=BUDGET))
        holder.send_signal(signal.SIGCONT)
        out, _ = holder.communicate(timeout=WAIT_S)
        assert "budget exhausted" in out
        assert vendor.billed == 0


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
