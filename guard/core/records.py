"""Records of the buffer to events of the protocol, and events to a batch's bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from guard.core import wire
from guard.core.batching import Record
from guard.core.ids import IdFactory

SPREAD: Final = 9
"""Length of a manual ``llm`` record: ``(type, at_ns, serial, scope, model, input_tokens,
output_tokens, latency_ms, metadata)``. One flat tuple, because it is made on the caller's thread
and a second object for the payload would cost a third more time and memory."""

_FRAME_BYTES: Final = 256
"""More than what a batch adds around its events."""


def event_of(record: Record, ids: IdFactory) -> wire.Event:
    """Return the event of a record; the same record gives the same ``event_id`` every time."""
    kind, at_ns, serial, scope = record[:4]
    data: Any
    if len(record) == SPREAD:
        data = wire.LlmData(
            model=record[4] or wire.UNKNOWN_MODEL,
            input_tokens=record[5],
            output_tokens=record[6],
            latency_ms=record[7],
            source="manual",
            metadata=record[8] or {},
        )
    else:
        data = record[4]
    at_ms = at_ns // 1_000_000
    call = scope.call
    return wire.Event(
        ids.uuid7(at_ms, serial),
        kind,
        at_ms,
        scope.workflow_id,
        scope.run_id,
        scope.chain_id,
        scope.agent,
        scope.trace_id,
        scope.span_id,
        scope.parent_span_id,
        None if call is None else call.call_id,
        None if call is None else call.reservation_id,
        data,
    )


def batch_bytes(batch_id: str, sent_at_ms: int, events: Sequence[bytes]) -> bytes:
    """Return the body of ``POST /api/v1/events`` from events that are encoded already.

    >>> batch_bytes("b", 7, [b"{}"])
    b'{"batch_id":"b","sent_at_ms":7,"events":[{}]}'
    """
    head = f'{{"batch_id":"{batch_id}","sent_at_ms":{sent_at_ms},"events":['
    return b"".join((head.encode(), b",".join(events), b"]}"))


def fitting(events: Sequence[bytes], bytes_max: int) -> int:
    """Return how many of the events, from the first on, fit into one batch of ``bytes_max``.

    An event that does not fit alone counts as one: the gateway says what becomes of it.
    """
    total = _FRAME_BYTES
    for count, event in enumerate(events):
        total += len(event) + 1
        if total > bytes_max:
            return max(1, count)
    return len(events)
