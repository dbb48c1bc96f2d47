"""Sets members of a JSON object in its bytes; every other byte stays as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_BLANK: Final = re.compile(rb"[ \t\r\n]*")


def member_spans(data: bytes, start: int = 0) -> list[tuple[str, int, int]] | None:
    """Return each member of the object at ``start``: its name, and where its value lies.

    Args:
        data: valid JSON.
        start: where the object begins, blanks before it aside.

    >>> member_spans(b'{"a": 1, "b": {"a": "}"}}')
    [('a', 6, 7), ('b', 14, 24)]
    """
    opened = _after_blanks(data, start)
    if data[opened : opened + 1] != b"{":
        return None
    found: list[tuple[str, int, int]] = []
    depth, name, begin = 0, b"", -1
    for token in _TOKEN.finditer(data, opened):
        text, at = token[0], token.start()
        if text in (b"{", b"["):
            depth += 1
        elif text == b":" and depth == 1:
            begin = _after_blanks(data, token.end())
        elif text in (b"}", b"]") or (text == b"," and depth == 1):
            if depth == 1 and begin >= 0:
                found.append((msgspec.json.decode(name), begin, _before_blanks(data, at)))
                begin = -1
            if text != b",":
                depth -= 1
            if depth == 0:
                return found
        elif depth == 1 and begin < 0 and text[:1] == b'"':
            name = text
    return None


def with_member(data: bytes, path: Sequence[str], value: bytes) -> bytes | None:
    """Return the object with one member set; None if something that is no object lies in the way.

    Args:
        data: a valid JSON object.
        path: names of the members that lead to it; what is missing is added.
        value: JSON.

    >>> with_member(b'{"a": [1], "b": {"c":null} }', ("b", "c"), b"7")
    b'{"a": [1], "b": {"c":7} }'
    >>> with_member(b'{"a": 1}', ("b", "c"), b"7")
    b'{"b":{"c":7},"a": 1}'
    """
    start, left = 0, list(path)
    while True:
        spans = member_spans(data, start)
        if spans is None:
            return None
        name = left.pop(0)
        # Parsers take the last of two members with one name.
        found = next((span for span in reversed(spans) if span[0] == name), None)
        if found is not None and left and data[found[1] : found[2]] != b"null":
            start = found[1]
            continue
        for inner in reversed(left):
            value = b"{" + msgspec.json.encode(inner) + b":" + value + b"}"
        if found is not None:
            return data[: found[1]] + value + data[found[2] :]
        at = _after_blanks(data, start) + 1
        field = msgspec.json.encode(name) + b":" + value + (b"," if spans else b"")
        return data[:at] + field + data[at:]


def _after_blanks(data: bytes, at: int) -> int:
    found = _BLANK.match(data, at)
    return at if found is None else found.end()


def _before_blanks(data: bytes, at: int) -> int:
    while data[at - 1 : at] in (b" ", b"\t", b"\r", b"\n"):
        at -= 1
    return at
