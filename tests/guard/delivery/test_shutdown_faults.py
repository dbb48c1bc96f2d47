"""Every fault at every moment of a shutdown, at a real gateway behind a proxy that misbehaves.

The generator. A fault that passes costs time and no event. With one that does not, the shutdown
ends with its deadline, and each event is at the gateway, on disk, or counted.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import pytest

import guard
from guard.breaker.exceptions import BreakerTransportError
from guard.core.wire import EVENTS_PATH
from guard.gateway.admin import AdminClient
from guard.runtime.runtime import GuardRuntime
from tests.gateway.conftest import Served, database, serve  # noqa: F401
from tests.guard.delivery.conftest import Spawn
from tests.support.proxy import ChaosProxy
from tests.support.proxy import Fault as ProxyFault
from tests.support.waiting import WAIT_S, until

# A deadline may cut the opening or closing of a connection short; the collector does the rest.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning"),
]

EVENTS: Final = 250
BATCH: Final = 100
EVENTS_LINE: Final = f"POST {EVENTS_PATH} ".encode()
SHORT_S: Final = 1.0
MARGIN_S: Final = 60.0
"""How much longer a busy machine may take."""

Moment = Literal["before the flush", "in the flush", "after the first batch", "at close"]
MOMENTS: Final[tuple[Moment, ...]] = (
    "before the flush", "in the flush", "after the first batch", "at close",
)  # fmt: skip


def _answer(status: int, retry_after: str | None = None) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    if retry_after is not None:
        head += f"retry-after: {retry_after}\r\n"
    return f"{head}content-length: 2\r\n\r\n{{}}".encode()


@attrs.frozen
class Kind:
    """A kind of fault: an answer that is not the gateway's, or something in the way.

    Attributes:
        times: how many deliveries fail before it passes: more than one call of the client tries.
    """

    name: str
    answer: bytes | Literal["reset"] | None = None
    fault: ProxyFault = "none"
    times: int = 7
    timeout_ms: int = 60_000


KINDS: Final = (
    Kind("429 with Retry-After", _answer(429, "1"), times=2),
    Kind("429", _answer(429), times=1),
    Kind("503", _answer(503)),
    Kind("503 with Retry-After", _answer(503, "1"), times=2, timeout_ms=500),
    Kind("404", _answer(404)),
    Kind("reset", "reset"),
    Kind("refused connection", "reset", "refuse"),
    Kind("slow answer", None, "hang", times=2, timeout_ms=500),
    Kind("truncated reply", None, "truncate"),
    Kind("garbage", None, "garbage"),
)


class Trouble:
    """Brings a fault to the deliveries of events, from one of them on; safe from any thread.

    Args:
        proxy: on the way to the gateway.
        kind: of the fault.
        after: how many deliveries pass before.

    Attributes:
        hits: how many deliveries it has met.
    """

    def __init__(self, proxy: ChaosProxy, kind: Kind, after: int) -> None:
        self._proxy, self._kind, self._after = proxy, kind, after
        self._deliveries = self._met = 0
        self._refused_from = 0
        self._is_over = False
        # Else a fault could be brought by the proxy's thread right after its end.
        self._lock = threading.Lock()
        proxy.meet = self._met_by

    def _met_by(self, line: bytes) -> Any:
        with self._lock:
            return self._meet(line)

    def _meet(self, line: bytes) -> Any:
        if self._is_over or not line.startswith(EVENTS_LINE):
            return None
        self._deliveries += 1
        if self._deliveries <= self._after:
            return None
        self._met += 1
        if self._kind.fault != "none":
            self._refused_from = self._refused_from or self._proxy.connections
            self._proxy.fault = self._kind.fault
        return self._kind.answer

    @property
    def hits(self) -> int:
        refused = self._proxy.connections - self._refused_from if self._refused_from else 0
        return self._met + (refused if self._kind.fault == "refuse" else 0)

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            self._proxy.fault = "none"

    def end_when_met(self) -> None:
        """End once it was met often enough; in a thread of its own."""
        until(lambda: self.hits >= self._kind.times or self._is_over)
        self.end()


def track() -> list[str]:
    return [guard.track_llm(1, 1, model="m")["event_id"] for _ in range(EVENTS)]


def charged(tenant: Any) -> Counter[str]:
    rows: list[Any] = tenant.admin.events(type="llm", limit=1000)
    return Counter(row["event_id"] for row in rows)


def delivered(runtime: GuardRuntime, tenant: Any, ids: list[str]) -> bool:
    """Try to deliver; tell whether all is at the gateway, once."""
    with contextlib.suppress(BreakerTransportError):
        runtime.flush(WAIT_S)
    return charged(tenant) == Counter(ids)


def on_disk(directory: Path) -> set[str]:
    connection = sqlite3.connect(directory / "events-1.sqlite3", timeout=WAIT_S)
    try:
        return {name for (name,) in connection.execute("SELECT event_id FROM events")}
    finally:
        connection.close()


Begin = Callable[..., tuple[GuardRuntime, Trouble, list[str]]]


@pytest.fixture
def begin(tenant: Any, proxy: ChaosProxy) -> Begin:
    """Record events, bring a fault to a moment of the shutdown that follows."""

    def made(
        kind: Kind, moment: Moment, **settings: Any
    ) -> tuple[GuardRuntime, Trouble, list[str]]:
        interval_ms = 20 if moment == "before the flush" else 3_600_000
        runtime = GuardRuntime(
            tenant.key, proxy.url, timeout_ms=kind.timeout_ms, flush_interval_ms=interval_ms,
            batch_size=1000 if moment != "after the first batch" else BATCH, **settings,
        ).open()  # fmt: skip
        if moment == "at close":
            ids = track()
            until(lambda: delivered(runtime, tenant, ids))
            trouble = Trouble(proxy, kind, 0)
            proxy.fault = kind.fault
            return runtime, trouble, ids
        trouble = Trouble(proxy, kind, 1 if moment == "after the first batch" else 0)
        ids = track()
        if moment == "before the flush":
            until(lambda: trouble.hits)
        return runtime, trouble, ids

    return made


def marked(kind: Kind, moment: Moment, *usual: Moment) -> Any:
    """A case; all but the usual moments are left to the fault runs."""
    marks = [] if moment in usual else [pytest.mark.fault]
    return pytest.param(kind, moment, id=f"{kind.name}, {moment}", marks=marks)


@pytest.mark.generator("faults at moments of a shutdown")
@pytest.mark.parametrize(
    ("kind", "moment"),
    [marked(kind, moment, "in the flush") for kind in KINDS for moment in MOMENTS[:3]],
)
def test_a_fault_that_passes_costs_no_event(
    kind: Kind, moment: Moment, begin: Begin, tenant: Any
) -> None:
    runtime, trouble, ids = begin(kind, moment)
    passing = threading.Thread(target=trouble.end_when_met)
    passing.start()
    try:
        runtime.shutdown(WAIT_S)
    finally:
        trouble.end()
        passing.join(WAIT_S)
    assert charged(tenant) == Counter(ids)
    status = runtime.status()
    assert (status.events_sent, status.events_lost) == (EVENTS, 0)


@pytest.mark.generator("faults at moments of a shutdown")
@pytest.mark.parametrize("with_spool", [False, True], ids=["memory", "spool"])
@pytest.mark.parametrize(
    ("kind", "moment"), [marked(kind, moment) for kind in KINDS for moment in MOMENTS]
)
def test_with_a_fault_that_stays_each_event_is_accounted_for(
    kind: Kind, moment: Moment, with_spool: bool, begin: Begin, tenant: Any, tmp_path: Path
) -> None:
    spool = tmp_path / "spool" if with_spool else None
    runtime, trouble, ids = begin(kind, moment, spool_dir=spool)
    began_s = time.monotonic()
    told = 0
    try:
        runtime.shutdown(SHORT_S)
    except BreakerTransportError as exc:
        told = exc.events_lost
    assert time.monotonic() - began_s < SHORT_S + MARGIN_S
    trouble.end()
    status = runtime.status()
    assert status.events_lost == told
    assert status.events_sent + status.events_lost + status.spooled == EVENTS
    there = charged(tenant)
    assert set(there.values()) <= {1}
    kept = on_disk(spool) if spool is not None and status.spooled else set()
    assert len(set(ids) - set(there) - kept) <= told
    if spool is None:
        return
    assert told == 0, "with a spool nothing is lost"
    later = GuardRuntime(tenant.key, runtime.settings.api_url, spool_dir=spool).open()
    until(lambda: delivered(later, tenant, ids))


@pytest.mark.generator("faults at moments of a shutdown")
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(None, id="before the flush", marks=pytest.mark.fault),
        pytest.param(0, id="in the flush"),
        pytest.param(1, id="after the first batch", marks=pytest.mark.fault),
    ],
)
def test_a_gateway_that_is_killed_and_started_again_gets_every_event(
    after: int | None,
    serve: Callable[..., Served],  # noqa: F811
) -> None:
    served = serve()
    proxy = ChaosProxy(served.base_url)
    gone = threading.Event()
    deliveries = 0

    def meet(line: bytes) -> Literal["reset"] | None:
        nonlocal deliveries
        deliveries += line.startswith(EVENTS_LINE)
        if after is None or deliveries <= after or gone.is_set():
            return None
        served.process.kill()
        gone.set()
        return "reset"

    def restart() -> None:
        gone.wait(WAIT_S)
        served.process.wait(WAIT_S)
        proxy.retarget(serve().base_url)

    runtime = GuardRuntime(served.api_key, proxy.url, flush_interval_ms=3_600_000).open()
    ids = track()
    proxy.meet = meet
    restarting = threading.Thread(target=restart)
    restarting.start()
    if after is None:
        served.process.kill()
        gone.set()
    try:
        runtime.shutdown(WAIT_S)
        assert runtime.status().events_lost == 0
        with_admin = AdminClient(proxy.url, served.admin_key)
        rows = with_admin.events(type="llm", limit=1000)
        with_admin.close()
        assert Counter(row["event_id"] for row in rows) == Counter(ids)
    finally:
        gone.set()
        restarting.join(WAIT_S)
        proxy.close()


def test_a_signal_with_a_handler_waits_for_a_delivery_likewise(begin: Begin, tenant: Any) -> None:
    runtime, trouble, ids = begin(KINDS[0], "in the flush")
    passing = threading.Thread(target=trouble.end_when_met)
    passing.start()
    try:
        runtime._flush_at_signal(WAIT_S)
    finally:
        trouble.end()
        passing.join(WAIT_S)
    assert charged(tenant) == Counter(ids)
    assert not runtime.is_shut_down


PROGRAM: Final = """
import os, signal, sys, time
import guard
how = sys.argv[1]
if how == "handler":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
guard.init()
ids = [guard.track_llm(1, 1, model="m")["event_id"] for _ in range(250)]
print(" ".join(ids), flush=True)
if how == "shutdown":
    guard.shutdown()
