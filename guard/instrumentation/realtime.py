"""An LLM's WebSocket under observation: checked like requests, its usage read from messages."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from guard.core.events import InstrumentedCall
from guard.core.usage import Usage
from guard.core.usage.realtime import RealtimeUsage
from guard.scope.scope import current_scope

SESSION_ATTRIBUTE: Final = "_guard_session"
"""Where a client's connection keeps its :class:`RealtimeSession`."""


class SessionObserver(Protocol):
    """What a session reports to."""

    def check_session(self) -> None:
        """Raise if the current scope's next LLM request must not go out."""

    def session_used(self, call: InstrumentedCall, scope: Any) -> None:
        """Record what a response of a session used; never raises."""

    def usage_unseen(self, host: str) -> None:
        """Report a host whose session ended without any usage."""


class RealtimeSession:
    """One connection to a realtime API, from its handshake to its end.

    Messages are sent and received by two tasks or threads. The sender writes ``_scope`` and
    ``_asked_s``, the receiver reads them: it charges the work that has asked last.

    Args:
        observer: takes what is found.
        provider, host: the vendor and its host.
        query: the URL's query.
    """

    def __init__(self, observer: SessionObserver, provider: str, host: str, query: str) -> None:
        self._observer = observer
        self._provider = provider
        self._host = host
        self._usage = RealtimeUsage(provider, query)
        # The scope of the newest message that was sent; received usage is charged there.
        self._scope = current_scope.get()
        # When the response that is expected next began, by the monotonic clock: at the first
        # message, then at the end of each response. None before the first message.
        self._asked_s: float | None = None
        # Whether any usage was found.
        self._seen = False
        # Set by the first of: a closed connection, its finaliser, the end of the process.
        self._ended = False

    def sending(self, message: Any) -> None:
        """Check a message before it is sent.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        self._observer.check_session()
        self._scope = current_scope.get()
        self._asked_s = self._asked_s or time.monotonic()
        if isinstance(message, str | bytes):
            self._usage.sent(message)

    def received(self, message: Any) -> None:
        """Inspect a received message; never raises."""
        if isinstance(message, str | bytes):
            self._report(self._usage.read(message))

    def ended(self) -> None:
        """Report what is left when the connection is over. Idempotent."""
        if self._ended:
            return
        self._ended = True
        # A response whose end was not received: estimated by what it has shown.
        self._report(self._usage.rest())
        if self._asked_s is not None and not self._seen:
            self._observer.usage_unseen(self._host)

    def _report(self, usage: Usage | None) -> None:
        if usage is None:
            return
        self._seen = True
        now_s = time.monotonic()
        latency_ms = 0.0 if self._asked_s is None else (now_s - self._asked_s) * 1000
        self._asked_s = now_s
        call = InstrumentedCall(self._provider, latency_ms, None, usage, True)
        self._observer.session_used(call, self._scope)
