"""Keeps leases while they are used: tops them up, renews them, gives back what is not used."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from msgspec import structs

from guard.breaker.exceptions import BreakerTransportError, GuardError, GuardTransportError
from guard.control.ask_channel import AskChannel
from guard.core import wire
from guard.core.ids import IdFactory
from guard.core.leases import Asked, LaneKey, Lease, LeaseBook, Update
from guard.delivery.flusher import Flusher
from guard.runtime import decision_log
from guard.transport.client import GatewayClient
from guard.transport.replies import Reply

logger = logging.getLogger("guard.leases")

_TICK_S: Final = 0.25
_ANSWER_S: Final = 2.0
_FLUSH_S: Final = 1.0
_VOIDING: Final = frozenset({"policy", "price", "budget", "settings"})
"""Messages after which nothing is covered until the gateway has allowed it anew."""


class LeaseKeeper:
    """The service of a process's leases, on the background loop.

    Args:
        book: the leases.
        asks: requests over the control socket.
        client: the gateway over HTTP, when the socket is away.
        flusher: delivers what was spent before its lease is closed.
        ids: keys of requests.
        read_answers: reads the LLM answers that are unread, so that their holds settle.
        told_ahead: told the lane of a lease when it is known whether it was topped up.

    Attributes:
        asks_ahead: whether the gateway tops leases up before a call has to wait.
    """

    asks_ahead = False

    def __init__(
        self,
        book: LeaseBook,
        asks: AskChannel,
        client: GatewayClient,
        flusher: Flusher,
        ids: IdFactory,
        read_answers: Callable[[], None],
        told_ahead: Callable[[LaneKey], None],
    ) -> None:
        self._book = book
        self._asks = asks
        self._client = client
        self._flusher = flusher
        self._ids = ids
        self._read_answers = read_answers
        self._told_ahead = told_ahead
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            self._asks.sweep(now_s)
            decision_log.is_on()
            if not self._book.lanes:
                self._book.metered.clear()  # a workflow without a lane asks anyway
                continue
            self._read_answers()
            ending = [self._send(update) for update in self._due(now_s) if not update.closes]
            for sending in ending:
                self._start(sending)
            if self.asks_ahead and self._asks.is_open:
                for lease, asked in self._book.low(now_s):
                    self._top_up(lease, asked)

    def _due(self, now_s: float) -> list[Update]:
        updates = self._book.due(now_s)
        closing = [update for update in updates if update.closes]
        if closing:
            self._start(self._close(closing))
        return updates

    def _top_up(self, lease: Lease, asked: Asked) -> None:
        """Ask for more of what a lease was granted for last, before a call has to wait for it."""
        assert lease.question is not None
        call_id = self._ids.uuid7(time.time_ns() // 1_000_000)
        ask = structs.replace(
            lease.question, call_id=call_id, lease=asked.ask, events=[], within=None, held=None,
            note=None,
        )  # fmt: skip
        answered = functools.partial(self._topped_up, asked)
        self._asks.ask("gate", call_id, wire.encode(ask), answered, _ANSWER_S)

    def _topped_up(self, asked: Asked, told: wire.Told | None) -> None:
        self._take_in(asked, told)
        self._told_ahead(asked.lane)

    def _take_in(self, asked: Asked, told: wire.Told | None) -> None:
        if told is None:  # whether it was granted is not known
            self._book.unanswered(asked)
            return
        if told.status != 200:  # a call that asks is told why
            self._book.not_topped_up(asked)
            return
        reply = Reply(wire.GATE_PATH, told.status, bytes(told.body), now_s=time.time())
        try:
            answer = self._client.read(reply, wire.GateReply)
        except GuardError as exc:
            logger.debug("a lease could not be topped up: %s", exc)
            self._book.unanswered(asked)
            return
        if answer.lease is None:
            self._book.not_topped_up(asked)
            return
        back = self._book.topped_up(asked, answer.lease)
        if back is not None:
            self._start(self._send(back))

    def pushed(self, messages: Iterable[wire.ControlMessage]) -> None:
        """Void what control messages concern."""
        for message in messages:
            if message.type in _VOIDING:
                self._book.void(message.workflow_id)

    def recalled(self, lease_ids: list[str]) -> None:
        """Give back at once what is not used; called while the frame is being read."""
        self._read_answers()
        for update in self._book.recall(lease_ids):
            self._start(self._send(update))
        self._asks.flush()

    def switched(self, is_open: bool, good_for_s: float) -> None:
        """The socket has opened, or it was lost: then leases are good for a moment and no longer.

        Args:
            is_open: whether pushes arrive.
            good_for_s: one poll interval, in seconds.
        """
        self._book.usable_until(math.inf if is_open else time.monotonic() + good_for_s)

    async def close(self) -> None:
        """End all leases; what was spent has been delivered before."""
        self._read_answers()
        updates = self._book.close()
        if updates:
            await asyncio.gather(*(self._send(update) for update in updates))

    async def stop(self) -> None:
        """End the requests that are under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- one update ---------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, updates: list[Update]) -> None:
        """Deliver what was spent, then close its leases: they pay for late events only briefly."""
        with contextlib.suppress(GuardError, BreakerTransportError, TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await self._flusher.flush()
        for update in updates:
            await self._send(update)

    async def _send(self, update: Update) -> None:
        key = self._ids.uuid7(time.time_ns() // 1_000_000)
        sent_s = time.monotonic()
        told: asyncio.Future[wire.Told | None] = asyncio.get_running_loop().create_future()
        if self._asks.is_open:
            body = wire.encode(update.body)
            answered = functools.partial(_set, told)
            self._asks.ask("gate/lease", key, body, answered, _ANSWER_S)
        else:
            told.set_result(None)
        answer = await told
        try:
            state = await self._state(update, key, answer)
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("a lease could not be updated: %s", exc)
        else:
            self._book.answered(update, state, sent_s)

    async def _state(
        self, update: Update, key: str, told: wire.Told | None
    ) -> wire.LeaseState | None:
        """Return what became of a lease; None when the gateway does not know it."""
        if told is not None:
            if told.status == 404:
                return None
            reply = Reply(wire.LEASE_PATH, told.status, bytes(told.body), now_s=time.time())
            return self._client.read(reply, wire.LeaseState)
        try:
            return await self._client.update_lease(update.body, key)
        except GuardTransportError as exc:
            if exc.source == "GATEWAY_ERROR" and not exc.retryable:
                return None
            raise


def _set(future: asyncio.Future[wire.Told | None], told: wire.Told | None) -> None:
    if not future.done():
        future.set_result(told)
