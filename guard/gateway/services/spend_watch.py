"""Watches for runs whose spend accelerates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from guard.gateway.domain import acceleration
from guard.gateway.domain.records import Policy
from guard.gateway.ledger import repeats
from guard.gateway.ledger.repeats import FasterRun
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within

SPEND_S: Final = 60.0
"""How often it looks at what an organisation's runs spend."""


class SpendWatch:
    """Flags runs whose spend accelerates, and pauses or kills those that a policy covers.

    Args:
        storage: where spend is read, and runs are flagged.
        passed_s: time that only passes, in seconds.
    """

    def __init__(self, storage: Storage, passed_s: Callable[[], float]) -> None:
        self._storage = storage
        self._passed_s = passed_s
        # By organisation: when to look at it again, by ``passed_s``.
        self._next_s: dict[str, float] = {}

    async def look(self, alerted: Iterable[str]) -> None:
        """Look at the organisations with an alert rule for loops, and at those with a policy."""
        alerted = set(alerted)
        policies = await self._storage.acceleration_policies()
        for own in alerted | set(policies):
            began_s = self._passed_s()
            if began_s < self._next_s.get(own, began_s):
                continue
            await self._look_at(own, policies.get(own, ()), is_alerted=own in alerted)
            ended_s = self._passed_s()
            # Looking takes at most about a twentieth of the time.
            self._next_s[own] = ended_s + max(SPEND_S, 20 * (ended_s - began_s))

    async def _look_at(self, own: str, policies: Sequence[Policy], *, is_alerted: bool) -> None:
        faster = []
        for run in await self._storage.spend_by_run(own):
            rule = acceleration.rule_for(policies, run)
            if not (is_alerted or rule) or not acceleration.accelerates(run.spent):
                continue
            action, policy = rule or ("notice", None)
            faster.append(
                FasterRun(
                    run_id=run.run_id, workflow_id=run.workflow_id, recent_nanousd=run.spent[0],
                    usual_nanousd=acceleration.usual(run.spent), action=action, policy=policy,
                )
            )  # fmt: skip
        if faster:
            await self._storage.write(within(own), repeats.spend_accelerates, own, faster)
