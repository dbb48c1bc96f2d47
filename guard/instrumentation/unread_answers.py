"""LLM answers that were received but not parsed yet: their money is still set aside."""

from __future__ import annotations

from collections import deque

from guard.core.events import InstrumentedCall, usage_of
from guard.instrumentation.background_jobs import BackgroundJobs
from guard.instrumentation.vendors_word import VendorsWord


class UnreadAnswers:
    """Answers on their way from the caller's thread to the background loop, in order.

    The events are in the buffer as well, and are read when they are sent. This is a shorter way to
    their money for any thread that needs it. An answer that is read both ways is parsed once.

    Attributes:
        calls: the events with the answers. Appended to by callers' threads, emptied by any thread
            that needs the money; ``append`` and ``popleft`` are atomic.
        later: the work that is not finished; None without an instrumentation.
        word: asks vendors what broken answers have cost; None without an instrumentation.
    """

    def __init__(self) -> None:
        self.calls: deque[InstrumentedCall] = deque()
        self.later: BackgroundJobs | None = None
        self.word: VendorsWord | None = None

    def after_fork(self) -> None:
        """Forget the parent's answers: the parent reads them."""
        self.calls = deque()

    @property
    def has_later_work(self) -> bool:
        """Whether there is work that becomes due by the clock."""
        return self.later is not None and bool(self.later.works)

    def expire(self, now_s: float) -> None:
        """Charge the work that is too old its bound, and ask vendors; on the background loop."""
        if self.word is not None:
            self.word.ask(now_s)
        if self.later is not None and self.has_later_work:
            self.later.expire(now_s)

    def read(self) -> None:
        """Read all of them, which settles their money. Any thread.

        Another thread may still be parsing an answer that it has taken out of ``calls``: its money
        comes back a moment after this returns.
        """
        calls = self.calls
        while calls:
            try:
                usage_of(calls.popleft())
            except IndexError:  # another thread has taken the last one
                return
