"""Structural features: what a text is made of, apart from its words, in buckets."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from spamdetect.engine.characters import SCRIPTS, Kind
from spamdetect.engine.counts import Counts
from spamdetect.engine.links import host_kind, link_form
from spamdetect.engine.normalise import Normalised

# Each group is a quantity and the edges of its buckets: below the first edge is bucket 0.
GROUPS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("length", (8, 16, 30, 50, 80, 120, 170, 260, 420, 800, 2000)),
    ("links", (1, 2, 3, 6)),
    ("mail addresses", (1, 2)),
    ("mentions", (1, 2, 4)),
    ("hashtags", (1, 2, 4)),
    ("phone numbers", (1, 2)),
    ("longest number", (1, 3, 4, 5, 6, 8, 10, 12)),
    ("amounts of money", (1, 2, 4)),
    ("percentages", (1, 2)),
    ("share of digits", (0.0001, 0.03, 0.07, 0.12, 0.2, 0.35)),
    ("share of capitals", (0.0001, 0.04, 0.1, 0.2, 0.4, 0.7)),
    ("exclamation marks", (1, 2, 3, 5, 10)),
    ("question marks", (1, 2, 4)),
    ("emoji", (1, 2, 4, 8)),
    ("share of signs", (0.02, 0.05, 0.1, 0.2)),
    ("line breaks", (1, 3, 8, 30)),
    ("invisible characters", (1, 2, 4, 16)),
    ("direction controls", (1,)),
    ("added accents", (1, 4, 16)),
    ("styled letters", (1, 4, 16)),
    ("words of mixed scripts", (1, 2, 5)),
    ("letters written apart", (1, 2)),
    ("digits for letters", (1, 2, 4)),
    ("stretched letters", (1, 3)),
    ("HTML entities", (1, 4)),
)
HOST_KINDS: Final = (
    "empty", "address", "shortener", "messenger", "familiar", "risky", "ordinary", "other",
)  # fmt: skip
# How a link is built: what `links.link_form` counts, and the edges of the buckets.
LINK_GROUPS: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("hyphens in a link's host", (1, 2)),
    ("digits in a link's host", (1, 3)),
    ("dots in a link's host", (2, 3)),
    ("length of a link's host", (10, 15, 22)),
    ("length of a link's path", (1, 12)),
)
SCRIPT_GROUP: Final = ("none", *SCRIPTS[1:])

_OFFSETS: Final[list[int]] = []
_NAMES: Final[list[str]] = []
for _name, _edges in GROUPS:
    _OFFSETS.append(len(_NAMES))
    _NAMES.extend(f"{_name}:{index}" for index in range(len(_edges) + 1))
_HOST_OFFSET: Final = len(_NAMES)
_NAMES.extend(f"link to:{kind}" for kind in HOST_KINDS)
_LINK_PLAN: Final[list[tuple[int, tuple[float, ...]]]] = []
for _name, _edges in LINK_GROUPS:
    _LINK_PLAN.append((len(_NAMES), _edges))
    _NAMES.extend(f"{_name}:{index}" for index in range(len(_edges) + 1))
_SCRIPT_OFFSET: Final = len(_NAMES)
_NAMES.extend(f"script:{script}" for script in SCRIPT_GROUP)

STRUCTURE_NAMES: Final = tuple(_NAMES)
STRUCTURE_SIZE: Final = len(_NAMES)
SCRIPT_COLUMNS: Final = slice(_SCRIPT_OFFSET, STRUCTURE_SIZE)
_PLAN: Final = tuple((offset, edges) for offset, (_, edges) in zip(_OFFSETS, GROUPS, strict=True))
_HOST_INDEX: Final = {kind: _HOST_OFFSET + i for i, kind in enumerate(HOST_KINDS)}

_NUMBER: Final = re.compile("0+")
_PHONE: Final = re.compile(r"\+?0(?:[ ().-]{0,2}0){6,}")
_MONEY_SIGN: Final = re.compile(r"[$€£₹₽¥฿₴₦₱₫] ?0")
_MONEY_WORD: Final = re.compile(r"0 ?(?:[€£₹₽¥฿₴₫]|usd|eur|gbp|rs\b|inr|руб|р\b|грн|บาท|btc|eth\b)")
_RUPEES: Final = re.compile(r"rs\.? ?0")
_TAG: Final = re.compile(r"#\w")
_HOSTS_READ = 8

# A plain number is found faster than the member of an enumeration.
_ACCENT: Final = int(Kind.ACCENT)
_BIDI: Final = int(Kind.BIDI)
_DIGIT: Final = int(Kind.DIGIT)
_EMOJI: Final = int(Kind.EMOJI)
_EXCLAMATION: Final = int(Kind.EXCLAMATION)
_INVISIBLE: Final = int(Kind.INVISIBLE)
_LOWER: Final = int(Kind.LOWER)
_NEWLINE: Final = int(Kind.NEWLINE)
_PUNCTUATION: Final = int(Kind.PUNCTUATION)
_QUESTION: Final = int(Kind.QUESTION)
_STAR: Final = int(Kind.STAR)
_STYLED: Final = int(Kind.STYLED)
_SYMBOL: Final = int(Kind.SYMBOL)
_UPPER: Final = int(Kind.UPPER)


def bucket_groups() -> list[slice]:
    """The range of each group's buckets; every text is in one bucket of each group."""
    groups = [slice(offset, offset + len(edges) + 1) for offset, edges in _PLAN]
    return [*groups, SCRIPT_COLUMNS]


