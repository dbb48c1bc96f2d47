"""What all transports share: check before a request, report once what it used."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, Protocol

from guard.core.records import ObservedCall
from guard.core.usage import PENDING, Usage, find_endpoint
from guard.core.usage.base import replaced
from guard.core.wire import NAME_LENGTH_MAX, RESPONSE_ID_LENGTH_MAX
from guard.instrumentation import seams
from guard.instrumentation.exchange import Exchange
from guard.scope import Scope, current_scope

logger = logging.getLogger("guard.instrumentation")

_UNSEEN_HOSTS_MAX: Final = 100
_RESPONSES_KEPT: Final = 4096

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
        self._unseen: dict[str, None] = {}
        self._responses: OrderedDict[tuple[str, str], None] = OrderedDict()

    def install(self) -> None:
        """Instrument the supported transports, now or when they are imported. Idempotent."""
        seams.install(self)

    def uninstall(self) -> None:
        """Take the hooks out again. Idempotent."""
        seams.uninstall(self)

    def unseen_hosts(self) -> tuple[str, ...]:
        """Return the LLM hosts whose answers held no usage."""
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

    def report(self, exchange: Exchange, usage: Usage | None, *, streamed: bool) -> None:
        """Record what a call used, or that its host did not say."""
        if usage is None:
            if exchange.endpoint.certain:
                self._not_seen(exchange.host)
            return
        if usage is PENDING:
            return
        provider = exchange.endpoint.format.provider
        if (
            len(usage.model or "") > NAME_LENGTH_MAX
            or len(usage.response_id or "") > RESPONSE_ID_LENGTH_MAX
        ):
            usage = _shortened(usage)
        if usage.response_id is not None and self._reported((provider, usage.response_id)):
            return
        latency_ms = (time.monotonic() - exchange.started_s) * 1000
        self._record("llm", ObservedCall(usage, provider, latency_ms, streamed), exchange.scope)

    def failed(self, where: logging.Logger) -> None:
        """Count an error of the observer itself; called while it is handled."""
        self.failures += 1
        where.debug("a response could not be observed", exc_info=True)

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
