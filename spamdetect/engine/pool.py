"""The engine in worker processes, each connected to the event loop by a socket.

An executor would hand each batch from thread to thread within the parent's process, and every
hand-over waits for the GIL; it would also import the caller's ``__main__`` in each worker. A worker
ends when its socket closes, so it never outlives its parent, even if that crashes. A killed worker
is replaced when there is work for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from io import BufferedRWPair
from typing import TYPE_CHECKING, Final, cast

import attrs
import msgspec

from spamdetect.engine.results import Analysis
from spamdetect.thresholds import Threshold

if TYPE_CHECKING:
    from spamdetect.engine.core import Engine

_LENGTH: Final = struct.Struct("<I")
_START_S: Final = 60.0
_END_S: Final = 10.0
_PROGRAM: Final = "from spamdetect.engine.pool import serve_engine; serve_engine()"


class WorkerEndedError(Exception):
    """A worker process ended before it answered, such as by the system for want of memory."""


class _Task(msgspec.Struct, array_like=True):
    """What a worker loads, and the module and the function that answer its batches."""

    model_path: str | None
    threshold: float | str | None
    module: str
    function: str


_ENCODER: Final = msgspec.msgpack.Encoder()
_TASK: Final = msgspec.msgpack.Decoder(_Task)
_TEXTS: Final = msgspec.msgpack.Decoder(list[bytes])
_ANALYSES: Final = msgspec.msgpack.Decoder(list[Analysis])


class ProcessPool:
    """A fixed number of worker processes, each with one batch at a time.

    Args:
        count: How many.
        model_path: Model file; None takes the packaged one.
        threshold: Spam from this score on; None takes the model's.
        function: Answers a batch in a worker, which imports it.
    """

    def __init__(
        self,
        count: int,
        model_path: str | os.PathLike[str] | None,
        threshold: Threshold | None,
        function: Callable[[Engine, bytes], bytes],
    ) -> None:
        path = None if model_path is None else os.fspath(model_path)
        task = _ENCODER.encode(_Task(path, threshold, function.__module__, function.__name__))
        self._workers = [_Worker(task) for _ in range(count)]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        for worker in self._workers:
            self._idle.put_nowait(worker)

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [worker.pid for worker in self._workers if worker.pid]

    async def ask(self, batch: bytes) -> bytes:
        """Have the first worker that is idle answer a batch.

        Raises:
            WorkerEndedError: The worker ended before it answered.
        """
        worker = await self._idle.get()
        try:
            return await worker.ask(batch)
        finally:
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        """End the workers."""
        await asyncio.gather(*(worker.close() for worker in self._workers))


class _Worker(asyncio.Protocol):
    """One process and the socket to it."""

    def __init__(self, task: bytes) -> None:
        self._task = task
        self._spawned: asyncio.Future[subprocess.Popen[bytes]] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    @property
    def pid(self) -> int:
        spawned = self._spawned
        return 0 if spawned is None or not spawned.done() else spawned.result().pid

    async def ask(self, content: bytes) -> bytes:
        """Send a frame and wait for the one that answers it."""
        if self._transport is None:
            await self._start()
        return await self._exchange(content)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        spawned, self._spawned = self._spawned, None
        if spawned is not None:
            with contextlib.suppress(OSError):  # it could not be started
                await asyncio.to_thread(_end, await spawned)

    async def _start(self) -> None:
        await self.close()
        ours, theirs = socket.socketpair()
        try:
            # Kept also when this is cancelled: a process has to be waited for.
            self._spawned = asyncio.ensure_future(asyncio.to_thread(_spawn, theirs))
            await asyncio.shield(self._spawned)
            await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        async with asyncio.timeout(_START_S):
            await self._exchange(self._task)

    async def _exchange(self, content: bytes) -> bytes:
        if self._transport is None:
            raise WorkerEndedError("a worker process has ended")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(_LENGTH.pack(len(content)) + content)
        try:
            return await self._answer
        except asyncio.CancelledError:
            # A late answer would be taken for that of the next batch.
            if self._transport is not None:
                self._transport.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._received.clear()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < _LENGTH.size:
            return
        (size,) = _LENGTH.unpack_from(self._received)
        if len(self._received) >= _LENGTH.size + size:
            content = bytes(self._received[_LENGTH.size :])
            self._received.clear()
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(content)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerEndedError("a worker process has ended"))


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    # The worker imports from the same paths; -P keeps the working directory out. It has its own
    # process group: Ctrl-C in the terminal is for the parent alone, which ends its workers.
    paths = os.pathsep.join(path for path in sys.path if path)
    with connection:
        return subprocess.Popen(  # noqa: S603 - this interpreter and a constant
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=connection.fileno(),
            env={**os.environ, "PYTHONPATH": paths},
            process_group=0,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve_engine() -> None:
    """The worker's side: load the engine, then answer batches until the socket closes."""
    connection = socket.socket(fileno=os.dup(0))
    with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError):
        content = _read_frame(stream)
        if content is None:
            return
        from spamdetect.engine.core import Engine

        task = _TASK.decode(content)
        engine = Engine.load(task.model_path, threshold=task.threshold)  # type: ignore[arg-type]  # checked by the parent
        answer_batch = getattr(import_module(task.module), task.function)
        answer = b""
        while True:
            stream.write(_LENGTH.pack(len(answer)) + answer)
            stream.flush()
            content = _read_frame(stream)
            if content is None:
                return
            answer = answer_batch(engine, content)


def _read_frame(stream: BufferedRWPair) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = stream.read(size)
    return content if len(content) == size else None


def batch_of(texts: list[str]) -> bytes:
    """Return texts as :func:`classify` takes them; they may have halves of surrogate pairs."""
    return _ENCODER.encode([text.encode("utf-8", "surrogatepass") for text in texts])


def classify(engine: Engine, batch: bytes) -> bytes:
    """Classify texts, in a worker; they do not come back with their analyses."""
    texts = [text.decode("utf-8", "surrogatepass") for text in _TEXTS.decode(batch)]
    return _ENCODER.encode(
        [attrs.evolve(each, input_text="") for each in engine.predict_many(texts)]
    )


def analyses_of(texts: list[str], answer: bytes) -> list[Analysis]:
    """Return the analyses that :func:`classify` has answered for texts."""
    found = zip(_ANALYSES.decode(answer), texts, strict=True)
    return [attrs.evolve(each, input_text=text) for each, text in found]
