"""Metrics in the program's own OpenTelemetry: durations, tokens, money, decisions."""

from __future__ import annotations

from typing import Any, Final

from guard.telemetry import conventions
from guard.telemetry.spans import SCHEMA_URL, SCOPE, Attributes, harmless, known, module, version

_TOKENS: Final = [4**exponent for exponent in range(14)]
_SECONDS: Final = [0.01 * 2**exponent for exponent in range(14)]
"""The bounds that the conventions ask for."""


class _Instruments:
    """The instruments of one meter."""

    def __init__(self, meter: Any) -> None:
        self.tokens = meter.create_histogram(
            conventions.TOKEN_USAGE, "{token}", "Tokens of an LLM request.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )  # fmt: skip
        self.seconds = meter.create_histogram(
            conventions.DURATION, "s", "Time of an LLM request.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self.cost = meter.create_counter(
            conventions.COST_COUNTER, "{USD}", "What LLM requests have cost, by guard's prices."
        )
        self.decisions = meter.create_counter(
            conventions.DECISIONS, "{decision}", "Calls and LLM requests that guard has decided."
        )
        self.unmetered = meter.create_counter(
            conventions.UNMETERED, "{request}", "LLM requests that guard cannot meter."
        )


class _Made:
    """The instruments, and the module of OpenTelemetry that has made them."""

    by: Any = None
    instruments: _Instruments | None = None


_made: Final = _Made()


def _instruments() -> _Instruments | None:
    otel = module("opentelemetry.metrics")
    if otel is None:
        return None
    if _made.by is not otel:
        # Set first: an API that fails here would fail at each request, and is tried once.
        _made.by = otel
        _made.instruments = _Instruments(otel.get_meter(SCOPE, version(), schema_url=SCHEMA_URL))
    return _made.instruments


@harmless
def decided(decision: str, operation: str, code: str | None = None) -> None:
    """Count a decision. Never raises.

    Args:
        decision: ``allowed``, ``refused`` or ``observed``.
        operation: the kind of request or call.
        code: error code of a refusal.
    """
    found = _instruments()
    if found is not None:
        labels = {conventions.DECISION: decision, conventions.OPERATION: operation}
        found.decisions.add(1, labels if code is None else labels | {conventions.ERROR: code})


@harmless
def unmetered(host: str, client: str) -> None:
    """Count an LLM request that can be neither held nor metered. Never raises.

    Args:
        host: the host of its URL.
        client: the package of the native client that sends it; empty for any other client.
    """
    found = _instruments()
    if found is not None:
        labels = {conventions.SERVER: host}
        found.unmetered.add(1, labels | {conventions.CLIENT: client} if client else labels)


@harmless
def answered(
    labels: Attributes, seconds: float, tokens: tuple[int, int] | None, cost_usd: float | None
) -> None:
    """Record an LLM request that is over. Never raises.

    Args:
        labels: operation, vendor, models and host.
        seconds: its duration.
        tokens: those of the whole input and of the whole output; None where they are not known.
        cost_usd: its cost in dollars; None where its price is not known here.
    """
    found = _instruments()
    if found is None:
        return
    named = known(labels)
    found.seconds.record(seconds, named)
    for kind, count in zip(("input", "output"), tokens or (), strict=False):
        found.tokens.record(count, {**named, conventions.TOKEN_TYPE: kind})
    if cost_usd is not None:
        found.cost.add(cost_usd, named)
