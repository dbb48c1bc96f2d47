"""Policies and prices of each organisation, cached for the hot path."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import policy
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import BudgetRule, OrganisationSettings, Rates
from guard.gateway.domain.tool_rules import rules_for
from guard.gateway.services.pricing import PriceBook
from guard.gateway.storage.port import Storage


class OrgView(Struct):
    """One organisation's settings, policies and prices.

    A view is replaced by another one and never changed, except that its caches fill up: a task may
    keep using it across awaits.

    Attributes:
        settings: its settings.
        rules: its policies, compiled.
        prices: its prices, and the published ones.
        version: a digest of all of these; leases are granted under it.
        call_limits: its limits of calls.
        tool_rules: caches :meth:`CatalogueCache.tool_rules`, by key (empty where no rule is for a
            key) and the key's workflow.
    """

    settings: OrganisationSettings
    rules: list[policy.Rules]
    prices: PriceBook
    version: str = ""
    call_limits: list[BudgetRule] = []
    tool_rules: dict[tuple[str, str | None], wire.ToolRules] = {}


class CatalogueCache:
    """Caches each organisation's view until it changes. Used on the loop only."""

    def __init__(self, storage: Storage, fallback: Rates, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        self._fallback = fallback
        # By organisation; removed by :meth:`forget` after a commit that changes it.
        self._views: dict[str, OrgView] = {}
        # Rises with each :meth:`forget`, for any organisation. A view that was being read then may
        # be the old one, and must not be cached.
        self._generation = 0

    async def view(self, organisation_id: str) -> OrgView:
        """Return the current view, reading it if needed."""
        view = self._views.get(organisation_id)
        while view is None:
            generation = self._generation
            view = await self._read(organisation_id)
            if generation == self._generation:
                self._views[organisation_id] = view
            # Something was changed while it was read. Another task may have read it since; else it
            # is read once more.
            else:
                view = self._views.get(organisation_id)
        return view

    async def tool_rules(
        self, organisation_id: str, key_id: str, key_workflow_id: str | None
    ) -> wire.ToolRules:
        """Return the tool rules for a key's SDK, computed once for each view.

        Raises:
            NotFoundError: no such organisation.
            StoreError: the store cannot be read.
        """
        view = await self.view(organisation_id)
        # Where no rule is for a key, all keys of a workflow share one result.
        by_key = any(each.policy.scope_kind == "key" for each in view.rules) or any(
            each.scope_kind == "key" for each in view.call_limits
        )
        key = (key_id if by_key else "", key_workflow_id)
        if key not in view.tool_rules:
            policies = [each.policy for each in view.rules]
            limits = view.call_limits
            view.tool_rules[key] = rules_for(policies, key_id, key_workflow_id, limits)
        return view.tool_rules[key]

    def forget(self, organisation_id: str | None) -> None:
        """Drop the cached view of an organisation, or all of them."""
        self._generation += 1
        if organisation_id is None:
            self._views.clear()
        else:
            self._views.pop(organisation_id, None)

    async def _read(self, organisation_id: str) -> OrgView:
        for organisation in await self._storage.organisations():
            if organisation.organisation_id == organisation_id:
                policies = await self._storage.policies(organisation_id)
                prices = await self._storage.prices(organisation_id)
                limits = await self._storage.call_budgets(organisation_id)
                content = wire.encode([organisation.settings, policies, prices, *limits])
                return OrgView(
                    organisation.settings,
                    policy.compiled(policies),
                    PriceBook(
                        prices,
                        self._fallback,
                        self._clock_ms,
                        organisation.settings.default_tier,
                    ),
                    hashlib.blake2b(content, digest_size=8).hexdigest(),
                    limits,
                )
        raise NotFoundError("no such organisation")
