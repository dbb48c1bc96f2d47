"""What all vendors' usage is normalised to, and what a vendor's format has to provide."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec

from guard.core import fees
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    mapping,
    most_tokens,
    parse,
    text_bytes,
    text_or_none,
    tokens_of,
)
from guard.core.usage.request_body import UnreadableError, read_request

_NO_UNITS: Final[Mapping[str, float]] = MappingProxyType({})
_PROMPT_FIELDS: Final = (
    "messages", "input", "contents", "content", "prompt", "system", "instructions", "message",
    "systemInstruction", "system_instruction", "preamble", "texts", "inputs", "query", "documents",
    "requests", "instances", "inputText", "tools",
)  # fmt: skip
_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
_FORM_MODEL: Final = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')

_PATH_MODEL: Final = re.compile(
    r"/model/(?P<bedrock>.+)/(?:converse|invoke)[a-z-]*$|/models/(?P<google>[^/:]+):[a-zA-Z]+$"
)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one LLM call in disjoint buckets.

    Attributes:
        model: as named in the response; None when it is not named.
        input_tokens: without the cached ones.
        output_tokens: visible output, without reasoning and audio.
        cache_read_tokens, cache_write_tokens, reasoning_tokens, audio_tokens: the rest.
        cost_nanousd: what the vendor says it charged, if it does.
        cache_write_1h_tokens: those of ``cache_write_tokens`` that are kept for an hour.
        service_tier: as the answer names it.
        surcharge_permille: what the place of its processing costs, in thousandths.
        response_id: the vendor's id of the response, if it has one.
        estimated: whether the tokens were estimated: the vendor gave none.
        estimate: how, by :class:`guard.core.usage.ends.ChargeBy`; None where nothing was set aside.
        units: what is billed by something other than tokens, such as ``audio_seconds``.
        cut_short: whether the answer ended at a limit that guard has put in.
        fees: what is charged besides tokens: units by line of ``guard.core.fees``; None where the
            answer does not say.
        text_tokens: what the prompt's text was bounded by, where it had more tokens than that.
        others: what other models used for the same answer; each is a call of its own.
        later: whether the work goes on, and a poll will say what it used.
        strangers: numbers of the answer that no rule charges, such as ``counter:NAME``: where one
            of them could cost, it costs its bound.
        audio_input_tokens: those of ``audio_tokens`` that were in the prompt.
    """

    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    cost_nanousd: int | None = None
    cache_write_1h_tokens: int = 0
    service_tier: str | None = None
    surcharge_permille: int = 1000
    response_id: str | None = None
    estimated: bool = False
    estimate: str | None = None
    units: Mapping[str, float] = _NO_UNITS
    cut_short: bool = False
    fees: Mapping[str, int] | None = None
    text_tokens: int = 0
    others: tuple[Usage, ...] = ()
    later: bool = False
    audio_input_tokens: int = 0
    strangers: tuple[str, ...] = ()


replaced: Final = msgspec.structs.replace
"""``replaced(usage, model="m")`` is a copy with some fields changed."""

PENDING: Final = Usage(later=True)
"""The work goes on, and nothing names it: a later poll reports its usage."""


def pending(response_id: str | None) -> Usage:
    """Return the usage of work that goes on; a poll that names it says what it used."""
    return PENDING if response_id is None else Usage(response_id=response_id, later=True)


def ended_unseen(model: str | None, response_id: str | None) -> Usage:
    """Return the bound as the usage of work that has ended without saying what it used."""
    return Usage(model=model, response_id=response_id, estimated=True, estimate="bound")


def _nothing() -> bytes:
    return b""


def _no_header(name: str) -> str | None:
    return None


