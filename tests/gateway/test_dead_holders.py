"""Processes that are killed, or stand still, while they hold money; and those that go on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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

GROWN = 100_000_000
"""Ten cents. An answer without a limit holds an eighth of it, and takes as much again where it
grows beyond that; what waits beside it needs nine tenths."""

PROGRAM = """
import sys, threading
import guard, httpx

guard.init()
ask = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}

def send():
    with guard.workflow("w"):
        httpx.post(sys.argv[1] + "/v1/chat/completions", json=ask, timeout=300)

for _ in range(int(sys.argv[2])):
    threading.Thread(target=send, daemon=True).start()
sys.stdin.read()
"""

GROWS = """
import sys, threading
import guard, httpx

guard.init()
ask = {"model": "gpt-4o", "stream": True, "messages": [{"role": "user", "content": "hi"}]}

def send():
    with guard.workflow("w"):
        url = sys.argv[1] + "/v1/chat/completions"
        with httpx.stream("POST", url, json=ask, timeout=300) as answer:
            for _ in answer.iter_raw():
                pass

for _ in range(int(sys.argv[2])):
    threading.Thread(target=send, daemon=True).start()
sys.stdin.read()
"""
"""Its hold is raised while it is held: its answer grows beyond what was assumed of it."""

ASKS_FOR_MORE = """
import gzip, json, sys, threading
import guard, httpx

guard.init()
ask = {"model": "gpt-4o", "max_tokens": 9000, "messages": [{"role": "user", "content": "hi"}]}
body = gzip.compress(json.dumps(ask).encode())  # into which no smaller limit can be put
zipped = {"content-encoding": "gzip", "content-type": "application/json"}

def send():
    with guard.workflow("w"):
        httpx.post(sys.argv[1] + "/v1/chat/completions", content=body, headers=zipped, timeout=300)

threading.Thread(target=send, daemon=True).start()
sys.stdin.read()
"""

WAITS = {"fixed": PROGRAM, "grows": ASKS_FOR_MORE}
"""What waits beside each kind of hold."""

IDLE = """
import concurrent.futures, sys
import guard, httpx
from guard.runtime import active_runtime

guard.init()
ask = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}

def send(number):
    with guard.workflow(f"w-{number}"):
        httpx.post(sys.argv[1] + "/v1/chat/completions", json=ask, timeout=300)

with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(send, range(int(sys.argv[2]))))
active_runtime().events.flush(60)
print("done", flush=True)
sys.stdin.read()
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


def short_life(tenant: Tenant, seconds: float) -> None:
    """Let leases, and what is renewed, end soon."""
    tenant.admin.update_settings(lease_ttl_ms=int(1000 * seconds), lease_grace_ms=500)