elif how != "end":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3600)
"""


@pytest.mark.generator("faults at moments of a shutdown")
@pytest.mark.fault
@pytest.mark.parametrize("with_spool", [False, True], ids=["memory", "spool"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("how", ["end", "shutdown", "signal", "handler"])
def test_a_process_ends_within_its_deadline_whatever_the_gateway_does(
    how: str,
    kind: Kind,
    with_spool: bool,
    tenant: Any,
    proxy: ChaosProxy,
    spawn: Spawn,
    tmp_path: Path,
) -> None:
    """Its deadline is two seconds, and an answer of the gateway would take a minute."""
    spool = tmp_path / "spool"
    env = {"GUARD_API_KEY": tenant.key, "GUARD_API_URL": proxy.url}
    trouble = Trouble(proxy, kind, 0)
    if with_spool:
        env["GUARD_SPOOL_DIR"] = str(spool)
    process = spawn(PROGRAM, how, env=env)
    out, err = process.communicate(timeout=MARGIN_S)
    trouble.end()
    ids = out.split()
    assert len(ids) == EVENTS, err
    there = charged(tenant)
    assert set(there.values()) <= {1}
    kept = on_disk(spool) if with_spool else set()
    counted = re.search(r"(\d+) events (?:could not be delivered|are still buffered)", err)
    told = int(counted[1]) if counted else 0
    assert len(set(ids) - set(there) - kept) <= told, err
    if with_spool:
        assert not told, err
