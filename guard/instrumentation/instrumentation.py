"""What all transports share: check before a request, report once what it used."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, Protocol

from guard.core.events import ObservedCall, usage_of
from guard.core.usage import PENDING, Usage, find_endpoint
from guard.core.usage.realtime import find_realtime
from guard.core.usage.response_format import replaced
from guard.core.wire import NAME_LENGTH_MAX, RESPONSE_ID_LENGTH_MAX
from guard.instrumentation import patching
from guard.instrumentation.observed_call import Exchange
from guard.instrumentation.realtime import RealtimeSession
from guard.scope.scope import Scope, current_scope

logger = logging.getLogger("guard.instrumentation")

_UNSEEN_HOSTS_MAX: Final = 100
_RESPONSES_KEPT: Final = 4096
_UNREAD_MAX: Final = 128
"""Most answers that are kept to be read later: somewhat more than a batch of events."""

inside: ContextVar[bool] = ContextVar("guard_inside_llm_call", default=False)
"""Set while an observed request is sent: a transport below (httpx over aiohttp) is not another."""


class Record(Protocol):
    """Takes an event; see ``GuardRuntime.record``."""

    def __call__(self, kind: str, payload: Any, scope: Scope | None = None) -> int:
        """Put an event into the buffer."""


def _nothing(*request: object) -> None:
    """No kill has to be looked out for."""


class Instrumentation:
    """The process's HTTP clients under observation; installs and removes the hooks.

    Args:
        record: takes an ``llm`` event.
        check: raises when the scope's next LLM request must not go out.
        enter: takes note of a request in the thread of a frame, or without one in the calling
            task; returns None when nothing has to be done for a kill to stop it. Its second
            argument tells whether it is an LLM request.
        leave: forgets what ``enter`` returned.
        inject_stream_usage: whether streams are asked for their usage where the host is known to
            accept that.
    """

    def __init__(
        self,
        record: Record,
        check: Callable[[Scope], None],
        *,
        enter: Callable[[FrameType | None, bool], Any] = _nothing,
        leave: Callable[[Any], None] = _nothing,
        inject_stream_usage: bool = False,
    ) -> None:
        self._record = record
        self._check = check
        self.enter = enter
        self.leave = leave
        self.inject_stream_usage = inject_stream_usage
        self.failures = 0
        self._unread: deque[ObservedCall] = deque()
        # Re-entrant: a signal handler may ask for the hosts while its thread reads an answer.
        self._reading = threading.RLock()
        self._unseen: dict[str, None] = {}
        self._responses: OrderedDict[tuple[str, str], None] = OrderedDict()

    def install(self) -> None:
        """Instrument the supported transports, now or when they are imported. Idempotent."""
        patching.install(self)

    def uninstall(self) -> None:
        """Take the hooks out again. Idempotent."""
        patching.uninstall(self)
        self._read_all()

    def forked(self) -> None:
        """Start anew in a forked child: the parent reads what has come to the parent."""
        self._unread = deque()
        self._reading = threading.RLock()

    def unseen_hosts(self) -> tuple[str, ...]:
        """Return the LLM hosts whose answers held no usage."""
        self._read_all()
        return tuple(self._unseen)

    def begin(
        self, method: str, host: str, path: str, body: Callable[[], bytes]
    ) -> Exchange | None:
        """Check and start to observe a request; None when it is not an LLM call.

        Args:
            method: the HTTP method, in upper case.
            host, path: of the URL.
            body: returns the request's body; asked only when it is needed.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        endpoint = find_endpoint(method, host, path)
        if endpoint is None or inside.get():
            return None
        scope = current_scope.get()
        if endpoint.asks:
            self._check(scope)
        return Exchange(self, endpoint, scope, host, path, body)

    def begin_session(self, host: str, path: str, query: str) -> RealtimeSession | None:
        """Check and start to observe a WebSocket; None when it does not lead to an LLM.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        provider = find_realtime(host, path)
        if provider is None:
            return None
        self.check_session()
        return RealtimeSession(self, provider, host, query)

    def check_session(self) -> None:
        """Raise if the current scope's next LLM request must not go out."""
        self._check(current_scope.get())

    def session_used(self, call: ObservedCall, scope: Scope) -> None:
        """Record what a response of a session used; never raises."""
        try:
            if call.usage is not None:
                call.usage = _shortened(call.usage)
            self._record("llm", call, scope)
        except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
            self._failed(exc)

    def session_unseen(self, host: str) -> None:
        """Name a host whose session ended without any usage."""
        self._not_seen(host)

    def ended(self, exchange: Exchange) -> None:
        """Record a call whose answer has come; never raises.

        The answer is read where its event is made, on the background loop: there many are read at
        once, and nobody waits for it. What is large, or more than a few, is read here.
        """
        try:
            latency_ms = (time.monotonic() - exchange.started_s) * 1000
            provider = exchange.endpoint.format.provider
            call = ObservedCall(provider, latency_ms, exchange)
            if exchange.endpoint.asks and exchange.brief:
                self._record("llm", call, exchange.scope)
                self._unread.append(call)
                if len(self._unread) >= _UNREAD_MAX:
                    self._read_all()
            elif usage_of(call) is not None:
                self._record("llm", call, exchange.scope)
        except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
            self._failed(exc)

    def read(self, exchange: Exchange, call: ObservedCall) -> None:
        """Set what a call used, if its host says so and nobody has reported it; never raises."""
        with self._reading:
            if call.answer is None:
                return
            try:
                usage, streamed = exchange.usage()
                call.streamed = streamed
                call.usage = self._new(usage, exchange)
            except Exception as exc:  # noqa: BLE001  # as above
                self._failed(exc)
            call.answer = None

    def _new(self, usage: Usage | None, exchange: Exchange) -> Usage | None:
        if usage is None:
            if exchange.endpoint.certain:
                self._not_seen(exchange.host)
            return None
        if usage is PENDING:
            return None
        if (
            len(usage.model or "") > NAME_LENGTH_MAX
            or len(usage.response_id or "") > RESPONSE_ID_LENGTH_MAX
        ):
            usage = _shortened(usage)
        known = usage.response_id is not None and self._reported(
            (exchange.endpoint.format.provider, usage.response_id)
        )
        return None if known else usage

    def _read_all(self) -> None:
        unread = self._unread
        while unread:
            try:
                usage_of(unread.popleft())
            except IndexError:  # another thread was faster
                return

    def _failed(self, exc: Exception) -> None:
        self.failures += 1
        logger.debug("a response could not be observed", exc_info=exc)

    def _reported(self, response: tuple[str, str]) -> bool:
        """Tell whether a response was reported already; remembers it."""
        if response in self._responses:
            return True
        self._responses[response] = None
        if len(self._responses) > _RESPONSES_KEPT:
            with contextlib.suppress(KeyError):  # another thread was faster
                self._responses.popitem(last=False)
        return False

    def _not_seen(self, host: str) -> None:
        if host not in self._unseen and len(self._unseen) < _UNSEEN_HOSTS_MAX:
            self._unseen[host] = None
            logger.warning("an LLM answer of %s held no usage; it is not charged", host)


def _shortened(usage: Usage) -> Usage:
    return replaced(
        usage,
        model=usage.model and usage.model[:NAME_LENGTH_MAX],
        response_id=usage.response_id and usage.response_id[:RESPONSE_ID_LENGTH_MAX],
    )
