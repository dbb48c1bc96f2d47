"""The gateway's tasks in the background outlive a defect, and its end outlives a dead task."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, cast

import pytest

from guard.gateway import connections
from guard.gateway.app import GatewayApp
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import DueDelivery
from guard.gateway.services import change_watcher, webhooks
from guard.gateway.services.change_watcher import ChangeWatcher
from guard.gateway.services.webhooks import Outcome, WebhookSender
from guard.gateway.settings import GatewaySettings
from tests.support.waiting import until_async


class Broken:
    """A store whose first calls fail, each with its own exception; counts all of them."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.calls: list[Any] = []

    def _call(self, name: object) -> None:
        self.calls.append(name)
        if self._failures:
            raise self._failures.pop(0)

    async def write(self, _: object, use_case: Any, *args: Any, **__: Any) -> Any:
        self._call(use_case)
        return []

    async def watermarks(self, known: dict[str, Any]) -> dict[str, Any]:
        self._call("watermarks")
        return dict.fromkeys(known, ("later",))


FAILURES = [StoreError("the disk is full"), RuntimeError("a defect")]


@pytest.mark.asyncio
@pytest.mark.parametrize("failure", FAILURES)
async def test_the_sender_looks_again(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    store = Broken(failure)
    sender = WebhookSender(cast("Any", store), lambda: 1)
    task = asyncio.create_task(sender.run())
    await until_async(lambda: store.calls)
    sender.wake()
    await until_async(lambda: len(store.calls) > 1 or task.done())
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert str(failure) in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_delivery_that_cannot_be_recorded_is_not_sent_again_at_once(
    failure: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_IDLE_S", 3600.0)
    store = Broken(failure)
    sender = WebhookSender(cast("Any", store), lambda: 1)

    async def arrived(*_: object) -> Outcome:
        return Outcome(200, delivered=True)

    monkeypatch.setattr(sender, "attempt", arrived)
    due = DueDelivery("d", "o", "https://x", "", "x", "{}", created_at_ms=1, attempts=0)
    task = asyncio.create_task(sender._deliver(due))
    await until_async(lambda: store.calls and (task.done() or str(failure) in caplog.text))
    await asyncio.sleep(0)
    assert not task.done(), "while it lives its message is not started again"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("failure", FAILURES)
async def test_the_watch_of_open_pages_looks_again(
    failure: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_watcher, "INTERVAL_S", 0.0)
    store = Broken(failure)
    watcher = ChangeWatcher(cast("Any", store))
    listener = watcher.subscribe("o")
    task = asyncio.create_task(watcher.run())
    assert await listener.wait(60), "its page says that it is out of date"
    await until_async(lambda: len(store.calls) > 1 or task.done())
    assert not task.done()
    assert watcher.healthy
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert str(failure) in caplog.text


@pytest.mark.asyncio
async def test_the_deadlines_of_connections_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_SCAN_INTERVAL_S", 0.0)
    watch = connections.HttpConnections(60.0, 10)
    scans: list[float] = []

    def fails_at_first(now: float) -> None:
        scans.append(now)
        if len(scans) == 1:
            raise RuntimeError("a defect")

    monkeypatch.setattr(watch, "scan", fails_at_first)
    task = asyncio.create_task(watch.run())
    await until_async(lambda: len(scans) > 1 or task.done())
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "a defect" in caplog.text


@pytest.mark.asyncio
async def test_the_end_closes_everything_whatever_has_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = GatewayApp(GatewaySettings(database=tmp_path / "g.sqlite3"))
    closed: list[str] = []

    async def dies() -> None:
        raise RuntimeError("a defect")

    close = app.storage.close

    async def fails_to_close() -> None:
        await close()
        closed.append("store")
        raise StoreError("the last page was not written")

    await app.open()
    monkeypatch.setattr(app.storage, "close", fails_to_close)
    others = list(app._tasks)
    dead = asyncio.create_task(dies())
    app._tasks.append(dead)
    await until_async(dead.done)
    with caplog.at_level(logging.ERROR), pytest.raises(StoreError, match="last page"):
        await app.close()
    assert closed == ["store"]
    assert all(each.done() for each in others)
    assert "a background task has failed" in caplog.text
    assert "RuntimeError: a defect" in caplog.text