class Call(msgspec.Struct, frozen=True):
    """What a format may know about the call besides the response's body.

    Attributes:
        path: the URL's path; some vendors name the model there.
        request: returns the request's body, ``b""`` when it was not kept.
        header: returns a response header by its lower-case name.
    """

    path: str = ""
    request: Callable[[], bytes] = _nothing
    header: Callable[[str], str | None] = _no_header

    def model(self) -> str | None:
        """Return the model that the request names in its body or path."""
        body = self.request()
        try:
            named = text_or_none(read_request(body)[0].get("model"))
        except UnreadableError:
            found = _FORM_MODEL.search(body[:_REQUEST_BYTES_MAX]) if body[:1] == b"-" else None
            named = found[1].decode("utf-8", "replace") if found else None
        return named or self._model_in_path()

    def _model_in_path(self) -> str | None:
        found = _PATH_MODEL.search(self.path)
        return None if found is None else found["bedrock"] or found["google"]

    def prompt_tokens(self) -> int:
        """Estimate the tokens of the request from the length of its texts."""
        body = self.request()
        if len(body) > _REQUEST_BYTES_MAX:
            return 0
        asked = mapping(parse(body))
        return tokens_of(text_bytes(asked.get(name) for name in _PROMPT_FIELDS))

    def estimated(
        self,
        events: Events,
        texts: Iterable[Any],
        *,
        model: str | None,
        response_id: str | None = None,
    ) -> Usage:
        """Return the most that a stream has used that did not say so, by the length of its texts.

        Args:
            events: what was recorded of the stream.
            texts: JSON values that hold the output.
            model, response_id: what the stream names, if it does.
        """
        return Usage(
            model=model,
            input_tokens=self.prompt_tokens(),
            output_tokens=math.ceil(most_tokens(texts) * events.scale),
            response_id=response_id,
            estimated=True,
        )


def by_the_piece(call: Call, model: str | None = None) -> Usage | None:
    """Return the usage of a model that is charged by the piece; None for another.

    Args:
        call: the request.
        model: as the path names it, where the request does not.
    """
    model = model or call.model()
    return Usage(model=model) if fees.by_the_piece(model) else None


class ToolUse(msgspec.Struct, frozen=True):
    """A tool that an answer asks its caller to run; what it is to be run with is never kept.

    Attributes:
        name: the name of the tool.
        key: the same for every mention of this call in one answer; None where it has no identity,
            then each mention is a call.
    """

    name: str
    key: str | None = None


class ToolCallReader(msgspec.Struct, frozen=True):
    """How one vendor's format names tools.

    Attributes:
        markers: one of them is in every message that names a tool.
        read: yields the calls that a message names; never raises on bad data.
    """

    markers: tuple[bytes, ...]
    read: Callable[[Message], Iterable[ToolUse]]


MemberPath = tuple[str, ...]
"""Names of the members that lead to a value in a body."""


class Dialect(StrEnum):
    """A vendor's format of errors."""

    ANTHROPIC = "anthropic"
    CHAT = "chat"
    RESPONSES = "responses"
    GEMINI = "gemini"
    OLLAMA = "ollama"
    BEDROCK = "bedrock"


class ResponseFormat(msgspec.Struct, frozen=True):
    """How one vendor's API takes requests and reports usage. None raises on bad data.

    Attributes:
        provider: the vendor's name.
        tool_calls: reads which tools a whole answer, or a message of a stream, asks for.
        dialect: the dialect of its errors; None where the vendor decides.
    """

    provider: str
    tool_calls: ClassVar[ToolCallReader] = ToolCallReader((), lambda message: ())
    dialect: ClassVar[Dialect | None] = None

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return where a request has its limit on one answer; empty where it takes none.

        Args:
            request: the decoded body.
            path: the path of the URL.

        Returns:
            Where to put one in first, then under which other names a request may have it.
        """
        return ()

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read the usage of a whole response; None if it has none, ``pending`` if not yet known.

        Args:
            message: the decoded body; for a very large one, the result of ``framing.outline``.
            call: the request.
        """
        raise NotImplementedError

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the usage of a stream of events; estimate it when the stream does not report it."""
        raise NotImplementedError
