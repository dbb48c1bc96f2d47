"""LLM answers that were received and not read yet: what was set aside for them is not settled."""

from __future__ import annotations

from collections import deque

from guard.core.events import InstrumentedCall, usage_of
from guard.instrumentation.later_work import LaterWork


class UnreadAnswers:
    """Answers on their way from the caller's thread to the background loop, in order.

    Attributes:
        calls: the answers. Appended to by callers' threads, emptied by whichever thread needs the
            money that they hold; ``append`` and ``popleft`` are atomic.
        later: what was begun and goes on; None without an instrumentation.
    """

    def __init__(self) -> None:
        self.calls: deque[InstrumentedCall] = deque()
        self.later: LaterWork | None = None

    def after_fork(self) -> None:
        """Forget the parent's answers: it reads what it has received."""
        self.calls = deque()

    def expire(self, now_s: float) -> None:
        """Charge what goes on for too long its bound."""
        if self.later is not None and self.later.works:
            self.later.expire(now_s)

    def read(self) -> None:
        """Read all of them, so that what was set aside for them is settled."""
        calls = self.calls
        while calls:
            try:
                usage_of(calls.popleft())
            except IndexError:  # another thread was faster
                return
