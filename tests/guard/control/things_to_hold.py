"""Things that a body takes hold of and lets go of, for kills at random moments."""

from __future__ import annotations

import concurrent.futures
import contextlib
import decimal
import gzip
import io
import mmap
import multiprocessing
import os
import queue
import selectors
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest.mock
import warnings
import weakref
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import anyio.from_thread
import anyio.lowlevel
import billiard
import filelock
import flask
import fsspec
import httpcore
import httpx
import httpx2
import kombu
import numpy
import pexpect
import prometheus_client
import psutil
import psycopg
import pyarrow
import requests
import rich.console
import rich.live
import threadpoolctl
import tqdm
import urllib3
import zmq
import zstandard
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.guard.instrumentation.gated_clients import genai
from tests.support import postgres
from tests.support.waiting import WAIT_S

Thing = tuple[Callable[[], object], Callable[[], object]]
"""What a body does again and again, and what says what is left afterwards, or nothing."""

THINGS: Final[dict[str, Callable[[Path, str], Thing]]] = {}
"""By name, what makes a thing, given a folder of its own and the address of a web server."""


def thing(make: Callable[[Path, str], Thing]) -> Callable[[Path, str], Thing]:
    """Add one."""
    THINGS[make.__name__.strip("_").replace("_", " ")] = make
    return make


def compute() -> None:
    """Go through some points at which a kill may be raised."""
    for _ in range(30):
        pass


def _using(make: Callable[[], Any], left: Callable[[], object]) -> Thing:
    def use() -> None:
        with make():
            compute()
        for _ in range(50):
            compute()

    return use, left


SOON_S: Final = 20.0
"""How long what was let go may take to be gone, on a busy machine."""


def _more(count: Callable[[], int]) -> Callable[[], object]:
    before = count()

    def more() -> int:
        ends = time.monotonic() + SOON_S
        while count() > before and time.monotonic() < ends:
            time.sleep(0.01)
        return max(count() - before, 0)

    return more


def _files(of: Path | str) -> Callable[[], object]:
    """Return what counts the open descriptors whose targets begin with a text.

    Not all descriptors: the gateway in this process opens its database again when it likes.
    """

    def count() -> int:
        found = 0
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was that of the folder
                found += os.readlink(each).startswith(str(of))
        return found

    return _more(count)


def _datagrams() -> int:
    local = psutil.Process().net_connections("unix")  # guard and the gateway have streams
    return sum(each.type == socket.SOCK_DGRAM for each in local)


def _children() -> int:
    found = 0
    for each in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += len((each / "children").read_text().split())
    return found


def _is_held(lock: Any) -> Callable[[], object]:
    def held() -> bool:
        if not lock.acquire(timeout=SOON_S):
            return True
        lock.release()
        return False

    return held


def _mutex(lock: Any) -> Thing:
    return _using(lambda: lock, _is_held(lock))


# -- locks -----------------------------------------------------------------------------------------

for _name, _make in {
    "lock": threading.Lock,
    "recursive lock": threading.RLock,
    "condition": lambda: threading.Condition(threading.Lock()),
    "semaphore": lambda: threading.BoundedSemaphore(1),
    "lock of processes": multiprocessing.Lock,
    "recursive lock of processes": multiprocessing.RLock,
    "semaphore of processes": lambda: multiprocessing.BoundedSemaphore(1),
}.items():
    THINGS[_name] = lambda folder, url, make=_make: _mutex(make())  # type: ignore[misc]


def _acquired(acquire: Callable[[], object], release: Callable[[], None], lock: Any) -> Thing:
    def use() -> None:
        acquire()
        try:
            compute()
        finally:
            release()
        compute()

    return use, _is_held(lock)


@thing
def acquire_and_try(folder: Path, url: str) -> Thing:
    lock = threading.Lock()

    def use() -> None:
        lock.acquire()
        try:
            compute()
        finally:
            lock.release()
        compute()

    return use, _is_held(lock)


@thing
def acquire_by_another_name(folder: Path, url: str) -> Thing:
    lock = threading.Lock()
    return _acquired(lock.acquire, lock.release, lock)


