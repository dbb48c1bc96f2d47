"""Decoded JSON of vendors, and what is read from it without trusting it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from guard.core.wire import EVENT_TOKENS_MAX, NANOUSD_MAX

Message = dict[str, Any]
"""A decoded JSON object."""

_BYTES_PER_TOKEN: Final = 4


def parse(data: bytes | str) -> Any:
    """Decode JSON; None for anything that is not JSON.

    What Python's own decoder takes is JSON here: vendors' clients use that one.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_odd(data)


def _parse_odd(data: bytes | str) -> Any:
    """Decode JSON with NaN, halves of surrogate pairs, or bytes that are no text."""
    if not _ODD.search(data if isinstance(data, bytes) else data.encode("utf-8", "replace")):
        return None
    try:
        value = json.loads(data if isinstance(data, str) else data.decode("utf-8", "replace"))
        # Half of a pair can be neither sent nor stored.
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


_ODD: Final = re.compile(rb"[\x80-\xff]|\\u[dD]|NaN|Infinity")


class UnreadableUsage(ValueError):
    """An answer has a count of tokens that is none: what it used is not known."""


def count(value: Any) -> int:
    """Return a token count; 0 where there is none.

    Some servers write counts as strings or with a fraction.

    Raises:
        UnreadableUsage: it is no count, or more than one request can have.

    >>> count(None), count(7), count("12"), count(2.5)
    (0, 7, 12, 3)
    """
    if type(value) is int and 0 <= value <= EVENT_TOKENS_MAX:
        return value
    if value is None:
        return 0
    if type(value) is str and _NUMBER.fullmatch(value):
        value = float(value)
    if type(value) is float and 0 <= value <= EVENT_TOKENS_MAX:
        return math.ceil(value)
    raise UnreadableUsage


def says_any(said: Message, *names: str) -> bool:
    """Tell whether a usage has any of these counts; null is none."""
    for name in names:  # noqa: SIM110  # `any` takes twice as long
        if said.get(name) is not None:
            return True
    return False


_NUMBER: Final = re.compile(r"\s*[0-9]{1,12}(?:\.[0-9]{1,6})?\s*")


def text_or_none(value: Any) -> str | None:
    """Return a non-empty string, or None."""
    return value if isinstance(value, str) and value else None


def mapping(value: Any) -> Message:
    """Return a JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a JSON array, or an empty one."""
    return value if isinstance(value, list) else []


def nanousd(dollars: Any) -> int | None:
    """Return dollars as nano-dollars; None for anything that is not an amount."""
    if isinstance(dollars, int | float) and not isinstance(dollars, bool) and 0 <= dollars < 1e9:
        return round(dollars * 1_000_000_000)
    return None


_TICKS_PER_NANOUSD: Final = 10


def stated_cost(provider: str, usage: Message) -> int | None:
    """Return what a vendor says that an answer cost, in any of its formats, in nano-dollars.

    OpenRouter and Perplexity say dollars: a number, or parts with their total. With one's own key
    OpenRouter says what it charges for that; what the key's vendor bills stands beside it
    (https://openrouter.ai/docs/use-cases/usage-accounting, 2026-11). xAI counts ticks, of which a
    dollar has ten thousand million (https://docs.x.ai/developers/cost-tracking, 2026-11).

    >>> stated_cost("x-ai", {"cost_in_usd_ticks": 37_756_001}), stated_cost("openai", {"cost": 1})
    (3775601, None)
    """
    if provider == "x-ai":
        ticks = usage.get("cost_in_usd_ticks")
        if type(ticks) is not int or not 0 <= ticks < NANOUSD_MAX:
            return None
        return -(-ticks // _TICKS_PER_NANOUSD)
    if provider not in ("openrouter", "perplexity"):
        return None
    said = usage.get("cost")
    cost = nanousd(said.get("total_cost") if isinstance(said, dict) else said)
    upstream = nanousd(mapping(usage.get("cost_details")).get("upstream_inference_cost"))
    if cost is None or upstream is None:
        return cost
    own_key = usage.get("is_byok")
    # Answers that do not say it had this number with one's own key only.
    is_beside = own_key is True or (own_key is None and upstream > cost)
    return cost + upstream if is_beside else cost


_TEXT_FIELDS: Final = frozenset({
    "text", "content", "arguments", "thinking", "partial_json", "reasoning", "reasoning_content",
    "refusal", "response", "input", "prompt", "outputText", "generation", "completion", "query",
    "message", "delta", "description", "name", "title", "system", "instructions",
})  # fmt: skip
"""Names under which vendors put text. Other strings (ids, data, URLs) are not counted."""

_DEPTH_MAX: Final = 64


def text_bytes(values: Iterable[Any]) -> int:
    """Return the length of the texts inside JSON values, in UTF-8 bytes."""
    return sum(len(text.encode("utf-8", "replace")) for text in _texts(values))


def most_tokens(values: Iterable[Any]) -> int:
    """Return the most tokens that the texts inside JSON values have, for nearly every text.

    >>> most_tokens([{"content": "Hello world"}, {"content": "!"}]), most_tokens(["a", "b"] * 9)
    (4, 18)
    """
    pieces, total = 0, 0.0
    for text in _texts(values):
        length = len(text)
        pieces += length > 0  # a piece of a stream is a token at least
        total += length * _PER_CHARACTER
        if not text.isascii():
            total += (len(text.encode("utf-8", "replace")) - length) * _PER_FURTHER_BYTE
    return max(pieces, math.ceil(total))


_PER_CHARACTER: Final = 1 / 3
_PER_FURTHER_BYTE: Final = 5 / 6
"""Tokens; scripts such as Tamil have two for each character of three bytes."""


def _texts(values: Iterable[Any]) -> Iterator[str]:
    waiting: list[tuple[Any, int]] = [(value, 0) for value in values]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting.extend((item, depth) for item in value)
        elif isinstance(value, dict) and depth < _DEPTH_MAX:
            waiting.extend(
                (item, depth + 1)
                for name, item in value.items()
                if not isinstance(item, str) or name in _TEXT_FIELDS
            )


def tokens_of(size_bytes: float) -> int:
    """Estimate tokens from a text's length: about four bytes each, whatever the language."""
    return math.ceil(size_bytes / _BYTES_PER_TOKEN)
