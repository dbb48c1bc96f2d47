"""Puts a limit on the answer into a request, or lowers its own, where the vendor takes one.

One field of the body changes and every other byte stays, so that a retry sends the same bytes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from guard.core.bounds.asked import limit
from guard.core.bounds.members import with_member
from guard.core.usage.message import Message, mapping, parse
from guard.core.usage.response_format import MemberPath, ResponseFormat


def with_output_limit(
    response_format: ResponseFormat,
    path: str,
    body: bytes,
    tokens: int,
    *,
    other_name: bool = False,
) -> bytes | None:
    """Return the request's body with a limit on each answer; None where none can be put in.

    A limit that the request has is lowered; it is never raised.

    Args:
        response_format: the format of the endpoint that the URL belongs to.
        path: the path of the URL.
        body: the body of the request.
        tokens: the limit.
        other_name: whether to put it in under the parameter's other name: the vendor has answered
            400 because of the usual one (``rejects_limit``).
    """
    request = mapping(parse(body)) if body[:1] == b"{" else {}
    paths = response_format.limit_paths(request, path) if request else ()
    if not paths:
        return None
    value, changed, is_limited = msgspec.json.encode(tokens), body, False
    for each in paths:
        named = limit(_value(request, each))
        if named is None:
            continue
        is_limited = True
        if named > tokens:
            lowered = with_member(changed, each, value)
            if lowered is None:
                return None
            changed = lowered
    if is_limited:
        return changed
    return with_member(body, paths[1 if other_name and len(paths) > 1 else 0], value)


def rejects_limit(body: bytes, answer: bytes) -> bool:
    """Return whether an answer with status 400 is about the name of the limit on the output.

    Args:
        body: the body of the request.
        answer: what the vendor said.

    >>> rejects_limit(b'{"max_tokens":9}', b"Unsupported parameter: 'max_tokens'. Use another.")
    True
    """
    for each in ("max_tokens", "max_completion_tokens"):
        name = each.encode()
        if b'"%b"' % name in body and name in answer:
            return True
    return False


_ANSWER_BYTES_MAX: Final = 16 * 1024
_NAMES_LIMIT: Final = re.compile(rb"max_|maxOutput|maxTokens|num_predict|tokens", re.IGNORECASE)

LOWEST: Final = 256
"""No limit is put in below this."""

_NUMBER: Final = re.compile(rb"(?<![\w.-])(\d{3,8})(?:\s*-\s*(\d{1,8}))?(?![\w-]|\.\d)")
_TOO_LARGE: Final = re.compile(
    rb"at most|too large|maximum|range|less than|exceed|above|greater|limit|<=|> ?\d", re.IGNORECASE
)


def lower_limit(answer: bytes, tokens: int, *, is_lowered: bool = False) -> int | None:
    """Return the limit to try after an answer with status 400 that says it was too large.

    The largest power of two that the vendor's own number allows; None where the answer is about
    something else.

    Args:
        answer: what the vendor said.
        tokens: the limit that it has refused.
        is_lowered: whether that followed an answer's number: then that leaves no room for the
            prompt, and half of it is next.

    >>> lower_limit(b"max_tokens: 65536 > 64000, which is the maximum allowed", 65536)
    32768
    >>> lower_limit(b"max_tokens is too large: 8192 (8192 > 4096 - 500)", 8192)
    2048
    """
    said = answer[:_ANSWER_BYTES_MAX]
    if _TOO_LARGE.search(said) is None or _NAMES_LIMIT.search(said) is None:
        return None
    if is_lowered:
        return tokens // 2 if tokens >= 2 * LOWEST else None
    allowed = []
    for found in _NUMBER.finditer(said):
        named = int(found[1]) - int(found[2] or 0)
        if LOWEST <= named < tokens:
            allowed.append((found[2] is not None, named))
    if not allowed:
        return None
    # A difference is what the prompt has left of the context.
    differences = [named for is_difference, named in allowed if is_difference]
    most = max(differences or [named for _, named in allowed])
    return 1 << (most.bit_length() - 1)


def _value(request: Message, path: MemberPath) -> Any:
    value: Any = request
    for name in path:
        value = mapping(value).get(name)
    return value
