"""A scripted gateway for replies that the real one cannot give, and programs run as processes."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import pytest

from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import settled
from tests.support.programs import environment

CAPABILITIES: Final = "/api/v1/capabilities"
EVENTS: Final = "/api/v1/events"
CONTROL: Final = "/api/v1/control"
GATE: Final = "/gate"
_ROOT: Final = Path(__file__).parents[3]


@attrs.frozen
class Asked:
    """One request that arrived."""

    method: str
    path: str
    target: str
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        import gzip

        body = self.body
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return json.loads(body)


@attrs.frozen
class Canned:
    """One answer; ``body`` may be anything that JSON can hold, or bytes sent as they are."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = {}


class ScriptedGateway:
    """A real HTTP server that answers by the book until it is told something else.

    Attributes:
        url: where it listens.
        asked: the requests so far.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._canned: dict[str, Canned | Callable[[Asked], Canned]] = {}
        self._closing = threading.Event()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner._serve(self)

            do_POST = do_GET  # noqa: N815  # as inherited

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as inherited
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True, name="scripted-gateway"
        )
        self._thread.start()

    def answer(self, path: str, status: int = 200, body: Any = b"", **headers: str) -> None:
        """Answer a path like this from now on; header names with ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._canned[path] = Canned(status, body, named)

    def answer_with(self, path: str, make: Callable[[Asked], Canned]) -> None:
        """Answer a path with what ``make`` returns from now on."""
        self._canned[path] = make

    def calls(self, path: str) -> list[Asked]:
        """Return the requests for one path."""
        return [asked for asked in list(self.asked) if asked.path == path]

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(120)

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.command, path, handler.path, headers, body)
        self.asked.append(asked)
        canned = self._canned.get(path)
        if canned is None:
            canned = self._by_the_book(asked)
        elif not isinstance(canned, Canned):
            canned = canned(asked)
        payload = canned.body
        if not isinstance(payload, bytes):
            payload = json.dumps(payload).encode()
        try:
            handler.send_response(canned.status)
            named = {"Content-Type": "application/json"} | dict(canned.headers)
            for name, value in named.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(payload)))
            handler.end_headers()
            handler.wfile.write(payload)
        except OSError:
            pass  # the client has left, as it may

    def _by_the_book(self, asked: Asked) -> Canned:
        if asked.path == CAPABILITIES:
            return Canned(body={"protocol": 3, "min_sdk_version": "0.6.0", "server": "scripted/1"})
        if asked.path == GATE:
            return Canned(body={"decision": "allow", "call_id": asked.json["call_id"]})
        if asked.path == EVENTS:
            return Canned(202, {"accepted": len(asked.json["events"])})
        if asked.path == CONTROL:
            if len(self.calls(CONTROL)) > 1:  # the first one opens the channel
                self._closing.wait(0.2)
            return Canned(body={"messages": [], "seq": 0})
        return Canned(404, {"title": "Not found", "status": 404})


@pytest.fixture
def scripted() -> Iterator[ScriptedGateway]:
    """A gateway whose replies the test writes."""
    gateway = ScriptedGateway()
    yield gateway
    gateway.close()


@pytest.fixture
def scripted_runtime(scripted: ScriptedGateway, start: Callable[..., GuardRuntime]) -> GuardRuntime:
    """A runtime that talks to the scripted gateway, and polls it for control messages."""
    return settled(start(api_url=scripted.url, transport_mode="http", flush_interval_ms=3_600_000))


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a process of its own; keyword arguments are environment variables."""

    def run(source: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            env=environment(more),
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
