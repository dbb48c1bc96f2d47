"""Whether a run's spend accelerates, and what a policy does about it. Pure.

A run is compared with itself: its spend in the newest minutes with that in each equally long time
before. A steady run does not accelerate, however expensive it is. Neither does a run that works in
bursts, as each burst is like the one before, nor a short one, which has nothing to compare with.
"""

from __future__ import annotations

import itertools
import operator
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from guard.core import globs, wire
from guard.gateway.domain.records import Policy

STEP_MS: Final = 300_000
STEPS: Final = 13
"""The newest five minutes, and the hour before."""

BEFORE_MIN: Final = 6
"""Fewest steps before the newest: a run younger than half an hour is too short to judge."""

LEAST_NANOUSD: Final = 1_000_000_000
"""Least spend in the newest step: less is not worth a message."""

PREVIEWED_MS: Final = 7 * 86_400_000
MINUTE_MS: Final = 60_000
WORST_MAX: Final = 8

_TIMES_MEDIAN: Final = 4
_TIMES_LARGEST: Final = 2

Action = Literal["notice", "pause", "kill"]
_ACTIONS: Final[tuple[Action, ...]] = ("notice", "pause", "kill")


class SpendOfRun(Struct, kw_only=True):
    """What a run of a workflow has spent over time.

    Args:
        run_id, workflow_id: of the run.
        agents, key_ids: those that have spent in it, in all of the time.
        spent: nano-dollars, by step before now, 0 the newest; in previews by minute since 1970.
    """

    run_id: str
    workflow_id: str | None
    agents: set[str] = set()
    key_ids: set[str] = set()
    spent: dict[int, int] = {}

    def add(self, when: int, cost: int, agent: str | None, key_id: str) -> None:
        """Count what was spent."""
        self.spent[when] = self.spent.get(when, 0) + cost
        self.key_ids.add(key_id)
        if agent is not None:
            self.agents.add(agent)


def accelerates(spent: Mapping[int, int]) -> bool:
    """Return whether a run has spent much more in the newest step than ever before.

    That is: more than four times the median of the steps before, and more than twice the largest.

    Args:
        spent: by step, 0 the newest; a missing one is 0. The run began in the oldest.

    >>> accelerates({0: 9 * 10**9} | dict.fromkeys(range(1, 13), 10**9))
    True
    >>> accelerates(dict.fromkeys(range(13), 10**9))
    False
    """
    recent, before = spent.get(0, 0), usual_steps(spent)
    if recent < LEAST_NANOUSD or len(before) < BEFORE_MIN:
        return False
    return recent > _TIMES_MEDIAN * usual(spent) and recent > _TIMES_LARGEST * max(before)


def usual_steps(spent: Mapping[int, int]) -> list[int]:
    """Return the spend of each step before the newest, back to the one in which the run began."""
    return [spent.get(step, 0) for step in range(1, max(spent, default=0) + 1)]


def usual(spent: Mapping[int, int]) -> int:
    """Return the usual spend of a step: the median of those before the newest."""
    before = usual_steps(spent)
    return round(statistics.median(before)) if before else 0


def what(recent_nanousd: int, usual_nanousd: int) -> str:
    """Return how a run accelerates, in words.

    >>> what(20_000_000_000, 2_000_000_000)
    'the run spent $20 in 5 minutes, and $2 in as long before'
    """
    recent, before = wire.dollars(recent_nanousd), wire.dollars(usual_nanousd)
    return (
        f"the run spent {recent} in {STEP_MS // MINUTE_MS} minutes, and {before} in as long before"
    )


def rule_for(policies: Iterable[Policy], run: SpendOfRun) -> tuple[Action, str] | None:
    """Return the strictest action for a run, and the policy that it is of."""
    found = None
    for policy in policies:
        action = policy.document.on_accelerating_spend
        if action is None or not policy.enabled or not _concerns(policy, run):
            continue
        if found is None or _ACTIONS.index(action) > _ACTIONS.index(found[0]):
            found = (action, policy.name)
    return found


def _concerns(policy: Policy, run: SpendOfRun) -> bool:
    """Return whether a policy covers a run: its workflow, or any agent or key that spent in it."""
    if policy.scope_kind == "organisation":
        return True
    if policy.scope_kind == "workflow":
        return run.workflow_id is not None and globs.matches(policy.scope_id, run.workflow_id)
    names = run.agents if policy.scope_kind == "agent" else run.key_ids
    return any(globs.matches(policy.scope_id, name) for name in names)


# -- previews --------------------------------------------------------------------------------------


class AcceleratedRun(Struct, kw_only=True, frozen=True):
    """A run that a rule would have stopped, or flagged.

    Args:
        run_id, workflow_id: of the run.
        at_ms: when it would have been found.
        recent_nanousd, usual_nanousd: what it had spent in the newest five minutes, and usually.
        after_nanousd: what it spent after that.
    """

    run_id: str
    workflow_id: str | None
    at_ms: int
    recent_nanousd: int
    usual_nanousd: int
    after_nanousd: int


class AccelerationPreview(Struct, kw_only=True):
    """What a rule about accelerating spend would have done to stored runs.

    Args:
        runs: how many runs were looked at.
        since_ms: when the first of them spent; ``None`` without any.
        accelerated: how many of them would have been found.
        after_nanousd: what these spent after that.
        worst: those that spent most after that.
    """

    runs: int
    since_ms: int | None
    accelerated: int
    after_nanousd: int
    worst: list[AcceleratedRun]


def preview(policy: Policy, runs: Sequence[SpendOfRun]) -> AccelerationPreview:
    """Apply a policy's rule to what runs have spent by minute."""
    concerned = [run for run in runs if _concerns(policy, run)]
    found = [each for run in concerned if (each := _first(run)) is not None]
    found.sort(key=lambda each: (-each.after_nanousd, each.at_ms, each.run_id))
    since = min((min(run.spent) for run in concerned), default=None)
    return AccelerationPreview(
        runs=len(concerned),
        since_ms=None if since is None else since * MINUTE_MS,
        accelerated=len(found),
        after_nanousd=sum(each.after_nanousd for each in found),
        worst=found[:WORST_MAX],
    )


def _first(run: SpendOfRun) -> AcceleratedRun | None:
    """Return the first moment at which a run would have been found, at the end of each minute."""
    minutes = sorted(run.spent)
    totals = list(itertools.accumulate((run.spent[minute] for minute in minutes), initial=0))
    width = STEP_MS // MINUTE_MS
    # At each minute with spend, from the sums up to it: a search for each step, and not a loop over
    # the minutes in it.
    for place, minute in enumerate(minutes, start=1):
        ends = [bisect_right(minutes, minute - width * step) for step in range(1, STEPS + 1)]
        if totals[place] - totals[ends[0]] < LEAST_NANOUSD:
            continue
        steps = itertools.pairwise([totals[end] for end in (place, *ends)])
        spent = {
            step: cost for step, cost in enumerate(itertools.starmap(operator.sub, steps)) if cost
        }
        if accelerates(spent):
            return AcceleratedRun(
                run_id=run.run_id, workflow_id=run.workflow_id,
                at_ms=(minute + 1) * MINUTE_MS, recent_nanousd=spent[0],
                usual_nanousd=usual(spent), after_nanousd=totals[-1] - totals[place],
            )  # fmt: skip
    return None
