"""Walks the types of vendors' SDKs: which members a request's body can have, and where."""

from __future__ import annotations

import collections
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, get_args, get_origin

import pydantic
import typing_extensions
from botocore.model import ListShape, StructureShape

Members = dict[str, set[str]]
"""Names of members by the place of their object, such as ``tools.function``."""

_DEPTH_MAX: Final = 12


def members(
    root: Any, below: Iterable[str], skips: Callable[[str, str], bool]
) -> tuple[Members, dict[str, set[str]]]:
    """Return the members that a body can have by their place, and the values of ``type`` by place.

    Args:
        root: the type of the body: a union of ``TypedDict`` classes, a model of pydantic, a shape
            of botocore's, or the method of a client whose arguments are the members.
        below: places whose objects are one kind, however deep they are nested.
        skips: tells whether the objects in a member are left out, by its place and name.
    """
    names, kinds = collections.defaultdict(set), collections.defaultdict(set)
    flat = tuple(below)
    seen: set[tuple[int, str]] = set()
    waiting: list[tuple[Any, str, int]] = [(root, "", 0)]
    while waiting:
        kind, place, depth = waiting.pop()
        for each in _objects(kind):
            if (id(each), place) in seen or depth > _DEPTH_MAX:
                continue
            seen.add((id(each), place))
            for name, hint in _fields(each):
                names[place].add(name)
                if name == "type":
                    kinds[place].update(_literals(hint))
                if skips(place, name):
                    continue
                inner = f"{place}.{name}".lstrip(".")
                found = next((f for f in flat if inner == f or inner.startswith(f"{f}.")), None)
                waiting.append((hint, found or inner, depth + 1))
    return dict(names), dict(kinds)


_NOT_SENT: Final = ("self", "return", "request_options")


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(kind, StructureShape):
        yield from kind.members.items()
        return
    if inspect.isfunction(kind):
        hints = typing_extensions.get_type_hints(kind)
        yield from ((name, hint) for name, hint in hints.items() if name not in _NOT_SENT)
        return
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        for name, field in kind.model_fields.items():
            yield field.alias or name, field.annotation
        return
    yield from typing_extensions.get_type_hints(kind, include_extras=False).items()


def _objects(kind: Any) -> Iterator[Any]:
    """Yield the kinds of objects that a hint allows, alone, in a list or as values."""
    is_model = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
    if isinstance(kind, ListShape):
        yield from _objects(kind.member)
    elif (
        is_model
        or typing_extensions.is_typeddict(kind)
        or inspect.isfunction(kind)
        or isinstance(kind, StructureShape)
    ):
        yield kind
    elif isinstance(kind, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
        yield from _objects(kind.__value__)
    elif get_origin(kind) is not None or isinstance(kind, types.UnionType):
        if get_origin(kind) is typing.Literal:
            return
        for each in get_args(kind):
            yield from _objects(each)


def _literals(kind: Any) -> Iterator[str]:
    if get_origin(kind) is typing.Literal:
        yield from (each for each in get_args(kind) if isinstance(each, str))
    else:
        for each in get_args(kind):
            yield from _literals(each)