@thing
def acquire_if_free(folder: Path, url: str) -> Thing:
    lock = threading.Lock()

    def use() -> None:
        if lock.acquire(blocking=False):
            try:
                compute()
            finally:
                lock.release()
        compute()

    return use, _is_held(lock)


@thing
def lock_in_a_stack(folder: Path, url: str) -> Thing:
    lock = threading.Lock()

    def use() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock)
            compute()
        compute()

    return use, _is_held(lock)


@thing
def queue_(folder: Path, url: str) -> Thing:
    items: queue.Queue[int] = queue.Queue()

    def use() -> None:
        items.put(1)
        compute()
        items.get()

    return use, _is_held(items.mutex)


@thing
def event(folder: Path, url: str) -> Thing:
    never = threading.Event()
    lock: Any = never._cond  # type: ignore[attr-defined]
    return lambda: never.wait(0.01), _is_held(lock)


@thing
def file_lock(folder: Path, url: str) -> Thing:
    path = folder / "lock"

    def left() -> bool:
        try:
            filelock.FileLock(path).acquire(timeout=0).lock.release()
        except filelock.Timeout:
            return True
        return False

    return _using(lambda: filelock.FileLock(path), left)


# -- steps of which both are done, or neither ------------------------------------------------------


class Steps:
    """Has two steps; between them something is half done."""

    def __init__(self) -> None:
        self.open = 0

    def begin(self, *_: object) -> None:
        compute()
        self.open += 1
        compute()

    def end(self, *_: object) -> None:
        compute()
        self.open -= 1
        compute()

    def both(self, *_: object) -> None:
        self.begin()
        self.end()


class Manager(Steps):
    """A context manager."""

    def __enter__(self) -> None:
        self.begin()
        compute()

    def __exit__(self, *_: object) -> None:
        compute()
        self.end()


class Renamed(Steps):
    """One whose methods have other names."""

    __enter__ = Steps.begin
    __exit__ = Steps.end


class Finalised(Steps):
    """One whose end is its finaliser's."""

    of: Steps

    def __del__(self) -> None:
        self.of.both()


@thing
def own_manager(folder: Path, url: str) -> Thing:
    manager = Manager()
    return _using(lambda: manager, lambda: manager.open)


@thing
def own_manager_of_other_names(folder: Path, url: str) -> Thing:
    manager = Renamed()
    return _using(lambda: manager, lambda: manager.open)


@thing
def generator_as_a_manager(folder: Path, url: str) -> Thing:
    steps = Steps()

    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        steps.begin()
        try:
            yield
        finally:
            steps.end()

    return _using(manager, lambda: steps.open)


@thing
def own_manager_in_a_stack(folder: Path, url: str) -> Thing:
    manager = Manager()

    def use() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(manager)
            stack.callback(manager.both)
            compute()
        compute()

    return use, lambda: manager.open


@thing
def finally_(folder: Path, url: str) -> Thing:
    steps = Steps()

    def use() -> None:
        try:
            compute()
        finally:
            steps.begin()
            steps.end()
        compute()

    return use, lambda: steps.open


@thing
def handler(folder: Path, url: str) -> Thing:
    steps = Steps()

    def use() -> None:
        try:
            raise LookupError
        except LookupError:
            steps.begin()
            steps.end()
        compute()

    return use, lambda: steps.open


@thing
def finaliser(folder: Path, url: str) -> Thing:
    steps = Steps()

    def use() -> None:
        made = Finalised()
        made.of = steps
        del made
        compute()

    return use, lambda: steps.open


def _weak(watch: Callable[[Any, Steps], object], *, at_return: bool) -> Thing:
    steps = Steps()
    kept: list[object] = []

    def make() -> Any:
        made = Manager()
        kept[:] = [watch(made, steps)]
        compute()
        return None if at_return else made

    def use() -> None:
        made = make()
        compute()
        del made
        compute()

    return use, lambda: steps.open


@thing
def weak_reference(folder: Path, url: str) -> Thing:
    return _weak(lambda made, steps: weakref.ref(made, steps.both), at_return=False)


@thing
def weak_reference_at_a_return(folder: Path, url: str) -> Thing:
    return _weak(lambda made, steps: weakref.ref(made, steps.both), at_return=True)


