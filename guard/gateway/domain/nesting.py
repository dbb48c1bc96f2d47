"""The nesting limit of JSON documents, which protects recursive readers."""

from __future__ import annotations

import re
from typing import Final

DEPTH_MAX: Final = 64
"""Deepest nesting that is stored: readers decode and encode recursively."""

_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


def nested_deeper(document: bytes, depth_max: int) -> bool:
    """Return whether a valid JSON document has more levels of arrays and objects than allowed.

    >>> nested_deeper(b'[[{"a": "[[["}]]', 3), nested_deeper(b"[[[]]]", 2)
    (False, True)
    """
    # Nearly all documents are done here: a document cannot be deeper than it has brackets.
    if document.count(b"[") + document.count(b"{") <= depth_max:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_TEXT.sub(b"", document)):
        depth += 1 if bracket in b"[{" else -1
        if depth > depth_max:
            return True
    return False
