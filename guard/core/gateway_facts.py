"""What an organisation's operators have judged themselves, beside the facts of this release."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from guard.core.wire import OwnFacts

if TYPE_CHECKING:
    from guard.core.vendors.bodies import BodyPart

TRUST: Final = "trust"
"""The format of facts that are names with their kind, such as ``tool:NAME``, at any place."""

TRUSTED_KINDS: Final = ("member:", "tool:", "block:", "path:", "model:", "counter:", "frame:")
"""What can be trusted although it is not known here."""


class GatewayFacts:
    """The facts that the gateway has sent for one key. Immutable; any thread may use it.

    Args:
        message: that of the gateway.

    Attributes:
        version: a digest of them.
        date: when the newest was judged, as an ISO date; empty without one.
        trusted: what costs nothing besides, such as ``tool:NAME``.
    """

    def __init__(self, message: OwnFacts) -> None:
        self._groups = message.groups
        self.version = message.version
        self.date = message.date
        self.trusted = frozenset(
            name for group in message.groups if group.format == TRUST for name in group.names
        )

    @functools.cached_property
    def bodies(self) -> Mapping[str, BodyPart]:
        """What is known of the bodies of each format, with these facts; made when first needed."""
        from guard.core.vendors.bodies import BODIES, body_of  # slow to load: for every vendor

        formats = {group.format for group in self._groups} & BODIES.keys()
        return {**BODIES, **{each: body_of(each, self._groups) for each in formats}}
