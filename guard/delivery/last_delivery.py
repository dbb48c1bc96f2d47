"""A delivery that somebody waits for: it is tried again as long as there is patience left."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from guard.breaker.exceptions import (
    SHUT_DOWN,
    GuardAuthenticationError,
    GuardAuthError,
    GuardError,
    GuardProtocolError,
)
from guard.core.retry import LastTries
from guard.core.wire import EVENTS_PATH
from guard.delivery.health import Health
from guard.transport.replies import NotAGatewayError

if TYPE_CHECKING:  # they import httpx, which `import guard` must not
    from guard.delivery.flusher import Flusher
    from guard.transport.client import GatewayClient

T = TypeVar("T")
_TRIES: Final = LastTries()
_FINAL: Final = (
    GuardAuthenticationError, GuardAuthError, GuardProtocolError, NotAGatewayError,
)  # fmt: skip
"""Failures that a retry cannot change: the key, the SDK or the address is wrong."""


class Patience:
    """How long a delivery may go on: the time begins anew with each batch that is accepted.

    A bound on the whole would drop events that a slow gateway, or a busy machine, is delivering.
    It is a bound nevertheless: only batches from memory count, and those are limited.

    Args:
        seconds: for how long no batch may be accepted.
        health: notes when the newest one was.
    """

    def __init__(self, seconds: float, health: Health) -> None:
        self.seconds = seconds
        self._health = health
        self._began_s = time.monotonic()

    def left_s(self) -> float:
        """Return how much time is left; from any thread."""
        return max(self._began_s, self._health.settled_s) + self.seconds - time.monotonic()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; cancel it when no time is left.

        Raises:
            TimeoutError: it was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and (left_s := self.left_s()) > 0:
                await asyncio.wait((task,), timeout=left_s)
            if task.done():
                return task.result()
            raise TimeoutError("no answer in time")
        finally:  # what is cancelled puts its events back, and is waited for
            if task.cancel():
                await asyncio.wait((task,))


async def deliver_until(
    patience: Patience, flusher: Flusher, client: GatewayClient, *, is_last: bool = True
) -> GuardError | None:
    """Deliver everything; try again while there is time, with pauses: at least those asked for.

    Between two tries the events are on disk, if there is a spool, since the process may be killed.

    Args:
        patience: says how much time is left. The caller has to cancel a try that is under way when
            none is.
        flusher: has the events.
        client: delivers them.
        is_last: whether also events are sent that wait for the answer to a gate request.

    Returns:
        Why not everything could be delivered; None when it was.
    """
    failures = 0
    took_back = not is_last
    while True:
        # An open circuit would refuse to try, and there is no later. The pauses limit the load.
        client.circuit.end_cooldown(now_s=time.monotonic())
        failure = await flusher.deliver()
        if failure is None:
            # Events that are attached to gate requests: those may never be answered now. Taken back
            # once only, since callers may continue to ask, with new events attached.
            if took_back or not flusher.take_back():
                return None
            took_back = True
            continue
        if isinstance(failure, _FINAL) or failure.error_code == SHUT_DOWN:
            return failure
        silence = client.left_alone(EVENTS_PATH)
        pause_s = _TRIES.pause_s(
            failures,
            random.random(),
            silence_s=0.0 if silence is None else silence.retry_after or 0.0,
            left_s=patience.left_s(),
        )
        if pause_s is None:
            return failure
        failures += 1
        await asyncio.sleep(pause_s)
