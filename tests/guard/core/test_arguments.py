"""Digests of arguments: equal ones are the same, anything else is another."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.arguments import digest, key_of, named, shown

KEY = key_of("gdk_x")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@dataclasses.dataclass
class Data:
    amount: int


@attrs.define
class Attrs:
    amount: int


class Packed(msgspec.Struct):
    amount: int


@given(JSON, JSON)
def test_a_digest_is_of_the_value(one: Any, other: Any) -> None:
    try:
        copy = json.loads(json.dumps(one))
    except UnicodeError:
        copy = one
    assert digest({"a": one}, KEY) == digest({"a": copy}, KEY)
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    big = any(abs(n) >= 2**63 for n in _numbers([one, other]))
    if not big and not same and "\\ud" not in json.dumps([one, other]):
        assert digest({"a": one}, KEY) != digest({"a": other}, KEY)


def _numbers(value: Any) -> list[int]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [n for each in inner for n in _numbers(each)]


@pytest.mark.parametrize("kind", [Data, Attrs, Packed])
def test_fields_of_classes_count(kind: Any) -> None:
    assert digest({"a": kind(1)}, KEY) == digest({"a": kind(1)}, KEY)
    assert digest({"a": kind(1)}, KEY) != digest({"a": kind(2)}, KEY)


def test_of_other_objects_the_class_counts_and_nothing_fails() -> None:
    assert digest({"a": object()}, KEY) == digest({"a": object()}, KEY)
    assert digest({"a": object()}, KEY) != digest({"a": dt.date(2026, 1, 1)}, KEY)
    circle: list[Any] = []
    circle += [circle, circle, circle]
    assert digest({"a": circle}, KEY) == digest({"a": circle}, KEY)
    assert digest({"a": list(range(10**6))}, KEY)
    assert digest({"a": {1, 2, 3}}, KEY) == digest({"a": {3, 2, 1}}, KEY)
    assert digest({"a": b"x"}, KEY) != digest({"a": b"y"}, KEY)


def test_without_the_key_there_is_no_other_way_to_the_digest() -> None:
    assert digest({"a": 1}, key_of("gdk_a")) != digest({"a": 1}, key_of("gdk_b"))


def test_arguments_by_name() -> None:
    def pay(number: str, *more: int, amount: float = 1.0, **rest: Any) -> None: ...

    found = named(pay, ("7", 1, 2), {"to": "x"})
    assert found == {"number": "7", "more": (1, 2), "amount": 1.0, "rest": {"to": "x"}}
    assert named(pay, (), {"amount": 2}) == {"args": [], "amount": 2}, "a call that will fail"
    assert named(dict, (), {"a": 1})


def test_what_is_shown_is_json() -> None:
    assert shown({"a": (1, "x"), "b": float("inf")}) == {"a": [1, "x"], "b": "inf"}
    assert shown(Data(3)) == {"class": f"{__name__}.Data", ".amount": 3}
