"""The link of a process to its gateway: its one session, opened on first use."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from guard.breaker.exceptions import (
    SHUT_DOWN,
    BreakerTransportError,
    GuardError,
    GuardTransportError,
    was_shut_down,
)
from guard.loop import PATIENCE_S, BackgroundLoop, LoopClosedError
from guard.session.exit_hooks import ExitHooks

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

logger = logging.getLogger("guard.session")

T = TypeVar("T")
Work = Callable[["Session"], Coroutine[Any, Any, T]]
"""A function that uses the session, on the background loop."""

_inherited: list[object] = []
"""The parent's connections in a forked child, which must neither use nor close them. The references
keep their finalisers from running, which would close the parent's sockets in mid-message."""


class Link:
    """Opens the session with the gateway and hands it out.

    Args:
        background: the loop that runs the session.
        make_session: creates it.
        exits: installs the exit hooks before there is something to deliver.

    Attributes:
        session: the session; None before the first use. Set on the background loop (by the last
            delivery: in the thread that ends the process), read from any thread.
        restarts_gateway: whether the gateway is this user's own, which is started again after a
            crash. Set once, before the first question.
        key_limit: the name of the budget of this process's key in refusals; None for its usual
            name.
    """

    def __init__(
        self,
        background: BackgroundLoop,
        make_session: Callable[[], Session],
        exits: ExitHooks,
    ) -> None:
        self.background = background
        self.make_session = make_session
        self._exits = exits
        self.session: Session | None = None
        self.restarts_gateway = False
        self.key_limit: str | None = None
        # The newest attempt to connect, which concurrent callers share. On the loop only.
        self._attempt: asyncio.Task[Session] | None = None

    def after_fork(self) -> None:
        """Start without a session in a forked child, and keep the parent's from being closed."""
        _inherited.append((self.session, self._attempt))
        self.session = None
        self._attempt = None

    @property
    def features(self) -> frozenset[str] | None:
        """The gateway's features; None before its first answer."""
        return None if self.session is None else self.session.features

    async def open(self) -> Session:
        """Return the session of this process, and create it the first time.

        On the loop, and without an ``await``: so two first callers get the same session.
        """
        if self.session is None:
            # Here as well as with the first event: a forked child may ask first.
            self._exits.install()
            self.session = self.make_session()
            self.session.start_services(self.background)
        return self.session

    async def open_verified(self) -> Session:
        """Open the session only if the gateway takes the key; on the loop, before any other use.

        Raises:
            GuardError: the key is refused, or nothing was decided.
        """
        session = self.make_session()
        try:
            await session.probe()
        except BaseException:
            await session.client.close()
            raise
        # Only now can other callers see it, and do its tasks run.
        self.session = session
        session.start_services(self.background)
        await session.caught_up()
        return session

    async def connect(self) -> Session:
        """Open the session, probe the gateway and read its current directives.

        A gateway that cannot be reached is not an error. Concurrent callers share one
        attempt.

        Raises:
            GuardError: the key is refused, or the protocol is incompatible.
        """
        attempt = self._attempt
        if attempt is None or attempt.done():
            loop = asyncio.get_running_loop()
            attempt = loop.create_task(self._connect(), context=contextvars.Context())
            attempt.add_done_callback(_seen)
            self._attempt = attempt
        try:
            # Shielded: a caller that gives up must not end the attempt of the others.
            return await asyncio.shield(attempt)
        except GuardError as exc:
            raise copy.copy(exc) from exc.__cause__  # each caller gets its own traceback

    async def _connect(self) -> Session:
        session = await self.open()
        try:
            await session.probe()
        except GuardTransportError as exc:
            if exc.error_code == SHUT_DOWN:
                raise
            logger.warning("the gateway cannot be used yet: %s", exc)
        else:
            await session.caught_up()
        return session

    # -- questions beside the gate ----------------------------------------------------------------

    def ask(self, question: Work[T], timeout_s: float) -> T:
        """Deliver the buffered events, then ask the gateway; blocks the thread.

        Events that cannot be delivered stay in memory, and the gateway is asked all the same.

        Args:
            question: asks, with the session.
            timeout_s: total time for the delivery, and again for the question, in seconds.

        Raises:
            GuardError: no answer, or guard was shut down.
        """
        # Both end by themselves, unless the loop stands still.
        patience_s = 3 * timeout_s + PATIENCE_S
        try:
            answer: T = self.background.run(self._ask, question, timeout_s, timeout_s=patience_s)
        except (LoopClosedError, concurrent.futures.CancelledError):
            raise was_shut_down() from None
        except TimeoutError:
            raise GuardTransportError(f"no answer within {patience_s:g} s") from None
        return answer

    async def ask_async(self, question: Work[T], timeout_s: float) -> T:
        """Like :meth:`ask`, for async code; the caller's loop keeps running."""
        try:
            return await self.background.run_async(self._ask, question, timeout_s)
        except LoopClosedError:
            raise was_shut_down() from None

    async def _ask(self, question: Work[T], timeout_s: float) -> T:
        session = await self.open()
        with contextlib.suppress(GuardError, BreakerTransportError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await session.flusher.flush()
        return await question(session)


def _seen(attempt: asyncio.Task[Session]) -> None:
    """Retrieve an attempt's exception, even when no caller waits for it."""
    if not attempt.cancelled():
        attempt.exception()
