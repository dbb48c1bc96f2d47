"""The part of the unit-of-work port that repeats within runs are counted with."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from guard.gateway.domain.repeats import LoopKind, RepeatCount


class RepeatPlace(Struct, frozen=True, kw_only=True):
    """What is counted: one call of one run.

    Args:
        organisation_id, run_id: whose.
        kind, subject: of the call; of the run's ``spend`` there is one. A request is known by the
            model that was asked for, or by the one that has answered.
        digest: of the tool and its arguments, or of the model and the prompt.
        workflow_id, agent, key_id: where it is made.
    """

    organisation_id: str
    run_id: str
    kind: LoopKind
    subject: str = ""
    digest: str = ""
    workflow_id: str | None = None
    agent: str | None = None
    key_id: str = ""


class RepeatStore(Protocol):
    """How often runs have made the same call, and which were flagged."""

    def repeat(self, place: RepeatPlace) -> RepeatCount | None:
        """Return how often a call was made."""

    def save_repeat(self, place: RepeatPlace, count: RepeatCount) -> None:
        """Write how often a call was made."""

    def is_foreign_run(self, place: RepeatPlace) -> bool:
        """Tell whether a run is known as another workflow's."""

    def count_loop(self, kind: LoopKind) -> None:
        """Count a run that was flagged, for the metrics."""

    def drop_repeats(self, unnoticed_ms: int, noticed_ms: int) -> None:
        """Forget what was counted last before a time; of flagged runs, before another one."""
