"""GuardRuntime: composes settings, events, enforcement, gate and instrumentation."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import attrs

from guard import hooks
from guard.breaker.exceptions import (
    GuardConfigError,
    GuardError,
    GuardTransportError,
    docs_at,
    was_shut_down,
)
from guard.core import wire
from guard.delivery.last_delivery import Patience
from guard.hooks import ErrorContext
from guard.instrumentation import Instrumentation
from guard.instrumentation.unread_answers import UnreadAnswers
from guard.last_words import end_in_two_lines
from guard.loop import BackgroundLoop
from guard.loop.quiet import until_pulse_s
from guard.runtime import active, debug_log
from guard.runtime.account import KeyAccount, ProcessParts
from guard.runtime.callers import Callers
from guard.scope.scope import set_process_scope
from guard.session.exit_hooks import ExitHooks
from guard.settings import DEFAULT_WORKFLOW, Settings, misspelled_variables
from guard.state import GuardStatus
from guard.telemetry import spans
from guard.transport import local
from guard.version import __version__

if TYPE_CHECKING:
    from guard.local_gateway import LocalGateway

logger = logging.getLogger("guard")

_DISCARD_S: Final = 1.0
"""How long the clean-up after a failed start may take."""

_DELIVERY_POLL_S: Final = 0.005
_LOAD_AFTER_S: Final = 0.1
_LOOK_S: Final = 1.0
"""How often guard checks that its hooks in HTTP clients are still in place."""

_HOOKS_WAIT_S: Final = 1.0
"""How long the caller of a flush waits for the hooks to receive its errors."""
_OWN_SHARE: Final = 0.3
"""Share of a shutdown's time that callers leave to the process's own events."""


class GuardRuntime(KeyAccount):
    """The SDK at work in one process: at most one is active at a time (spec part 2).

    ``guard.init()`` creates one from arguments and the environment; construct it directly to set
    what ``init`` does not accept. It becomes the process's runtime and connects on first use, in
    :meth:`open`, or without blocking with ``await GuardRuntime.start(...)``.

    Args:
        api_key, api_url, debug: as for ``guard.init``.
        hmac_secret: signs every request when set.
        batch_size: maximum events in one batch (1 to 1000).
        flush_interval_ms: longest time an event waits in the buffer, in milliseconds.
        buffer_size: maximum events kept in memory.
        transport_mode: ``auto``, ``websocket`` or ``http``.
        fallback_mode: ``closed`` or ``open``.
        timeout_ms: total time for one answer of the gateway, in milliseconds.
        last_request: whether a request that a budget does not pay for may be its run's last one.
        spool_dir: directory for events that cannot be delivered.
        spool_max_bytes: size of the spool at which the least important events are dropped.
        auto_instrument: whether HTTP clients are instrumented.
        inject_stream_usage: whether streams are asked for their usage.
        gate_requests: whether every LLM request is covered by a reservation before it is sent.
        workflow: the workflow of everything outside of one; by default the key's, or ``default``.
        max_output_tokens: put into LLM requests that have no limit, where the vendor takes it.
        price_local: whether models at local addresses are priced like all others.
        trust, refuse_unknown: what is not known in a request, see :class:`Settings`.
        otel: whether there are spans and metrics in the program's own OpenTelemetry.
        mode: ``enforce``, ``observe`` or ``off``.
        tls_fingerprint: SHA-256 of the only certificate that the gateway may show.
        allow_plaintext_hosts: names to which plain HTTP is allowed, although not loopback.

    Attributes:
        settings: the settings from arguments and environment.
        is_shut_down: whether :meth:`shutdown` was called.
        opened: whether :meth:`open` has succeeded in this process.
        callers: the callers of a proxy.
        instrumentation: observes the LLM calls of HTTP clients.

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
        wait_for_room_ms: int | None = None,
        last_request: bool | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        spool_max_bytes: int | None = None,
        auto_instrument: bool | None = None,
        inject_stream_usage: bool | None = None,
        gate_requests: bool | None = None,
        workflow: str | None = None,
        max_output_tokens: int | None = None,
        price_local: bool | None = None,
        trust: Sequence[str] | None = None,
        refuse_unknown: bool | None = None,
        otel: bool | None = None,
        mode: str | None = None,
        tls_fingerprint: str | None = None,
        allow_plaintext_hosts: Sequence[str] | None = None,
    ) -> None:
        self._local_gateway: LocalGateway | None = None
        end_in_two_lines()
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
                wait_for_room_ms=wait_for_room_ms,
                last_request=last_request,
                spool_dir=None if spool_dir is None else Path(spool_dir),
                spool_max_bytes=spool_max_bytes,
                auto_instrument=auto_instrument,
                inject_stream_usage=inject_stream_usage,
                gate_requests=gate_requests,
                workflow=workflow,
                max_output_tokens=max_output_tokens,
                price_local=price_local,
                trust=trust,
                refuse_unknown=refuse_unknown,
                otel=otel,
                mode=mode,
                tls_fingerprint=tls_fingerprint,
                allow_plaintext_hosts=allow_plaintext_hosts,
            )
            active.refuse_second()
            if self.settings.mode != "off":
                self.settings, self._local_gateway = local.resolve(self.settings)
        except GuardError as exc:
            hooks.fire(exc, ErrorContext("init"))
            raise
        docs_at(self.settings.api_url)
        for sentence in misspelled_variables(os.environ):
            logger.warning("%s", sentence)
        if self.settings.debug:
            debug_log.start()
        self._open_error: GuardError | None = None
        background, unread = BackgroundLoop(), UnreadAnswers()
        self._exits = ExitHooks(
            self._flush_at_signal,
            self.shutdown,
            # Made below; a signal comes later.
            lambda seconds: self.instrumentation.wait_for_answers(seconds),
        )
        parts = ProcessParts(
            background,
            self._exits,
            unread,
            note_tool=lambda name: self.instrumentation.unseen.note_tool(name),
            local_gateway=self._local_gateway,
        )
        super().__init__(self.settings, parts)
        self.callers = Callers(self, parts)
        self.instrumentation = Instrumentation(
            self,
            inject_stream_usage=self.settings.inject_stream_usage,
            max_output_tokens=self.settings.max_output_tokens,
            price_local=self.settings.price_local,
            trusted=frozenset(self.settings.trust),
            unread=unread,
        )
        self._fresh_process()
        spans.switch(__version__, is_on=self.settings.otel)
        active.install(self)
        # The workflow of everything outside of one; None until the gateway has named it.
        self._outside = self.settings.workflow
        self._name_outside()

    def _fresh_process(self) -> None:
        """Set the state of this process; also in a forked child."""
        self.opened = False
        # Guards the decision which thread shuts down. Re-entrant: a signal handler may shut down
        # while its thread is already doing so.
        self._ending = threading.RLock()
        # Identifier of the thread that shuts down, written under the lock, and whether it is done.
        self._ender: int | None = None
        self._ended = threading.Event()

    def _after_fork(self) -> None:
        """Start afresh in a forked child: the parent delivers the events that it recorded."""
        # The accounts before `_name_outside`, which takes an id from the child's own factory.
        super()._after_fork()
        self.instrumentation.after_fork()
        self.callers.after_fork()
        self._name_outside()
        self._fresh_process()

    def _name_outside(self) -> None:
        """Set the workflow of everything outside of one; each process is a run of it."""
        if self._outside is not None and self.settings.mode != "off":
            set_process_scope(self._outside, self.new_run_id())

    def _learned(self, capabilities: wire.Capabilities) -> None:
        """Use the key's workflow for everything outside of one, if no setting names another.

        Not with a gateway that does not report whether the key is for one workflow alone: it would
        refuse any other name.
        """
        if (
            self._outside is None
            and self.settings.gate_requests
            and wire.FEATURE_KEY_WORKFLOW in capabilities.features
            and not self.is_shut_down
        ):
            self._outside = capabilities.workflow_id or DEFAULT_WORKFLOW
            self._name_outside()

    @property
    def is_open(self) -> bool:
        """Whether :meth:`open` has succeeded in this process, or the runtime was shut down."""
        return self.opened or (self.is_shut_down and self._open_error is None)

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> Self:
        """Probe the gateway and start the services; blocks up to ``timeout_ms``. Idempotent.

        A gateway that cannot be reached is not an error: the status says ``offline`` and the
        services recover by themselves.

        Raises:
            GuardAuthenticationError: the key or signature is refused.
            GuardProtocolError: SDK and gateway are incompatible.
        """
        if self.settings.mode == "off":
            return self
        if self.opened:
            self._exits.install()  # another thread than the main one may have opened it
            self.instrumentation.rehook()
            return self
        if self._open_error is not None:
            raise self._opening_error()
        try:
            prepare = self.instrumentation.prepare if self.settings.auto_instrument else None
            self._background.run(self.link.connect, meanwhile=prepare)
        except BaseException as exc:  # noqa: BLE001  # it is raised as what it means
            raise self._failed_to_open(exc) from exc.__cause__
        self._ready()
        return self

    @classmethod
    async def start(
        cls, api_key: str | None = None, api_url: str | None = None, **settings: Any
    ) -> Self:
        """Create a runtime and open it without blocking the running loop.

        Idempotent, like ``guard.init``: with the same settings it returns the running one.

        Args:
            api_key, api_url: as for ``guard.init``.
            settings: any other arguments of the constructor.
        """
        current = known_runtime()
        if isinstance(current, cls) and not current.is_shut_down:
            debug = settings.pop("debug", None)
            current.require_same(api_key=api_key, api_url=api_url, **settings)
            if debug:
                current.start_debugging()
            runtime = current
        else:
            early = None if active.is_off() else await local.start_early(api_url)
            try:
                runtime = cls(api_key, api_url, **settings)
            finally:
                if early is not None:
                    early.leave()
        if runtime.opened or runtime.settings.mode == "off":
            return runtime
        try:
            await runtime._background.run_async(runtime.link.connect)
        except BaseException as exc:  # noqa: BLE001  # it is raised as what it means
            raise runtime._failed_to_open(exc) from exc.__cause__
        runtime._ready()
        return runtime

    def _ready(self) -> None:
        self.opened = True
        self._background.call_soon(self._look_later)
        if self.settings.auto_instrument:
            self.instrumentation.install()
            if self.settings.gate_requests:
                self._background.call_soon(self._load_later)
        self._exits.install()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(until_pulse_s(_LOOK_S), self._look)

    def _look(self) -> None:
        """Check that the hooks are still in place, and again after a while."""
        if not self.is_shut_down:
            self.instrumentation.rehook()
            self._look_later()

    def _load_later(self) -> None:
        """Load what the first LLM request needs, shortly after ``init`` has returned."""
        asyncio.get_running_loop().call_later(_LOAD_AFTER_S, self.instrumentation.load_bounds)

    def _failed_to_open(self, exc: BaseException) -> BaseException:
        """Clean up after a runtime that could not start; return what to raise for it."""
        if isinstance(exc, OSError):  # such as no descriptors left, for a loop or an import
            exc = GuardTransportError(f"guard cannot start: {exc.strerror or type(exc).__name__}")
        with self._ending:
            first = not self.is_shut_down
            if first and isinstance(exc, GuardError):
                self._open_error = exc
            self.is_shut_down = True
        # Another thread has ended it meanwhile, which may be why it failed here, and cleans up.
        if not first:
            raise exc if isinstance(exc, GuardError) else self._opening_error() from None
        self.reports.error(exc, "init")
        self._exits.uninstall()
        self.events.finish(_DISCARD_S, flush=False)
        set_process_scope(None, None)
        self._leave_local_gateway()
        self._ended.set()
        self._stop_telling()
        active.uninstall(self)
        return exc

    def _opening_error(self) -> GuardError:
        """Return the error for a runtime that has ended: why it did not start, if that is known."""
        return was_shut_down() if self._open_error is None else copy.copy(self._open_error)

    def start_debugging(self) -> None:
        """Log to standard error at debug level from now on. Idempotent."""
        self.settings = attrs.evolve(self.settings, debug=True)
        debug_log.start()

    def require_same(self, **arguments: Any) -> None:
        """Check that arguments (None: not given) are the settings of this runtime.

        Raises:
            GuardConfigError: one of them is not (GD-C004), or is not valid (GD-C003).
        """
        name = self.settings.different(is_local=self._local_gateway is not None, **arguments)
        if name is None:
            return
        error = GuardConfigError(
            f"guard is already initialised with another {name}; call guard.shutdown() first",
            error_code="GD-C004",
        )
        hooks.fire(error, ErrorContext("init"))
        raise error

    def shutdown(self, timeout: float = 2.0, flush: bool = True) -> None:
        """Close the control socket cleanly, deliver what is buffered, stop the thread. Idempotent.

        A second caller waits for the first. With a spool, undelivered events go there.

        Args:
            timeout: seconds for all of it; they begin anew with each batch of events that the
                gateway accepts. What it does not accept is tried again until they are over.
            flush: whether to deliver what is buffered; without it the events go to the spool, or
                are counted as lost.

        Raises:
            BreakerTransportError: events were lost, although delivery was requested.
            RuntimeError: called on the background loop's thread, which cannot wait for its own end.
        """
        if self._background.is_own_thread:
            raise RuntimeError("guard.shutdown() cannot be called from guard's own thread")
        with self._exits.signal_held():
            self._shutdown(max(0.0, timeout), flush)

    def _shutdown(self, timeout_s: float, flush: bool) -> None:
        patience = Patience(timeout_s, self.events.health)
        # 1. One thread shuts down.
        with self._ending:
            first = not self.is_shut_down
            self.is_shut_down = True  # `status()` says offline from here on; new calls are refused
            if first:
                self._ender = threading.get_ident()
        # 2. The others wait for it.
        if not first:
            if self._ender != threading.get_ident():
                while not self._ended.is_set() and (left_s := patience.left_s()) > 0:
                    self._ended.wait(left_s)
            # In a signal handler that interrupts the first call in this very thread: that call
            # cannot continue before this returns, but the background thread delivers meanwhile.
            elif not self._ended.is_set():
                self._wait_for_delivery(patience)
            return
        # 3. Nothing new is recorded; the callers' events, then the process's own, whose end closes
        #    the loop that both need.
        try:
            self.instrumentation.close()
            failure = self.callers.finish((1 - _OWN_SHARE) * timeout_s, flush=flush)
            own_s = max(patience.left_s(), _OWN_SHARE * timeout_s)
            failure = self.events.finish(own_s, flush=flush) or failure
        finally:
            self._exits.uninstall()  # not before the delivery: SIGTERM would end it
            self._leave_local_gateway()
            self.decisions.close()
            set_process_scope(None, None)
            self._ended.set()
            if self.settings.mode == "off":
                active.uninstall(self)
            hooks.wait(min(_HOOKS_WAIT_S, max(0.0, patience.left_s())))
            self._stop_telling()
        if failure is not None:
            raise failure

    def _stop_telling(self) -> None:
        if active.current in (None, self):  # else the next one has begun already
            spans.switch(__version__, is_on=False)
        debug_log.stop()

    def _leave_local_gateway(self) -> None:
        if self._local_gateway is not None:
            self._local_gateway.leave()

    def flush(self, timeout: float | None = None) -> None:
        """Deliver everything that is buffered now and wait for it.

        Args:
            timeout: how long to try while no batch is accepted, in seconds; once, if None.

        Raises:
            BreakerTransportError: some events were neither delivered nor written to disk.
            RuntimeError: called on the background loop's thread, which cannot wait for itself.
        """
        try:
            self.events.flush(timeout)
            self.callers.flush(timeout)
        finally:
            hooks.wait(_HOOKS_WAIT_S if timeout is None else min(_HOOKS_WAIT_S, timeout))

    def _wait_for_delivery(self, patience: Patience) -> None:
        """Wait while the background thread, which is closing, delivers the buffered events."""
        while self.events.waiting and self._background.is_running and patience.left_s() > 0:
            time.sleep(_DELIVERY_POLL_S)

    def _flush_at_signal(self, timeout: float) -> None:
        """Deliver at SIGTERM; called in the main thread, which the signal has interrupted."""
        if self.is_shut_down:
            self._wait_for_delivery(Patience(timeout, self.events.health))
        elif not self._background.is_own_thread:
            self.callers.flush_last(timeout)

    # -- status -------------------------------------------------------------------------------

    def status(self) -> GuardStatus:
        """Return a snapshot; thread-safe and without side effects."""
        session = self.link.session
        snapshot = self.events.health.snapshot(
            api_url=self.settings.api_url,
            breaker=session.client.circuit.state if session is not None else "closed",
            buffered=0 if self.is_shut_down and self._ended.is_set() else self.events.waiting,
            spooled=session.flusher.spooled if session is not None else 0,
            unseen_hosts=self.instrumentation.unseen_hosts(),
            unhooked_clients=self.instrumentation.unhooked_clients(),
            shut_down=self.is_shut_down,
            leases=self.leases.totals(),
            over_socket=session is not None and session.asks.is_open,
        )
        return dataclasses.replace(
            self.callers.added_to(snapshot),
            mode=self.settings.mode,
            workflow=self._outside,
            journal=self.events.journal_state,
            unseen_requests=self.instrumentation.unseen.counts(),
            cut_short=self.instrumentation.cut_short,
            restored_hooks=self.instrumentation.restored_hooks(),
            unhooked_tools=self.instrumentation.unhooked_tools(),
            unchecked_tools=self.instrumentation.unseen.tools(),
            unpriced_models=self.requests.unpriced_models,
            waiting_calls=self.waiting_calls + self.callers.waiting_calls,
        )


def active_runtime() -> GuardRuntime | None:
    """Return the process's runtime, or None."""
    return cast("GuardRuntime | None", active.current)


def known_runtime() -> GuardRuntime | None:
    """Return the runtime that was made, also one with ``mode="off"``, or None."""
    return cast("GuardRuntime | None", active.known())
