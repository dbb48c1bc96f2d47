"""A run's key at the local gateway, with its budget and policy: the whole run is charged to it.

The budget belongs to the key, so a program that opens workflows of its own stays within it.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import attrs

from guard.control.observations import OBSERVED_EVENT
from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.domain.key_hierarchy import lineage
from guard.local_runs import RunMark, policy_of
from guard.running.balances import RunBalance, RunLimit, RunSpend, WaitingRaise
from guard.running.plan import RunLimits
from guard.running.session_key import key_of_session
from guard.running.words import OperatorStop

_PAGE: Final = 1000
_CUT_SHORT: Final = "cut_short"
_UNPRICED: Final = "unpriced"
_UNPRICED_SOUND: Final = "unpriced_sound"
_LOCAL: Final = "local"
_LIMITS: Final = {"usd": "limit_nanousd", "tokens": "limit_tokens", "calls": "limit_calls"}


class RunAccount:
    """One run at the gateway.

    Args:
        admin: the client of the local gateway.
        workflow: the run's workflow.
        limits: the run's limits.
        mark: makes the gateway remove key and rules if this process is killed.
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
        self._session_id = key_of_session(admin, limits.session) if limits.session else None
        owner_id = self._session_id or owner_id
        name = f"run {workflow}"[:100]
        made = admin.create_key_full(name, role="sdk", signed=True, owner_id=owner_id)
        self.api_key = str(made["api_key"])
        self.hmac_secret = str(made["hmac_secret"])
        self.key_id = str(made["key"]["key_id"])
        # Named at once: if this process is killed from here on, the gateway removes the key.
        self._mark = mark
        mark.name(self.key_id, str(made["key"]["organisation_id"]), workflow)
        # The rules that exist so far, for `close` to remove, but for a session's limits. Budgets by
        # their ids.
        self._budgets: dict[str, RunLimit] = {}
        self._policy: str | None = None
        try:
            self._limit(limits)
            admin.announce_workflow(workflow)  # so that it can be killed before its first request
        except BaseException:
            # If this fails too, the gateway removes the run: its mark stays.
            with contextlib.suppress(AdminError):
                self.close()
            raise

    def _limit(self, limits: RunLimits) -> None:
        wanted: list[RunLimit] = []
        if limits.limit_nanousd is not None:
            wanted.append(RunLimit("usd", "", limits.limit_nanousd))
        if limits.limit_tokens is not None:
            wanted.append(RunLimit("tokens", "", limits.limit_tokens))
        wanted += [RunLimit("calls", glob, calls) for glob, calls in limits.max_calls]
        if self._session_id is not None:
            for rule in self._admin.budgets():
                if rule["scope_kind"] == "key" and rule["scope_id"] == self._session_id:
                    of, amount = ", ".join(rule["counts"]), int(rule["limit"])
                    self._budgets[str(rule["budget_id"])] = RunLimit(rule["unit"], of, amount)
        for limit in wanted:
            budget = self._admin.set_budget(
                scope_kind="key",
                scope_id=self._session_id or self.key_id,
                on_exhausted="ask" if limits.asks else "refuse",
                ask_ms=limits.ask_ms,
                wind_down_percent=0 if limit.unit == "calls" else limits.keep_percent,
                counts=[limit.of] if limit.of else [],
                **{_LIMITS[limit.unit]: limit.limit},
            )
            self._budgets[str(budget["budget_id"])] = limit
        document = limits.policy()
        if document:
            self._policy = policy_of(self.key_id)
            self._admin.set_policy(
                # For the runs within this one as well.
                self._policy,
                scope_kind="key",
                scope_id=f"{self.key_id}*",
                **document,
            )

    def waiting_raise(self) -> WaitingRaise | None:
        """Return the request that has waited longest for a limit to be raised."""
        for ask in self._admin.budget_asks(_PAGE):
            began = self._budgets.get(ask["budget_id"])
            if began is not None:
                return WaitingRaise(
                    str(ask["budget_id"]), began, int(ask["limit"]),
                    int(ask["spent"]), int(ask["lacking"]),
                    int(ask["deadline_ms"]), str(ask["scope"]),
                )  # fmt: skip
        return None

    def raise_limit(self, budget_id: str, by: int, key: str) -> None:
        """Raise a limit; a repeated call with the same idempotency key changes nothing."""
        self._admin.raise_budget(budget_id, by, key, unit=self._budgets[budget_id].unit)

    def limit_of(self, budget_id: str) -> int | None:
        """Return a limit, including its raises."""
        return self._limits_now().get(budget_id)

    def _limits_now(self) -> dict[str, int]:
        return {
            str(rule["budget_id"]): int(rule["limit"])
            for rule in self._admin.budgets()
            if rule["budget_id"] in self._budgets
        }

    def limits_now(self, limits: RunLimits) -> RunLimits:
        """Return the limits of the run, including their raises."""
        if not (limits.asks or limits.session):
            return limits
        now = self._limits_now()
        raised = {
            (began.unit, began.of): now.get(budget_id, began.limit)
            for budget_id, began in self._budgets.items()
        }
        return attrs.evolve(
            limits,
            limit_nanousd=raised.get(("usd", ""), limits.limit_nanousd),
            limit_tokens=raised.get(("tokens", ""), limits.limit_tokens),
            max_calls=tuple((of, raised[unit, of]) for unit, of in raised if unit == "calls"),
        )

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
        """Return the run's spend and requests so far."""
        rows = [row for row in self._admin.usage("key", limit=_PAGE) if self._has(row["group"])]
        return RunSpend(
            sum(int(row["cost_nanousd"]) for row in rows),
            sum(int(row["llm_calls"]) for row in rows),
            sum(int(row["uncertain_nanousd"]) for row in rows),
            balances=tuple(self._balances()) if self._budgets else (),
        )

    def _balances(self) -> Iterator[RunBalance]:
        """Yield the balance of each of the run's limits."""
        for row in self._admin.ledger():
            if row["budget_id"] in self._budgets:
                names = ("committed", "limit", "reserved", "kept", "uncertain")
                amounts = [int(row[name]) for name in names]
                yield RunBalance(str(row["unit"]), ", ".join(row["counts"]), *amounts)

    def spend_in_full(self) -> RunSpend:
        """Return the run's spend, with its special cases; reads events, so it takes longer."""
        cut_short = 0
        unpriced: collections.Counter[str] = collections.Counter()
        local: collections.Counter[str] = collections.Counter()
        for event in self._events(type="llm", flag=f"{_CUT_SHORT},{_UNPRICED},{_LOCAL}"):
            cut_short += _CUT_SHORT in event["flags"]
            unpriced[event["model"]] += _UNPRICED in event["flags"]
            unpriced[f"{event['model']} (sound)"] += _UNPRICED_SOUND in event["flags"]
            local[event["model"]] += _LOCAL in event["flags"]
        return attrs.evolve(
            self.spend(),
            cut_short=cut_short,
            unpriced={model: count for model, count in unpriced.most_common() if count},
            local={model: count for model, count in local.most_common() if count},
        )

    def observed(self) -> list[dict[str, Any]]:
        """Return the refusals that a dry run has only reported."""
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
        """Return whether a key is this run's, or that of a run within it."""
        return self.key_id in lineage(key_id)

    def close(self) -> None:
        """Revoke the key, which cuts off processes that are left of the run; remove its rules."""
        # The rules after the key, so that no request is ever admitted without them. If this fails
        # or dies half-way, the mark stays, and the gateway removes the rest.
        self._admin.revoke_key(self.key_id)
        if self._policy is not None:
            self._admin.delete_policy(self._policy)
        for budget_id in () if self._session_id is not None else self._budgets:
            self._admin.delete_budget(budget_id)
        self._mark.done()
