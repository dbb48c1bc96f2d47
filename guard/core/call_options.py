"""Options of the calls and requests inside a ``guard.context.options`` block."""

from __future__ import annotations

import threading
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class Ceiling:
    """The most that the LLM requests of a block may cost. Thread-safe.

    Before a request is sent, its worst case is taken from this ceiling and from those around it,
    or from none of them.

    Args:
        limit_nanousd: the most.
        outer: the ceiling of the block around this one.

    Attributes:
        limit_nanousd: the most.
        spent_nanousd: what requests have cost, as far as their answers have been read. It can
            exceed the limit, if a request cost more than its worst case.
        held_nanousd: what those under way may cost.
    """

    def __init__(self, limit_nanousd: int, outer: Ceiling | None = None) -> None:
        self.limit_nanousd = limit_nanousd
        # Both change under the lock, in this ceiling and in all around it at once.
        self.spent_nanousd = 0
        self.held_nanousd = 0
        # Fixed: an inner block never outlives the reference to its outer ceiling.
        self._outer = outer
        # One lock for a ceiling and all inside it: an amount is taken from all or from none.
        # Re-entrant: a signal handler may make a request.
        self._lock: Any = threading.RLock() if outer is None else outer._lock

    @property
    def left_nanousd(self) -> int:
        """What later requests may cost, by this ceiling alone; negative above the limit."""
        return self.limit_nanousd - self.spent_nanousd - self.held_nanousd

    def short_of(self, amount: int) -> Ceiling | None:
        """Return the innermost ceiling that leaves no room for an amount; None if all have room.

        Without the lock a hint: :meth:`take` decides.
        """
        found: Ceiling | None = self
        while found is not None and found.left_nanousd >= amount:
            found = found._outer
        return found

    def take(self, amount: int) -> bool:
        """Take an amount from every ceiling, or from none; return whether there was room."""
        with self._lock:
            if self.short_of(amount) is not None:
                return False
            self._add(amount, 0)
        return True

    def settle(self, amount: int, cost: int) -> None:
        """Return an amount that was taken, and count the actual cost."""
        with self._lock:
            self._add(-amount, cost)

    def _add(self, held: int, spent: int) -> None:
        each: Ceiling | None = self
        while each is not None:
            each.held_nanousd += held
            each.spent_nanousd += spent
            each = each._outer


class CallOptions(Struct, frozen=True, eq=False):
    """The options inside a block.

    Attributes:
        tool_name: the name of the protected calls that begin in the block itself.
        max_output_tokens: put into LLM requests that have no limit.
        ceiling: the most that LLM requests may cost.
        winding_down: whether calls may use what budgets keep for that.
    """

    tool_name: str | None = None
    max_output_tokens: int | None = None
    ceiling: Ceiling | None = None
    winding_down: bool = False

    def inside_call(self) -> CallOptions:
        """Return the options inside a protected call; the name does not apply to calls in there."""
        return self if self.tool_name is None else replace(self, tool_name=None)
