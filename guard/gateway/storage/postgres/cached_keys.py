"""Which rows of an organisation are cached, so that dropping them looks at no other one's."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class CachedKeys:
    """Keys of one organisation's cached rows; some may have left the cache meanwhile."""

    balances: set[int] = attrs.field(factory=set)
    reservations: set[str] = attrs.field(factory=set)
    chains: set[str] = attrs.field(factory=set)
    estimates: set[str] = attrs.field(factory=set)
