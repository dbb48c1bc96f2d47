"""LLM answers that were received and not read yet: what was set aside for them is not settled."""

from __future__ import annotations

from collections import deque

from guard.core.events import InstrumentedCall, usage_of


class UnreadAnswers:
    """Answers on their way from the caller's thread to the background loop, in order.

    Attributes:
        calls: the answers. Appended to by callers' threads, emptied by whichever thread needs the
            money that they hold; ``append`` and ``popleft`` are atomic.
    """

    def __init__(self) -> None:
        self.calls: deque[InstrumentedCall] = deque()

    def after_fork(self) -> None:
        """Forget the parent's answers: it reads what it has received."""
        self.calls = deque()

    def read(self) -> None:
        """Read all of them, so that what was set aside for them is settled."""
        calls = self.calls
        while calls:
            try:
                usage_of(calls.popleft())
            except IndexError:  # another thread was faster
                return
