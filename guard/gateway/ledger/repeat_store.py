"""The part of the unit-of-work port for counting repeats within runs."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from guard.gateway.domain.repeats import LoopKind, RepeatCount


class RepeatPlace(Struct, frozen=True, kw_only=True):
    """Identifies a count: of one call of one run.

    Args:
        organisation_id, run_id: the run.
        kind, subject: of the call. A run's ``spend`` has no subject, so there is one for each run.
            A request's is the model that was asked for, or the one that has answered.
        digest: of the tool and its arguments, or of the model and the prompt.
        workflow_id, agent, key_id: of the call.
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
        """Return whether a run is known to belong to another workflow."""

    def count_loop(self, kind: LoopKind) -> None:
        """Count a run that was flagged, for the metrics."""

    def drop_repeats(self, unnoticed_ms: int, noticed_ms: int) -> None:
        """Delete the counts of calls last made before a time; of flagged runs, before another."""
