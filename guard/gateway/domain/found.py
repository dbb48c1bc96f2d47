"""The results of a search, and where a scope's calls were made."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from guard.gateway.domain.records import StoredEvent

FoundKind = Literal["workflow", "run", "call", "event", "user", "agent", "model"]


class Found(Struct, kw_only=True):
    """One thing whose id begins with the text that was searched for."""

    kind: FoundKind
    id: str
    workflow_id: str | None = None
    run_id: str | None = None
    seen_ms: int | None = None
    cost_nanousd: int | None = None


class Use(Struct):
    """What the newest events of a scope were for: one workflow and one model."""

    workflow_id: str | None
    model: str | None
    cost_nanousd: int
    llm_calls: int


class ScopeEvents(Struct, kw_only=True):
    """The newest events of a scope, and sums over some more of them.

    Attributes:
        events: newest first.
        uses: of the newest ``counted`` events of the scope.
        since_ms: when the oldest of them was received.
        is_cut: whether there are older ones, or may be.
    """

    events: list[StoredEvent]
    uses: list[Use]
    counted: int
    since_ms: int | None
    is_cut: bool
