"""Records from the bodies of requests."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T", bound=Struct)


def record_from(body: Struct, kind: type[T], **others: Any) -> T:
    """Return a record of a kind, with what a body has under the names of its fields.

    Args:
        body: has fields or properties of the same names.
        kind: of the record.
        others: fields that the body does not have, or has otherwise.
    """
    shared = {name: getattr(body, name) for name in kind.__struct_fields__ if hasattr(body, name)}
    return kind(**{**shared, **others})
