"""Converts buffer records to protocol events, and events to a batch's bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from guard.core import wire
from guard.core.buffer import Record
from guard.core.ids import IdFactory
from guard.core.tags import tags_of

if TYPE_CHECKING:  # pulls in every vendor's format, which other kinds of events do not need
    from guard.core.usage import Usage

LATER_EVENT: Final = "later"
_FRAME_BYTES: Final = 256
"""Upper bound of the bytes that a batch adds around its events."""


class UnreadAnswer(Protocol):
    """The answer to an LLM call."""

    def read(self, call: InstrumentedCall) -> None:
        """Set what the call used, unless that was done already."""


class OpenEntry(Protocol):
    """A request's place in the journal of its process.

    Attributes:
        begun_ms, serial: from which its event's id is made.
    """

    begun_ms: int
    serial: int

    def clear(self) -> None:
        """Its event is delivered or on disk, or there is none."""


class InstrumentedCall(Struct, gc=False):
    """An instrumented LLM call whose response may not be parsed yet; the payload of its record.

    Attributes:
        provider: the vendor.
        latency_ms: from the request to the end of its answer.
        answer: the response to parse; None afterwards.
        usage: what was used; None when the response does not say, or was reported before.
        streamed: whether the response was a stream of messages.
        polled: whether it repeats the result of an earlier request (a poll).
        reservation_id: the lease or reservation that pays for it; None means that of its scope.
        entry: its place in the journal; None where it has none.
        local: whether the request went to this machine, and to no proxy there.
        requested_model: the model that was asked for, where another has answered, or did last.
        digest: the digest of its prompt, where repeats are counted.
    """

    provider: str
    latency_ms: float
    answer: UnreadAnswer | None = None
    usage: Usage | None = None
    streamed: bool = False
    polled: bool = False
    reservation_id: str | None = None
    entry: OpenEntry | None = None
    local: bool = False
    requested_model: str | None = None
    digest: str | None = None


class BegunWork(Struct, gc=False):
    """Work of a vendor that goes on after its answer; the payload of a ``later`` event.

    Attributes:
        provider, work_id: the vendor, and its id of the work.
        reservation_id: the lease or reservation that pays for it.
        entry: the place in the journal of the request that has begun it; None where it has none.
    """

    provider: str
    work_id: str
    reservation_id: str | None = None
    entry: OpenEntry | None = None


def event_of(record: Record, ids: IdFactory) -> wire.Event | None:
    """Return the event of a record; the same record gives the same ``event_id`` every time.

    None for an LLM call whose answer turns out to hold nothing to report.
    """
    (workflow_id, run_id, chain_id, agent, user, tags, trace_id, span_id, parent_id, call_id,
     held) = record.event_fields  # fmt: skip
    if record.input_tokens >= 0:
        data: Any = wire.LlmData(
            model=record.payload or wire.UNKNOWN_MODEL,
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            latency_ms=record.latency_ms,
            source="manual",
            metadata=record.metadata or {},
        )
    elif type(record.payload) is InstrumentedCall:
        data = llm_data(record.payload, event_id(record, ids))
        if data is None:
            return None
        held = record.payload.reservation_id or held
    elif type(record.payload) is BegunWork:
        work = record.payload
        held = work.reservation_id or held
        entry = work.entry
        charged_as = None if entry is None else ids.uuid7(entry.begun_ms, entry.serial)
        data = wire.LaterData(work.provider, work.work_id, charged_as)
    else:
        data = record.payload
    at_ms = record.at_ns // 1_000_000
    return wire.Event(
        event_id(record, ids),
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
        user,
        tags_of(tags),
    )


def event_id(record: Record, ids: IdFactory) -> str:
    """Return the ``event_id`` of a record's event."""
    payload = record.payload
    if type(payload) is InstrumentedCall and payload.entry is not None:
        return ids.uuid7(payload.entry.begun_ms, record.serial)
    return ids.uuid7(record.at_ns // 1_000_000, record.serial)


def settled(records: Iterable[Record]) -> None:
    """Clear the journal's entries of records that are delivered, on disk, or given up.

    After the fact, never before: if the process dies in between, the next one charges the entry
    under the same event id, which changes nothing.
    """
    for record in records:
        payload = record.payload
        if type(payload) is InstrumentedCall and payload.entry is not None:
            payload.entry.clear()


def is_event(record: Record) -> bool:
    """Return whether a record becomes an event; reads the answer that it may hold."""
    payload = record.payload
    return type(payload) is not InstrumentedCall or usage_of(payload) is not None


def usage_of(observed: InstrumentedCall) -> Usage | None:
    """Return what an observed call used; its answer is read now if it has not been."""
    # Into a local: another thread may be reading it, and removes it when it is done.
    answer = observed.answer
    if answer is not None:
        answer.read(observed)
    return observed.usage


def llm_data(observed: InstrumentedCall, request_id: str) -> wire.LlmData | None:
    """Return the payload of an event of an observed call; None if there is nothing to report."""
    usage = usage_of(observed)
    if usage is None:
        return None
    return wire.LlmData(
        model=usage.model or wire.UNKNOWN_MODEL,
        provider=observed.provider,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        audio_tokens=usage.audio_tokens,
        audio_input_tokens=usage.audio_input_tokens,
        cost_nanousd=usage.cost_nanousd,
        cache_write_1h_tokens=usage.cache_write_1h_tokens,
        service_tier=usage.service_tier,
        surcharge_permille=usage.surcharge_permille,
        latency_ms=observed.latency_ms,
        streamed=observed.streamed,
        estimated=usage.estimated,
        estimate=usage.estimate,
        cut_short=usage.cut_short,
        local=observed.local,
        source="auto",
        response_id=usage.response_id,
        request_id=None if observed.polled else request_id,
        metadata=dict(usage.units),
        fees=dict(usage.fees) if usage.fees else {},
        text_tokens=usage.text_tokens,
        requested_model=observed.requested_model,
        digest=observed.digest,
    )


def batch_bytes(batch_id: str, sent_at_ms: int, events: Sequence[bytes]) -> bytes:
    """Return the body of ``POST /api/v1/events`` from encoded events.

    >>> batch_bytes("b", 7, [b"{}"])
    b'{"batch_id":"b","sent_at_ms":7,"events":[{}]}'
    """
    head = f'{{"batch_id":"{batch_id}","sent_at_ms":{sent_at_ms},"events":['
    return b"".join((head.encode(), b",".join(events), b"]}"))


def fitting(events: Sequence[bytes], bytes_max: int) -> int:
    """Return how many events, starting with the first, fit into one batch of ``bytes_max``.

    An event that is too large by itself counts as one: the gateway decides about it.
    """
    # Upper bounds throughout: a batch that is sent is never refused for its size.
    total = _FRAME_BYTES
    for count, event in enumerate(events):
        total += len(event) + 1
        if total > bytes_max:
            return max(1, count)
    return len(events)