@thing
def finalize(folder: Path, url: str) -> Thing:
    return _weak(lambda made, steps: weakref.finalize(made, steps.both), at_return=False)


# -- files, sockets, processes, threads ------------------------------------------------------------

# ruff: noqa: SIM115  # `_using` closes them

for _name, _opened in {
    "file": lambda folder: (folder / "file").open("w"),
    "gzip": lambda folder: gzip.open(folder / "gzip", "wb"),
    "zip": lambda folder: zipfile.ZipFile(folder / "zip", "w"),
    "tar": lambda folder: tarfile.open(folder / "tar", "w"),
    "directory": os.scandir,
    "temporary file": lambda folder: tempfile.TemporaryFile(dir=folder),
    "spooled file": lambda folder: tempfile.SpooledTemporaryFile(1, dir=folder),
    "sqlite": lambda folder: contextlib.closing(sqlite3.connect(folder / "sqlite")),
}.items():
    THINGS[_name] = lambda folder, url, make=_opened: _using(  # type: ignore[misc]
        lambda: make(folder), _files(folder)
    )


@thing
def selector(folder: Path, url: str) -> Thing:
    return _using(selectors.DefaultSelector, _files("anon_inode:[eventpoll]"))


@thing
def socket_(folder: Path, url: str) -> Thing:
    return _using(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), _more(_datagrams))


@thing
def memory(folder: Path, url: str) -> Thing:
    mapped = folder / "mapped"
    mapped.write_bytes(b"x" * 4096)

    def mapping() -> mmap.mmap:
        with mapped.open("r+b") as file:
            return mmap.mmap(file.fileno(), 4096)

    return _using(mapping, _files(folder))


for _name, _temporary in {
    "temporary directory": tempfile.TemporaryDirectory,
    "named temporary file": tempfile.NamedTemporaryFile,
}.items():
    THINGS[_name] = lambda folder, url, make=_temporary: _using(  # type: ignore[misc]
        lambda: make(dir=folder), lambda: os.listdir(folder)
    )


@thing
def descriptor_and_try(folder: Path, url: str) -> Thing:
    def use() -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            compute()
        finally:
            os.close(descriptor)
        compute()

    return use, _files(folder)


@thing
def process(folder: Path, url: str) -> Thing:
    def use() -> None:
        subprocess.run(["true"], check=True)
        for _ in range(100):
            compute()

    files, children = _files("pipe:"), _more(_children)
    return use, lambda: files() or children()


@thing
def process_with_a_pipe(folder: Path, url: str) -> Thing:
    def use() -> None:
        with subprocess.Popen(["true"], stdout=subprocess.PIPE) as started:
            started.communicate()
        for _ in range(100):
            compute()

    files, children = _files("pipe:"), _more(_children)
    return use, lambda: files() or children()


@thing
def pool_of_threads(folder: Path, url: str) -> Thing:
    def use() -> None:
        with concurrent.futures.ThreadPoolExecutor(1, "of-a-kill") as pool:
            pool.submit(compute)
        compute()

    def left() -> int:
        workers = [each for each in threading.enumerate() if "of-a-kill" in each.name]
        for worker in workers:
            worker.join(SOON_S)
        return sum(worker.is_alive() for worker in workers)

    return use, left


@thing
def transaction(folder: Path, url: str) -> Thing:
    connection = sqlite3.connect(folder / "sqlite", check_same_thread=False)
    connection.execute("CREATE TABLE numbers (number)")

    def use() -> None:
        with connection:
            connection.execute("INSERT INTO numbers VALUES (1)")
            compute()
        compute()

    def left() -> bool:
        opened = connection.in_transaction
        connection.close()
        return opened

    return use, left


# -- what is set for a while ----------------------------------------------------------------------


@thing
def filters_of_warnings(folder: Path, url: str) -> Thing:
    before = warnings.filters
    return _using(warnings.catch_warnings, lambda: warnings.filters is not before)


@thing
def redirected_output(folder: Path, url: str) -> Thing:
    before = sys.stderr
    return _using(
        lambda: contextlib.redirect_stderr(io.StringIO()), lambda: sys.stderr is not before
    )


