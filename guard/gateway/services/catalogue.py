"""Policies and prices of each organisation, cached for the hot path."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct, field

from guard.core import wire
from guard.gateway.domain import policy
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.facts import message_of
from guard.gateway.domain.records import BudgetRule, OrganisationSettings, Rates
from guard.gateway.domain.tool_rules import rules_for
from guard.gateway.services.pricing import PriceBook
from guard.gateway.storage.port import Storage

COMPILED: Final = 50
"""Policies that are compiled in one step: about a millisecond."""


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
        facts: what its operators have judged of requests.
        tool_rules: caches :meth:`CatalogueCache.tool_rules`, by key (empty where no rule is for a
            key) and the key's workflow.
    """

    settings: OrganisationSettings
    rules: list[policy.Rules]
    prices: PriceBook
    version: str = ""
    call_limits: list[BudgetRule] = []
    tool_rules: dict[tuple[str, str | None], wire.ToolRules] = {}
    facts: wire.OwnFacts = field(default_factory=wire.OwnFacts)


class CatalogueCache:
    """Caches each organisation's view until it changes. Used on the loop only."""

    def __init__(self, storage: Storage, fallback: Rates, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        self._fallback = fallback
        # By organisation; removed by :meth:`forget` after a commit that changes it.
        self._views: dict[str, OrgView] = {}
        # Who reads a view now, by organisation; kept by those that wait for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Organisations whose view is being read and has not been forgotten since it was begun.
        self._unchanged: set[str] = set()

    async def view(self, organisation_id: str) -> OrgView:
        """Return the current view, reading it if needed."""
        view = self._views.get(organisation_id)
        if view is not None:
            return view
        async with self._locks.setdefault(organisation_id, asyncio.Lock()):
            while (view := self._views.get(organisation_id)) is None:
                self._unchanged.add(organisation_id)
                read = await self._read(organisation_id)
                # Else something was changed while it was read, and it is read once more.
                if organisation_id in self._unchanged:
                    self._views[organisation_id] = read
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
        if organisation_id is None:
            self._views.clear()
            self._unchanged.clear()
        else:
            self._views.pop(organisation_id, None)
            self._unchanged.discard(organisation_id)

    async def _read(self, organisation_id: str) -> OrgView:
        for organisation in await self._storage.organisations():
            if organisation.organisation_id == organisation_id:
                policies = await self._storage.policies(organisation_id)
                prices = await self._storage.prices(organisation_id)
                limits = await self._storage.call_budgets(organisation_id)
                rules: list[policy.Rules] = []
                for start in range(0, len(policies), COMPILED):
                    rules += policy.compiled(policies[start : start + COMPILED])
                    await asyncio.sleep(0)  # others' requests
                content = wire.encode([organisation.settings, policies, prices, *limits])
                return OrgView(
                    organisation.settings,
                    rules,
                    PriceBook(
                        prices,
                        self._fallback,
                        self._clock_ms,
                        organisation.settings.default_tier,
                    ),
                    hashlib.blake2b(content, digest_size=8).hexdigest(),
                    limits,
                    facts=message_of(await self._storage.facts(organisation_id)),
                )
        raise NotFoundError("no such organisation")
