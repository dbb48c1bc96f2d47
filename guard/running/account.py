"""A run's key at the local gateway, with its budget and policy: all that happens is charged to it.

The budget belongs to the key, so a program that opens workflows of its own stays within it.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from guard.control.observations import OBSERVED_EVENT
from guard.gateway.cli.admin_client import AdminClient, AdminError
from guard.local_runs import RunMark, policy_of
from guard.running.plan import RunLimits

_PAGE: Final = 1000


@attrs.frozen
class RunSpend:
    """What a run has used."""

    nanousd: int = 0
    requests: int = 0


class RunAccount:
    """One run at the gateway.

    Args:
        admin: of the local gateway.
        workflow: the run's workflow.
        limits: what it may do.
        mark: has the gateway remove all of it, should this process be killed.

    Raises:
        AdminError: the gateway refuses one of the limits.
    """

    def __init__(self, admin: AdminClient, workflow: str, limits: RunLimits, mark: RunMark) -> None:
        self._admin = admin
        self._workflow = workflow
        made = admin.create_key_full(f"run {workflow}"[:100], role="sdk", signed=True)
        self.api_key = str(made["api_key"])
        self.hmac_secret = str(made["hmac_secret"])
        self._key_id = str(made["key"]["key_id"])
        # Named at once: if this process is killed from here on, the gateway removes the key.
        self._mark = mark
        mark.name(self._key_id, str(made["key"]["organisation_id"]))
        # Set once they exist, so that `close` removes what was made.
        self._budget_id: str | None = None
        self._policy: str | None = None
        try:
            self._limit(limits)
        except BaseException:
            self.close()
            raise

    def _limit(self, limits: RunLimits) -> None:
        if limits.limit_nanousd is not None:
            budget = self._admin.set_budget(
                limit_nanousd=limits.limit_nanousd, scope_kind="key", scope_id=self._key_id
            )
            self._budget_id = str(budget["budget_id"])
        document = limits.policy()
        if document:
            self._policy = policy_of(self._key_id)
            self._admin.set_policy(
                self._policy, scope_kind="key", scope_id=self._key_id, **document
            )

    def halt(self) -> tuple[str, str] | None:
        """Return ``("killed", reason)`` when an operator has killed the run's workflow."""
        try:
            found = self._admin.workflow(self._workflow)
        except AdminError:
            return None
        return ("killed", str(found["reason"])) if found["state"] == "killed" else None

    def spend(self) -> RunSpend:
        """Return what the run has used so far."""
        for row in self._admin.usage("key", limit=_PAGE):
            if row["group"] == self._key_id:
                return RunSpend(int(row["cost_nanousd"]), int(row["llm_calls"]))
        return RunSpend()

    def observed(self) -> list[dict[str, Any]]:
        """Return what would have been refused."""
        found: list[dict[str, Any]] = []
        after = 0
        while True:
            page = self._admin.events(after=after, limit=_PAGE, type=OBSERVED_EVENT)
            found += [event["data"] for event in page if event["key_id"] == self._key_id]
            if len(page) < _PAGE:
                return found
            after = int(page[-1]["event_seq"])

    def close(self) -> None:
        """Revoke the key, which cuts off whatever is left of the run, and remove its rules."""
        # The rules go after the key, so that no request is ever made without them.
        self._admin.revoke_key(self._key_id)
        if self._policy is not None:
            self._admin.delete_policy(self._policy)
        if self._budget_id is not None:
            self._admin.delete_budget(self._budget_id)
        self._mark.done()