@thing
def patched_attribute(folder: Path, url: str) -> Thing:
    steps = Steps()
    return _using(lambda: unittest.mock.patch.object(steps, "open", 1), lambda: steps.open)


@thing
def decimal_context(folder: Path, url: str) -> Thing:
    # Of the body's thread, which has ended: so it is looked at there.
    contexts = []

    def use() -> None:
        contexts.append(decimal.getcontext())
        with decimal.localcontext():
            compute()
        compute()

    return use, lambda: any(each is not contexts[0] for each in contexts)


# -- clients of others ----------------------------------------------------------------------------


@thing
def httpx_client(folder: Path, url: str) -> Thing:
    return _client(httpx.Client(trust_env=False), url)


@thing
def httpx2_client(folder: Path, url: str) -> Thing:
    return _client(httpx2.Client(trust_env=False), url)


def _client(client: Any, url: str) -> Thing:
    def use() -> None:
        with client.stream("GET", f"{url}/ok") as response:
            response.read()
        compute()

    return _pooled(use, client, client._transport._pool)


def _pooled(use: Callable[[], object], client: Any, pool: Any) -> Thing:
    def left() -> list[object]:
        use()
        busy = [each for each in pool.connections if not each.is_idle()]
        client.close()
        return [*pool._requests, *busy]

    return use, left


@thing
def genai_client(folder: Path, url: str) -> Thing:
    client = genai(url)

    def use() -> None:
        client.models.generate_content(model="gemini-x", contents="Hello?")
        compute()

    return _pooled(use, client, client._api_client._httpx_client._transport._pool)


@thing
def genai_client_of_its_own(folder: Path, url: str) -> Thing:
    port = int(url.rpartition(":")[2])

    def use() -> None:
        with genai(url) as client:
            for _ in range(10):
                client.models.generate_content(model="gemini-x", contents="Hello?")

    def count() -> int:
        found = psutil.Process().net_connections("tcp")
        return sum(bool(each.raddr) and each.raddr.port == port for each in found)

    return use, _more(count)


@thing
def requests_session(folder: Path, url: str) -> Thing:
    session = requests.Session()

    def use() -> None:
        with session.get(f"{url}/ok", timeout=60) as response:
            assert response.ok
        compute()

    def left() -> bool:
        with session:
            return not session.get(f"{url}/ok", timeout=60).ok

    return use, left


@thing
def urllib3_pool(folder: Path, url: str) -> Thing:
    pool = urllib3.PoolManager(maxsize=1, block=True)

    def use() -> None:
        pool.request("GET", f"{url}/ok", timeout=60)
        compute()

    def left() -> bool:  # with one place in the pool, this waits for ever if that was lost
        with pool:
            return (
                pool.request("GET", f"{url}/ok", timeout=SOON_S, pool_timeout=SOON_S).status != 200
            )

    return use, left


@thing
def httpcore_pool(folder: Path, url: str) -> Thing:
    pool = httpcore.ConnectionPool(max_connections=1)

    def use() -> None:
        with pool.stream("GET", f"{url}/ok") as response:
            response.read()
        compute()

    def left() -> bool:
        with pool:
            return (
                pool.request(
                    "GET", f"{url}/ok", extensions={"timeout": {"read": SOON_S, "pool": SOON_S}}
                ).status
                != 200
            )

    return use, left


@thing
def psycopg_transaction(folder: Path, url: str) -> Thing:
    if postgres.server() is None:
        return compute, lambda: None
    connection = psycopg.connect(postgres.url_of(folder), autocommit=True)
    idle = psycopg.pq.TransactionStatus.IDLE

    def use() -> None:
        with connection.transaction():
            connection.execute("SELECT 1")
            compute()
        compute()

    def left() -> bool:
        with connection:
            return not connection.broken and connection.info.transaction_status != idle

    return use, left


@thing
def starlette_lifespan(folder: Path, url: str) -> Thing:
    manager = Manager()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        manager.begin()
        try:
            yield
        finally:
            manager.end()

    app = Starlette(lifespan=lifespan)
    return _using(lambda: TestClient(app), lambda: manager.open)


