"""The one reading of a request's body: what Python's, Go's and JavaScript's readers all find in it.

A body in which they would find different things has none: which of two models is asked, say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from guard.core.usage.charsets import plain
from guard.core.usage.message import Message

_NAME_LENGTH_MAX: Final = 64
_SURROGATES: Final = (b"\\ud", b"\\uD")


class UnreadableError(ValueError):
    """A body that two readers may read differently; the text says why."""


def read_request(body: bytes) -> tuple[Message, bytes]:
    """Return a body as an object, and its bytes in UTF-8 without a mark.

    Raises:
        UnreadableError: it is no object of JSON, or readers differ in what it says.

    >>> read_request(b'{"model": "m"}')
    ({'model': 'm'}, b'{"model": "m"}')
    >>> read_request(b'{"model": "m", "model": "n"}')
    Traceback (most recent call last):
    guard.core.usage.request_body.UnreadableError: names the member 'model' twice
    """
    if not body:
        raise UnreadableError("is sent in pieces, or in a form that cannot be read before it goes")
    # Nearly all bodies begin like this, and are no UTF-16.
    data = body if body[:1] == b"{" and body[1:2] != b"\0" else plain(body)
    try:
        said = msgspec.json.decode(data)
        # If it is the same again, but for blanks, nothing in it was there twice.
        again = msgspec.json.encode(said)
        is_once = again == data or again == msgspec.json.format(data, indent=-1)
    except (ValueError, RecursionError):
        said, is_once = None, False
    if not is_once:
        said = _slowly(data)
    if type(said) is not dict:
        raise UnreadableError("is no object of JSON")
    # Readers that match names in any case, as Go's do, would read these differently.
    for name in said:
        folded = name.casefold()
        if folded != name and (folded in said or folded == "model"):
            raise twice(folded)
    return said, data


def _slowly(data: bytes) -> Any:
    """Decode as Python does, which takes more than msgspec, and notice what is there twice."""
    try:
        text = data.decode()
        said = json.loads(text, object_pairs_hook=_once)
        if any(mark in data for mark in _SURROGATES):
            # Half of a surrogate pair, which programs make that cut texts, can be neither sent nor
            # stored.
            text = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace").decode()
            said = json.loads(text, object_pairs_hook=_once)
    except UnreadableError:
        raise
    except UnicodeDecodeError:
        raise UnreadableError("is not UTF-8") from None
    except RecursionError:
        raise UnreadableError("is nested too deeply") from None
    except ValueError:
        raise UnreadableError("is not JSON") from None
    return said


def _once(pairs: list[tuple[str, Any]]) -> Message:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise twice(next(name for name in names if names.count(name) > 1))
    return found


def twice(name: str) -> UnreadableError:
    """Return what says that a body has two values for a name."""
    return UnreadableError(f"names the member {name[:_NAME_LENGTH_MAX]!a} twice")


def form_as_json(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return the texts of a form as JSON, for who has no more of it: a model's name is among them.

    Nothing where there are none, or where one has two: readers differ in which one counts.
    """
    found: dict[str, str] = {}
    for name, value in fields:
        if name in found and not name.endswith("[]"):
            return b""
        found[name] = value
    return msgspec.json.encode(found) if found else b""
