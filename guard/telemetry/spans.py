"""Spans in the program's own OpenTelemetry; metrics are in :mod:`guard.telemetry.metrics`.

OpenTelemetry is never imported here: a program that has not imported it has no use for a span. No
span contains an exception's message, a prompt or an argument.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, Protocol

from guard.telemetry import conventions

P = ParamSpec("P")

logger = logging.getLogger("guard.telemetry")

Attributes = Mapping[str, str | int | float | bool | None]

SCOPE: Final = "guard"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
_KINDS: Final = {False: "INTERNAL", True: "CLIENT"}


class _Switch:
    """The state of this module. Written by the runtime at its start and end, read by any thread."""

    # guard's; spans and metrics name it.
    version = ""
    is_on = False
    # OpenTelemetry's module and the tracer that it has made: another one if a program, or a test,
    # loads OpenTelemetry anew. Two threads at once may make one each, which does no harm.
    tracer: tuple[Any, Any] | None = None


_switch: Final = _Switch()


def switch(version: str, *, is_on: bool) -> None:
    """Switch spans and metrics on or off; they are off before.

    Args:
        version: the version of guard.
        is_on: whether the program wants them, where it uses OpenTelemetry.
    """
    _switch.version, _switch.is_on = version, is_on


def module(name: str) -> Any | None:
    """Return a module of OpenTelemetry that the program has imported; None without one."""
    return sys.modules.get(name) if _switch.is_on else None


def are_on() -> bool:
    """Return whether a span may be wanted; cheap, to be called before its attributes are made."""
    return module("opentelemetry.trace") is not None


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Wrap a function that calls OpenTelemetry: its exceptions are logged and not raised."""

    @functools.wraps(method)
    def silenced(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as exc:  # the program's telemetry never hurts its calls
            logger.debug("OpenTelemetry could not be told", exc_info=exc)

    return silenced


def known(attributes: Attributes) -> dict[str, str | int | float | bool]:
    """Return those attributes that are known."""
    return {name: value for name, value in attributes.items() if value is not None}


def version() -> str:
    """Return the version of guard that spans and metrics name."""
    return _switch.version


class OpenSpan:
    """A span that has begun. One that is not recorded does nothing, and is never the current one.

    Attributes:
        is_recorded: whether its trace is sampled, and there is a provider.
        trace_id, span_id: W3C Trace Context ids, of a span that is recorded.
    """

    __slots__ = ("_otel", "_outside", "_span", "is_recorded", "span_id", "trace_id")

    def __init__(self, otel: Any, span: Any) -> None:
        self._otel = otel
        self._span = span
        # OpenTelemetry's context around it; set while it is the current span.
        self._outside: Any = None
        self.is_recorded: bool = span.is_recording()
        context = span.get_span_context()
        self.trace_id = f"{context.trace_id:032x}"
        self.span_id = f"{context.span_id:016x}"

    def enter(self) -> None:
        """Make it the current span: the parent of spans that are opened from here on."""
        if not self.is_recorded:
            return
        context = sys.modules["opentelemetry.context"]
        self._outside = context.get_current()
        context.attach(self._otel.set_span_in_context(self._span, self._outside))

    def leave(self) -> None:
        """Put the context around it back in place, if it is still the current span."""
        outside, self._outside = self._outside, None
        # By value and not by token: an abandoned generator is left in another context.
        if outside is not None and self._otel.get_current_span() is self._span:
            sys.modules["opentelemetry.context"].attach(outside)

    def name(self, name: str) -> None:
        """Give it a better name."""
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        """Set those attributes that are known."""
        self._span.set_attributes(known(attributes))

    @harmless
    def end(self, error: BaseException | str | None = None, ended_s: float | None = None) -> None:
        """End it. Idempotent; never raises.

        Args:
            error: the error that ended it, or the error's name; its message is not recorded.
            ended_s: when that was, by the monotonic clock; None for now.
        """
        if error is not None:
            self._span.set_attribute(conventions.ERROR, error_name(error))
            self._span.set_status(self._otel.Status(self._otel.StatusCode.ERROR))
        # OpenTelemetry counts in nanoseconds of the wall clock, guard by the monotonic one.
        ago_s = 0.0 if ended_s is None else time.monotonic() - ended_s
        self._span.end(time.time_ns() - int(ago_s * 1e9))


class Position(Protocol):
    """Where something happens; see ``Scope``."""

    @property
    def workflow_id(self) -> str | None: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...


def scope_attributes(scope: Position) -> dict[str, str | None]:
    """Return the attributes of a span that name the scope in which it is opened."""
    return {
        conventions.WORKFLOW: scope.workflow_id,
        conventions.RUN: scope.run_id,
        conventions.AGENT_NAME: scope.agent,
        conventions.USER: scope.user,
    }


def error_name(error: BaseException | str) -> str:
    """Return the code of a refusal, or the class of another error.

    >>> error_name(ValueError("secret")), error_name("timeout")
    ('ValueError', 'timeout')
    """
    if isinstance(error, str):
        return error
    return getattr(error, "error_code", None) or type(error).__qualname__


def open_span(name: str, attributes: Attributes, *, client: bool = False) -> OpenSpan | None:
    """Begin a span inside of the current one; None without OpenTelemetry. Never raises.

    Args:
        name: the name of the span.
        attributes: those that are None are left out.
        client: whether it is a request to another system.

    Example:
        >>> open_span("chat", {}) is None  # OpenTelemetry is not imported
        True
    """
    otel = module("opentelemetry.trace")
    if otel is None:
        return None
    try:
        made = _switch.tracer
        if made is None or made[0] is not otel:
            tracer = otel.get_tracer(SCOPE, _switch.version, schema_url=SCHEMA_URL)
            made = _switch.tracer = otel, tracer
        kind = getattr(otel.SpanKind, _KINDS[client])
        return OpenSpan(otel, made[1].start_span(name, kind=kind, attributes=known(attributes)))
    except Exception as exc:  # the program's telemetry never hurts its calls
        logger.debug("a span could not be opened", exc_info=exc)
        return None
