"""What every vendor's usage is normalised to, and what a vendor's format has to provide."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import msgspec


@attrs.frozen
class Usage:
    """Tokens of one LLM call in disjoint buckets.

    Attributes:
        model: as the response names it; None when it does not.
        input_tokens: without the cached ones.
        output_tokens: visible output, without reasoning and audio.
        cache_read_tokens, cache_write_tokens, reasoning_tokens, audio_tokens: the rest.
        cost_nanousd: what the vendor says that it charged, if it does.
        response_id: the vendor's id of the response, if it has one.
        estimated: the vendor did not say; counted from the text.
    """

    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    cost_nanousd: int | None = None
    response_id: str | None = None
    estimated: bool = False


class ResponseFormat(Protocol):
    """How one vendor's API says what was used. Implementations never raise on bad bytes."""

    @property
    def provider(self) -> str:
        """The vendor's name."""

    def from_body(self, body: bytes) -> Usage | None:
        """Read the usage of a whole JSON body; None when there is none."""

    def from_stream(self, head: bytes, tail: bytes, chunks: int, request: bytes) -> Usage | None:
        """Read the usage of an event stream.

        Args:
            head: the first bytes of the decoded stream.
            tail: its last bytes; empty when ``head`` holds the whole stream.
            chunks: how many events the stream had.
            request: the request's body, to estimate from when the stream says nothing.
        """


def parse(data: bytes | str) -> Any:
    """Decode JSON; None for anything that is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def count(value: Any) -> int:
    """Return a token count; 0 for everything that is not a non-negative whole number."""
    return value if type(value) is int and value >= 0 else 0


def text_or_none(value: Any) -> str | None:
    """Return a non-empty string, or None."""
    return value if isinstance(value, str) and value else None


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def sse_payloads(data: bytes) -> list[bytes]:
    """Return the ``data:`` payloads of the whole lines in a piece of an event stream."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]
