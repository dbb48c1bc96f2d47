"""What one LLM request can cost at most: its model, its input by size, its largest output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from guard.core.rates import ANY_TERMS, Terms
from guard.core.visible import one_line
from guard.core.wire import dollars


class RequestBound(Struct, frozen=True, gc=False):
    """The bound of one LLM request, read from its URL and body.

    Attributes:
        provider: the vendor whose format the request has.
        model: the model that was asked for; None when the request does not say.
        input_tokens: most tokens that the prompt can have; None when nothing bounds it (an earlier
            conversation, an uploaded file).
        output_tokens: most tokens that all of its answers can have; None without a limit.
        text_tokens: most tokens of the prompt's text, before anything was learned of its model;
            0 where the prompt has more than text.
        streams: whether the answer is asked for as a stream.
        least_output: the smallest limit on one answer that may be put into the body, or that the
            body's own limit may be lowered to; None where no limit can be put in.
        answers: how many answers share ``output_tokens``; how many prompts an array holds.
        beside_output: tokens that are charged as output beside the answers (a prediction).
        terms: what it says about the rates that it can meet.
        local: whether it goes to this machine, where a model without a known price is free.
        fees: the most that it can be charged besides tokens: units by line of ``guard.core.fees``.
        unnumbered: what it may be charged any number of times, and what would bound that; empty
            where all is bounded.
        digest: a keyed digest of its model and prompt, where repeats are counted; empty elsewhere.
        is_counted: whether the gateway counts it, so that no lease covers it.
        unknown: what it holds that is not known here, and lets it cost the whole context of its
            model, such as ``tool:NAME``.
        unjudged: what it holds that is not known here, and changes nothing.
        models: further models that it names, any of which may answer: the dearest counts.
        trusted: what it holds that costs nothing besides by the word of whoever sets the limit.
    """

    provider: str
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    text_tokens: int = 0
    streams: bool = False
    least_output: int | None = None
    answers: int = 1
    beside_output: int = 0
    terms: Terms = ANY_TERMS
    local: bool = False
    fees: dict[str, int] | None = None
    unnumbered: str = ""
    digest: str = ""
    is_counted: bool = False
    unknown: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


LAST_ANSWER_TOKENS: Final = 96
"""The most that asking for a last answer adds to a prompt (``guard.core.bounds.last_answer``)."""


def with_last_answer(bound: RequestBound) -> RequestBound:
    """Return the bound of a request that is made to ask for a last answer."""
    if bound.input_tokens is None:
        return bound
    text = bound.text_tokens and bound.text_tokens + LAST_ANSWER_TOKENS
    return replace(bound, input_tokens=bound.input_tokens + LAST_ANSWER_TOKENS, text_tokens=text)


def unread(why: str) -> str:
    """Return the ``unnumbered`` of a request that cannot be read.

    Args:
        why: what is wrong with its body, such as ``is not JSON``.
    """
    return f"any model and any answer, since its body {why}"


_KINDS: Final = {"tool": "the tool type", "block": "the block type", "member": "the member"}


def said_unknown(names: Sequence[str], needed_nanousd: int | None = None) -> str:
    """Return what a request holds that is not known here, and what trusts it.

    Args:
        names: such as ``tool:NAME``.
        needed_nanousd: what it could cost for that; None where that is not known.

    >>> said_unknown(["tool:x"], 1_780_000_000)
    'would need $1.78: the tool type x is not known here; trust it with --trust tool:x'
    """
    it = "it" if len(names) == 1 else "them"
    trust = one_line(" ".join(f"--trust {name}" for name in names))
    return f"{what_is_unknown(names, needed_nanousd)}; trust {it} with {trust}"


def what_is_unknown(names: Sequence[str], needed_nanousd: int | None = None) -> str:
    """Return the same without what trusts it."""
    shown = []
    for name in names:
        kind, _, word = name.partition(":")
        shown.append(f"{_KINDS.get(kind, kind)} {one_line(word)}")
    needs = "" if needed_nanousd is None else f"would need {dollars(needed_nanousd)}: "
    verb = "is" if len(names) == 1 else "are"
    return f"{needs}{' and '.join(shown)} {verb} not known here"
