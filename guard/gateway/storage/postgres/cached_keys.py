"""The keys of one organisation's cached rows, so that dropping them need not scan the caches."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class CachedKeys:
    """Keys of one organisation's cached rows; some may have left the cache meanwhile."""

    balances: set[int] = attrs.field(factory=set)
    reservations: set[str] = attrs.field(factory=set)
