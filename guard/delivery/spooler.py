"""Keeps events on disk, if there is a spool, while the gateway is unreachable.

The asynchronous side of :mod:`guard.delivery.spool`: it runs the spool's blocking calls in threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from guard.core.buffer import Record, priority_of
from guard.core.events import event_id, is_event, settled
from guard.core.ids import IdFactory
from guard.delivery.batch import encoded
from guard.delivery.loss_report import Losses
from guard.delivery.spool import Claimed, Row, Spool, Spooled, SpoolError
from guard.loop import in_thread

logger = logging.getLogger("guard.events")

_LOOK_S: Final = 15.0
"""How often to look for events that other processes have left, while there are none of its own."""


class Spooler:
    """Stores records on disk and claims them back for delivery; a disk that fails raises nothing.

    Runs on the background loop, except :meth:`store_last`. A cancelled caller waits for the spool's
    call that is under way (``finish=True``), which no thread can stop.

    Args:
        spool: the spool, or None to keep events in memory.
        ids: makes event ids.
        losses: counts events that were dropped to make room or cannot be encoded.
    """

    def __init__(self, spool: Spool | None, ids: IdFactory, losses: Losses) -> None:
        self._spool = spool
        self._ids = ids
        self._losses = losses
        # Whether the newest use of the disk failed: one log line when it begins to fail, and one
        # when it works again.
        self._fails = False
        # When to look for other processes' events next, by `time.monotonic()`.
        self._look_at_s = 0.0
        # The spool's count of drops at the last look.
        self._drops_seen = 0

    @property
    def where(self) -> str:
        """Where undelivered events wait, for log messages."""
        return "in memory" if self._spool is None or self._fails else "on disk"

    @property
    def has_disk(self) -> bool:
        """Whether there is a spool at all."""
        return self._spool is not None

    @property
    def spooled(self) -> int:
        """How many events wait on disk."""
        return 0 if self._spool is None else self._spool.pending

    async def store(self, records: Sequence[Record]) -> list[Record]:
        """Write records to disk.

        Returns:
            Those that are not on disk, which the caller keeps; all of them when this is cancelled.
            An event that is delivered twice because of that is charged once, by its id.
        """
        # The loss report waits in `Losses` until the gateway has accepted it.
        kept = [record for record in records if not self._losses.is_report(record)]
        if self._spool is None or not kept:
            return kept
        rows, kept = self._rows(kept)
        try:
            stored = await in_thread(self._spool.append, rows, finish=True)
        except SpoolError as exc:
            self._failed(exc)
            return kept
        finally:  # also when cancelled: the write has gone on
            self._count_drops()
        # After the write: until then only the journal keeps these requests if the process dies.
        settled(kept[:stored])
        if stored < len(kept):
            self._failed(SpoolError("the disk is full"))
        elif self._fails:
            self._fails = False
            logger.warning("the spool can be used again")
        return kept[stored:]

    def belongs_to(self, account: bytes) -> None:
        """Deliver the events of all secrets of an account."""
        if self._spool is not None and self._spool.account != account:
            self._spool.account = account
            self.look_soon()

    def look_soon(self) -> None:
        """Check the disk at the next :meth:`claim`: another process may have left events."""
        self._look_at_s = 0.0

    async def claim(self, most: int) -> list[Claimed]:
        """Take up to ``most`` events that wait on disk, to deliver them."""
        # With nothing of its own on disk it looks at intervals only.
        spool = self._spool
        if spool is None or (not spool.pending and time.monotonic() < self._look_at_s):
            return []
        claimed = (await in_thread(spool.noted, finish=True))[:most]
        try:
            # First: what dead processes left in their journals becomes events to claim.
            await self._take_over(spool)
            found = await in_thread(spool.count, finish=True)
            self._look_at_s = time.monotonic() + _LOOK_S
            # Events that cannot be claimed are being delivered by another process.
            if found and len(claimed) < most:
                claimed += await in_thread(spool.claim, most - len(claimed), finish=True)
        except SpoolError as exc:
            self._failed(exc)
        return claimed

    async def _take_over(self, spool: Spool) -> None:
        try:
            await in_thread(spool.take_over, finish=True)
        except SpoolError as exc:  # the journals stay; what is on disk can be delivered
            self._failed(exc)
        finally:
            self._count_drops()  # what was taken over may have needed room

    async def settle(self, rows: Sequence[Row]) -> None:
        """Delete events that were delivered."""
        rows, notes = _apart(rows)
        if self._spool is not None and notes:
            await in_thread(self._spool.strike_notes, notes, finish=True)
        if self._spool is not None and rows:
            try:
                await in_thread(self._spool.settle, rows, finish=True)
            except SpoolError as exc:  # they will be sent again, but are charged once
                self._failed(exc)

    async def release(self, rows: Sequence[Row]) -> None:
        """Release claimed events that could not be delivered."""
        rows, _ = _apart(rows)
        if self._spool is not None and rows:
            try:
                await in_thread(self._spool.release, rows, finish=True)
            except SpoolError as exc:  # the claims expire by themselves
                self._failed(exc)

    def store_last(self, records: Sequence[Record]) -> list[Record]:
        """Write the last records of the process to disk; blocks, and runs off the loop.

        Returns:
            Those of them that are events and could not be stored.
        """
        self._count_drops()  # of a write that has outlasted its task
        if self._spool is None:
            return list(filter(is_event, records))
        if not records:
            return []
        self._spool.hurry()
        # There may be room for some of them only.
        by_importance = sorted(records, key=lambda record: -priority_of(record.kind))
        rows, kept = self._rows(by_importance)
        stored = 0
        try:
            stored = self._spool.append(rows)
        except SpoolError as exc:
            self._failed(exc)
        finally:
            self._count_drops()
        settled(kept[:stored])
        return kept[stored:]

    def note_losses(self) -> None:
        """Note on disk what is lost and not reported yet: the next process reports it. Blocks."""
        report = self._losses.report()
        if self._spool is not None and report is not None:
            try:
                self._spool.note_loss(event_id(report, self._ids), report.payload["events"])
            except SpoolError as exc:
                self._failed(exc)

    def close(self) -> None:
        """Close the file; its events stay."""
        if self._spool is not None:
            self._spool.close()

    def _count_drops(self) -> None:
        """Count what the spool has dropped since the last look."""
        if self._spool is not None:
            dropped = self._spool.dropped - self._drops_seen
            self._drops_seen += dropped
            self._losses.lose(dropped, "the spool is full")

    def _rows(self, records: Sequence[Record]) -> tuple[list[Spooled], list[Record]]:
        """Return the rows of records, and the records that have one."""
        events, good, broken = encoded(records, self._ids)
        self._losses.lose(broken, "an event cannot be encoded")
        rows = [
            Spooled(event_id(record, self._ids), priority_of(record.kind), event)
            for event, record in zip(events, good, strict=True)
        ]
        return rows, good

    def _failed(self, exc: SpoolError) -> None:
        if not self._fails:
            self._fails = True
            logger.warning("the spool cannot be used, events wait in memory: %s", exc)


def _apart(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return rows of the file, and notes of losses."""
    return [row for row in rows if row.number], [row for row in rows if not row.number]
