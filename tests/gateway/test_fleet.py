"""Thousands of SDKs on two replicas: every socket is cut at once, and a replica goes."""

from __future__ import annotations

import collections
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from guard.core import wire
from guard.gateway.admin import AdminClient
from tests.gateway.conftest import Served
from tests.gateway.test_metrics import scraped
from tests.support import postgres
from tests.support.fleet import CALLS, COST_TOKENS, WORKFLOW, Fleet, fleet
from tests.support.proxy import BACKLOG, ChaosProxy
from tests.support.waiting import WAIT_S, until

Serve = Callable[..., Served]
pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]
# How fast the machine is, is not the question: nothing runs into a deadline.
OPTIONS = ("--connections-max", "10000", "--request-deadline-ms", "120000")
COST_NANOUSD = COST_TOKENS * 1000
"""Of the one request that each SDK charges."""


@pytest.fixture
def database(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


@pytest.fixture
def admin() -> Iterator[Callable[[Served], AdminClient]]:
    with contextlib.ExitStack() as stack:
        yield lambda served: stack.enter_context(
            contextlib.closing(AdminClient(served.base_url, served.admin_key))
        )


class Watched:
    """A fleet behind a proxy, with what is said of it on the way."""

    def __init__(self, running: Fleet, proxy: ChaosProxy, wait_s: float) -> None:
        self.fleet = running
        self.proxy = proxy
        self.wait_s = wait_s

    def until(self, ups: int = 0, **wanted: Any) -> dict[str, Any]:
        """Wait until the fleet says this, and that so many came back; return all that it says."""
        ends_s = time.monotonic() + self.wait_s
        while True:
            began_s = time.monotonic()
            said = self.fleet.tell()
            if wanted.items() <= said.items() and len(said["ups"]) >= ups:
                return said
            shown = {**said, "ups": len(said["ups"])}
            assert not said["errors"], shown
            assert time.monotonic() < ends_s, shown
            time.sleep(0.1 + 5 * (time.monotonic() - began_s))  # to ask takes time, too

    def cut(self) -> float:
        """Cut every connection; return when."""
        self.fleet.tell("forget")
        self.proxy.arrivals.clear()
        at_s = time.monotonic()
        self.proxy.cut()
        return at_s

    def back(self, at_s: float, title: str, count: int = 0) -> None:
        """Wait until all are back, or as many as had to come; print how they came."""
        count = count or self.fleet.count
        took = sorted(up - at_s for up in self.until(count, up=self.fleet.count)["ups"])
        print(f"\n{title}: the first back after {took[0]:.2f} s, half after "
              f"{took[len(took) // 2]:.2f} s, all after {took[-1]:.2f} s")  # fmt: skip
        for path in (wire.CONTROL_WS_PATH, wire.CONTROL_PATH):
            arrived = self.arrivals(path)
            print(f"  {path}: {arrived.total()} connections, at most "
                  f"{max(arrived.values(), default=0)} in 100 ms")  # fmt: skip

    def arrivals(self, path: str) -> collections.Counter[int]:
        """Return how many connections came for a path since the cut, by tenths of a second."""
        return collections.Counter(
            int(when * 10) for when, what in self.proxy.arrivals if what == path.encode()
        )


@contextlib.contextmanager
def watched(count: int, replicas: list[Served]) -> Iterator[Watched]:
    """Run a fleet on replicas, until each SDK has a body that runs."""
    wait_s = 60 + count / 4
    proxy = ChaosProxy(*(each.base_url for each in replicas))
    started = time.monotonic()
    try:
        with fleet(count, proxy.url, replicas[0].api_key) as running:
            found = Watched(running, proxy, wait_s)
            found.until(up=count, bodies=count)
            print(f"\n{count} SDKs run after {time.monotonic() - started:.1f} s")
            yield found
    finally:
        proxy.close()


class Calling(threading.Thread):
    """Has each SDK of a fleet make one call after another, while a block runs.

    Attributes:
        rounds: how many each has made.
    """

    def __init__(self, running: Fleet) -> None:
        super().__init__(daemon=True)
        self._fleet = running
        self._ended = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        while not self._ended.is_set():
            self._fleet.tell("call")
            self.rounds += 1
            time.sleep(0.02)  # let others ask the fleet too

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(600)


def memory_of(served: Served) -> int:
    return int(psutil.Process(served.process.pid).memory_info().rss)


def sockets_of(served: Served) -> float:
    return scraped(served.base_url)["guard_gateway_control_sockets"]


def overflows() -> int:
    """Return how many connections of this machine found their accept queue full."""
    lines = Path("/proc/net/netstat").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names, values, strict=True))["ListenOverflows"])


