"""A server that answers as it is told, and programs that run as processes of their own."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from guard.runtime.runtime import GuardRuntime
from tests.support.closing import Accepted
from tests.support.programs import environment

PATIENT_END = """
import guard
from guard.session import exit_hooks
exit_hooks._SIGNAL_FLUSH_S = 60.0
for shutdown in guard.shutdown, guard.GuardRuntime.shutdown:
    shutdown.__defaults__ = 60.0, True
"""
"""The beginning of a program whose subject is not how long its last delivery may take: a busy
machine needs more than two seconds."""

EVENTS = "/api/v1/events"
CONTROL = "/api/v1/control"


@attrs.frozen
class Answer:
    """One scripted HTTP answer; ``hang`` never comes, a ``torn`` one not to its end."""

    status: int = 202
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes | None = None
    hang: bool = False
    torn: bool = False
    late_s: float = 0.0


class Scripted:
    """Speaks just enough of the protocol for answers that no healthy gateway gives.

    Attributes:
        answer: takes a request's path and decoded body; returns the answer, or None for the usual.
        requests: ``(path, when, body)`` of everything that came, in order.
        events: all event ids that were taken, by how often.
        bodies: the events that were taken, each once.
    """

    def __init__(self) -> None:
        self.answer: Callable[[str, Any], Answer | None] = lambda path, body: None
        self.requests: list[tuple[str, float, Any]] = []
        self.events: dict[str, int] = {}
        self.bodies: list[dict[str, Any]] = []
        self._accepted = Accepted(self._serve)
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        def main() -> None:
            asyncio.set_event_loop(self._loop)
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._accepted, "127.0.0.1", 0, backlog=512)
            )
            started.set()
            self._loop.run_forever()
            self._loop.run_until_complete(self._accepted.end(self._server))
            self._loop.close()

        self._thread = threading.Thread(target=main, daemon=True)
        self._thread.start()
        assert started.wait(120)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def count(self, path: str = EVENTS) -> int:
        """Return how many requests came for a path."""
        return sum(asked == path for asked, _, _ in list(self.requests))

    def close(self) -> None:
        """End the server."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")
                path, _, query = lines[0].split(" ")[1].partition("?")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines[1:] if line)
                }
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                if headers.get("content-encoding") == "gzip":
                    raw = gzip.decompress(raw)
                body = json.loads(raw) if raw else None
                self.requests.append((path, asyncio.get_running_loop().time(), body))
                answer = self.answer(path, body) or self._usual(path, body)
                if answer.hang and path == CONTROL and query.endswith("wait_ms=0"):
                    answer = Answer(200, body=b'{"messages": [], "seq": 0}')
                if answer.hang:
                    await asyncio.sleep(3600)
                await asyncio.sleep(answer.late_s)
                out = answer.body or b""
                more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
                writer.write(
                    f"HTTP/1.1 {answer.status} X\r\nContent-Length: {len(out) + answer.torn}\r\n"
                    f"Content-Type: application/json\r\n{more}\r\n".encode()
                    + out
                )
                await writer.drain()
                if answer.torn:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _usual(self, path: str, body: Any) -> Answer:
        if path == EVENTS:
            return self.taken(body)
        if path == "/api/v1/capabilities":
            document: Any = {"protocol": 3, "min_sdk_version": "0.6.0", "server": "scripted"}
        elif path == "/gate":
            for event in body.get("events", []):
                self.take(event)
            document = {"decision": "allow", "call_id": body["call_id"]}
        elif path == CONTROL:
            return Answer(hang=True)
        else:
            return Answer(404, body=b"{}")
        return Answer(200, body=json.dumps(document).encode())

    def llm(self) -> list[dict[str, Any]]:
        """Return the LLM events that were taken."""
        return [body for body in self.bodies if body["type"] == "llm"]

    def take(self, event: dict[str, Any]) -> None:
        """Record an event as taken."""
        seen = self.events.get(event["event_id"], 0)
        self.events[event["event_id"]] = seen + 1
        if not seen:  # a batch comes again when its answer was too late
            self.bodies.append(event)

    def taken(self, body: Any, status: int = 202) -> Answer:
        """Take a batch."""
        for event in body["events"]:
            self.take(event)
        return Answer(status, body=json.dumps({"accepted": len(body["events"])}).encode())


def problem(
    status: int, code: str, headers: Mapping[str, str] | None = None, **more: Any
) -> Answer:
    """Return a problem document as an answer."""
    document = {"status": status, "error_code": code, **more}
    return Answer(status, headers or {}, json.dumps(document).encode())


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A scripted server on a free loopback port."""
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def against(scripted: Scripted) -> Callable[..., GuardRuntime]:
    """Start a runtime against the scripted server; keyword arguments are settings."""

    def starter(**settings: Any) -> GuardRuntime:
        defaults: dict[str, Any] = {
            "api_key": "k" * 24,
            "api_url": scripted.url,
            "transport_mode": "http",
            "flush_interval_ms": 50,
        }
        return GuardRuntime(**{**defaults, **settings}).open()

    return starter


Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start a program in a process group of its own; what is left of it is killed at the end.

    Its input is empty, or with ``talks`` a pipe.
    """
    started: list[subprocess.Popen[str]] = []

    def starter(
        program: str, *arguments: str, env: Mapping[str, str], talks: bool = False
    ) -> subprocess.Popen[str]:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(program)
        process = subprocess.Popen(
            # From 3.12 on the interpreter itself remarks on a fork beside threads, as made here.
            [
                sys.executable,
                "-W",
                "ignore:This process:DeprecationWarning",
                str(script),
                *arguments,
            ],
            env=environment(env),
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield starter
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
