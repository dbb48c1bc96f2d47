"""Budgets and policies: listed, previewed, edited, removed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.admin import bodies, table
from guard.gateway.api.admin.rules import as_budget, as_policy, budget_of
from guard.gateway.dashboard import forms
from guard.gateway.dashboard.budget_forecasts import budget_forecasts
from guard.gateway.dashboard.site import PageGroup, RequestContext, only
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.preview import CHARGES_MAX, preview_budget
from guard.gateway.domain.records import (
    BalanceView,
    BudgetAsk,
    BudgetRule,
    Policy,
    PolicyDocument,
    RateCap,
)

BALANCES_MAX = 200
PREVIEW_CALLS = 1000
RAISES_MAX = 50
ASKS_MAX = 1000
SHOWN_MAX = 5


class BudgetsAndPolicies(PageGroup):
    """Forms over the table of operations; a preview is the same form with another button."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/budgets", page(self.budgets), methods=["GET"]),
            Route("/budgets", action(self.save_budget), methods=["POST"]),
            Route("/budgets/edit", page(self.edit_budget), methods=["GET"]),
            Route("/budgets/raise", action(self.raise_budget), methods=["POST"]),
            Route("/budgets/refuse", action(self.refuse_raise), methods=["POST"]),
            Route("/budgets/delete", page(self.confirm_budget), methods=["GET"]),
            Route("/budgets/delete", action(self.delete_budget), methods=["POST"]),
            Route("/policies", page(self.policies), methods=["GET"]),
            Route("/policies", action(self.save_policy), methods=["POST"]),
            Route("/policies/edit", page(self.edit_policy), methods=["GET"]),
            Route("/policies/delete", page(self.confirm_policy), methods=["GET"]),
            Route("/policies/delete", action(self.delete_policy), methods=["POST"]),
        ]

    # -- budgets -------------------------------------------------------------------------------

    async def budgets(self, context: RequestContext) -> Response:
        """List budgets with their fullest balances."""
        budgets = await self._storage.budgets(context.org())
        balances = await self._storage.fullest_balances(context.org(), BALANCES_MAX)
        by_budget: dict[str, list[BalanceView]] = {}
        for balance in balances:
            by_budget.setdefault(balance.budget_id, []).append(balance)
        asks = await self._storage.budget_asks(context.org(), ASKS_MAX)
        asked: dict[str, list[BudgetAsk]] = {}
        for ask in asks:
            asked.setdefault(ask.budget_id, []).append(ask)
        shown = [each for own in by_budget.values() for each in own[:SHOWN_MAX]]
        now_ms = self._site.parts.clock_ms()
        return await self._site.render(
            context, "budgets.html", budgets=budgets, by_budget=by_budget, asked=asked,
            balances_max=BALANCES_MAX, is_cut=len(balances) == BALANCES_MAX,
            unmatched=await self._unmatched(context), raise_key=secrets.token_hex(8),
            suggested=_suggested, names=await self._storage.key_names(context.org()),
            forecasts=await budget_forecasts(self._storage, context.org(), shown, now_ms),
        )  # fmt: skip

    async def _unmatched(self, context: RequestContext) -> set[tuple[str, str]]:
        found = await table.list_unmatched(context.call())
        return {(each.scope_kind, each.scope_id) for each in found}

    async def refuse_raise(self, context: RequestContext) -> Response:
        """Refuse a call that waits for a raise, or all that wait for one budget."""
        body = forms.raise_refusal(context.form)
        budget_id = context.form.text("budget_id")
        await table.refuse_raise(context.call(), body, budget_id=budget_id)
        return self._site.done(context, "raise-refused", "/budgets")

    async def raise_budget(self, context: RequestContext) -> Response:
        """Raise a budget, once for each form that was shown."""
        budget_id = context.form.text("budget_id")
        known = await self._budget(context, budget_id)
        try:
            body = forms.budget_raise(context.form, known.unit)
        except ValueError as exc:
            return await self._budget_form(
                context, known, error=f"Nothing was raised: {exc}.", status=400
            )
        await table.raise_budget(context.call(), body, budget_id=budget_id)
        return self._site.done(context, "budget-raised", "/budgets")

    async def _budget(self, context: RequestContext, budget_id: str) -> BudgetRule:
        return only("budget", await self._storage.budgets(context.org()), budget_id=budget_id)

    async def edit_budget(self, context: RequestContext) -> Response:
        """Show the form, empty or filled."""
        budget_id = context.query("id")
        if budget_id:
            return await self._budget_form(context, await self._budget(context, budget_id))
        new = _new_budget(context, limit=10_000_000_000)
        workflow_id = context.query("workflow")
        if workflow_id:
            new.scope_kind, new.scope_id = "workflow", workflow_id
        return await self._budget_form(context, new)

    async def _budget_form(
        self, context: RequestContext, budget: BudgetRule, **values: Any
    ) -> Response:
        values = {"preview": None, "error": ""} | values
        raises = []
        if budget.budget_id:
            raises = await self._storage.budget_raises(context.org(), budget.budget_id, RAISES_MAX)
        return await self._site.render(
            context, "budget_edit.html", budget=budget, raises=raises,
            raise_key=secrets.token_hex(8), suggested=_suggested,
            names=await self._storage.key_names(context.org()), **values,
        )  # fmt: skip

    async def save_budget(self, context: RequestContext) -> Response:
        """Preview a budget, or activate it."""
        budget_id = context.form.text("budget_id")
        try:
            body = forms.budget(context.form)
            typed = as_budget(context.org(), body)
        except ValueError as exc:
            known = _new_budget(context, limit=0)
            if budget_id:
                known = await self._budget(context, budget_id)
            return await self._budget_form(
                context, known, error=f"Nothing was saved: {exc}.", status=400
            )
        previews = context.form.text("do") == "preview"
        try:
            if not previews:
                await table.put_budget(context.call(), body)
                return self._site.done(context, "budget", "/budgets")
            wanted = await budget_of(context.call(), body)
        except ConflictError as exc:
            typed.budget_id = budget_id
            return await self._budget_form(
                context, typed, error=f"Nothing was saved: {exc}.", status=409
            )
        wanted.budget_id = budget_id
        if wanted.unit != "usd":
            error = "A preview replays what calls have cost, so there is none for this unit."
            return await self._budget_form(context, wanted, error=error)
        charges = await self._storage.newest_charges(context.org(), wanted.scope_kind, CHARGES_MAX)
        calendar = context.organisation.settings.calendar(wanted.zone)
        found = preview_budget(wanted, charges, calendar)
        return await self._budget_form(context, wanted, preview=found)

    async def confirm_budget(self, context: RequestContext) -> Response:
        """Ask before a budget is removed."""
        budget = await self._budget(context, context.query("id"))
        names = await self._storage.key_names(context.org())
        return await self._site.render(context, "confirm_budget.html", budget=budget, names=names)

    async def delete_budget(self, context: RequestContext) -> Response:
        """Remove a budget."""
        budget_id = context.form.text("budget_id")
        await table.delete_budget(context.call(), budget_id=budget_id)
        return self._site.done(context, "budget-deleted", "/budgets")

    # -- policies ------------------------------------------------------------------------------

    async def policies(self, context: RequestContext) -> Response:
        """List active policies."""
        policies = await self._storage.policies(context.org())
        return await self._site.render(
            context, "policies.html", policies=policies, unmatched=await self._unmatched(context)
        )

    async def _policy(self, context: RequestContext, name: str) -> Policy:
        return only("policy", await self._storage.policies(context.org()), name=name)

    async def edit_policy(self, context: RequestContext) -> Response:
        """Show the form, empty or filled."""
        name = context.query("name")
        policy = await self._policy(context, name) if name else _new_policy(context)
        return await self._policy_form(context, policy, is_new=not name)

    async def _policy_form(
        self, context: RequestContext, policy: Policy, *, is_new: bool, **values: Any
    ) -> Response:
        values = {"preview": None, "error": ""} | values
        versions = []
        if not is_new:
            versions = await self._storage.policy_versions(context.org(), policy.name)
        caps: list[RateCap | None] = [*policy.document.rate_caps, None]
        return await self._site.render(
            context, "policy_edit.html", policy=policy, is_new=is_new, caps=caps,
            repeats=[*policy.document.repeat_caps, None], versions=versions[:10], **values,
        )  # fmt: skip

    async def save_policy(self, context: RequestContext) -> Response:
        """Preview a policy, or activate it."""
        is_new = context.form.text("is_new") == "1"
        try:
            name, body = forms.named(context.form), forms.policy(context.form)
            wanted = as_policy(context.org(), name, body)
        except ValueError as exc:
            known = _new_policy(context)
            if not is_new:
                known = await self._policy(context, context.form.text("name"))
            return await self._policy_form(
                context, known, is_new=is_new, error=f"Nothing was saved: {exc}.", status=400
            )
        if context.form.text("do") == "preview":
            tried = bodies.PreviewBody(name=name, policy=body, calls=PREVIEW_CALLS)
            found = await table.preview_policy(context.call(), tried)
            return await self._policy_form(context, wanted, is_new=is_new, preview=found)
        try:
            await table.put_policy(context.call(), body, name=name)
        except ConflictError as exc:
            return await self._policy_form(
                context, wanted, is_new=is_new, error=f"Nothing was saved: {exc}.", status=409
            )
        return self._site.done(context, "policy", "/policies")

    async def confirm_policy(self, context: RequestContext) -> Response:
        """Ask before a policy is deactivated."""
        policy = await self._policy(context, context.query("name"))
        return await self._site.render(context, "confirm_policy.html", policy=policy)

    async def delete_policy(self, context: RequestContext) -> Response:
        """Deactivate a policy."""
        name = context.form.text("name")
        await table.delete_policy(context.call(), name=name)
        return self._site.done(context, "policy-deleted", "/policies")


def _new_budget(context: RequestContext, *, limit: int) -> BudgetRule:
    return BudgetRule(
        budget_id="", organisation_id=context.org(), scope_kind="organisation", scope_id="",
        window="day", limit=limit,
    )  # fmt: skip


def _suggested(budget: BudgetRule, asks: Sequence[BudgetAsk] = ()) -> int:
    """Return a raise to offer, in the budget's unit: half of the limit, or a call's shortfall."""
    lacking = max((ask.lacking for ask in asks), default=0)
    return max(budget.limit // 2, lacking, 1)


def _new_policy(context: RequestContext) -> Policy:
    document = PolicyDocument()
    return Policy(policy_id="", organisation_id=context.org(), name="", document=document)
