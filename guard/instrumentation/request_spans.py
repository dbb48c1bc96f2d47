"""The OpenTelemetry span of an observed LLM request, and its metrics."""

from __future__ import annotations

import sys
from typing import Final, Protocol

from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.breaker.refusals import unwrap
from guard.core.events import InstrumentedCall
from guard.core.request_bound import RequestBound
from guard.core.usage import Endpoint, Usage
from guard.core.usage.ends import Ending
from guard.instrumentation.request_gate import RequestCover
from guard.scope.scope import Scope
from guard.telemetry import conventions as names
from guard.telemetry import metrics
from guard.telemetry.spans import (
    OpenSpan,
    are_on,
    error_name,
    harmless,
    open_span,
    scope_attributes,
)

_NANO: Final = 1e-9
_LOST: Final = "lost"
"""The error of an answer that was cut off."""


class SpannedCall(Protocol):
    """A request that has a span; see ``ObservedCall``."""

    status: int | None
    bound: RequestBound | None
    started_s: float
    ended_s: float
    ending: Ending

    @property
    def hold(self) -> RequestCover | None:
        """The money set aside for it."""


class RequestSpan:
    """The span of one request. It begins before guard decides, and ends when the answer is read.

    The requesting thread begins it; usually the background loop ends it. One of :meth:`refused`,
    :meth:`dropped` and :meth:`answered` is called, once.

    Args:
        span: a span that has begun.
        labels: attributes of the span that are the metrics' attributes as well.

    Attributes:
        decision: the decision of guard, if the request goes out: ``allowed`` or ``observed``.
    """

    __slots__ = ("_labels", "_span", "decision")

    def __init__(self, span: OpenSpan, labels: dict[str, str | None]) -> None:
        self._span = span
        self._labels = labels
        self.decision = "allowed"

    @classmethod
    def begin(cls, endpoint: Endpoint, host: str, path: str, scope: Scope) -> RequestSpan | None:
        """Begin the span of a request; None without OpenTelemetry."""
        if not are_on():
            return None
        operation = names.operation_name(path)
        labels: dict[str, str | None] = {
            names.OPERATION: operation,
            names.PROVIDER: names.provider_name(endpoint.format.provider, host),
            names.SERVER: host,
        }
        span = open_span(operation, labels | scope_attributes(scope), client=True)
        return None if span is None else cls(span, labels)

    @harmless
    def refused(self, error: BaseException) -> None:
        """End it: guard has refused the request."""
        error = unwrap(error)
        self._span.set({**self._labels, names.DECISION: "refused"})
        self._span.end(error)
        metrics.decided("refused", str(self._labels[names.OPERATION]), error_name(error))

    @harmless
    def dropped(self, call: SpannedCall) -> None:
        """End it: the request was refused, by guard or by its vendor, or never left."""
        # Called in the handler of what has ended the call, if that was an exception.
        raised = sys.exception()
        error = None if raised is None else unwrap(raised)
        if isinstance(error, GuardError | WorkflowKilledInterrupt):
            self._name_model(call)
            self.refused(error)
            return
        why = _LOST if error is None else error_name(error)
        self._end(call, None, why if call.status is None else str(call.status))

    @harmless
    def answered(self, call: SpannedCall, event: InstrumentedCall) -> None:
        """End it: the answer was read."""
        usage = event.usage
        if usage is not None:
            self._span.set(
                {
                    names.RESPONSE_MODEL: usage.model,
                    names.RESPONSE_ID: usage.response_id,
                    names.INPUT_TOKENS: _input_of(usage),
                    names.OUTPUT_TOKENS: _output_of(usage),
                    names.CACHE_READ_TOKENS: usage.cache_read_tokens or None,
                    names.CACHE_WRITE_TOKENS: usage.cache_write_tokens or None,
                    names.REASONING_TOKENS: usage.reasoning_tokens or None,
                    names.AUDIO_TOKENS: usage.audio_tokens or None,
                    names.ESTIMATED: usage.estimated,
                    names.REQUEST_STREAM: event.streamed,
                }
            )
        self._end(call, usage, _LOST if call.ending is Ending.LOST else None)

    def _name_model(self, call: SpannedCall) -> None:
        labels = self._labels
        labels[names.REQUEST_MODEL] = None if call.bound is None else call.bound.model
        model = labels[names.REQUEST_MODEL] or labels.get(names.RESPONSE_MODEL)
        if model is not None:
            self._span.name(f"{labels[names.OPERATION]} {model}")

    def _end(self, call: SpannedCall, usage: Usage | None, error: str | None) -> None:
        # The hold's cost is what is charged; an event that names its cost is the next best.
        hold, labels, cost = call.hold, self._labels, None
        if usage is not None:
            labels[names.RESPONSE_MODEL] = usage.model
            cost = None if hold is None else hold.cost_nanousd
            if cost is None:
                cost = usage.cost_nanousd
        self._name_model(call)
        self._span.set(
            {
                **labels,
                names.DECISION: self.decision,
                names.STATUS: call.status,
                names.RESERVATION: None if hold is None else hold.reservation_id,
                names.SET_ASIDE: None if hold is None else _usd(hold.amount_nanousd),
                names.COST: _usd(cost),
            }
        )
        self._span.end(error, call.ended_s)
        metrics.decided(self.decision, str(labels[names.OPERATION]))
        metrics.answered(
            labels if error is None else {**labels, names.ERROR: error},
            call.ended_s - call.started_s,
            None if usage is None else (_input_of(usage), _output_of(usage)),
            _usd(cost),
        )


def _input_of(usage: Usage) -> int:
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def _output_of(usage: Usage) -> int:
    return usage.output_tokens + usage.reasoning_tokens


def _usd(nanousd: int | None) -> float | None:
    return None if nanousd is None else nanousd * _NANO