def structure(normalised: Normalised, counts: Counts, length: int) -> list[int]:
    """The active structural features, as indices into `STRUCTURE_NAMES`.

    Args:
        normalised: the text after normalisation.
        counts: those of the text as received.
        length: code points of the text as received.
    """
    count = counts.kinds
    size = max(1, length)
    cased = count[_UPPER] + count[_LOWER]
    marked = normalised.marked
    phones, longest, money, percent = _of_digits(marked, count[_DIGIT])
    signs = count[_PUNCTUATION] + count[_SYMBOL] + count[_STAR]
    values = (
        length,
        len(normalised.urls),
        normalised.mails,
        normalised.mentions,
        len(_TAG.findall(marked)) if "#" in marked else 0,
        phones,
        longest,
        money,
        percent,
        count[_DIGIT] / size,
        count[_UPPER] / cased if cased else 0,
        count[_EXCLAMATION],
        count[_QUESTION],
        count[_EMOJI],
        signs / size,
        count[_NEWLINE],
        count[_INVISIBLE],
        count[_BIDI],
        count[_ACCENT],
        count[_STYLED],
        normalised.mixed,
        normalised.spaced,
        normalised.leet,
        normalised.repeats,
        normalised.entities,
    )
    on = features(values)
    if normalised.urls:
        on += _links(normalised.urls)
    on.append(_SCRIPT_OFFSET + counts.script)
    return on


def features(values: tuple[float, ...]) -> list[int]:
    """The feature of each of the quantities in `GROUPS`."""
    return [
        offset + bisect_right(edges, value) if value else offset
        for (offset, edges), value in zip(_PLAN, values, strict=True)
    ]


def _of_digits(marked: str, digits: int) -> tuple[int, int, int, int]:
    """The phone numbers, the longest number, the amounts of money and the percentages."""
    if not digits and "0" not in marked:
        return 0, 0, 0, 0
    return (
        len(_PHONE.findall(marked)) if digits >= 7 else 0,
        max(map(len, _NUMBER.findall(marked)), default=0),
        len(_MONEY_SIGN.findall(marked))
        + len(_MONEY_WORD.findall(marked))
        + len(_RUPEES.findall(marked)),
        marked.count("0%"),
    )


def _links(urls: Sequence[str]) -> set[int]:
    """The features of what the first links lead to, and of how they are built."""
    on = set()
    for url in urls[:_HOSTS_READ]:
        on.add(_HOST_INDEX[host_kind(url)])
        for (offset, edges), value in zip(_LINK_PLAN, link_form(url), strict=True):
            on.add(offset + bisect_right(edges, value))
    return on
