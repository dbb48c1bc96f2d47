"""Finds text that the protocol refuses in messages and JSON (:mod:`guard.core.wire.text`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec import inspect as types

from guard.core import wire
from guard.core.wire.fields import BYTES_MAX

_STANDS_FOR_NUL: Final = "\ufdd0".encode()
_Check = Callable[[Any], str | None]


def is_plain(body: bytes) -> bool:
    """Return whether no text in a JSON body can have a flaw, so that none has to be checked."""
    data = bytes(body)  # what came over a socket is a view of its frame
    return data.isascii() and b"\\u" not in data


def free_json(data: bytes) -> bytes:
    r"""Return JSON in which U+FDD0 is escaped, so that every engine reads back the same JSON.

    >>> free_json('"\ufdd0"'.encode())
    b'"\\ufdd0"'
    """
    return data.replace(_STANDS_FOR_NUL, rb"\ufdd0")


def flaw_in(message: Struct) -> str | None:
    """Return the first field of a message whose text is refused, and why; None if there is none.

    Events in it are skipped: each is checked, and rejected, by itself.
    """
    for name, encoded, check in _checks(type(message)):
        value = getattr(message, name)
        if type(value) is str and value.isascii() and "\0" not in value:
            continue  # as nearly all are
        if value is not None and (found := check(value)) is not None:
            return f"{encoded}{found}"
    return None


@functools.cache
def _checks(kind: type[Struct]) -> list[tuple[str, str, _Check]]:
    """Return the fields of a message that hold text, and how each is checked."""
    found = types.type_info(kind)
    assert isinstance(found, types.StructType)
    made = [(each.name, each.encode_name, _check(each.type)) for each in found.fields]
    return [(name, encoded, check) for name, encoded, check in made if check is not None]


def _check(kind: types.Type, bytes_max: int | None = None) -> _Check | None:
    """Return a function that returns the flaw of a value, and where in it that is."""
    if isinstance(kind, types.Metadata):
        return _check(kind.type, (kind.extra or {}).get(BYTES_MAX))
    if isinstance(kind, types.StrType):
        return functools.partial(_text, bytes_max)
    if isinstance(kind, types.UnionType):
        members = [check for each in kind.types if (check := _check(each, bytes_max)) is not None]
        return functools.partial(_any, members) if members else None
    if isinstance(kind, types.ListType):
        inner = _check(kind.item_type)
        return None if inner is None else functools.partial(_items, inner)
    if isinstance(kind, types.DictType):
        return functools.partial(_members, _check(kind.key_type), _check(kind.value_type))
    if isinstance(kind, types.StructType) and kind.cls is not wire.Event:
        return _struct
    return None


def _text(bytes_max: int | None, value: Any) -> str | None:
    if not isinstance(value, str):  # another member of a union
        return None
    flaw = wire.flaw_in_text(value, bytes_max)
    return None if flaw is None else f": {flaw}"


def _any(members: list[_Check], value: Any) -> str | None:
    return next((found for each in members if (found := each(value)) is not None), None)


def _items(check: _Check, value: Any) -> str | None:
    if not isinstance(value, list):
        return None
    found = (check(each) for each in value)
    return next((f"[...]{each}" for each in found if each is not None), None)


def _members(of_keys: _Check | None, of_values: _Check | None, value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    for key, each in value.items():
        if of_keys is not None and (found := of_keys(key)) is not None:
            return f" (a name in it){found}"
        if of_values is not None and (found := of_values(each)) is not None:
            return f"[...]{found}"
    return None


def _struct(value: Any) -> str | None:
    if not isinstance(value, Struct):
        return None
    found = flaw_in(value)
    return None if found is None else f".{found}"
