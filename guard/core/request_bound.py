"""What one LLM request can cost at most: its model, its input by size, its largest output."""

from __future__ import annotations

from msgspec import Struct


class RequestBound(Struct, frozen=True, gc=False):
    """The bound of one LLM request, read from its URL and body.

    Attributes:
        provider: the vendor whose format the request has.
        model: the model that was asked for; None when the request does not say.
        input_tokens: most tokens that the prompt can have; None when nothing bounds it (an earlier
            conversation, an uploaded file).
        output_tokens: most tokens that all of its answers can have; None without a limit.
        measured_bytes: size of the prompt's text, for learning how many bytes a token has.
        streams: whether the answer is asked for as a stream.
    """

    provider: str
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    measured_bytes: int = 0
    streams: bool = False
