"""Finds what nobody has judged in a request's body, and what is known to open or repeat it.

Free is what is listed in the facts files of ``guard.core.vendors``. What is not listed there is
judged by what it could change: a scalar or an object without a word that can cost is neutral, and
named; everything else lets a request cost the whole context and the largest answer of its model,
as often as the largest number in it says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from msgspec import Struct

from guard.core.bounds.asked import limit
from guard.core.member_names import JudgedNames, words_of
from guard.core.usage.message import Message, items
from guard.core.vendors.bodies import BodyPart
from guard.core.wire import TOKENS_MAX

MEMBER: Final = "member:"
TOOL: Final = "tool:"
BLOCK: Final = "block:"

_NAMES_MAX: Final = 16
_LABEL_LENGTH_MAX: Final = 100


class Unknown(Struct, gc=False):
    """What a body holds besides what its format's reader reads.

    Attributes:
        opens: whether its prompt may hold more than the body.
        repeats: whether the vendor may ask models as often as it decides, by a member that is known
            for it.
        multiplies: whether a member that is not known may let it do so.
        dear: what is not known and could cost, such as ``tool:NAME``.
        neutral: what is not known and could not.
        most: the largest number in what is dear.
        models: what else it names of models that may answer.
        attempts: how many of them are asked in turn, each of which may be charged.
        attempt_tokens: the largest limit of their own on an answer; None without one.
        routes: members that let the vendor choose the model.
        has_tools: whether it offers tools.
        tool_tokens: what the vendor adds to the prompt for them.
        found_tokens: the most that one call of its tools finds; 0 where it has none, or where
            nothing bounds one.
        trusted: what goes by the word of whoever sets the limit.
    """

    opens: bool = False
    repeats: bool = False
    multiplies: bool = False
    dear: list[str] = []
    neutral: list[str] = []
    most: int = 1
    models: list[str] = []
    attempts: int = 0
    attempt_tokens: int | None = None
    routes: list[str] = []
    has_tools: bool = False
    tool_tokens: int = 0
    found_tokens: int = 0
    trusted: list[str] = []


def find_unknown(body: Message, place: BodyPart, trusted: Collection[str] = ()) -> Unknown:
    """Look through a decoded body, once.

    Args:
        body: the request's body.
        place: what is known of such bodies.
        trusted: what is neutral by the word of whoever sets the limit, such as ``member:NAME``.
    """
    found = Unknown()
    # A list instead of recursion: a body may be nested deeper than Python's stack.
    waiting: list[tuple[Any, BodyPart, str]] = [(body, place, "")]
    while waiting:
        node, place, outer = waiting.pop()
        if type(node) is list:  # a list in a list
            waiting.extend((item, place, outer) for item in node if type(item) in _NESTED)
            continue
        if place.any_name:
            continue
        known = place.known
        if not node.keys() <= known.keys():
            for name in [each for each in node if each not in known]:
                if place.names_tools:
                    _add(found, f"{TOOL}{name}", None, trusted)
                else:
                    _judge(found, f"{outer}.{name}" if outer else name, name, node[name], trusted)
        if place.names_tools and place.tokens:
            found.tool_tokens += sum(place.tokens.get(name, 0) for name in node)
        if place.blocks:
            kind = node.get("type")
            if type(kind) is str and _COSTLY[kind]:
                if kind not in place.blocks:
                    _add(found, f"{BLOCK}{kind}", None, trusted)
                elif f"{BLOCK}{kind}" in place.lent:
                    _lend(found, f"{BLOCK}{kind}")
        if place.lent:
            for name in place.lent & node.keys():
                _lend(found, f"{MEMBER}{outer}.{name}" if outer else f"{MEMBER}{name}")
        if place.opens or place.repeats:
            for name in place.opens & node.keys():
                found.opens |= not _is_off(node[name])
            for name in place.repeats & node.keys():
                found.repeats |= not _is_off(node[name])
        if place.models or place.attempts or place.routes:
            for name in (place.models | place.attempts) & node.keys():
                _name_models(found, node[name], is_attempt=name in place.attempts)
            for name in place.routes & node.keys():
                label = f"{MEMBER}{name}"
                if label in trusted:
                    _lend(found, label)
                elif not _is_off(node[name]):
                    found.routes.append(label)
        for name, value in node.items():
            if type(value) is str:
                continue
            if type(value) is list:
                inner = known.get(name)
                if inner is None:
                    continue
                if name == "tools" and value:
                    found.has_tools = True
                    found.tool_tokens += inner.tokens.get("any", 0)
                    if inner.client:
                        _look_at_tools(found, value, inner, trusted)
                for item in value:
                    if type(item) is dict or type(item) is list:
                        waiting.append((item, inner, name))  # noqa: PERF401  # no frame of its own
            elif type(value) is dict:
                inner = known.get(name)
                if inner is not None:
                    found.opens |= name == "tools" and bool(inner.client)  # it should be a list
                    waiting.append((value, inner, name))
    return found


_NESTED: Final = (dict, list)


def _name_models(found: Unknown, value: Any, *, is_attempt: bool) -> None:
    """Note the models of a list, each a name or an object with one, or a name alone."""
    if _is_off(value):
        return
    listed = items(value) if is_attempt or type(value) is not str else [value]
    objects = [each for each in listed if type(each) is dict]
    names = [each.get("model") if type(each) is dict else each for each in listed]
    known = [name for name in names if type(name) is str]
    found.models += known
    if len(known) < len(names) or not names:  # such as a list of the vendor's own
        found.repeats = True
    if is_attempt:
        found.attempts += len(names)
        limits = [limit(each.get("max_tokens")) for each in objects]
        known_limits = [each for each in limits if each is not None]
        found.attempt_tokens = max(known_limits, default=None)


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ("", [])


_DATE: Final = re.compile(r"_(?:\d{8}|\d{4}_\d{2}_\d{2}|latest)$")


def _look_at_tools(
    found: Unknown, tools: list[Any], place: BodyPart, trusted: Collection[str]
) -> None:
    for tool in tools:
        kind = tool.get("type") if type(tool) is dict else False
        if kind is None:  # a function, as the formats write it that have no types
            continue
        if type(kind) is not str:
            found.opens = True
            continue
        base = kind if kind in place.client or kind in place.vendor else _DATE.sub("", kind)
        found.tool_tokens += place.tokens.get(base, 0)
        if base in place.client:
            if f"{TOOL}{base}" in place.lent:
                _lend(found, f"{TOOL}{kind}")
            continue
        if base in place.results:
            number = tool.get("max_num_results")
            most, each = place.results[base]
            number = number if type(number) is int and 0 < number <= most else most
            found.found_tokens = max(found.found_tokens, number * each)
        elif base in place.vendor:
            found.opens = True
        else:
            _add(found, f"{TOOL}{kind}", None, trusted)


def _judge(found: Unknown, full: str, name: str, value: Any, trusted: Collection[str]) -> None:
    """Judge a member that is on no list."""
    if value is None or value is False or value in ("", [], {}):
        return
    if _can_cost(name, value):
        _add(found, f"{MEMBER}{full}", (name, value), trusted)
    elif len(found.neutral) < _NAMES_MAX:
        label = f"{MEMBER}{full}"[:_LABEL_LENGTH_MAX]
        if label not in trusted and label not in found.neutral:
            found.neutral.append(label)


def _lend(found: Unknown, label: str) -> None:
    """Note what goes by somebody's word."""
    label = label[:_LABEL_LENGTH_MAX]
    if label not in found.trusted and len(found.trusted) < _NAMES_MAX:
        found.trusted.append(label)


