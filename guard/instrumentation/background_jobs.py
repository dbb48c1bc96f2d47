"""Work that continues after its answer: OpenAI's background responses and runs of threads.

The vendor bills it whether or not its result is ever fetched. So its money stays set aside, and
its place in the journal stays open, until a poll says what it cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from guard.core.events import InstrumentedCall
from guard.core.usage import Usage
from guard.core.usage.response_format import replaced
from guard.instrumentation.request_gate import RequestCover
from guard.scope.scope import Scope

WORKS_MAX: Final = 1000
"""How many pieces of work are held; the oldest is charged its bound when there are more."""

AGE_MAX_S: Final = 3600.0
"""Seconds after which work without a poll is charged its bound. OpenAI's longest jobs take tens of
minutes (https://platform.openai.com/docs/guides/deep-research), and a run expires after ten."""

Key = tuple[str, str]
"""A vendor, with its caller if there is one, and its id of a response."""


class Work(Struct, frozen=True, eq=False):
    """A request whose work is not finished.

    Attributes:
        call: its event, still without its usage.
        scope: in which it was made.
        hold: the money set aside for it.
        at_most: the most that it can use.
        started_s: when it was made, by the monotonic clock.
    """

    call: InstrumentedCall
    scope: Scope
    hold: RequestCover
    at_most: Usage
    started_s: float


class BackgroundJobs:
    """The unfinished work of this process. Any thread.

    A piece of work ends once: whichever thread removes it from ``works``, under the lock, charges
    it. The charge runs outside of the lock, because it records an event and returns money.

    Args:
        record: takes the event and the scope of work that has ended; never raises.

    Attributes:
        works: by vendor and id, the oldest first; several where a run has several steps. Changed
            under the lock; read without it to see whether there is any.
    """

    def __init__(self, record: Callable[[InstrumentedCall, Scope], None]) -> None:
        self._record = record
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's work: the parent polls what it has begun."""
        # Re-entrant: a signal handler may read an answer while its thread does.
        self._lock = threading.RLock()
        self.works: dict[Key, list[Work]] = {}

    def add(self, key: Key, work: Work) -> None:
        """Hold a piece of work until it is polled."""
        with self._lock:
            self.works.setdefault(key, []).append(work)
            oldest = next(iter(self.works)) if len(self.works) > WORKS_MAX else None
        self.end(oldest, None)  # None if there is room

    def end(self, key: Key | None, usage: Usage | None) -> bool:
        """Charge a piece of work, and return the rest of its money.

        Args:
            key: its vendor and id; None for none.
            usage: what all its steps used together; None when it is not known: then each step
                costs its bound.

        Returns:
            Whether the work was held here.
        """
        # Only the thread that removes the work charges it: a poll, the timer and the process's end
        # may come at once.
        with self._lock:
            works = None if key is None else self.works.pop(key, None)
        if works is None:
            return False
        for number, work in enumerate(works):
            if usage is None:
                self._charge(work, work.at_most)
            elif number == 0:
                fees = work.at_most.fees if usage.fees is None else usage.fees
                self._charge(work, replaced(usage, fees=fees))
            else:  # paid with the first
                work.hold.give_back()
        return True

    def expire(self, now_s: float) -> None:
        """Charge the work that is too old its bound; on the background loop, and at the end.

        Args:
            now_s: by the monotonic clock; infinite to charge all of it.
        """
        while self.works:
            # One at a time, so that the lock is free while events are recorded. The oldest is
            # first: if it is young enough, all are.
            with self._lock:
                key = next(iter(self.works), None)
                if key is None or now_s - self.works[key][0].started_s < AGE_MAX_S:
                    return
            self.end(key, None)

    def _charge(self, work: Work, usage: Usage) -> None:
        call = work.call
        call.usage = usage
        call.latency_ms = (time.monotonic() - work.started_s) * 1000
        work.hold.settle(usage)
        self._record(call, work.scope)
