"""Budgets and policies: listed, previewed, edited, removed."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.handlers import as_budget, as_policy
from guard.gateway.dashboard import forms
from guard.gateway.dashboard.site import RequestContext, Site
from guard.gateway.domain import budget_preview
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import Budget, Policy, PolicyDocument, RateCap

BALANCES_MAX = 200
PREVIEW_CALLS = 1000


class BudgetsAndPolicies:
    """Forms over the admin handlers; a preview is the same form with another button."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._storage = site.parts.storage
        self._handlers = site.parts.handlers

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/budgets", page(self.budgets), methods=["GET"]),
            Route("/budgets", action(self.save_budget), methods=["POST"]),
            Route("/budgets/edit", page(self.edit_budget), methods=["GET"]),
            Route("/budgets/delete", page(self.confirm_budget), methods=["GET"]),
            Route("/budgets/delete", action(self.delete_budget), methods=["POST"]),
            Route("/policies", page(self.policies), methods=["GET"]),
            Route("/policies", action(self.save_policy), methods=["POST"]),
            Route("/policies/edit", page(self.edit_policy), methods=["GET"]),
            Route("/policies/delete", page(self.confirm_policy), methods=["GET"]),
            Route("/policies/delete", action(self.delete_policy), methods=["POST"]),
        ]

    # -- budgets -------------------------------------------------------------------------------

    async def budgets(self, visit: RequestContext) -> Response:
        """List budgets with their fullest balances."""
        budgets: list[Budget] = await self._handlers.budgets(visit.call())
        balances = await self._storage.fullest_balances(visit.org(), BALANCES_MAX)
        by_budget: dict[str, list[Any]] = {}
        for balance in balances:
            by_budget.setdefault(balance.budget_id, []).append(balance)
        return await self._site.render(visit, "budgets.html", budgets=budgets, by_budget=by_budget)

    async def _budget(self, visit: RequestContext, budget_id: str) -> Budget:
        budgets: list[Budget] = await self._handlers.budgets(visit.call())
        for budget in budgets:
            if budget.budget_id == budget_id:
                return budget
        raise NotFoundError("no such budget")

    async def edit_budget(self, visit: RequestContext) -> Response:
        """Show the form, empty or filled."""
        budget_id = visit.query("id")
        if budget_id:
            return await self._budget_form(visit, await self._budget(visit, budget_id))
        new = Budget(
            budget_id="", organisation_id=visit.org(), scope_kind="organisation", scope_id="",
            window="day", limit_nanousd=10_000_000_000,
        )  # fmt: skip
        workflow_id = visit.query("workflow")
        if workflow_id:
            new.scope_kind, new.scope_id = "workflow", workflow_id
        return await self._budget_form(visit, new)

    async def _budget_form(self, visit: RequestContext, budget: Budget, **context: Any) -> Response:
        context = {"preview": None, "error": ""} | context
        return await self._site.render(visit, "budget_edit.html", budget=budget, **context)

    async def save_budget(self, visit: RequestContext) -> Response:
        """Preview a budget, or activate it."""
        budget_id = visit.form.text("budget_id")
        try:
            body = forms.budget(visit.form)
            wanted = as_budget(visit.org(), body)
        except ValueError as exc:
            known = await self._budget(visit, budget_id) if budget_id else None
            return await self._budget_form(
                visit, known or _blank_budget(visit), error=f"Nothing was saved: {exc}.", status=400
            )
        wanted.budget_id = budget_id
        if visit.form.text("do") == "preview":
            charges = await self._storage.newest_charges(
                visit.org(), wanted.scope_kind, budget_preview.CHARGES_MAX
            )
            found = budget_preview.preview(wanted, charges)
            return await self._budget_form(visit, wanted, preview=found)
        await self._handlers.put_budget(visit.call(body=body))
        return self._site.done(visit, "budget", "/budgets")

    async def confirm_budget(self, visit: RequestContext) -> Response:
        """Ask before a budget is removed."""
        budget = await self._budget(visit, visit.query("id"))
        return await self._site.render(visit, "confirm_budget.html", budget=budget)

    async def delete_budget(self, visit: RequestContext) -> Response:
        """Remove a budget."""
        budget_id = visit.form.text("budget_id")
        await self._handlers.delete_budget(visit.call(budget_id=budget_id))
        return self._site.done(visit, "budget-deleted", "/budgets")

    # -- policies ------------------------------------------------------------------------------

    async def policies(self, visit: RequestContext) -> Response:
        """List active policies."""
        policies = await self._handlers.policies(visit.call())
        return await self._site.render(visit, "policies.html", policies=policies)

    async def _policy(self, visit: RequestContext, name: str) -> Policy:
        policies: list[Policy] = await self._handlers.policies(visit.call())
        for policy in policies:
            if policy.name == name:
                return policy
        raise NotFoundError("no such policy")

    async def edit_policy(self, visit: RequestContext) -> Response:
        """Show the form, empty or filled."""
        name = visit.query("name")
        if name:
            return await self._policy_form(visit, await self._policy(visit, name), is_new=False)
        new = Policy(policy_id="", organisation_id=visit.org(), name="", document=PolicyDocument())
        return await self._policy_form(visit, new, is_new=True)

    async def _policy_form(
        self, visit: RequestContext, policy: Policy, *, is_new: bool, **context: Any
    ) -> Response:
        context = {"preview": None, "error": ""} | context
        versions = []
        if not is_new:
            versions = await self._handlers.policy_versions(visit.call(name=policy.name))
        caps: list[RateCap | None] = [*policy.document.rate_caps, None]
        return await self._site.render(
            visit, "policy_edit.html", policy=policy, is_new=is_new, caps=caps,
            versions=versions[:10], **context,
        )  # fmt: skip

    async def save_policy(self, visit: RequestContext) -> Response:
        """Preview a policy, or activate it."""
        is_new = visit.form.text("is_new") == "1"
        try:
            name, body = forms.named(visit.form), forms.policy(visit.form)
            wanted = as_policy(visit.org(), name, body)
        except ValueError as exc:
            known = (
                Policy(policy_id="", organisation_id=visit.org(), name="",
                       document=PolicyDocument())
                if is_new else await self._policy(visit, visit.form.text("name"))
            )  # fmt: skip
            return await self._policy_form(
                visit, known, is_new=is_new, error=f"Nothing was saved: {exc}.", status=400
            )
        if visit.form.text("do") == "preview":
            found = await self._handlers.preview(
                visit.call(body=bodies.PreviewBody(name=name, policy=body, calls=PREVIEW_CALLS))
            )
            return await self._policy_form(visit, wanted, is_new=is_new, preview=found)
        await self._handlers.put_policy(visit.call(body=body, name=name))
        return self._site.done(visit, "policy", "/policies")

    async def confirm_policy(self, visit: RequestContext) -> Response:
        """Ask before a policy is deactivated."""
        policy = await self._policy(visit, visit.query("name"))
        return await self._site.render(visit, "confirm_policy.html", policy=policy)

    async def delete_policy(self, visit: RequestContext) -> Response:
        """Deactivate a policy."""
        await self._handlers.delete_policy(visit.call(name=visit.form.text("name")))
        return self._site.done(visit, "policy-deleted", "/policies")


def _blank_budget(visit: RequestContext) -> Budget:
    return Budget(
        budget_id="", organisation_id=visit.org(), scope_kind="organisation", scope_id="",
        window="day", limit_nanousd=0,
    )  # fmt: skip
