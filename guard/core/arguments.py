"""The arguments of a call: a keyed digest that stands for them, and what is shown.

An approval is bound to the digest, and repeats within a run are counted by it.

Without its key a digest reveals nothing about the arguments. The gateway has only a hash of the API
key, from which the digest's key cannot be derived.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from msgspec import Struct

_VALUES_MAX: Final = 20_000
_DEPTH_MAX: Final = 32
_CUT: Final = "\ufffd cut"
_DIGITS: Final = 32


def named(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names that the function gives them.

    >>> named(lambda a, b=2: a, (1,), {})
    {'a': 1, 'b': 2}
    """
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
    except (TypeError, ValueError):  # a builtin, or a call that will fail
        return {"args": list(args), **kwargs}


def key_of(api_key: str) -> bytes:
    """Return the key of digests."""
    return hashlib.sha256(b"guard arguments\0" + api_key.encode("utf-8", "replace")).digest()


def digest(arguments: Mapping[str, Any], key: bytes) -> str:
    """Return the digest of arguments: equal values give the same, in every process of a key.

    Counted are JSON's values, bytes, sets, and the fields of dataclasses and of msgspec's, attrs'
    and pydantic's classes. Of anything else only the class counts, and of very large arguments
    their beginning.

    >>> digest({"a": 1, "b": (2, 3)}, b"k") == digest({"b": [2, 3], "a": 1}, b"k")
    True
    """
    plain = _Plain().of(arguments, 0)
    return keyed(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode(), key)


def keyed(data: bytes, key: bytes) -> str:
    """Return the digest of bytes."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:_DIGITS]


def shown(value: Any) -> Any:
    """Return an argument as JSON for a person; of what JSON has not, the class."""
    return _Plain().of(value, 0)


class _Plain:
    """Makes plain JSON of values, a bounded number of them."""

    def __init__(self) -> None:
        self._left = _VALUES_MAX

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_MAX:
            return _CUT
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value).encode("utf-8", "replace").decode()
        if isinstance(value, int):
            return int(value) if -(2**63) <= value < 2**63 else f"{int(value):x}"
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else repr(float(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return {"bytes": hashlib.sha256(value).hexdigest()}
        if isinstance(value, Mapping):
            found = {}
            for name, each in value.items():
                if self._left < 0:
                    break
                found[str(name).encode("utf-8", "replace").decode()] = self.of(each, depth + 1)
            return found
        if isinstance(value, list | tuple):
            return self._items(value, depth)
        if isinstance(value, AbstractSet):
            return sorted(json.dumps(each, sort_keys=True) for each in self._items(value, depth))
        return self._fields(value, depth)

    def _items(self, value: Any, depth: int) -> list[Any]:
        found = []
        for each in value:
            if self._left < 0:
                break
            found.append(self.of(each, depth + 1))
        return found

    def _fields(self, value: Any, depth: int) -> Any:
        kind = type(value)
        names: Sequence[str] = ()
        if dataclasses.is_dataclass(kind):
            names = [each.name for each in dataclasses.fields(kind)]
        elif isinstance(value, Struct):
            names = kind.__struct_fields__
        elif isinstance(getattr(kind, "__attrs_attrs__", None), tuple):
            names = [each.name for each in kind.__attrs_attrs__]
        elif isinstance(getattr(kind, "__pydantic_fields__", None), dict):
            names = list(kind.__pydantic_fields__)
        found = {"class": f"{kind.__module__}.{kind.__qualname__}"}
        for name in names:
            found[f".{name}"] = self.of(getattr(value, name, None), depth + 1)
        return found
