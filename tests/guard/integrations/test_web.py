"""A kill ends the one request with 503; the worker and its other requests go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import guard
from guard.integrations.web import ASGIMiddleware, WSGIMiddleware
from guard.runtime.runtime import GuardRuntime
from tests.support.ports import listens
from tests.support.waiting import WAIT_S, until

ROOT = Path(__file__).parents[3]

WSGI = """
import os
import guard
from guard.integrations.web import WSGIMiddleware
guard.init()

@guard.protect
def step():
    return b"ran"

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    with guard.workflow(environ["PATH_INFO"].strip("/")):
        return [step() + str(os.getpid()).encode()]

app = WSGIMiddleware(app)
"""


def test_gunicorns_threads(tmp_path: Path, tenant: Any) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "webapp.py").write_text(WSGI)
    tenant.admin.kill("killed")
    socket_path = tmp_path / "web.sock"
    with (tmp_path / "out.txt").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "webapp:app", "--workers", "1", "--threads", "4",
             "--timeout", "0", "--keep-alive", "120", "--bind", f"unix:{socket_path}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
                 "GUARD_API_KEY": tenant.key, "GUARD_API_URL": tenant.url},
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: listens(socket_path) or process.poll() is not None, WAIT_S)
        transport = httpx.HTTPTransport(uds=str(socket_path))
        with httpx.Client(transport=transport, timeout=120) as client:
            before = client.get("http://web/other")
            killed = client.get("http://web/killed")
            after = client.get("http://web/other")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
    assert (before.status_code, killed.status_code) == (200, 503), (
        tmp_path / "out.txt"
    ).read_text()
    assert "stopped" in killed.text
    assert after.text == before.text, "the same worker"


@pytest.fixture
def killed(runtime: GuardRuntime, tenant: Any) -> None:
    tenant.admin.kill("killed")
    until(lambda: runtime.enforcement.control.kills, WAIT_S)


class Response:
    """What a WSGI server sees, as PEP 3333 wants it."""

    def __init__(self, app: Any) -> None:
        self.sent: list[bytes] = []
        self.statuses: list[str] = []
        body = app({}, self.start_response)
        try:
            for chunk in body:
                self.sent.append(chunk)
        finally:
            if hasattr(body, "close"):
                body.close()

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> None:
        if exc_info is not None and self.sent:
            raise exc_info[1]
        assert exc_info is not None or not self.statuses
        self.statuses.append(status)


@pytest.mark.usefixtures("killed")
class TestWSGI:
    def streaming(self, before: int) -> WSGIMiddleware:
        def app(environ: Any, start_response: Any) -> Iterator[bytes]:
            start_response("200 OK", [])
            for _ in range(before):
                yield b"part"
            with guard.workflow("killed"):
                guard.protect(len)("abc")

        return WSGIMiddleware(app)

    def test_before_the_first_part(self) -> None:
        response = Response(self.streaming(0))
        assert response.statuses == ["200 OK", "503 Service Unavailable"]
        assert b"stopped" in b"".join(response.sent)

    def test_in_mid_response(self) -> None:
        with pytest.raises(ConnectionAbortedError) as aborted:
            Response(self.streaming(2))
        assert isinstance(aborted.value.__cause__, guard.WorkflowKilledInterrupt)

    def test_what_is_no_kill_passes(self) -> None:
        def app(environ: Any, start_response: Any) -> list[bytes]:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            Response(WSGIMiddleware(app))


@pytest.mark.usefixtures("killed")
class TestASGI:
    """Under the real uvicorn."""

    @pytest.fixture
    def url(self) -> Iterator[str]:
        uvicorn = pytest.importorskip("uvicorn")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            start = {"type": "http.response.start", "status": 200, "headers": []}
            if scope["path"] == "/late":
                await send(start)
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
            async with asyncio.TaskGroup() as group:
                group.create_task(self.work(scope["path"]))
            await send(start)
            await send({"type": "http.response.body", "body": b"ran"})

        config = uvicorn.Config(ASGIMiddleware(app), port=0, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started, WAIT_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join(WAIT_S)

    async def work(self, path: str) -> None:
        async def step() -> None: ...

        with guard.workflow("other" if path == "/other" else "killed"):
            await guard.protect(step)()

    def test_each_kind_of_request(self, url: str) -> None:
        with httpx.Client(base_url=url, timeout=120) as client:
            assert client.get("/other").text == "ran"
            refused = client.get("/killed")
            assert refused.status_code == 503
            assert "stopped" in refused.text
            with pytest.raises(httpx.RemoteProtocolError):
                client.get("/late")
            assert client.get("/other").text == "ran"
