"""What the classifier reads of a text's structure: how its links are built."""

from __future__ import annotations

import pytest

from spamdetect.engine.counts import count
from spamdetect.engine.explain import described
from spamdetect.engine.links import link_form
from spamdetect.engine.normalise import normalise
from spamdetect.engine.structure import LINK_GROUPS, STRUCTURE_NAMES, structure

TEXTS = [
    "see you at seven",
    "pay at https://parcel-fee-24.top/q/7?id=9 now",
    "both: www.example.org and http://10.0.0.1:8080/login",
    "http:// leads nowhere, www.. neither",
    "links " + " ".join(f"site{number}.com/{'x' * number}" for number in range(20)),
]


def named(text: str) -> list[str]:
    return [STRUCTURE_NAMES[index] for index in structure(normalise(text), count(text), len(text))]


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://www.example.org/", (0, 0, 1, 11, 0)),
        ("https://parcel-fee-24.top/q/7?id=9", (2, 2, 1, 17, 8)),
        ("user@shop.example.co.uk/a", (0, 0, 3, 18, 1)),
        ("http://10.0.0.1:8080/login", (0, 5, 3, 8, 11)),
        ("http://", (0, 0, 0, 0, 0)),
    ],
)
def test_how_a_link_is_built(url: str, form: tuple[int, ...]) -> None:
    assert link_form(url) == form


def test_each_link_is_in_one_bucket_of_each_group() -> None:
    names = {name for name, _ in LINK_GROUPS}
    assert not [name for name in named(TEXTS[0]) if name.partition(":")[0] in names]
    groups = [name.partition(":")[0] for name in named(TEXTS[1])]
    assert [groups.count(name) for name, _ in LINK_GROUPS] == [1] * len(LINK_GROUPS)
    assert {
        "hyphens in a link's host:2",
        "digits in a link's host:1",
        "dots in a link's host:0",
        "length of a link's host:2",
        "length of a link's path:1",
    } <= set(named(TEXTS[1]))
    assert {"digits in a link's host:0", "digits in a link's host:2"} <= set(named(TEXTS[2]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hyphens in a link's host:0", "hyphens in a link's host: none, more usual in"),
        ("length of a link's host:2", "length of a link's host: 15 to below 22, more usual in"),
        ("length of a link's path:2", "length of a link's path: 12 or more, more usual in"),
    ],
)
def test_a_reason_says_how_the_link_is_built(name: str, said: str) -> None:
    assert described(name, 1.0).startswith(said)
