"""From a request's format, path and body to its bound."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from guard.core.bounds import bedrock, openai, pieces, vendors
from guard.core.bounds.asked import RequestLimits
from guard.core.bounds.forms import Upload, form
from guard.core.bounds.images import EDITED_IMAGE_TOKENS
from guard.core.bounds.input_factors import text_tokens
from guard.core.bounds.jobs import job
from guard.core.bounds.media import has_sound, measure
from guard.core.bounds.paid import Paid, may_be_paid, paid
from guard.core.bounds.routed import ROUTERS, chosen_by_vendor, name_all
from guard.core.bounds.unknown import Unknown, find_unknown
from guard.core.input_ratios import InputRatios
from guard.core.rates import (
    BATCH,
    OWN_KEY_PERMILLE,
    PERMILLE,
    PRIORITY,
    STANDARD,
    US_ONLY_PERMILLE,
    Terms,
)
from guard.core.request_bound import RequestBound, unread
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.bedrock import Converse, InvokeModel
from guard.core.usage.cohere import Cohere
from guard.core.usage.gemini import Gemini, Interactions
from guard.core.usage.jobs import Jobs
from guard.core.usage.message import Message, items, mapping
from guard.core.usage.ollama import Ollama
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.usage.openai_runs import ThreadRuns
from guard.core.usage.piecework import Piecework
from guard.core.usage.realtime import LiveTurn, Realtime
from guard.core.usage.request_body import UnreadableError, read_request
from guard.core.usage.response_format import Call, ResponseFormat
from guard.core.vendors.bodies import BODIES, BodyPart
from guard.core.wire import TOKENS_MAX, UNITS_MAX, truncated

_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""A larger body is not read."""

_READERS: Final[dict[type, Callable[[str, Message], RequestLimits]]] = {
    ChatCompletions: openai.chat,
    Responses: openai.responses,
    Piecework: openai.piecework,
    ThreadRuns: openai.thread_run,
    Realtime: openai.realtime,
    LiveTurn: openai.realtime,
    AnthropicMessages: vendors.messages,
    Gemini: vendors.gemini,
    Interactions: vendors.interaction,
    Cohere: vendors.cohere,
    Ollama: vendors.ollama,
    Converse: bedrock.converse,
    InvokeModel: bedrock.invoke,
}