def settled(admin: AdminClient, bodies: int, calls: int) -> None:
    """Require that each body and call was charged once, and that nothing is held any more."""
    until(lambda: admin.ledger()[0]["reserved"] == 0, 120)
    assert admin.verify_ledger()["problems"] == []
    usage = {each["group"]: (each["llm_calls"], each["cost_nanousd"])
             for each in admin.usage("workflow")}  # fmt: skip
    for workflow, count in ((WORKFLOW, bodies), (CALLS, calls)):
        assert usage[workflow] == (count, count * COST_NANOUSD)
    assert admin.ledger()[0]["committed"] == (bodies + calls) * COST_NANOUSD


def test_every_socket_is_cut_at_once(
    serve: Serve,
    admin: Callable[[Served], AdminClient],
    proof_scale: float,
) -> None:
    """All come back, spread; a kill meanwhile reaches each body once; no lease is lost."""
    count = max(20, round(200 * proof_scale))
    a, b = (serve(*OPTIONS) for _ in range(2))
    first, second = admin(a), admin(b)
    first.set_price("gpt-4o", input_per_mtok=10**9, output_per_mtok=10**9)
    first.set_budget(limit_nanousd=10**15)
    before = overflows()
    with watched(count, [a, b]) as run:
        leases = run.fleet.tell("call")["leases"]
        print(f"  {leases} leases are out")
        assert leases > 0
        run.back(run.cut(), "cut")
        assert run.until(bodies=count)["interrupts"] == {"0": count}

        run.proxy.fault = "refuse"
        at_s = run.cut()
        run.until(up=0)
        first.kill("other")
        second.kill(WORKFLOW)
        first.kill("another")
        time.sleep(2)  # they try to come back for so long
        assert run.until(bodies=count)["interrupts"] == {"0": count}, "they are away"
        run.proxy.accept_at_most(8)  # and now more come than it takes
        run.proxy.stall(3)
        run.proxy.fault = "none"
        time.sleep(3)  # for as long as the proxy stalls
        run.proxy.accept_at_most(BACKLOG)
        run.back(at_s, "cut, refused for two seconds, killed meanwhile")
        kills = {"kills": ["another", WORKFLOW, "other"]}
        said = run.until(bodies=0, interrupts={"1": count}, **kills)
        assert len(said["seqs"]) == 1, "each has everything"

        run.back(run.cut(), "cut again")
        memory = [memory_of(each) for each in (a, b)]
        run.back(run.cut(), "and again")
        time.sleep(1)  # what is replayed would be here by now
        assert run.until(up=count)["interrupts"] == {"1": count}, "nobody saw it twice"
        now = [memory_of(each) for each in (a, b)]
        until(lambda: sum(map(sockets_of, (a, b))) == count)  # those that were cut are noticed
        sockets = [sockets_of(each) for each in (a, b)]
        mib = [[round(each / 2**20) for each in some] for some in (memory, now)]
        print(f"  MiB of the replicas before and after the last cut: {mib}; sockets: {sockets}")
        assert sum(now) < 1.15 * sum(memory)
        full = overflows() - before
        print(f"  connections that found an accept queue full: {full}")
        assert full > 0
        run.fleet.tell("close")
    settled(first, count, count)


def test_a_replica_goes_and_its_sockets_move(
    serve: Serve, admin: Callable[[Served], AdminClient], proof_scale: float
) -> None:
    """All of it: they move one after another, no call fails meanwhile, no event is lost or twice.

    What is said meanwhile reaches each, and no lease is lost.
    """
    count = max(20, round(50 * proof_scale))
    staying, going = (serve(*OPTIONS, "--drain-timeout-ms", "10000") for _ in range(2))
    control = admin(staying)
    control.set_price("gpt-4o", input_per_mtok=10**9, output_per_mtok=10**9)
    control.set_budget(limit_nanousd=10**15)
    with watched(count, [going]) as run:
        until(lambda: sockets_of(going) == count)
        run.proxy.retarget(staying.base_url, going.base_url)
        with Calling(run.fleet) as calling:
            until(lambda: calling.rounds, run.wait_s)
            run.fleet.tell("forget")
            run.proxy.arrivals.clear()
            at_s = time.monotonic()
            going.process.send_signal(signal.SIGTERM)
            control.kill(WORKFLOW)
            assert going.process.wait(WAIT_S) == 0
            run.until(bodies=0, interrupts={"1": count})
            run.back(at_s, f"{count} sockets move", count)
        assert run.until(up=count)["failed"] == 0
        until(lambda: sockets_of(staying) == count)
        run.fleet.tell("close")
    print(f"  {calling.rounds * count} calls meanwhile")
    settled(control, count, calling.rounds * count)
