"""What a vendor's request says of its model and its limits, and helpers to read it."""

from __future__ import annotations

import math
from typing import Any, Final

from msgspec import Struct

from guard.core.bounds.thinking import least_output, reasons
from guard.core.usage.message import Message, items
from guard.core.usage.request_body import twice
from guard.core.wire import TOKENS_MAX, UNITS_MAX


class RequestLimits(Struct, gc=False):
    """One request, read.

    Attributes:
        model: as the body or the path names it.
        output_tokens: most tokens that all of its answers can have; None without a limit.
        streams: whether the answer is asked for as a stream.
        open_ended: whether the prompt holds more than the body: an earlier conversation, a stored
            prompt, what a tool of the vendor finds.
        extra_tokens: the tokens of the prompt beside the body's text.
        earlier_tokens: those of the conversation that it goes on with, where they are known.
        prompts: how many times a model may be asked, one after the other, and charged.
        chosen: why nothing bounds the price of the model that answers; empty where something does.
        least_output, answers, beside_output, models: as in ``RequestBound``.
    """

    model: str | None = None
    output_tokens: int | None = None
    streams: bool = False
    open_ended: bool = False
    extra_tokens: int = 0
    least_output: int | None = None
    answers: int = 1
    beside_output: int = 0
    prompts: int = 1
    models: tuple[str, ...] = ()
    chosen: str = ""
    earlier_tokens: int = 0


def answered(
    model: str | None,
    named: int | None,
    *counts: Any,
    streams: bool = False,
    open_ended: bool = False,
    beside: int = 0,
    is_structured: bool = False,
    thinks: bool = False,
    thinking: int = 0,
    takes_limit: bool = True,
) -> RequestLimits:
    """Return what a request for text asks for.

    Args:
        model, streams, open_ended: as in ``RequestLimits``.
        named: the request's own limit on one answer.
        counts: how many answers it asks for, as the body has it; the largest counts.
        beside: tokens charged as output beside the answers.
        is_structured: whether JSON or a call of a tool is asked for.
        thinks: whether the body asks the model to reason.
        thinking: its budget for that.
        takes_limit: whether a limit can be put into the body.
    """
    number = min(max(how_many(each, 1) for each in (1, *counts)), TOKENS_MAX)
    does_reason = thinks or thinking > 0 or reasons(model)
    least = None
    if takes_limit:
        least = least_output(
            named, does_reason=does_reason, is_structured=is_structured, thinking=thinking
        )
    return RequestLimits(
        model,
        None if named is None else min(named * number + beside, TOKENS_MAX),
        streams,
        open_ended,
        least_output=least,
        answers=number,
        beside_output=beside,
    )


def embedded(model: str | None, *prompts: Any) -> RequestLimits:
    """Return what a request for embeddings or a ranking asks for: no text, for so many prompts.

    Args:
        model: as in ``RequestLimits``.
        prompts: the members of the body that hold prompts, each one of them or a list of them.
    """
    return RequestLimits(model, 0, answers=max(1, sum(map(prompt_count, prompts))))


def prompt_count(prompt: Any) -> int:
    """Return how many prompts a member holds: one text or one list of tokens is one.

    >>> prompt_count("a"), prompt_count([1, 2, 3]), prompt_count(["a", "b"]), prompt_count(None)
    (1, 1, 2, 0)
    """
    if prompt is None:
        return 0
    prompts = items(prompt)
    return 1 if not prompts or type(prompts[0]) is int else min(len(prompts), TOKENS_MAX)


def is_present(value: Any) -> bool:
    """Return whether a member is there, not null and not empty."""
    return value is not None and value not in ([], {}, "")


def section(request: Message, *names: str) -> Message:
    """Return the object that the request has under one of some names; an empty one without it.

    Raises:
        ValueError: what it has there is no object.
        UnreadableError: it has two.
    """
    found = [request[each] for each in names if request.get(each) is not None]
    if len(found) > 1:  # Google takes either spelling: one of them counts
        raise twice(names[0])
    if not all(type(each) is dict for each in found):
        raise ValueError(f"{names[0]} is no object")
    return found[0] if found else {}


def name(value: Any) -> str | None:
    """Return a model's name; None for anything else."""
    return value if type(value) is str and value else None


def limit(*values: Any) -> int | None:
    """Return the largest limit that is given: of several names for it, vendors read one each.

    >>> limit(None, 100), limit(None, -1)
    (100, None)
    """
    found = []
    for value in values:
        if type(value) is float and value >= 0:
            value = math.ceil(min(value, TOKENS_MAX))
        if type(value) is int and value >= 0:
            found.append(min(value, TOKENS_MAX))
    return max(found, default=None)


def how_many(value: Any, usual: int) -> int:
    """Return how many are asked for; the usual number where that is not said.

    >>> how_many(None, 1), how_many(3.0, 1), how_many(" 40", 1), how_many("many", 1)
    (1, 3, 40, 1)
    """
    if type(value) is str and len(value) < _NUMBER_LENGTH_MAX:
        try:  # servers in Python take it for a number
            value = float(value)
        except ValueError:
            return usual
    if isinstance(value, int | float) and value > 0:
        return math.ceil(min(value, UNITS_MAX))
    return usual


_NUMBER_LENGTH_MAX: Final = 40
