"""GuardRuntime: composes settings, buffer, control state, link and instrumentation."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from guard import debuglog
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardConfigError,
    GuardError,
    GuardTransportError,
    WorkflowKilledInterrupt,
)
from guard.breaker.halts import Refusal, exception_for_halt
from guard.core import wire
from guard.core.batching import EventBuffer
from guard.core.control import ControlState, Mark
from guard.core.ids import IdFactory
from guard.decisions import Decisions
from guard.health import Health
from guard.hooks import ErrorContext, fire
from guard.instrumentation import Instrumentation
from guard.interrupts import ActiveBodies, TaskBody
from guard.loop import BackgroundLoop, LoopClosedError
from guard.scope import Scope, current_scope
from guard.settings import Settings
from guard.state import GuardStatus

if TYPE_CHECKING:  # the link imports httpx and websockets, which `import guard` must not
    from guard.io.link import Link

T = TypeVar("T")
logger = logging.getLogger("guard")

_CLOSE_S: Final = 1.0


class GuardRuntime:
    """The SDK at work in one process: at most one is active at a time (spec part 2).

    ``guard.init()`` makes one from arguments and the environment; construct it directly to set
    what ``init`` does not take. It becomes the process's runtime and connects on first use, at
    :meth:`open`, or without blocking with ``await GuardRuntime.start(...)``.

    Args:
        api_key, api_url, debug: as for ``guard.init``.
        hmac_secret: signs every request when set.
        batch_size: most events in one batch (1 to 1000).
        flush_interval_ms: longest time an event waits in the buffer, in milliseconds.
        buffer_size: most events kept in memory.
        transport_mode: ``auto``, ``websocket`` or ``http``.
        fallback_mode: ``closed`` or ``open``.
        timeout_ms: total time for one answer of the gateway, in milliseconds.
        spool_dir: directory for events that cannot be delivered.
        auto_instrument: whether HTTP clients are instrumented.
        inject_stream_usage: whether streams are asked for their usage where the vendor accepts it.

    Raises:
        GuardAuthenticationError: no key (GD-C001).
        GuardConfigError: a bad value (GD-C003), or another runtime is active (GD-C004).
        InsecureTransportError: plain HTTP to anything but a loopback address.

    Example:
        >>> runtime = GuardRuntime(api_key="<API_KEY>", batch_size=20)  # doctest: +SKIP
        >>> runtime.open()  # doctest: +SKIP
    """

    def __init__(
        self,
        api_key: str | None = None,
        api_url: str | None = None,
        debug: bool | None = None,
        *,
        hmac_secret: str | None = None,
        batch_size: int | None = None,
        flush_interval_ms: int | None = None,
        buffer_size: int | None = None,
        transport_mode: str | None = None,
        fallback_mode: str | None = None,
        timeout_ms: int | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        auto_instrument: bool | None = None,
        inject_stream_usage: bool | None = None,
    ) -> None:
        try:
            self.settings = Settings.load(
                api_key=api_key,
                api_url=api_url,
                debug=debug,
                hmac_secret=hmac_secret,
                batch_size=batch_size,
                flush_interval_ms=flush_interval_ms,
                buffer_size=buffer_size,
                transport_mode=transport_mode,
                fallback_mode=fallback_mode,
                timeout_ms=timeout_ms,
                spool_dir=None if spool_dir is None else Path(spool_dir),
                auto_instrument=auto_instrument,
                inject_stream_usage=inject_stream_usage,
            )
            _refuse_second()
        except GuardError as exc:
            fire(exc, ErrorContext("init"))
            raise
        if self.settings.debug:
            debuglog.start()
        self.control = ControlState()
        self._background = BackgroundLoop()
        self._shut_down = False
        self._at_exit_registered = False
        self._fresh_process()
        self.instrumentation = Instrumentation(
            record=self.record,
            check=self.check_request,
            inject_stream_usage=self.settings.inject_stream_usage,
        )
        _install(self)

    def _fresh_process(self) -> None:
        """State that belongs to one process; a forked child starts it anew."""
        self.ids = IdFactory()
        self.buffer = EventBuffer(self.settings.buffer_size)
        self.bodies = ActiveBodies()
        self.decisions = Decisions()
        self._link: Link | None = None
        self._opened = False
        self._connecting = False
        self.health = Health()

    @property
    def is_open(self) -> bool:
        """Whether :meth:`open` has succeeded in this process, or the runtime was shut down."""
        return self._opened or self._shut_down

    @property
    def is_shut_down(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._shut_down

    def __repr__(self) -> str:
        return f"<GuardRuntime {self.settings.api_url} pid={os.getpid()}>"

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> Self:
        """Probe the gateway and start the services; blocks up to ``timeout_ms``. Idempotent.

        A gateway that cannot be reached is not an error: the status says ``offline`` and the
        services recover by themselves.

        Raises:
            GuardAuthenticationError: the key or signature is refused.
            GuardProtocolError: SDK and gateway do not fit.
        """
        if not self._opened:
            try:
                self._background.run(self._connect)
            except LoopClosedError:
                raise _was_shut_down() from None
            except BaseException as exc:
                self._discard(exc)
                raise
            self._ready()
        return self

    @classmethod
    async def start(
        cls, api_key: str | None = None, api_url: str | None = None, **settings: Any
    ) -> Self:
        """Make a runtime and open it without blocking the running loop.

        Args:
            api_key, api_url: as for ``guard.init``.
            settings: everything else that the constructor takes.
        """
        runtime = cls(api_key, api_url, **settings)
        try:
            await runtime._background.run_async(runtime._connect)
        except BaseException as exc:
            runtime._discard(exc)
            raise
        runtime._ready()
        return runtime

    def _ready(self) -> None:
        self._opened = True
        if self.settings.auto_instrument:
            self.instrumentation.install()
        if not self._at_exit_registered:
            self._at_exit_registered = True
            atexit.register(self._at_exit)

    async def _connect(self) -> Link:
        link = await self._linked()
        try:
            await link.probe()
        except GuardTransportError as exc:
            logger.warning("the gateway cannot be reached yet: %s", exc)
        return link

    async def _linked(self) -> Link:
        """Return the link of this process; made on the loop, so there is no race for it."""
        if self._link is None:
            from guard.io.link import Link

            self._link = Link(
                self.settings,
                self.ids,
                self.buffer,
                self.health,
                control_seq=lambda: self.control.seq,
                controlled=self._controlled,
            )
            self._link.start_services(self._background)
        return self._link

    def _discard(self, exc: BaseException) -> None:
        """A runtime that could not start leaves nothing behind."""
        self.told(exc, "init")
        self._shut_down = True
        link = self._link
        if link is not None:
            self._closed_link(link, time.monotonic() + _CLOSE_S)
        self._background.close(_CLOSE_S)
        debuglog.stop()
        _uninstall(self)

    def shutdown(self, timeout: float = 2.0, flush: bool = True) -> None:
        """Close the control socket cleanly, deliver what is buffered, stop the thread. Idempotent.

        Args:
            timeout: total time in seconds.
            flush: whether to deliver what is buffered; without it the events are counted as lost.

        Raises:
            BreakerTransportError: events could not be delivered in time.
        """
        if self._shut_down:
            return
        self._shut_down = True  # from here on `status()` says offline, and new calls are refused
        ends = time.monotonic() + max(0.0, timeout)
        self.instrumentation.uninstall()
        failure: BreakerTransportError | None = None
        # At interpreter exit the loop still runs, but name look-ups need executors, now dead.
        at_exit = not threading.main_thread().is_alive()
        link = self._link
        try:
            if link is not None:
                if flush and len(self.buffer) and not at_exit:
                    failure = self._flush_until(ends)
                self._closed_link(link, ends)
                if flush and len(self.buffer) and at_exit:
                    link.flusher.drain_blocking(max(0.0, ends - time.monotonic()))
        except BreakerTransportError as exc:
            failure = exc
        finally:
            self._background.close(max(0.05, min(_CLOSE_S, ends - time.monotonic())))
            debuglog.stop()
        if failure is not None:
            raise failure

    def _flush_until(self, ends: float) -> BreakerTransportError | None:
        try:
            self._background.run(
                self._flush, timeout_s=max(0.0, ends - time.monotonic() - _CLOSE_S / 4)
            )
        except BreakerTransportError as exc:
            return exc
        except TimeoutError:
            left = len(self.buffer)
            return BreakerTransportError(
                f"{left} events were not delivered in time", events_lost=left, buffer_size=left
            )
        return None

    def _closed_link(self, link: Link, ends: float) -> None:
        try:
            self._background.run(link.close, timeout_s=max(0.05, ends - time.monotonic()))
        except (TimeoutError, LoopClosedError):
            logger.debug("the connections did not close in time")

    def _at_exit(self) -> None:
        try:
            self.shutdown()
        except BreakerTransportError as exc:
            logger.warning("at exit: %s", exc)

    # -- events -------------------------------------------------------------------------------

    def record(
        self, kind: str, payload: Any, scope: Scope | None = None, at_ns: int | None = None
    ) -> int:
        """Put an event into the buffer; never blocks. Returns the event's serial number."""
        serial = self.ids.serial()
        if self._shut_down:
            self.health.lost += 1  # nobody is left who would deliver it
            return serial
        if scope is None:
            scope = current_scope.get()
        at_ns = time.time_ns() if at_ns is None else at_ns
        size = self.buffer.append((kind, at_ns, serial, scope, payload))
        if size == self.settings.batch_size or self._link is None:
            self._nudge()
        return serial

    def _nudge(self) -> None:
        """Wake the flusher; in a forked child, start it first. Waits for nothing."""
        if self._link is not None:
            self._background.call_soon(self._link.flusher.wake)
        elif not self._connecting and not self._shut_down:
            self._connecting = True
            try:
                self._background.submit(self._connect)
            except RuntimeError:
                logger.debug("the background loop cannot start now", exc_info=True)

    def flush(self, timeout: float | None = None) -> None:
        """Deliver everything that is buffered now and wait for it.

        Args:
            timeout: total time in seconds; None waits for the gateway's own deadlines.

        Raises:
            BreakerTransportError: something was not delivered.
        """
        try:
            self._background.run(self._flush, timeout_s=timeout)
        except TimeoutError:
            raise BreakerTransportError(
                "the events were not delivered in time", buffer_size=len(self.buffer)
            ) from None
        except LoopClosedError:
            raise BreakerTransportError("guard was shut down") from None

    async def _flush(self) -> None:
        await (await self._linked()).flusher.flush()

    # -- gate and checks ----------------------------------------------------------------------

    def gate(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask the gateway, from sync code; see :meth:`guard.io.link.Link.gate`.

        A kill ends the wait: of this workflow, or of a protected call around this one.
        """
        scope = Scope(workflow_id=request.workflow_id, run_id=request.run_id)
        try:
            future = self._background.submit(self._gate, request)
        except LoopClosedError:
            raise _was_shut_down() from None
        try:
            with self.bodies.waiting(scope, future.cancel):
                return future.result()
        except concurrent.futures.CancelledError:
            raise _was_shut_down() from None
        finally:
            future.cancel()

    async def gate_async(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask the gateway from async code; the caller's loop goes on meanwhile."""
        wait = TaskBody(Scope(workflow_id=request.workflow_id, run_id=request.run_id))
        self.bodies.enter(wait)
        try:
            reply = await self._answer_of(request)
        except BaseException as exc:
            killed = wait.end(exc)
            if killed is None or killed is exc:
                raise
            raise killed from None
        else:
            wait.end(None)  # a kill that came with the answer is seen when the body is entered
            return reply
        finally:
            self.bodies.leave(wait)

    async def _answer_of(self, request: wire.GateRequest) -> wire.GateReply:
        try:
            return await self._background.run_async(self._gate, request)
        except LoopClosedError:
            raise _was_shut_down() from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._shut_down and task is not None and not task.cancelling():
                raise _was_shut_down() from None  # it was the loop's end, not the user's wish
            raise

    async def _gate(self, request: wire.GateRequest) -> wire.GateReply:
        reply = await (await self._linked()).gate(request)
        if reply.budget is not None:
            self.decisions.learned(request.workflow_id, reply.budget)
        return reply

    def check(self, scope: Scope) -> None:
        """Refuse if the scope's workflow is killed or paused; reads a local snapshot only.

        Raises:
            WorkflowKilledInterrupt: killed.
            WorkflowPausedException: paused.
        """
        halt = self.control.halt(scope.workflow_id, scope.run_id, time.time_ns() // 1_000_000)
        if halt is not None:
            raise exception_for_halt(halt, scope.workflow_id)

    def killed(self, scope: Scope) -> Mark | None:
        """Return what killed the scope's workflow or run, if something did."""
        now_ms = time.time_ns() // 1_000_000
        return self.control.kills.find(scope.workflow_id, scope.run_id, now_ms)

    def check_request(self, scope: Scope) -> None:
        """Refuse the next LLM request of a killed, paused or exhausted scope, without a round trip.

        Outside of a ``workflow`` or ``@protect`` scope nothing is refused.

        Raises:
            WorkflowKilledInterrupt: killed.
            Refusal: paused or exhausted; the scope's boundary makes it a public exception.
        """
        if scope.workflow_id is None and scope.call is None:
            return
        halt = self.control.halt(
            scope.workflow_id,
            scope.run_id,
            time.time_ns() // 1_000_000,
            budgets=scope.chain_id is None,  # inside a chain a budget is soft: the gate decides
        )
        if halt is None:
            return
        error = exception_for_halt(halt, scope.workflow_id)
        raise error if isinstance(error, WorkflowKilledInterrupt) else Refusal(error)

    def told(
        self, exc: BaseException, stage: str, scope: Scope | None = None, tool: str | None = None
    ) -> None:
        """Remember an error and tell the hooks of it, once."""
        if not isinstance(exc, GuardError):
            return
        self.health.last_error_code = exc.error_code
        workflow_id = scope.workflow_id if scope is not None else None
        fire(exc, ErrorContext(stage, workflow_id, tool, self.settings.api_key_prefix))

    def _controlled(self, message: wire.ControlMessage) -> None:
        """Apply a control message (on the loop); a kill stops the bodies that it concerns."""
        self.health.touch()
        before = self.control.kills
        self.control = self.control.apply(message)
        if self.control.kills is not before:  # also by a replay, a pattern, an older revive
            self.bodies.interrupt(self.killed)

    # -- status -------------------------------------------------------------------------------

    def status(self) -> GuardStatus:
        """Return a snapshot; thread-safe and without side effects."""
        link = self._link
        in_flight = link.flusher.in_flight if link is not None else 0
        return self.health.snapshot(
            api_url=self.settings.api_url,
            breaker=link.client.circuit.state if link is not None else "closed",
            buffered=len(self.buffer) + in_flight,
            unseen_hosts=self.instrumentation.unseen_hosts(),
            shut_down=self._shut_down,
        )


def _was_shut_down() -> GuardTransportError:
    return GuardTransportError(
        "guard was shut down; call guard.init() again", source="BREAKER_OPEN", retryable=False
    )


_lock = threading.Lock()
_current: GuardRuntime | None = None


def active_runtime() -> GuardRuntime | None:
    """Return the process's runtime, or None."""
    return _current


def _refuse_second() -> None:
    if _current is not None and not _current.is_shut_down:
        raise GuardConfigError(
            "guard is already initialised in this process; call guard.shutdown() first",
            error_code="GD-C004",
        )


def _install(runtime: GuardRuntime) -> None:
    global _current
    with _lock:
        _refuse_second()
        _current = runtime


def _uninstall(runtime: GuardRuntime) -> None:
    global _current
    with _lock:
        if _current is runtime:
            _current = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if _current is not None:
        _current._fresh_process()


os.register_at_fork(after_in_child=_after_fork)
