"""The last delivery of a process: it tries until its deadline, since nobody tries later."""

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
"""Answers that a later try would get again: the key, the SDK or the address is wrong."""


async def deliver_until(
    ends_s: float, flusher: Flusher, client: GatewayClient
) -> GuardError | None:
    """Deliver everything; try again until a deadline, with pauses, as the gateway asks for them.

    Between two tries the events are on disk, if there is a spool: the process may be killed.

    Args:
        ends_s: the deadline, by ``time.monotonic()``; a try that is under way then is the caller's
            to cancel.
        flusher: has the events.
        client: delivers them.

    Returns:
        Why not everything could be delivered; None when it was.
    """
    failures = 0
    took_back = False
    while True:
        # The gateway may be back, and there is no later; the pauses below bound the tries.
        client.circuit.end_cooldown(now_s=time.monotonic())
        failure = await flusher.deliver()
        if failure is None:
            # Their requests may never be answered. Once: others may go along with new ones.
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
