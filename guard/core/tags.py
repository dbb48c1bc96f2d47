"""Tags of the work: a few names and values that the application chooses."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from guard.core.wire.fields import NAME_BYTES_MAX, NAME_LENGTH_MAX, TAG_NAME_LENGTH_MAX, TAGS_MAX
from guard.core.wire.text import flaw_in_text


def merged(outer: str | None, added: Mapping[str, str]) -> str | None:
    """Return tags as text, the added ones in the place of outer ones with the same name.

    Tags travel as text because a tuple of strings is nothing to the garbage collector.

    Raises:
        ValueError: too many in all.

    >>> merged('{"team":"billing"}', {"feature": "chat"})
    '{"feature":"chat","team":"billing"}'
    """
    found = {**tags_of(outer), **added}
    if len(found) > TAGS_MAX:
        raise ValueError(f"at most {TAGS_MAX} tags hold at once, and these would be {len(found)}")
    if not found:
        return None
    return json.dumps(found, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(text)
    return found


_NONE: dict[str, str] = {}


def tags_of(text: str | None) -> dict[str, str]:
    """Return the tags of a text of :func:`merged`; not to be changed."""
    return _NONE if text is None else _read(text)


def check_tags(tags: Mapping[str, str]) -> None:
    """Check tags that an application gives.

    Raises:
        TypeError: a name or a value is not a string.
        ValueError: a name or a value is too long or no text of the protocol, or a name is empty.
    """
    for name, value in tags.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a tag is a string, not {type(name).__name__}")
        if not 1 <= len(name) <= TAG_NAME_LENGTH_MAX:
            raise ValueError(f"the name of a tag has 1 to {TAG_NAME_LENGTH_MAX} characters")
        if (flaw := flaw_in_text(name)) is not None:
            raise ValueError(f"the name of a tag {flaw}")
        if not isinstance(value, str):
            raise TypeError(f"the tag {name!r} is a string, not {type(value).__name__}")
        if len(value) > NAME_LENGTH_MAX:
            raise ValueError(f"the tag {name!r} has at most {NAME_LENGTH_MAX} characters")
        if (flaw := flaw_in_text(value, NAME_BYTES_MAX)) is not None:
            raise ValueError(f"the tag {name!r} {flaw}")
