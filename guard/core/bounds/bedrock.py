"""Limits in Amazon Bedrock's requests: Converse, and InvokeModel in each vendor's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from guard.core.bounds.asked import RequestLimits, answered, embedded, is_present, limit, section
from guard.core.bounds.thinking import asks_to_think, thinking_budget
from guard.core.bounds.vendors import EMBEDDED
from guard.core.usage.bedrock import model_in
from guard.core.usage.message import Message, mapping

_PREFIX: Final = "x-amzn-bedrock-"
_MEMBERS: Final = {
    "service-tier": ("serviceTier", "type"),
    "performanceconfig-latency": ("performanceConfig", "latency"),
    "guardrailidentifier": ("guardrailConfig", "guardrailIdentifier"),
}
_NEUTRAL: Final = ("accept", "content-type", "guardrailversion", "request-metadata", "trace")


def with_headers(said: Message, headers: Mapping[str, Any]) -> Message:
    """Return the body of an InvokeModel with what its headers say, as Converse says it in its body.

    A header that is not known here is a member that is not known.
    """
    added: Message = {}
    for name, value in headers.items():
        own = name.lower()
        if not own.startswith(_PREFIX) or (own := own.removeprefix(_PREFIX)) in _NEUTRAL:
            continue
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        member, inner = _MEMBERS.get(own, (f"{_PREFIX}{own}", ""))
        added[member] = {inner: text.lower()} if inner else text
    return {**said, **added} if added else said


def converse(path: str, said: Message) -> RequestLimits:
    """Read ``/model/{id}/converse`` and ``/converse-stream``."""
    model = model_in(path)
    more = section(said, "additionalModelRequestFields")
    thinking = mapping(more.get("thinking", more.get("reasoning_config")))
    return answered(
        model,
        limit(section(said, "inferenceConfig").get("maxTokens")),
        streams=path.endswith("-stream"),
        open_ended=model is not None and ":prompt/" in model,
        is_structured=is_present(said.get("toolConfig")) or is_present(said.get("outputConfig")),
        thinks=thinking.get("type") not in (None, "disabled")
        or is_present(more.get("reasoningConfig")),
        thinking=thinking_budget(thinking.get("budget_tokens")),
    )


def invoke(path: str, said: Message) -> RequestLimits:
    """Read ``/model/{id}/invoke`` and ``/invoke-with-response-stream``."""
    model = model_in(path)
    streams = path.endswith("-stream")
    if model is not None and ("embed" in model or "rerank" in model):
        return embedded(model, *map(said.get, EMBEDDED))
    config = section(said, "inferenceConfig", "textGenerationConfig")
    output = limit(
        said.get("max_completion_tokens"),
        said.get("max_tokens"),
        said.get("max_tokens_to_sample"),
        said.get("max_gen_len"),
        said.get("maxTokens"),
        said.get("max_new_tokens"),
        config.get("maxTokens"),
        config.get("max_new_tokens"),
        config.get("maxTokenCount"),
    )
    return answered(
        model,
        output,
        said.get("n"),
        said.get("num_generations"),
        said.get("numResults"),
        streams=streams,
        thinks=asks_to_think(said.get("thinking")),
        takes_limit=False,  # the path does not say whose words the body uses
    )
