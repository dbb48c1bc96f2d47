"""The last delivery of a process: it retries until its deadline, since there is no later try."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from guard.breaker.exceptions import (
    SHUT_DOWN,
    GuardAuthenticationError,
    GuardAuthError,
    GuardError,
    GuardProtocolError,
)
from guard.core.retry import LastTries
from guard.core.wire import EVENTS_PATH
from guard.transport.replies import NotAGatewayError

if TYPE_CHECKING:  # they import httpx, which `import guard` must not
    from guard.delivery.flusher import Flusher
    from guard.transport.client import GatewayClient

_TRIES: Final = LastTries()
_FINAL: Final = (
    GuardAuthenticationError, GuardAuthError, GuardProtocolError, NotAGatewayError,
)  # fmt: skip
"""Failures that a retry cannot change: the key, the SDK or the address is wrong."""


async def deliver_until(
    ends_s: float, flusher: Flusher, client: GatewayClient
) -> GuardError | None:
    """Deliver everything; retry until a deadline, with pauses, at least those the gateway asks for.

    Between two tries the events are on disk, if there is a spool, since the process may be killed.

    Args:
        ends_s: the deadline, by ``time.monotonic()``. The caller has to cancel a try that is under
            way then.
        flusher: has the events.
        client: delivers them.

    Returns:
        Why not everything could be delivered; None when it was.
    """
    failures = 0
    took_back = False
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
            left_s=ends_s - time.monotonic(),
        )
        if pause_s is None:
            return failure
        failures += 1
        await asyncio.sleep(pause_s)
