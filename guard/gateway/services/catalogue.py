"""Policies and prices of each organisation, kept ready for the hot path."""

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
    """One organisation's settings, policies and prices; ``version`` changes with each of them.

    ``call_limits`` are its limits of calls, and ``tool_rules`` caches the rules of each key.
    """

    settings: OrganisationSettings
    rules: list[policy.Rules]
    prices: PriceBook
    version: str = ""
    call_limits: list[BudgetRule] = []
    tool_rules: dict[tuple[str, str | None], wire.ToolRules] = {}


class CatalogueCache:
    """Caches each organisation's view until it changes."""

    def __init__(self, storage: Storage, fallback: Rates, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        self._fallback = fallback
        # By organisation, until a commit changes one.
        self._views: dict[str, OrgView] = {}
        # Rises with each change: a view that was read across one may be the old one.
        self._generation = 0

    async def view(self, organisation_id: str) -> OrgView:
        """Return the current view, reading it if needed."""
        view = self._views.get(organisation_id)
        while view is None:
            generation = self._generation
            view = await self._read(organisation_id)
            if generation == self._generation:
                self._views[organisation_id] = view
            else:  # changed while it was read: another may have read it since, else once more
                view = self._views.get(organisation_id)
        return view

    async def tool_rules(
        self, organisation_id: str, key_id: str, key_workflow_id: str | None
    ) -> wire.ToolRules:
        """Return the tool rules that a key's SDK is to have, computed once for each change.

        Raises:
            NotFoundError: no such organisation.
            StoreError: the store cannot be read.
        """
        view = await self.view(organisation_id)
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
