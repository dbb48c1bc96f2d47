"""Keys that belong to other keys: the spend of a key counts for the keys above it, too.

The id of such a key is its owner's id, a dot and an id of its own. So the keys above it are known
from its id, without a look-up.
"""

from __future__ import annotations

from typing import Final

from guard.core import globs

SEPARATOR: Final = "."
LENGTH_MAX: Final = 256


def child_id(owner_id: str, own_id: str) -> str:
    """Return the id of a key that belongs to another."""
    return f"{owner_id}{SEPARATOR}{own_id}"


def lineage(key_id: str) -> tuple[str, ...]:
    """Return a key's id and those of the keys above it, its own first.

    Example:
        >>> lineage("a.b")
        ('a.b', 'a')
    """
    if SEPARATOR not in key_id:
        return (key_id,)
    parts = key_id.split(SEPARATOR)
    return tuple(SEPARATOR.join(parts[:count]) for count in range(len(parts), 0, -1))


def counted_by(pattern: str, key_id: str) -> str | None:
    """Return the id in a key's lineage whose balance counts the key's usage, if one does.

    Args:
        pattern: the id or glob that the budget is for.
        key_id: the key that was used.

    Example:
        >>> counted_by("a", "a.b"), counted_by("*", "a.b"), counted_by("c", "a.b")
        ('a', 'a.b', None)
    """
    return next((name for name in lineage(key_id) if globs.matches(pattern, name)), None)


def top_key(key_id: str) -> str:
    """Return the id of the key at the top of a key's lineage.

    Example:
        >>> top_key("a.b")
        'a'
    """
    return key_id.partition(SEPARATOR)[0]


def owner_of(key_id: str) -> str | None:
    """Return the id of the key that a key belongs to, if there is one."""
    return key_id.rpartition(SEPARATOR)[0] or None
