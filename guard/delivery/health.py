"""The facts about a process's delivery and gateway: the session writes them, ``status()`` reads."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from guard.breaker.circuit import CircuitState
from guard.breaker.exceptions import (
    GuardAuthenticationError,
    GuardError,
    GuardInfrastructureError,
    GuardProtocolError,
    GuardTransportError,
    RateLimitError,
)
from guard.core import wire
from guard.core.buffer import EventBuffer
from guard.core.leases import Totals
from guard.state import Facts, GuardStatus, derive_state
from guard.transport.replies import NotAGatewayError
from guard.version import __version__


class Health:
    """The facts behind the status. Written on the loop's thread, read from any thread.

    Readers take no lock: each fact is one attribute, and a status may mix facts of two moments.

    Args:
        buffer: counts the events that it has shed.

    Attributes:
        sent: how many events the gateway accepted.
        settled_s: when the gateway last accepted a batch from memory, or refused it for good, by
            ``time.monotonic()``.
        stands_by: whether the key is a proxy's own, which has no control channel.
        rejection: why the gateway refuses the key; None once it has accepted it.
        is_closed: whether delivery has ended: events that are in the buffer then or are recorded
            later are lost.
    """

    def __init__(self, buffer: EventBuffer) -> None:
        self._buffer = buffer
        self.is_closed = False
        self.channel = "none"
        self.protocol: int | None = None
        self.poll_interval_ms = 1000
        self.misconfigured = False
        self.rejection: GuardAuthenticationError | None = None
        self.gate_unavailable = False
        self.stands_by = False
        self.last_contact_ms: int | None = None
        self.last_error_code: str | None = None
        self.sent = 0
        self.settled_s = 0.0
        # Events that were lost after they had left the buffer. Written under the lock, by the loop,
        # by the thread that ends the process, and by callers after that end.
        self._lost_later = 0
        # Re-entrant: a signal handler may end the process while its thread counts.
        self._lock = threading.RLock()
        # `lost` at the newest usable answer: the status is `degraded` while it has grown since.
        self.lost_at_contact = 0

    @property
    def lost(self) -> int:
        """How many events will never be delivered."""
        left = len(self._buffer) if self.is_closed else 0
        return self._lost_later + self._buffer.dropped + left

    def lose(self, count: int) -> None:
        """Count events that will never be delivered, except those that the buffer shed."""
        with self._lock:
            self._lost_later += count

    def heard(self, exc: BaseException | None) -> None:
        """Record how a request to the gateway ended: with an answer (None) or with an exception."""
        # 1. The caller gave up: this says nothing about the gateway.
        if isinstance(exc, asyncio.CancelledError):
            return
        if isinstance(exc, GuardError):
            self.last_error_code = exc.error_code
        # 2. No usable answer. A 429 is a contact all the same; another server is a wrong address.
        if isinstance(exc, GuardTransportError):
            if isinstance(exc, RateLimitError):
                self.touch()
            elif isinstance(exc, NotAGatewayError):
                self.misconfigured = True
            return
        # 3. An answer, perhaps a refusal.
        self.misconfigured = isinstance(exc, GuardAuthenticationError | GuardProtocolError)
        self.rejection = exc if isinstance(exc, GuardAuthenticationError) else None
        self.last_contact_ms = time.time_ns() // 1_000_000
        self.lost_at_contact = self._lost_later + self._buffer.dropped

    def gate_ended(self, exc: BaseException | None) -> None:
        """Record how a gate request ended: with a decision, or with an exception.

        A refusal by policy is a decision; a 429 and GD-R002 are not.
        """
        if not isinstance(exc, asyncio.CancelledError):
            unavailable = isinstance(exc, GuardTransportError | GuardInfrastructureError)
            self.gate_unavailable = unavailable

    def touch(self) -> int:
        """Record that the gateway has just answered; return the time in Unix ms."""
        self.last_contact_ms = now_ms = time.time_ns() // 1_000_000
        return now_ms

    def capable(self, capabilities: wire.Capabilities) -> None:
        """Record the gateway's protocol and poll interval."""
        self.protocol = capabilities.protocol
        self.poll_interval_ms = capabilities.control.poll_interval_ms

    def switched(self, channel: str) -> None:
        """Record the control channel in use."""
        self.channel = channel

    def silence_ms(self) -> int | None:
        """Return the time since the gateway's last answer; None if there was none."""
        contact = self.last_contact_ms
        return None if contact is None else time.time_ns() // 1_000_000 - contact

    def snapshot(
        self,
        *,
        api_url: str,
        breaker: CircuitState,
        buffered: int,
        spooled: int,
        unseen_hosts: tuple[str, ...],
        unhooked_clients: tuple[str, ...],
        shut_down: bool,
        leases: Totals,
        over_socket: bool,
    ) -> GuardStatus:
        """Return the status that follows from these facts; changes nothing."""
        facts = Facts(
            misconfigured=self.misconfigured,
            shut_down=shut_down,
            silence_ms=self.silence_ms(),
            poll_interval_ms=self.poll_interval_ms,
            channel=self.channel,
            breaker=breaker,
            spooled=spooled,
            lost_since_contact=self.lost > self.lost_at_contact,
            unseen_hosts=bool(unseen_hosts),
            unhooked_clients=bool(unhooked_clients),
            gate_unavailable=self.gate_unavailable,
            stands_by=self.stands_by,
        )
        state = derive_state(facts)
        reachable = state in ("ok", "degraded")
        return GuardStatus(
            state=state,
            api_url=api_url,
            protocol=self.protocol,
            control_channel=self.channel,
            breaker=breaker,
            buffered=buffered,
            spooled=spooled,
            events_sent=self.sent,
            events_lost=self.lost,
            last_contact_ms=self.last_contact_ms,
            last_error_code=self.last_error_code,
            unseen_hosts=unseen_hosts,
            unhooked_clients=unhooked_clients,
            sdk_version=__version__,
            pid=os.getpid(),
            decisions=("socket" if over_socket else "http") if reachable else "none",
            leases=leases.leases,
            leased_nanousd=leases.nanousd,
            leased_calls=leases.under_way,
        )
