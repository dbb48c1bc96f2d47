"""A name server that does not answer holds up nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

import pytest

from guard.running.name_lookup import LookupLoop


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make every name wait but one."""
    answers = threading.Event()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[str]:
        if host == "known":
            return ["here"]
        answers.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield answers
    answers.set()


def test_others_and_the_end_do_not_wait(silent: threading.Event) -> None:
    async def look_up() -> list[Any]:
        loop = asyncio.get_running_loop()
        waiting = [asyncio.create_task(loop.getaddrinfo(f"h{n}", 443)) for n in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(str, 1) == "1"
        found = await loop.getaddrinfo("known", 443)
        for each in waiting:
            each.cancel()
        return found

    began_s = time.monotonic()
    with asyncio.Runner(loop_factory=LookupLoop) as runner:
        assert runner.run(look_up()) == ["here"]
    assert time.monotonic() - began_s < 10


def test_what_fails_raises(silent: threading.Event) -> None:
    silent.set()

    async def look_up() -> None:
        await asyncio.get_running_loop().getaddrinfo("nowhere", 443)

    with (
        asyncio.Runner(loop_factory=LookupLoop) as runner,
        contextlib.suppress(socket.gaierror),
    ):
        runner.run(look_up())
        pytest.fail("it does not raise")
