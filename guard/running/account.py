"""A run's key at the local gateway, with its budget and policy: all that happens is charged to it.

The budget belongs to the key, so a program that opens workflows of its own stays within it.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import attrs

from guard.control.observations import OBSERVED_EVENT
from guard.gateway.cli.admin_client import AdminClient, AdminError
from guard.gateway.domain.lineage import lineage
from guard.local_runs import RunMark, policy_of
from guard.running.plan import RunLimits
from guard.running.words import OperatorStop

_PAGE: Final = 1000
_CUT_SHORT: Final = "cut_short"
_UNPRICED: Final = "unpriced"
_LOCAL: Final = "local"


@attrs.frozen
class RunCount:
    """What a run has used of one limit of tokens or calls.

    Attributes:
        unit: ``tokens`` or ``calls``.
        of: the glob of the tools and models whose calls are counted; empty for all.
        used, limit: so many.
    """

    unit: str
    of: str
    used: int
    limit: int

    def __str__(self) -> str:
        of = f" of {self.of}" if self.of else ""
        return f"{self.used:,} of {self.limit:,} {self.unit}{of}"


@attrs.frozen
class RunSpend:
    """What a run has used.

    Attributes:
        nanousd: what it was charged.
        requests: how many LLM requests it has made.
        uncertain_nanousd: what of it was charged in doubt: at most so much was not billed.
        cut_short: how many answers ended at a limit that was put in because of the budget.
        local: the models that were not charged, because they are on this machine, likewise.
        unpriced: the models that were charged at fallback prices, and how many requests each.
        counted: what it has used of its limits of tokens and calls, as far as it has used any.
    """

    nanousd: int = 0
    requests: int = 0
    uncertain_nanousd: int = 0
    cut_short: int = 0
    unpriced: dict[str, int] = attrs.Factory(dict[str, int])
    local: dict[str, int] = attrs.Factory(dict[str, int])
    counted: tuple[RunCount, ...] = ()


@attrs.frozen
class WaitingRaise:
    """A request of a run that waits for its limit to be raised.

    Attributes:
        limit_nanousd, spent_nanousd: of the run, when the request began to wait.
        lacking_nanousd: what the limit lacks for it.
        deadline_ms: when it is refused, in Unix milliseconds.
        scope: of the run's budget, as refusals name it.
    """

    limit_nanousd: int
    spent_nanousd: int
    lacking_nanousd: int
    deadline_ms: int
    scope: str

    @property
    def budget(self) -> dict[str, Any]:
        """The run's budget, as refusals show it."""
        return {
            "scope": self.scope,
            "limit_nanousd": self.limit_nanousd,
            "spent_nanousd": self.spent_nanousd,
        }


