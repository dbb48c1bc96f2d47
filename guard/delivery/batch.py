"""A batch of encoded events, and the records or rows they came from."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from guard.core import wire
from guard.core.buffer import Record
from guard.core.events import event_of, settled
from guard.core.ids import IdFactory
from guard.delivery.spool import Row


@attrs.frozen
class Batch:
    """Events that are sent together. All lists are parallel; a batch has records or rows.

    Attributes:
        events: encoded.
        records: their records, when they came from the buffer.
        rows: their rows, when they came from the spool.
    """

    events: list[bytes] = attrs.field(repr=False)
    records: list[Record] = attrs.field(factory=list, repr=False)
    rows: list[Row] = attrs.field(factory=list, repr=False)

    @property
    def losses(self) -> int:
        """How many of the events are the SDK's own loss reports."""
        # A report is always the first record of its batch.
        return sum(record.kind == "sdk.loss" for record in self.records[:1])

    def halves(self) -> list[Batch]:
        """Return the same events as two batches."""
        # The older half last: the flusher sends batches from the end of its list.
        half = len(self.events) // 2
        return [
            Batch(self.events[part], self.records[part], self.rows[part])
            for part in (slice(half, None), slice(half))
        ]


def encoded(records: Sequence[Record], ids: IdFactory) -> tuple[list[bytes], list[Record], int]:
    """Encode records; one that cannot be encoded does not stop the others.

    Returns:
        The events, the records they came from, and how many could not be encoded. A record that
        turns out not to be an event (a response without usage) is in none of them.
    """
    events: list[bytes] = []
    good: list[Record] = []
    broken = 0
    encode = wire.encode
    for record in records:
        try:
            event = event_of(record, ids)
            if event is None:
                settled([record])  # there is nothing to charge: its slot in the journal is free
                continue
            events.append(encode(event))
        except Exception:  # noqa: BLE001  # only its event is lost; the caller counts it
            broken += 1
            continue
        good.append(record)
    return events, good, broken
