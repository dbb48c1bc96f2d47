"""Latencies of models, and failures of calls that used them, from stored events. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

_WELL: Final = (None, "", "ok", "success")
_LOST: Final = ("bound", "journal")


class SeenEvent(Struct):
    """The fields of a stored event of type ``llm`` or ``span`` that are read here."""

    type: str
    model: str | None
    flags: str
    run_id: str | None
    span_id: str | None
    data: str


class ModelLatency(Struct, kw_only=True):
    """One model: its requests, and the calls of programs that made them.

    Attributes:
        model: its name.
        requests: events of LLM requests.
        lost: the requests whose answer was lost, so that their usage is not known.
        measured: the requests that report how long they took.
        p50_ms: median time of these, to the end of the answer.
        p95_ms: the 95th percentile.
        calls: guarded calls that have ended and made such a request.
        failed: the calls that ended with an error.
    """

    model: str
    requests: int
    lost: int
    measured: int
    p50_ms: float | None
    p95_ms: float | None
    calls: int
    failed: int


class LatencyReport(Struct, kw_only=True):
    """The latencies in the newest events.

    Attributes:
        models: those with the most requests first.
        looked_at: how many of the newest events, of all types.
        since_ms: when the oldest of them was received.
        is_cut: whether there are older ones.
    """

    models: list[ModelLatency]
    looked_at: int
    since_ms: int | None
    is_cut: bool


class _Data(Struct):
    latency_ms: Any = None
    estimate: Any = None
    kind: Any = None
    outcome: Any = None
    error_code: Any = None


_DECODER: Final = msgspec.json.Decoder(_Data)


def by_model(events: Iterable[SeenEvent]) -> list[ModelLatency]:
    """Sum events by model.

    A call is a span of the kind ``call``; it has used the models of the LLM events in its span.
    """
    requests: defaultdict[str, list[_Data]] = defaultdict(list)
    lost: defaultdict[str, int] = defaultdict(int)
    used: defaultdict[tuple[str | None, str], set[str]] = defaultdict(set)
    ended: dict[tuple[str | None, str], bool] = {}
    for event in events:
        try:
            data = _DECODER.decode(event.data)
        except (msgspec.DecodeError, RecursionError):
            data = _Data()  # a program may send any data
        span = None if event.span_id is None else (event.run_id, event.span_id)
        if event.type == "llm":
            model = event.model or "unknown"
            requests[model].append(data)
            lost[model] += "in_doubt" in event.flags.split() or data.estimate in _LOST
            if span is not None:
                used[span].add(model)
        elif span is not None and data.kind == "call":
            ended[span] = bool(data.error_code) or data.outcome not in _WELL
    calls: defaultdict[str, list[bool]] = defaultdict(list)
    for span, has_failed in ended.items():
        for model in used.get(span, ()):
            calls[model].append(has_failed)
    found = [_summary(model, each, lost[model], calls[model]) for model, each in requests.items()]
    return sorted(found, key=lambda each: (-each.requests, each.model))


def _summary(
    model: str, requests: Sequence[_Data], lost: int, calls: Sequence[bool]
) -> ModelLatency:
    took = sorted(each.latency_ms for each in requests if _is_duration(each.latency_ms))
    return ModelLatency(
        model=model, requests=len(requests), lost=lost, measured=len(took),
        p50_ms=percentile(took, 50), p95_ms=percentile(took, 95),
        calls=len(calls), failed=sum(calls),
    )  # fmt: skip


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that at least ``percent`` percent of the values do not exceed.

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 95), percentile([], 50)
    (2, 4, None)
    """
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else None


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
