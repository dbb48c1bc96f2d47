"""Service tiers that answers name although their requests did not: a default of the account's."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from guard.core.rates import is_dearer, names_tier
from guard.core.request_bound import RequestBound
from guard.core.usage.response_format import Usage

_KNOWN_MAX: Final = 1024
_Target = tuple[str, str | None]
"""A host and a model."""


class ObservedTiers:
    """Remembers dearer tiers that answers name, for requests that leave the tier to the vendor.

    So only the first request to a host and model can cost more than was held for it.
    """

    def __init__(self) -> None:
        # The tier of the newest answer, the oldest target first. Threads that read answers write
        # it, threads that send requests read it; each operation is atomic.
        self._tiers: dict[_Target, str] = {}

    def bounded(self, host: str, bound: RequestBound) -> RequestBound:
        """Return a request's bound, priced in the tier that such requests were answered in."""
        if not self._tiers or names_tier(bound.terms.tier):
            return bound
        tier = self._tiers.get((host, bound.model))
        if tier is None:
            return bound
        return structs.replace(bound, terms=structs.replace(bound.terms, tier=tier))

    def learn(self, host: str, bound: RequestBound, usage: Usage) -> None:
        """Remember the tier of an answer if it is dearer than the standard one."""
        tier = usage.service_tier
        if tier is None or not is_dearer(tier) or names_tier(bound.terms.tier):
            return
        if len(self._tiers) >= _KNOWN_MAX:
            self._tiers.pop(next(iter(self._tiers), ("", None)), None)
        self._tiers[host, bound.model] = tier
