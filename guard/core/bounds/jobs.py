"""Batches: the sum of their requests, at the price of a batch. What is in files has no bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from guard.core.input_ratios import InputRatios
from guard.core.rates import BATCH, Terms
from guard.core.request_bound import RequestBound, unread
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.gemini import Gemini, model_in
from guard.core.usage.jobs import Jobs
from guard.core.usage.message import items, mapping, text_or_none
from guard.core.usage.request_body import UnreadableError, read_request
from guard.core.usage.response_format import ResponseFormat
from guard.core.wire import FEES_MAX, MODELS_MAX, TOKENS_MAX, UNITS_MAX, truncated

IN_FILES: Final = "work that is described in files, so that nothing in it limits its cost"
_SEVERAL: Final = "requests for several models in one batch: send a batch for each model"
_OPEN: Final = "requests of a batch whose prompts nothing bounds: send them one by one"

_NAMES_MAX: Final = 16

BoundOf = Callable[[ResponseFormat, str, bytes, InputRatios], RequestBound]


def job(
    response_format: Jobs, path: str, body: bytes, ratios: InputRatios, bound_of: BoundOf
) -> RequestBound:
    """Bound a batch or another job.

    Args:
        response_format: the format of its endpoint.
        path: the path of the URL.
        body: the body of the request; empty where it is too large to be read.
        ratios: how many tokens a prompt of some size has at most.
        bound_of: bounds one of its requests.
    """
    provider = response_format.provider
    try:
        said = read_request(body)[0] if body else {}
    except UnreadableError as exc:
        return RequestBound(provider, unnumbered=unread(str(exc)))
    if not response_format.is_inline:
        model = text_or_none(said.get("model"))
        return RequestBound(provider, model and truncated(model), unnumbered=IN_FILES)
    kind: ResponseFormat = AnthropicMessages(provider)
    requests = [mapping(r).get("params") for r in items(said.get("requests"))]
    each_path = path.removesuffix("/batches")
    if provider == "google":
        kind, requests = Gemini(provider), list(_inline(said))
        each_path = path.replace(":batchGenerateContent", ":generateContent")
    bounds = [
        bound_of(kind, each_path, msgspec.json.encode(request), ratios)
        for request in requests
        if isinstance(request, dict)
    ]
    if not bounds:
        model = model_in(path)
        return RequestBound(provider, model and truncated(model), unnumbered=IN_FILES)
    return _sum(provider, bounds)


def _inline(said: dict[str, Any]) -> Iterator[Any]:
    """Yield the requests of a batch of Gemini's; Google takes both spellings of each name."""
    batch = mapping(said.get("batch"))
    config = mapping(batch.get("inputConfig", batch.get("input_config")))
    for each in items(mapping(config.get("requests")).get("requests")):
        yield mapping(each).get("request")


def _sum(provider: str, bounds: list[RequestBound]) -> RequestBound:
    models = dict.fromkeys(
        name for bound in bounds for name in (bound.model, *bound.models) if name is not None
    )
    unnumbered = next((bound.unnumbered for bound in bounds if bound.unnumbered), "")
    tokens_in = _total(bound.input_tokens for bound in bounds)
    if len(models) > MODELS_MAX:
        unnumbered = _SEVERAL
    elif tokens_in is None:
        unnumbered = unnumbered or _OPEN
    fees: dict[str, int] = {}
    for bound in bounds:
        for line, units in (bound.fees or {}).items():
            fees[line] = min(fees.get(line, 0) + units, UNITS_MAX)
    if len(fees) > FEES_MAX:
        unnumbered, fees = unnumbered or _SEVERAL, {}
    terms = [bound.terms for bound in bounds]
    return RequestBound(
        provider,
        bounds[0].model,
        tokens_in,
        _total(bound.output_tokens for bound in bounds),
        answers=sum(bound.answers for bound in bounds),
        terms=Terms(
            BATCH,
            max(each.cache_writes for each in terms),
            all(each.text_only for each in terms),
            max(each.surcharge_permille for each in terms),
            any(each.sound for each in terms),
        ),
        fees=fees or None,
        unnumbered=unnumbered,
        unknown=_named(bound.unknown for bound in bounds),
        unjudged=_named(bound.unjudged for bound in bounds),
        models=tuple(name for name in models if name != bounds[0].model),
        trusted=_named(bound.trusted for bound in bounds),
    )


def _named(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))[:_NAMES_MAX]


def _total(tokens: Iterable[int | None]) -> int | None:
    total = 0
    for number in tokens:
        if number is None:
            return None
        total += number
    return min(total, TOKENS_MAX)
