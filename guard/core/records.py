"""Records of the buffer to events of the protocol, and events to a batch's bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from guard.core import wire
from guard.core.batching import Record
from guard.core.ids import IdFactory

_FRAME_BYTES: Final = 256
"""More than what a batch adds around its events."""


def event_of(record: Record, ids: IdFactory) -> wire.Event:
    """Return the event of a record; the same record gives the same ``event_id`` every time."""
    if record.input_tokens >= 0:
        data: Any = wire.LlmData(
            model=record.payload or wire.UNKNOWN_MODEL,
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            latency_ms=record.latency_ms,
            source="manual",
            metadata=record.metadata or {},
        )
    else:
        data = record.payload
    at_ms = record.at_ns // 1_000_000
    workflow_id, run_id, chain_id, agent, trace_id, span_id, parent_id, call_id, held = record.place
    return wire.Event(
        ids.uuid7(at_ms, record.serial),
        record.kind,
        at_ms,
        workflow_id,
        run_id,
        chain_id,
        agent,
        trace_id,
        span_id,
        parent_id,
        call_id,
        held,
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
