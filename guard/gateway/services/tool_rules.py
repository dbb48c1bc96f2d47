"""The tool rules that each key's SDK is to have, as control messages."""

from __future__ import annotations

from guard.core import wire
from guard.gateway.domain.tool_rules import rules_for
from guard.gateway.services.catalogue import CatalogueCache, OrgView


class ToolRulesOf:
    """Computes the tool rules of keys, once for each change of an organisation's policies."""

    def __init__(self, catalogue: CatalogueCache) -> None:
        self._catalogue = catalogue

    async def changed(
        self, organisation_id: str, key_id: str, key_workflow_id: str | None, known: str
    ) -> wire.ToolRules | None:
        """Return a key's tool rules; None when their version is the known one.

        Raises:
            NotFoundError: no such organisation.
            StoreError: the store cannot be read.
        """
        view = await self._catalogue.view(organisation_id)
        rules = _cached(view, key_id, key_workflow_id)
        return None if rules.version == known else rules


def _cached(view: OrgView, key_id: str, key_workflow_id: str | None) -> wire.ToolRules:
    by_key = any(each.policy.scope_kind == "key" for each in view.rules)
    key = (key_id if by_key else "", key_workflow_id)
    found = view.tool_rules.get(key)
    if found is None:
        policies = [each.policy for each in view.rules]
        found = view.tool_rules[key] = rules_for(policies, key_id, key_workflow_id)
    return found
