"""Limits in Amazon Bedrock's requests: Converse, and InvokeModel in each vendor's own words."""

from __future__ import annotations

import msgspec

from guard.core.bounds.asked import AskedOutput, answered, embedded, given, limit, section
from guard.core.bounds.plain import TOOL_USE_TOKENS, bedrock_model
from guard.core.bounds.thinking import thinking_budget
from guard.core.bounds.vendors import EMBEDDED
from guard.core.usage.message import Message, mapping


def converse(path: str, said: Message) -> AskedOutput:
    """Read ``/model/{id}/converse`` and ``/converse-stream``."""
    model = bedrock_model(path)
    more = section(said, "additionalModelRequestFields")
    thinking = mapping(more.get("thinking", more.get("reasoning_config")))
    return answered(
        model,
        limit(section(said, "inferenceConfig").get("maxTokens")),
        streams=path.endswith("-stream"),
        open_ended=(
            given(said.get("promptVariables"))
            or (model is not None and ":prompt/" in model)
            or b'"systemTool"' in msgspec.json.encode(said.get("toolConfig"))
        ),
        extra_tokens=TOOL_USE_TOKENS if given(said.get("toolConfig")) else 0,
        is_structured=given(said.get("toolConfig")) or given(said.get("outputConfig")),
        thinks=thinking.get("type") not in (None, "disabled") or given(more.get("reasoningConfig")),
        thinking=thinking_budget(thinking.get("budget_tokens")),
    )


def invoke(path: str, said: Message) -> AskedOutput:
    """Read ``/model/{id}/invoke`` and ``/invoke-with-response-stream``."""
    model = bedrock_model(path)
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
    thinking = said.get("thinking")
    return answered(
        model,
        output,
        said.get("n"),
        said.get("num_generations"),
        said.get("numResults"),
        streams=streams,
        extra_tokens=TOOL_USE_TOKENS if given(said.get("tools")) else 0,
        thinks=given(thinking) and mapping(thinking).get("type") != "disabled",
        takes_limit=False,  # the path does not say whose words the body uses
    )
