"""Service tiers that vendors answer in although no request has named them: a project's own."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from guard.core.rates import is_dearer, names_tier
from guard.core.request_bound import RequestBound
from guard.core.usage.response_format import Usage

_KNOWN_MAX: Final = 1024
_Target = tuple[str, str | None]
"""A host and a model."""


class AnsweredTiers:
    """Remembers dearer tiers that answers name, for requests that leave the tier to the vendor.

    Only the first request of a host and model can so cost more than was held for it.
    """

    def __init__(self) -> None:
        self._tiers: dict[_Target, str] = {}

    def bounded(self, host: str, bound: RequestBound) -> RequestBound:
        """Return a request's bound, in the tier that such requests were answered in."""
        if not self._tiers or names_tier(bound.terms.tier):
            return bound
        tier = self._tiers.get((host, bound.model))
        if tier is None:
            return bound
        return structs.replace(bound, terms=structs.replace(bound.terms, tier=tier))

    def learn(self, host: str, bound: RequestBound, usage: Usage) -> None:
        """Take note of the tier of an answer, where it is dearer than the standard one."""
        tier = usage.service_tier
        if tier is None or not is_dearer(tier) or names_tier(bound.terms.tier):
            return
        if len(self._tiers) >= _KNOWN_MAX:
            self._tiers.pop(next(iter(self._tiers), ("", None)), None)
        self._tiers[host, bound.model] = tier