def _add(
    found: Unknown, label: str, member: tuple[str, Any] | None, trusted: Collection[str]
) -> None:
    label = label[:_LABEL_LENGTH_MAX]
    if label in trusted:
        _lend(found, label)
        return
    if member is not None:
        found.multiplies = True
        found.most = max(found.most, *_numbers(*member))
        found.models += _models_in(*member)
    else:
        found.opens = True
    if label not in found.dear and len(found.dear) < _NAMES_MAX:
        found.dear.append(label)


_COSTLY_WORDS: Final = frozenset({
    "n", "k", "num", "number", "max", "best", "url", "urls", "uri", "uris", "count", "counts",
    "run", "runs", "times", "turn", "turns", "step", "steps", "round", "rounds",
})  # fmt: skip
_COSTLY_STEMS: Final = (
    "answer", "assistant", "batch", "beam", "branch", "brows", "budget", "candidate", "choice",
    "completion", "context", "conversation", "crawl", "depth", "document", "fallback", "fetch",
    "file", "generation", "guardrail", "histor", "iteration", "knowledge", "limit", "loop", "mcp",
    "memor", "parallel", "parent", "plugin", "previous", "priority", "prompt", "repeat", "retr",
    "sampl", "server", "speed", "tier", "variant", "workflow",
)  # fmt: skip
_ANYWHERE: Final = re.compile(r"model|token|cach|search|agent|thread|session|tool", re.IGNORECASE)
_NAMES_MODEL: Final = re.compile(
    r"\b(?:gpt|claude|gemini|gemma|llama|mistral|mixtral|magistral|deepseek|qwen|grok|kimi|glm|command"
    r"|o[1-9])-[\w.]",
    re.IGNORECASE,
)


def _is_costly(name: str) -> bool:
    """Return whether a name has a word of what can cost.

    >>> _is_costly("max_searches"), _is_costly("maxSearches"), _is_costly("n"), _is_costly("theme")
    (True, True, True, False)
    >>> _is_costly("user_profile"), _is_costly("fileIds")
    (False, True)
    """
    if _ANYWHERE.search(name):
        return True
    return any(word in _COSTLY_WORDS or word.startswith(_COSTLY_STEMS) for word in words_of(name))


_COSTLY: Final = JudgedNames(_is_costly)


def _can_cost(name: str, value: Any) -> bool:
    if _COSTLY[name] or type(value) is list:
        return True
    if type(value) is str:
        return _NAMES_MODEL.search(value) is not None
    if type(value) is not dict:
        return False
    return any(
        _COSTLY[inner] or (type(each) is str and _NAMES_MODEL.search(each) is not None)
        for inner, each in _inside(value)
    )


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values inside a value, however deep; scalars of lists without a name."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        pairs = node.items() if type(node) is dict else (("", each) for each in items(node))
        for name, each in pairs:
            yield name, each
            if type(each) is dict or type(each) is list:
                waiting.append(each)


def _models_in(name: str, value: Any) -> Iterator[str]:
    """Yield what looks like the names of models in a member that nobody has judged."""
    for inner, each in ((name, value), *_inside(value)):
        if type(each) is not str or len(each) > _LABEL_LENGTH_MAX or " " in each:
            continue
        if _NAMES_MODEL.search(each) or "model" in inner.lower():
            yield each


def _numbers(name: str, value: Any) -> Iterator[int]:
    """Yield the numbers that a member may ask for answers by; tokens are in the answers."""
    yield 1
    for inner, each in ((name, value), *_inside(value)):
        if type(each) is int and "token" not in inner.lower():
            yield min(each, TOKENS_MAX)