_FORMATS: Final[dict[type, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    ChatCompletions: (("chat", ("/completions",)), ("embeddings", ("/embeddings",))),
    Responses: (
        ("responses", ("/responses", "/responses/compact")),
        ("images", ("/images/generations", "/images/edits", "/images/variations")),
        ("sound", ("/audio/transcriptions", "/audio/translations")),
    ),
    Piecework: (("sound", ("/audio/speech",)), ("videos", ("",))),
    ThreadRuns: (("runs", ("",)),),
    Realtime: (("realtime", ("",)),),
    LiveTurn: (("realtime", ("",)),),
    Gemini: (
        ("gemini", (":generateContent", ":streamGenerateContent")),
        ("embeddings", (":embedContent", ":batchEmbedContents")),
        ("predict", (":predict", ":predictLongRunning")),
    ),
    Interactions: (("interactions", ("",)),),
    AnthropicMessages: (("messages", ("",)),),
    Cohere: (("cohere", ("",)),),
    Ollama: (("ollama", ("",)),),
    Converse: (("converse", ("",)),),
    InvokeModel: (("invoke", ("",)),),
}
"""The bodies whose members are listed, and how the paths end that take them."""


def bound_of(
    response_format: ResponseFormat,
    path: str,
    body: bytes,
    ratios: InputRatios,
    trusted: Collection[str] | None = None,
    bodies: Mapping[str, BodyPart] = BODIES,
    earlier: Callable[[str], int | None] = lambda response_id: None,
    headers: Callable[[], Mapping[str, Any]] = dict[str, Any],
) -> RequestBound:
    """Bound one LLM request; never raises.

    A body that is not JSON, too large or of a shape that is not known bounds nothing.

    Args:
        response_format: the format of the endpoint that the URL belongs to.
        path: the path of the URL.
        body: the body of the request; empty when it was not kept.
        ratios: how many tokens a prompt of some size has at most.
        trusted: what is neutral although it is not known, such as ``tool:NAME``; None at a host
            that is no vendor's, where nothing that is not known is dear.
        bodies: what is known of the bodies of each format.
        earlier: returns the tokens of the conversation that ends with a response, by its id; None
            where they are not known.
        headers: returns the headers of the request.
    """
    kind = type(response_format)
    if isinstance(response_format, Jobs):
        body = body if len(body) <= _BODY_BYTES_MAX else b""
        return job(
            response_format,
            path,
            body,
            ratios,
            functools.partial(bound_of, trusted=trusted, bodies=bodies),
        )
    read = _READERS.get(kind)
    try:
        if body[:1] == b"-":
            return _form(response_format, path, body, ratios, trusted, bodies)
        if read is None and body.lstrip()[:1] != b"{":
            return _unbounded(response_format, path, body)
        if len(body) > _BODY_BYTES_MAX:
            raise UnreadableError("is larger than 32 MiB")
        said, body = read_request(body)
        if read is None:
            return _unbounded(response_format, path, body)
        if kind is InvokeModel:
            said = bedrock.with_headers(said, headers())
        asked = read(path, said)
        found = _looked_through(kind, path, _going_on(said, asked, earlier), asked, trusted, bodies)
        provider = response_format.provider
        if trusted is not None and (
            provider in ROUTERS or asked.models or (found and found.routes)
        ):
            asked.chosen = chosen_by_vendor(provider, asked, said, found, trusted)
        return _bounded(response_format, path, asked, said, body, ratios, found=found)
    except UnreadableError as exc:
        return _unread(response_format, path, str(exc))
    except (ValueError, RecursionError):  # a member of another shape
        return _unbounded(response_format, path, body)


_EARLIER: Final = ("previous_response_id", "previous_interaction_id")


def _going_on(said: Message, asked: RequestLimits, earlier: Callable[[str], int | None]) -> Message:
    """Return a body without the earlier response that it names, where its tokens are known."""
    for name in _EARLIER:
        response_id = said.get(name)
        tokens = earlier(response_id) if type(response_id) is str else None
        if tokens is not None:
            asked.earlier_tokens = tokens
            return {member: value for member, value in said.items() if member != name}
    return said


def _looked_through(
    kind: type,
    path: str,
    said: Message,
    asked: RequestLimits,
    trusted: Collection[str] | None,
    bodies: Mapping[str, BodyPart],
) -> Unknown | None:
    """Let what is asked for allow as much as the body's members do, known or not."""
    name = next((name for name, ends in _FORMATS[kind] if path.endswith(ends)), None)
    if name is None:
        return None
    if kind is InvokeModel and "anthropic" in (asked.model or ""):
        name = "messages"
    found = find_unknown(said, bodies[name], trusted or ())
    repeats = found.repeats
    if trusted is not None and found.multiplies:
        repeats, asked.answers = True, min(asked.answers * found.most, TOKENS_MAX)
    if found.models or found.attempts:
        name_all(asked, found)
    if repeats:
        asked.output_tokens = asked.least_output = None
    asked.open_ended |= found.opens or repeats
    asked.extra_tokens += _tool_tokens(kind, found, asked, bodies)
    if found.found_tokens and not asked.open_ended:
        _search(found.found_tokens, said.get("max_tool_calls"), asked)
    return None if trusted is None else found


_TOOLS_PERCENT: Final = 135
"""The tokens of tools are documented by models of several tokenisers: the newest of Claude's makes
up to so many of the same text (``guard.core.bounds.input_factors``)."""


def _tool_tokens(
    kind: type, found: Unknown, asked: RequestLimits, bodies: Mapping[str, BodyPart]
) -> int:
    """Return what a vendor adds to the prompt for the tools that a body offers."""
    tokens = found.tool_tokens
    if found.has_tools and kind in (ChatCompletions, Responses) and "claude" in (asked.model or ""):
        of_claude = bodies["messages"].known["tools"]  # whoever passes the request on to it
        tokens += 0 if of_claude is None else of_claude.tokens["any"]
    return tokens * _TOOLS_PERCENT // 100


def _search(tokens: int, calls: Any, asked: RequestLimits) -> None:
    """Let the model be asked again after each call of a tool, with all that was found by then.

    Args:
        tokens: the most that one call finds.
        calls: how many calls the body allows.
        asked: what the request asks for.
    """
    if type(calls) is not int or calls < 0 or asked.output_tokens is None:
        asked.open_ended = True
        return
    asked.prompts = max(asked.prompts, min(calls, UNITS_MAX) + 1)
    asked.extra_tokens += -(-calls * tokens // 2) + asked.output_tokens


def _form(
    response_format: ResponseFormat,
    path: str,
    body: bytes,
    ratios: InputRatios,
    trusted: Collection[str] | None,
    bodies: Mapping[str, BodyPart],
) -> RequestBound:
    """Bound a form of OpenAI's: images to edit, sound to transcribe."""
    found = form(body) if type(response_format) in (Responses, Piecework) else None
    if found is None:
        return _unbounded(response_format, path, body)
    said, uploads = found
    said = {name.removesuffix("[]"): value for name, value in said.items()}
    asked = _READERS[type(response_format)](path, said)
    unknown = _looked_through(type(response_format), path, said, asked, trusted, bodies)
    if pieces.IMAGES.search(path):
        asked.extra_tokens += EDITED_IMAGE_TOKENS * len(uploads)
    return _bounded(
        response_format, path, asked, said, msgspec.json.encode(said), ratios, uploads, unknown
    )


def _bounded(
    response_format: ResponseFormat,
    path: str,
    asked: RequestLimits,
    said: Message,
    body: bytes,
    ratios: InputRatios,
    uploads: Sequence[Upload] = (),
    found: Unknown | None = None,
) -> RequestBound:
    provider, model = response_format.provider, asked.model
    if model is not None:
        model = truncated(model)
    tokens, text = _input(asked, model, said, body, ratios)
    besides = _besides(response_format, path, model, said, uploads)
    fees = besides.fees
    if fees is not None and found is not None and found.multiplies:
        fees = {line: min(units * found.most, UNITS_MAX) for line, units in fees.items()}
    return RequestBound(
        provider,
        model,
        tokens,
        asked.output_tokens,
        text,
        asked.streams,
        asked.least_output,
        asked.answers,
        asked.beside_output,
        _terms(provider, model, said, body, tokens is not None),
        fees=fees,
        unnumbered=asked.chosen or besides.unnumbered,
        unknown=() if found is None else tuple(found.dear),
        unjudged=() if found is None else tuple(found.neutral),
        models=asked.models,
        trusted=() if found is None else tuple(found.trusted),
    )


def fees_of(response_format: ResponseFormat, path: str, body: bytes) -> dict[str, int] | None:
    """Return what a request can be charged besides tokens: units by line; None for nothing.

    For requests that are not bounded.
    """
    read = _READERS.get(type(response_format))
    if read is None or len(body) > _BODY_BYTES_MAX or not may_be_paid(path, body):
        return None
    try:
        said, uploads = form(body) or (read_request(body)[0], [])
        return _besides(response_format, path, read(path, said).model, said, uploads).fees
    except (ValueError, RecursionError):
        return None


def _besides(
    response_format: ResponseFormat,
    path: str,
    model: str | None,
    said: Message,
    uploads: Sequence[Upload],
) -> Paid:
    """Return what a request can be charged besides tokens."""
    kind, provider = type(response_format), response_format.provider
    if kind is Gemini and ":predict" in path:
        return pieces.google(path, model, said)
    if kind is Piecework or (kind is Responses and pieces.is_piecework(path)):
        return pieces.pieces(provider, path, model, said, uploads)
    if kind is LiveTurn:
        return paid(Gemini, provider, path, model, mapping(said.get("setup")))
    return paid(kind, provider, path, model, said)


_TEXT: Final = Terms(text_only=True)
_NO_WRITES: Final = Terms(cache_writes=0, text_only=True)
_LONG_WRITES: Final = Terms(cache_writes=2, text_only=True)


def _cache_terms(asks_to_write: bool, model: str | None, body: bytes) -> Terms:
    """Return what may be written to a cache: unasked, or only where the body asks for it."""
    is_marked = b'"cache_control"' in body
    if asks_to_write:
        if not is_marked and b'"cachePoint"' not in body:
            return _NO_WRITES
    elif model is None or "claude" not in model or not is_marked:  # a router passes it on to Claude
        return _TEXT
    return _LONG_WRITES if b'"1h"' in body else _TEXT


_MAKES_SOUND: Final = (b'"Audio', b'"audio', b'"input_audio', b"AUDIO", b"audio/", b'"speech')


def _terms(provider: str, model: str | None, said: Message, body: bytes, is_bounded: bool) -> Terms:
    """Return what a request says about the rates that it can meet."""
    tier = STANDARD
    if any(mapping(each).get("speed") == "fast" for each in items(said.get("fallbacks"))):
        said = {**said, "speed": "fast"}
    if mapping(said.get("performanceConfig")).get("latency") == "optimized":
        said = {**said, "speed": PRIORITY}
    for name in ("speed", "service_tier", "serviceTier"):
        value = said.get(name)
        if type(value) is dict:  # Bedrock's
            value = value.get("type")
        if type(value) is str and value not in ("standard", BATCH):
            tier = truncated(value)
            break
    asks_to_write = provider in ("anthropic", "aws") or "anthropic_version" in said
    terms = _cache_terms(asks_to_write, model, body)
    is_marked = any(mark in body for mark in _MAKES_SOUND)
    text_only = is_bounded and not is_marked
    surcharge = US_ONLY_PERMILLE if said.get("inference_geo") == "us" else PERMILLE
    if provider == "openrouter":
        surcharge = OWN_KEY_PERMILLE
    sound = is_marked and has_sound(said)
    return Terms(tier, terms.cache_writes, text_only, surcharge, sound)


def _input(
    asked: RequestLimits, model: str | None, said: Message, body: bytes, ratios: InputRatios
) -> tuple[int | None, int]:
    """Return the most tokens of the prompt, None without a bound, and those of its text."""
    media = None if asked.open_ended else measure(said, model)
    if media is None or not media.bounded:
        return None, 0
    for encoded in media.encoded:  # where it stands in the body in other words, it counts as text
        body = body.replace(encoded.encode(), b"", 1)
    text = max(text_tokens(each, body) for each in (model, *asked.models))
    tokens = max(ratios.tokens(each, text) for each in (model, *asked.models))
    tokens += media.tokens + asked.extra_tokens + asked.earlier_tokens
    tokens *= asked.prompts
    tokens, text = min(tokens, TOKENS_MAX), min(text * asked.prompts, TOKENS_MAX)
    return tokens, 0 if media.encoded or media.tokens or asked.earlier_tokens else text


def _unbounded(response_format: ResponseFormat, path: str, body: bytes) -> RequestBound:
    """Return what is left: the model, where a form or the path names it."""
    model = Call(path, lambda: body).model()
    if model is not None:
        model = truncated(model)
    return RequestBound(response_format.provider, model)


def _unread(response_format: ResponseFormat, path: str, why: str) -> RequestBound:
    """Return the bound of a request whose body may say anything; only its path is known."""
    bound = _unbounded(response_format, path, b"")
    return structs.replace(bound, unnumbered=unread(why))
