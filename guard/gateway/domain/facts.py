"""What an operator has judged of the vendors' requests: checked, compared, made ready to send."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta, Struct

from guard.core import wire
from guard.core.gateway_facts import TRUST, TRUSTED_KINDS
from guard.core.vendors.bodies import FORMATS

NAME_MAX: Final = 100
"""Characters of a name. A program's longer names are cut to it, so that no fact would meet them."""
FACTS_MAX: Final = 2000
"""Facts of one organisation."""
BYTES_MAX: Final = 256 * 1024
"""Bytes of an organisation's facts, as they are sent to each of its programs."""

Judged = Literal[
    "repeats", "routes", "attempts", "models", "opens", "vendor", "opaque", "client", "blocks",
    "neutral",
]  # fmt: skip
"""What a name can be judged to be; the dearer come first."""
JUDGED: Final[tuple[Judged, ...]] = get_args(Judged)
_ABOUT: Final = {"vendor": "tool", "client": "tool", "blocks": "block"}


class OwnFact(Struct, kw_only=True, frozen=True):
    """What an operator has judged one name to be.

    Attributes:
        name: of a member, or a type of a tool or block; with its kind where the format is
            ``trust``, such as ``tool:NAME``.
        judged: as in the facts files of this release.
        format: of the body, such as ``chat``; ``trust`` for all of them, at any place.
        at: the place in the body; empty for the body itself.
        source: what says so.
        date: when it was judged, as an ISO date; empty if nobody says.
    """

    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    judged: Judged = "neutral"
    format: Annotated[str, Meta(max_length=32)] = TRUST
    at: Annotated[str, Meta(max_length=200)] = ""
    source: Annotated[str, Meta(max_length=300)] = ""
    date: Annotated[str, Meta(max_length=10)] = ""

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What is judged: the format, the place, whether a member, tool or block, the name."""
        return self.format, self.at, _ABOUT.get(self.judged, "member"), self.name


class FactsChanged(Struct, kw_only=True):
    """How many facts were added, changed and removed, and how many there are now."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    total: int = 0


def check(fact: OwnFact) -> None:
    """Check what the types of the fields do not say.

    Raises:
        ValueError: it cannot be a fact; the text is one sentence.
    """
    for text in (fact.name, fact.at, fact.source):
        if any(unicodedata.category(each) in ("Cc", "Cs") for each in text):
            raise ValueError(f"{text!r} has a control character")
    if fact.date:
        try:
            dt.date.fromisoformat(fact.date)
        except ValueError:
            raise ValueError(f"{fact.date!r} is no date such as 2026-11-29") from None
    if fact.format != TRUST:
        if fact.format not in FORMATS:
            formats = ", ".join((*FORMATS, TRUST))
            raise ValueError(f"{fact.format!r} is no format: there are {formats}")
    elif fact.at or fact.judged != "neutral":
        raise ValueError(f"what is trusted by its kind is neutral everywhere: {fact.name!r}")
    elif not fact.name.startswith(TRUSTED_KINDS) or fact.name in TRUSTED_KINDS:
        kinds = ", ".join(f"{kind}NAME" for kind in TRUSTED_KINDS)
        raise ValueError(f"{fact.name!r} is none of {kinds}; --format makes it a plain name")


def distinct(facts: Iterable[OwnFact]) -> list[OwnFact]:
    """Return the facts in order, one for each name; the dearest of several counts."""
    found: dict[tuple[str, str, str, str], OwnFact] = {}
    for fact in facts:
        known = found.get(fact.subject)
        if known is None or JUDGED.index(fact.judged) < JUDGED.index(known.judged):
            found[fact.subject] = fact
    return [found[subject] for subject in sorted(found)]


def message_of(facts: Sequence[OwnFact]) -> wire.OwnFacts:
    """Return the facts as they are sent to programs."""
    if not facts:
        return wire.OwnFacts()

    def group(fact: OwnFact) -> tuple[str, str, str]:
        return fact.format, fact.at, fact.judged

    groups = [
        wire.FactGroup(*key, [fact.name for fact in each])
        for key, each in itertools.groupby(sorted(facts, key=group), group)
    ]
    date = max(fact.date for fact in facts)
    digest = hashlib.blake2b(wire.encode([date, groups]), digest_size=12).hexdigest()
    return wire.OwnFacts(digest, date, groups)
