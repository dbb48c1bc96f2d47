"""Time in this process's own queues is not the gateway's time for an answer."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

import guard
from guard.asking.courier import Courier
from guard.runtime.runtime import GuardRuntime
from guard.session.link import Link
from guard.transport.connections import _Client
from guard.transport.http import GatewayHttp
from tests.support.waiting import until

TIMEOUT_S: Final = 3.0
STALL_S: Final = TIMEOUT_S + 1.0


class Stall:
    """Stands still once, on the loop, for longer than an answer may take."""

    def __init__(self) -> None:
        self.is_armed = False
        self.count = 0

    def __call__(self) -> None:
        if self.is_armed:
            self.is_armed = False
            self.count += 1
            time.sleep(STALL_S)


Patch = pytest.MonkeyPatch
Moment = Callable[[Patch, GuardRuntime, Stall], None]


def _before(owner: Any, name: str) -> Moment:
    """Stall before a method."""

    def install(patch: Patch, runtime: GuardRuntime, stall: Stall) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def late(*args: Any, **options: Any) -> Any:
            stall()
            return method(*args, **options)

        patch.setattr(owner, name, late)

    return install


def _requests_are_sent(patch: Patch, runtime: GuardRuntime, stall: Stall) -> None:
    """Stall over HTTP once a request has left: its answer comes meanwhile."""
    note = _Client._note

    async def late(self: _Client, event: str, info: Any) -> None:
        await note(self, event, info)
        if event == "http11.send_request_body.complete":
            stall()

    patch.setattr(_Client, "_note", late)


def _frames_are_sent(patch: Patch, runtime: GuardRuntime, stall: Stall) -> None:
    """Stall once a frame has left over the socket."""
    assert runtime.link.session is not None
    asks = runtime.link.session.asks
    send: Any = asks._send

    def late(frame: bytes) -> bool:
        sent: bool = send(frame)
        stall()
        return sent

    patch.setattr(asks, "_send", late)


EITHER: Final[dict[str, Moment]] = {
    "before the loop takes it up": _before(Courier, "_take_in"),
    "while it is taken up": _before(Courier, "_look"),
}
MOMENTS: Final[dict[str, dict[str, Moment]]] = {
    "http": EITHER
    | {
        "while the session opens": _before(Link, "open"),
        "before the request is made": _before(GatewayHttp, "send"),
        "after the request has left": _requests_are_sent,
    },
    "websocket": EITHER | {"after the frame has left": _frames_are_sent},
}
CASES: Final = [
    pytest.param(mode, moment, kind, id=f"{mode}, {name}, {kind}")
    for mode, moments in MOMENTS.items()
    for (name, moment), kind in zip(moments.items(), itertools.cycle(["sync", "async"]))
]


@guard.protect
def work() -> str:
    """Say that it ran."""
    return "ran"


@guard.protect
async def work_async() -> str:
    """Say that it ran."""
    return "ran"


class TestAnswers:
    @pytest.mark.generator("moments at which a loop comes late")
    @pytest.mark.parametrize(("mode", "moment", "kind"), CASES)
    def test_a_loop_that_comes_late_takes_no_time_from_the_gateway(
        self,
        start: Callable[..., GuardRuntime],
        monkeypatch: Patch,
        mode: str,
        moment: Moment,
        kind: str,
    ) -> None:
        runtime = start(transport_mode=mode, timeout_ms=int(TIMEOUT_S * 1000))
        channel = "poller" if mode == "http" else "websocket"
        until(lambda: runtime.status().control_channel == channel)
        stall = Stall()
        moment(monkeypatch, runtime, stall)
        stall.is_armed = True
        assert (work() if kind == "sync" else asyncio.run(work_async())) == "ran"
        assert stall.count == 1, "the stall was not where the question passes"
