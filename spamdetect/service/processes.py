"""The engine in worker processes, each connected to the event loop by a socket.

An executor would hand each batch from thread to thread within the service's process, and every
hand-over waits for the GIL. A worker ends when its socket closes, so it never outlives the service,
even if the service crashes. A killed worker is replaced when there is work for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections import deque
from io import BufferedRWPair
from pathlib import Path
from typing import Final, cast

import msgspec

from spamdetect.service.analysis import EngineFailedError, Item, Outcome, analyse, place_of
from spamdetect.service.rules import Found
from spamdetect.thresholds import Threshold

_LENGTH: Final = struct.Struct("<I")
_START_S: Final = 60.0
_END_S: Final = 10.0
_PROGRAM: Final = "from spamdetect.service.processes import serve_engine; serve_engine()"


class _Engine(msgspec.Struct, array_like=True):
    """What a worker loads."""

    model_path: str | None
    threshold: float | str | None


class _Answer(msgspec.Struct, array_like=True):
    """An `Outcome`; with a ``kind`` it is a failure."""

    body: bytes = b""
    is_spam: bool | None = None
    found: Found | None = None
    kind: str = ""
    place: str = ""


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENGINE: Final = msgspec.msgpack.Decoder(_Engine)
_ITEMS: Final = msgspec.msgpack.Decoder(list[Item])
_ANSWERS: Final = msgspec.msgpack.Decoder(list[_Answer])


class EngineProcesses:
    """A fixed number of worker processes, each with one batch at a time.

    Args:
        count: How many.
        model_path: Model file; None takes the bundled one.
        threshold: Lowest score that is spam; None takes the model's.
    """

    def __init__(
        self,
        count: int,
        model_path: Path | None = None,
        threshold: Threshold | None = None,
    ) -> None:
        path = None if model_path is None else os.fspath(model_path)
        self._workers = [_Worker(_Engine(path, threshold)) for _ in range(count)]
        self._idle = deque(self._workers)

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [worker.pid for worker in self._workers if worker.pid]

    async def analyse(self, items: list[Item]) -> list[Outcome]:
        """Analyse a batch in an idle worker; there must be one.

        Raises:
            EngineFailedError: The worker ended before it answered.
        """
        worker = self._idle.popleft()
        try:
            answers = _ANSWERS.decode(await worker.ask(_ENCODER.encode(items)))
        finally:
            self._idle.append(worker)
        return [
            EngineFailedError(each.kind, each.place)
            if each.kind
            else each.found or (each.body, each.is_spam)
            for each in answers
        ]

    async def close(self) -> None:
        """End the workers."""
        await asyncio.gather(*(worker.close() for worker in self._workers))


class _Worker(asyncio.Protocol):
    """One process and the socket to it."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    async def ask(self, content: bytes) -> bytes:
        """Send a frame and wait for the one that answers it."""
        if self._transport is None:
            await self._start()
        return await self._exchange(content)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)
            self._process = None

    async def _start(self) -> None:
        await self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.to_thread(_spawn, theirs)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        async with asyncio.timeout(_START_S):
            await self._exchange(_ENCODER.encode(self._engine))

    async def _exchange(self, content: bytes) -> bytes:
        if self._transport is None:
            raise EngineFailedError("WorkerEnded", "a worker")
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
            self._answer.set_exception(EngineFailedError("WorkerEnded", "a worker"))


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    # The worker imports from the same paths; -P keeps the working directory out. It has its own
    # process group: Ctrl-C in the terminal is for the service alone, which ends its workers.
    paths = os.pathsep.join(path for path in sys.path if path)
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
        from spamdetect.engine import Engine

        chosen = _ENGINE.decode(content)
        engine = Engine.load(chosen.model_path, threshold=chosen.threshold)  # type: ignore[arg-type]  # checked by the service
        answer = _ENCODER.encode([])
        while True:
            stream.write(_LENGTH.pack(len(answer)) + answer)
            stream.flush()
            content = _read_frame(stream)
            if content is None:
                return
            try:
                outcomes = analyse(engine, _ITEMS.decode(content))
                answer = _ENCODER.encode([_answer(outcome) for outcome in outcomes])
            except Exception as error:  # noqa: BLE001 - the batch fails, not the worker
                failure = _Answer(kind=type(error).__name__, place=place_of(error))
                answer = _ENCODER.encode([failure] * len(_ITEMS.decode(content)))


def _answer(outcome: Outcome) -> _Answer:
    if isinstance(outcome, EngineFailedError):
        return _Answer(kind=outcome.kind, place=outcome.place)
    if isinstance(outcome, Found):
        return _Answer(found=outcome)
    return _Answer(*outcome)


def _read_frame(stream: BufferedRWPair) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = stream.read(size)
    return content if len(content) == size else None
