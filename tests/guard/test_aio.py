"""``guard.aio``: start and stop inside a running loop, and as an application's lifespan."""

from __future__ import annotations

import asyncio
import socket

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import guard
from guard.breaker.exceptions import GuardAuthError, GuardConfigError
from guard.runtime import active_runtime
from tests.guard.conftest import Tenant
from tests.support.waiting import WAIT_S


@pytest.mark.asyncio
async def test_start_and_stop(tenant: Tenant) -> None:
    runtime = await guard.aio.init(tenant.key, tenant.url)
    assert await guard.aio.init(tenant.key, tenant.url, debug=True) is runtime
    assert runtime.settings.debug
    with pytest.raises(GuardConfigError):
        await guard.aio.init("another-key-0123456789", tenant.url)
    with guard.workflow("aio"):
        guard.track_llm(5)
    await guard.aio.shutdown(WAIT_S)
    assert runtime.is_shut_down
    assert len(tenant.llm_events("aio")) == 1
    await guard.aio.shutdown()


@pytest.mark.asyncio
async def test_a_refused_key(tenant: Tenant) -> None:
    with pytest.raises(GuardAuthError):
        await guard.aio.init("gdk_wrong_key_0123456789", tenant.url)


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_the_gateway_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        starting = asyncio.create_task(guard.aio.init("some-key-0123456789", url))
        for _ in range(5):
            await asyncio.sleep(0.01)
            assert not starting.done()
    # Closed: what was asked is reset, and nobody can be asked again.
    assert (await starting).status().state == "offline"
    await guard.aio.shutdown()


def test_the_lifespan_of_an_application(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_API_KEY", tenant.key)
    monkeypatch.setenv("GUARD_API_URL", tenant.url)
    # An application cannot say how long the end may take; a busy machine takes its time.
    monkeypatch.setattr(guard.aio.shutdown, "__defaults__", (WAIT_S, True))
    app = FastAPI(lifespan=guard.aio.lifespan)

    @app.get("/")
    @guard.protect
    async def answer() -> str:
        guard.track_llm(5)
        return guard.status().state

    with TestClient(app) as client:
        assert client.get("/").json() in ("ok", "degraded")
        runtime = active_runtime()
        assert runtime is not None
    assert runtime.is_shut_down
    assert len(tenant.llm_events()) == 1