class RunAccount:
    """One run at the gateway.

    Args:
        admin: of the local gateway.
        workflow: the run's workflow.
        limits: what it may do.
        mark: has the gateway remove all of it, should this process be killed.
        owner_id: the key of the run around this one, whose limits apply too.

    Raises:
        AdminError: the gateway refuses one of the limits.
    """

    def __init__(
        self,
        admin: AdminClient,
        workflow: str,
        limits: RunLimits,
        mark: RunMark,
        owner_id: str | None = None,
    ) -> None:
        self._admin = admin
        self._workflow = workflow
        name = f"run {workflow}"[:100]
        made = admin.create_key_full(name, role="sdk", signed=True, owner_id=owner_id)
        self.api_key = str(made["api_key"])
        self.hmac_secret = str(made["hmac_secret"])
        self.key_id = str(made["key"]["key_id"])
        # Named at once: if this process is killed from here on, the gateway removes the key.
        self._mark = mark
        mark.name(self.key_id, str(made["key"]["organisation_id"]), workflow)
        # Set once they exist, so that `close` removes what was made.
        self._budget_ids: list[str] = []
        self._money_id: str | None = None
        self._policy: str | None = None
        try:
            self._limit(limits)
            admin.announce_workflow(workflow)  # it can be killed before its first request
        except BaseException:
            self.close()
            raise

    def _limit(self, limits: RunLimits) -> None:
        wanted: list[dict[str, Any]] = []
        if limits.limit_nanousd is not None:
            wanted.append({
                "limit_nanousd": limits.limit_nanousd,
                "on_exhausted": "ask" if limits.asks else "refuse",
                "wind_down_percent": limits.keep_percent,
            })  # fmt: skip
        if limits.limit_tokens is not None:
            wanted.append({"limit_tokens": limits.limit_tokens})
        for glob, calls in limits.max_calls:
            wanted.append({"limit_calls": calls, "counts": [glob] if glob else []})
        for limit in wanted:
            budget = self._admin.set_budget(scope_kind="key", scope_id=self.key_id, **limit)
            self._budget_ids.append(str(budget["budget_id"]))
            if "limit_nanousd" in limit:
                self._money_id = self._budget_ids[-1]
        self._has_counted = limits.limit_tokens is not None or bool(limits.max_calls)
        document = limits.policy()
        if document:
            self._policy = policy_of(self.key_id)
            self._admin.set_policy(
                # Of the runs within this one, too.
                self._policy,
                scope_kind="key",
                scope_id=f"{self.key_id}*",
                **document,
            )

    def waiting_raise(self) -> WaitingRaise | None:
        """Return the request that has waited longest for the limit to be raised."""
        for ask in self._admin.budget_asks(_PAGE):
            if ask["budget_id"] == self._money_id:
                return WaitingRaise(
                    int(ask["limit_nanousd"]), int(ask["spent_nanousd"]),
                    int(ask["lacking_nanousd"]), int(ask["deadline_ms"]), str(ask["scope"]),
                )  # fmt: skip
        return None

    def raise_limit(self, by_nanousd: int, key: str) -> None:
        """Raise the limit, once for each key."""
        if self._money_id is not None:
            self._admin.raise_budget(self._money_id, by_nanousd, key)

    def limit_nanousd(self) -> int | None:
        """Return the limit, with what it was raised by; None for none."""
        for rule in self._admin.budgets():
            if rule["budget_id"] == self._money_id:
                return int(rule["limit_nanousd"])
        return None

    def limits_now(self, limits: RunLimits) -> RunLimits:
        """Return the limits of the run, with what its own was raised by."""
        if not limits.asks:
            return limits
        return attrs.evolve(limits, limit_nanousd=self.limit_nanousd() or limits.limit_nanousd)

    def halt(self) -> OperatorStop | None:
        """Return the kill or the pause of the run's workflow, by its name or by a glob."""
        try:
            found = self._admin.workflow(self._workflow)
        except AdminError:
            return None
        if found["state"] == "active":
            return None
        return OperatorStop(str(found["state"]), str(found["reason"]), str(found["stopped_by"]))

    def kill(self) -> OperatorStop | None:
        """Return the kill of the run's workflow, if it is killed."""
        halt = self.halt()
        return halt if halt is not None and halt.state == "killed" else None

    def budget_behind(self, label: str) -> tuple[str, str] | None:
        """Return the id of the budget with this label, and the id or glob that it is set for.

        Args:
            label: as refusals name it, such as ``workflow research (day)``.
        """
        with contextlib.suppress(AdminError):
            rules = {rule["budget_id"]: rule for rule in self._admin.budgets()}
            for row in self._admin.ledger():
                scope = f"{row['scope_kind']} {row['scope_id']}".strip()
                rule = rules.get(row["budget_id"])
                if rule is not None and f"{scope} ({row['window']})" == label:
                    return str(rule["budget_id"]), str(rule["scope_id"])
        return None

    def spend(self) -> RunSpend:
        """Return what the run has used so far."""
        rows = [row for row in self._admin.usage("key", limit=_PAGE) if self._has(row["group"])]
        return RunSpend(
            sum(int(row["cost_nanousd"]) for row in rows),
            sum(int(row["llm_calls"]) for row in rows),
            sum(int(row["uncertain_nanousd"]) for row in rows),
            counted=tuple(self._counted()) if self._has_counted else (),
        )

    def _counted(self) -> Iterator[RunCount]:
        """Yield what the run has used of its limits of tokens and calls."""
        for row in self._admin.ledger():
            if row["budget_id"] in self._budget_ids and row["unit"] != "usd":
                yield RunCount(
                    str(row["unit"]),
                    ", ".join(row["counts"]),
                    int(row["committed_nanousd"]),
                    int(row["limit_nanousd"]),
                )

    def spend_in_full(self) -> RunSpend:
        """Return what the run has used, and what was special about it: that takes longer."""
        cut_short = 0
        unpriced: collections.Counter[str] = collections.Counter()
        local: collections.Counter[str] = collections.Counter()
        for event in self._events(type="llm", flag=f"{_CUT_SHORT},{_UNPRICED},{_LOCAL}"):
            cut_short += _CUT_SHORT in event["flags"]
            unpriced[event["model"]] += _UNPRICED in event["flags"]
            local[event["model"]] += _LOCAL in event["flags"]
        return attrs.evolve(
            self.spend(),
            cut_short=cut_short,
            unpriced={model: count for model, count in unpriced.most_common() if count},
            local={model: count for model, count in local.most_common() if count},
        )

    def observed(self) -> list[dict[str, Any]]:
        """Return what would have been refused."""
        return [event["data"] for event in self._events(type=OBSERVED_EVENT)]

    def _events(self, **which: str) -> Iterator[dict[str, Any]]:
        after = 0
        while True:
            page = self._admin.events(after=after, limit=_PAGE, **which)
            yield from (event for event in page if self._has(event["key_id"]))
            if len(page) < _PAGE:
                return
            after = int(page[-1]["event_seq"])

    def _has(self, key_id: str) -> bool:
        """Tell whether a key is this run's, or that of a run within it."""
        return self.key_id in lineage(key_id)

    def close(self) -> None:
        """Revoke the key, which cuts off whatever is left of the run, and remove its rules."""
        # The rules go after the key, so that no request is ever made without them.
        self._admin.revoke_key(self.key_id)
        if self._policy is not None:
            self._admin.delete_policy(self._policy)
        for budget_id in self._budget_ids:
            self._admin.delete_budget(budget_id)
        self._mark.done()
