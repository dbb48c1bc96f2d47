"""OpenAI's Responses API, and the APIs that count like it: images, transcriptions, batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from guard.core import fees
from guard.core.rates import BATCH
from guard.core.usage import vendor_tools
from guard.core.usage.counters import contradicted, strangers
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    count,
    mapping,
    parse,
    says_any,
    stated_cost,
    text_or_none,
)
from guard.core.usage.response_format import (
    Call,
    Dialect,
    MemberPath,
    ResponseFormat,
    ToolCallReader,
    Usage,
    by_the_piece,
    ended_unseen,
    pending,
    replaced,
)
from guard.core.usage.tool_calls import RESPONSES
from guard.core.wire import UNITS_MAX

_NOT_YET: Final = frozenset({
    "queued", "in_progress", "validating", "finalizing", "cancelling",
})  # fmt: skip


class Responses(ResponseFormat, frozen=True):
    """``/v1/responses`` (also background polling), ``/v1/batches/{id}``, ``/v1/images/*``,
    ``/v1/audio/transcriptions``.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str
    tool_calls: ClassVar[ToolCallReader] = RESPONSES
    dialect: ClassVar[Dialect | None] = Dialect.RESPONSES

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit of a response; images and transcripts take none."""
        return (("max_output_tokens",),) if path.endswith("/responses") else ()

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a response, image, transcript or batch."""
        status, identity = message.get("status"), text_or_none(message.get("id"))
        if status in _NOT_YET:
            return pending(identity)
        usage = read_usage(message, self.provider)
        if usage is None and message.get("object") == "batch":
            return pending(identity)  # failed or cancelled before anything was used
        if usage is None and message.get("object") == "response":
            model = text_or_none(message.get("model")) or call.model()
            if status == "failed" and message.get("output") == []:
                return Usage(model=model, response_id=identity, fees={})
            return ended_unseen(model, identity)
        if usage is not None and message.get("object") == "batch":
            usage = replaced(usage, service_tier=BATCH, fees={})
        if usage is not None and usage.model is None:
            usage = replaced(usage, model=call.model())
        if "output" not in message and ("/audio/" in call.path or "/images/" in call.path):
            return _of_piece(self.provider, usage, message, call)
        return usage

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the closing event; estimate when the stream ended before it."""
        for event in events.newest(b'"usage"'):
            usage = read_usage(mapping(event.get("response", event)), self.provider)
            if usage is not None:
                return replaced(usage, model=usage.model or call.model())
        opening = mapping(events.opening())
        started = mapping(opening.get("response"))
        late = {**started, "output": None, "usage": events.late("usage") or None}
        ended = read_usage(late, self.provider)
        if ended is not None:
            return replaced(ended, model=ended.model or call.model())
        if "type" not in opening:
            return by_the_piece(call)
        identity = text_or_none(started.get("id"))
        if started.get("background") is True or _is_in_background(call):
            return pending(identity)  # it goes on without its reader
        spoken = (
            event.get("delta")
            for event in events.every()
            if str(event.get("type", "")).endswith(".delta")
        )
        model = text_or_none(started.get("model")) or call.model()
        return call.estimated(events, spoken, model=model, response_id=identity)


def _is_in_background(call: Call) -> bool:
    body = call.request()
    return b'"background"' in body and mapping(parse(body)).get("background") is True


def read_usage(response: Message, provider: str) -> Usage | None:
    """Read ``usage.input_tokens`` and ``usage.output_tokens``; details are subsets of them.

    Images may have a cost in place of tokens.
    """
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return None
    identity = text_or_none(response.get("id"))
    model = text_or_none(response.get("model"))
    if usage.get("type") == "duration":
        return Usage(model=model, response_id=identity, units=_seconds(usage.get("seconds")))
    cost = stated_cost(provider, usage)
    if cost is None and not says_any(usage, "input_tokens", "output_tokens"):
        return None
    # Transcripts and realtime sessions use `input_token_details`, others `input_tokens_details`.
    asked = mapping(usage.get("input_tokens_details", usage.get("input_token_details")))
    said = mapping(usage.get("output_tokens_details", usage.get("output_token_details")))
    cache_read, cache_write = (
        count(asked.get("cached_tokens")) or count(asked.get("cache_read_input_tokens")),
        count(asked.get("cache_write_tokens")),
    )
    audio_in, audio_out = count(asked.get("audio_tokens")), count(said.get("audio_tokens"))
    # No price list has a rate for cached sound: it is charged as sound.
    heard_again = count(mapping(asked.get("cached_tokens_details")).get("audio_tokens"))
    cache_read -= heard_again
    reasoning = count(said.get("reasoning_tokens"))
    prompt, answer = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    fresh, spoken = prompt - cache_read - cache_write, answer - reasoning - audio_out
    more_than_all = contradicted(
        # Sound may be cached without the answer saying so.
        input_tokens=min(fresh, prompt - audio_in, cache_read, audio_in - heard_again),
        output_tokens=spoken,
    )
    # What only the total holds is charged like what nobody sees of an answer.
    untold = max(0, count(usage.get("total_tokens")) - prompt - answer)
    tier = text_or_none(response.get("service_tier"))
    return Usage(
        model=model,
        input_tokens=max(0, fresh - audio_in),
        output_tokens=max(0, spoken),
        cache_read_tokens=max(0, cache_read),
        cache_write_tokens=cache_write,
        reasoning_tokens=reasoning + untold,
        audio_tokens=audio_in + audio_out,
        audio_input_tokens=audio_in,
        service_tier=None if tier == "default" else tier,
        cost_nanousd=cost,
        response_id=identity,
        strangers=strangers("responses", usage) + more_than_all,
        fees=vendor_tools.of_response(response, model),
    )


def _of_piece(provider: str, usage: Usage | None, message: Message, call: Call) -> Usage | None:
    """Return the usage of an image or a transcript, with its seconds where it says them."""
    usage = usage or by_the_piece(call)
    if usage is None or usage.model is None:
        return usage
    line = fees.transcript(provider, usage.model)
    seconds = usage.units.get("audio_seconds", message.get("duration"))
    if line is None or not isinstance(seconds, int | float) or not 0 <= seconds <= UNITS_MAX:
        return usage
    return replaced(usage, fees=fees.listened(line, seconds))


def _seconds(value: object) -> dict[str, float]:
    valid = isinstance(value, int | float) and 0 <= value < float("inf")
    return {"audio_seconds": float(value)} if valid else {}  # type: ignore[arg-type]  # narrowed above
