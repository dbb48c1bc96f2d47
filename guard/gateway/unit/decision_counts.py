"""Counts of this process's decisions by kind, each counted once it is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


class Tally:
    """Counts the decisions of a unit of work; one thread adds to it, any may read.

    Args:
        on_undo: has a function called if the present command is undone.

    Attributes:
        counts: how often, by kind and label. Labels come from the code, so there are few.
    """

    def __init__(self, on_undo: Callable[..., None]) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._on_undo = on_undo
        # Of this unit, in order: an undo removes the last one.
        self._new: list[tuple[str, str]] = []

    def add(self, kind: str, label: str) -> None:
        """Count one decision once it is committed."""
        self._new.append((kind, label))
        self._on_undo(self._undo)

    def _undo(self) -> Any:
        return self._new.pop() if self._new else None

    def committed(self) -> None:
        """Add the decisions of this unit to the counts."""
        if self._new:
            self.counts.update(self._new)
            self._new.clear()

    def forget(self) -> None:
        """Drop the decisions of this unit."""
        self._new.clear()