@contextlib.contextmanager
def held(
    tenant: Tenant, kind: str, settings: dict[str, str]
) -> Iterator[tuple[CuttingVendor, subprocess.Popen[str], int]]:
    """Start a program whose request is under way, by a kind of hold.

    Yields:
        A vendor that does not end its answer, the program, and how much it holds at least.
    """
    if kind == "fixed":
        tenant.admin.set_budget(limit_nanousd=BUDGET)
        with (
            cutting_vendor("no answer", "hang", HANG_S) as vendor,
            program(tenant, vendor, settings) as holder,
        ):
            until(lambda: vendor.received == 1)
            yield vendor, holder, BUDGET // 2
        return
    tenant.admin.update_settings(unbounded_output="learned")
    tenant.admin.set_budget(limit_nanousd=GROWN)
    with (
        cutting_vendor("in the body", "hang", HANG_S) as vendor,
        program(tenant, vendor, settings, code=GROWS) as holder,
    ):
        vendor.words = 500  # more than eight tenths of its first hold, less than the second one
        until(lambda: vendor.received == 1)
        until(lambda: tenant.balance()["reserved"] > GROWN * 3 // 16)
        yield vendor, holder, GROWN * 3 // 16


def waiting_calls(tenant: Tenant) -> float:
    """Return how many calls wait in line at the gateway."""
    lines = metrics_of(tenant.gateway.base_url).splitlines()
    name = "guard_gateway_waiting_calls "
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.mark.generator("holders that are killed or stopped with money under way, while others wait")
@pytest.mark.parametrize("mode", ["http", "websocket"])
@pytest.mark.parametrize("journal", ["a journal", "no journal"])
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", WAITS)
def test_money_under_way_comes_back_by_no_clock(
    tenant: Tenant, tmp_path: Path, mode: str, journal: str, fate: signal.Signals, kind: str
) -> None:
    """It is charged, once, and nobody who waits for it gets it."""

    def is_told() -> bool:
        gone = {each["holder_gone"] for each in tenant.admin.doubts()}
        # What a growing hold was granted as its holder stopped may have reached nobody.
        return gone == {False} or (kind == "grows" and False in gone)

    short_life(tenant, 2.0)
    settings = {"GUARD_TRANSPORT_MODE": mode}
    waits = settings | {"GUARD_WAIT_FOR_ROOM_MS": "600000"}
    if journal == "a journal":
        settings = settings | {"GUARD_SPOOL_DIR": str(tmp_path / "spool")}
    with held(tenant, kind, settings) as (vendor, holder, least):  # noqa: SIM117  # in this order
        with program(tenant, vendor, waits, code=WAITS[kind]):
            until(lambda: waiting_calls(tenant) == 1)
            until(lambda: tenant.balance()["reserved"])
            holder.send_signal(fate)
            # Only now: until then it may ask for room for what it sends next.
            amount = tenant.balance()["reserved"]
            assert amount > least
            until(lambda: not tenant.balance()["reserved"])
            assert tenant.balance()["committed"] == amount
            doubts = tenant.admin.doubts()
            assert sum(each["doubt_nanousd"] for each in doubts) == amount
            assert {each["holder_gone"] for each in doubts} == {True}
            if fate == signal.SIGSTOP:  # it goes on, and its request is lost after all
                holder.send_signal(signal.SIGCONT)
                vendor.end_hanging()
                until(is_told)
            elif journal == "a journal":  # the next process delivers that
                with program(tenant, vendor, settings, 0):
                    until(is_told)
            assert tenant.balance()["committed"] == amount, "once"
            assert vendor.received == 1
    for doubt in tenant.admin.doubts():
        assert tenant.admin.settle_doubt(doubt["event_id"], 0)["charged_nanousd"] == 0
    assert (tenant.balance()["committed"], tenant.admin.doubts()) == (0, [])


@pytest.mark.parametrize("mode", ["http", "websocket"])
@pytest.mark.parametrize("holders", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_idle_holders_that_are_killed_cost_nothing(tenant: Tenant, mode: str, holders: int) -> None:
    short_life(tenant, 10.0)
    tenant.admin.set_budget(1000)
    with (
        cutting_vendor("whole", "disconnect", HANG_S) as vendor,
        program(tenant, vendor, {"GUARD_TRANSPORT_MODE": mode}, holders, IDLE) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == "done\n"
        until(lambda: not tenant.balance()["reserved"])  # an idle holder has no room
        spent = until(lambda: tenant.balance()["committed"])
        kill(holder)
        ends_s = time.monotonic() + 13.0  # its leases with their grace, and a sweep
        until(lambda: time.monotonic() > ends_s)
        assert (vendor.received, tenant.balance()["committed"]) == (holders, spent)
        assert tenant.admin.doubts() == []


@pytest.mark.parametrize("mode", ["http", "websocket"])
def test_what_is_under_way_stays_held_for_as_long_as_it_takes_while_others_wait(
    tenant: Tenant, mode: str
) -> None:
    """Two of five requests fit, and are answered long after a lease's time."""
    short_life(tenant, LIFE_S)
    tenant.admin.set_budget(limit_nanousd=BUDGET * 3 // 2)
    waits = {"GUARD_TRANSPORT_MODE": mode, "GUARD_WAIT_FOR_ROOM_MS": "600000"}
    with (
        cutting_vendor("no answer", "hang", HANG_S) as vendor,
        program(tenant, vendor, waits, 5),
    ):
        until(lambda: vendor.received == 2)
        until(lambda: waiting_calls(tenant) >= 1)
        held = tenant.balance()["reserved"]
        ends_s = time.monotonic() + 1.5 * LIFE_S
        until(lambda: time.monotonic() > ends_s)
        assert vendor.received == 2
        # Both, more than two thirds of less than three; room beside them may have gone back.
        assert tenant.balance()["reserved"] > held * 2 // 3


@pytest.mark.parametrize("mode", ["http", "websocket"])
@pytest.mark.parametrize("client", ["httpx", "httpx_async", "requests", "aiohttp"])
def test_who_stood_still_asks_before_it_sends(
    tenant: Tenant, tmp_path: Path, client: str, mode: str
) -> None:
    """Its money has gone to others meanwhile."""
    short_life(tenant, 2.0)
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