@thing
def flask_context(folder: Path, url: str) -> Thing:
    manager, app = Manager(), flask.Flask(__name__)
    app.teardown_appcontext(manager.end)
    flask.appcontext_pushed.connect(manager.begin, app, weak=False)
    return _using(app.app_context, lambda: manager.open)


@thing
def anyio_portal(folder: Path, url: str) -> Thing:
    def use() -> None:
        with anyio.from_thread.start_blocking_portal(name="of-a-portal") as portal:
            portal.call(anyio.lowlevel.checkpoint)
        compute()

    def left() -> bool:
        ending = [each for each in threading.enumerate() if "of-a-portal" in each.name]
        for each in ending:
            each.join(SOON_S)
        return any(each.is_alive() for each in ending)

    return use, left


@thing
def zmq_socket(folder: Path, url: str) -> Thing:
    def use() -> None:
        with zmq.Context() as context, context.socket(zmq.PUB) as publishing:
            publishing.bind("inproc://a")
            compute()

    return use, _files("anon_inode:")


@thing
def kombu_pool(folder: Path, url: str) -> Thing:
    pool = kombu.Connection("memory://").Pool(1)

    def use() -> None:
        with pool.acquire(block=True) as connection:
            connection.ensure_connection()
            compute()
        compute()

    return use, lambda: len(pool._dirty)


@thing
def billiard_lock(folder: Path, url: str) -> Thing:
    return _mutex(billiard.Lock())


@thing
def soft_file_lock(folder: Path, url: str) -> Thing:
    path = folder / "lock"
    return _using(lambda: filelock.SoftFileLock(path), path.exists)


@thing
def span(folder: Path, url: str) -> Thing:
    spans = Manager()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)  # type: ignore[arg-type]
    spans.on_start, spans.on_end = spans.begin, spans.end  # type: ignore[attr-defined]
    spans._on_ending = lambda span: None  # type: ignore[attr-defined]
    tracer = provider.get_tracer("of a kill")
    return _using(lambda: tracer.start_as_current_span("work"), lambda: spans.open)


@thing
def gauge_in_progress(folder: Path, url: str) -> Thing:
    gauge = prometheus_client.Gauge("open", "What is under way.", registry=None)
    return _using(gauge.track_inprogress, lambda: gauge._value.get())


@thing
def limited_threads(folder: Path, url: str) -> Thing:
    def limits() -> list[int]:
        return [each["num_threads"] for each in threadpoolctl.threadpool_info()]

    before = limits()
    return _using(lambda: threadpoolctl.threadpool_limits(1), lambda: limits() != before)


@thing
def numpy_errors(folder: Path, url: str) -> Thing:
    found = []  # in the body's thread, whose own they are

    def use() -> None:
        found.append(numpy.geterr())
        with numpy.errstate(all="ignore"):
            compute()
        compute()

    return use, lambda: any(each != found[0] for each in found)


@thing
def progress_bar(folder: Path, url: str) -> Thing:
    return _using(lambda: tqdm.tqdm(total=2, file=io.StringIO()), lambda: len(tqdm.tqdm._instances))


@thing
def live_display(folder: Path, url: str) -> Thing:
    console = rich.console.Console(file=io.StringIO())
    return _using(
        lambda: rich.live.Live("on", console=console, auto_refresh=False),
        lambda: bool(console._live_stack),
    )


for _name, _written in {
    "zstandard": lambda folder: zstandard.open(folder / "zstd", "wb"),
    "fsspec": lambda folder: fsspec.open(f"file://{folder}/file", "wb"),
    "arrow": lambda folder: pyarrow.OSFile(str(folder / "file"), "wb"),
}.items():
    THINGS[_name] = lambda folder, url, make=_written: _using(  # type: ignore[misc]
        lambda: make(folder), _files(folder)
    )


@thing
def program_in_a_terminal(folder: Path, url: str) -> Thing:
    def use() -> None:
        with pexpect.spawn("cat", timeout=WAIT_S):  # closing sleeps for some tenths of a second
            compute()
        ends = time.monotonic() + 0.2
        while time.monotonic() < ends:
            compute()

    files, children = _files("/dev/ptmx"), _more(_children)
    return use, lambda: files() or children()
