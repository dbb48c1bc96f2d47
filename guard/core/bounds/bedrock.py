"""Limits in Amazon Bedrock's requests: Converse, and InvokeModel in each vendor's own words."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from guard.core.bounds.asked import NOTHING, AskedOutput, given, limit, times
from guard.core.bounds.plain import TOOL_USE_TOKENS, bedrock_model


class _Inference(Struct, gc=False):
    max_tokens: Any = field(default=None, name="maxTokens")
    max_new_tokens: Any = None
    max_token_count: Any = field(default=None, name="maxTokenCount")


class _Converse(Struct, gc=False):
    inference_config: _Inference | None = field(default=None, name="inferenceConfig")
    prompt_variables: Raw = field(default=NOTHING, name="promptVariables")
    tool_config: Raw = field(default=NOTHING, name="toolConfig")


_converse: Final = msgspec.json.Decoder(_Converse)


def converse(path: str, body: bytes) -> AskedOutput:
    """Read ``/model/{id}/converse`` and ``/converse-stream``.

    Raises:
        msgspec.DecodeError: the body is not such a JSON object.
    """
    said = _converse.decode(body)
    model = bedrock_model(path)
    config = said.inference_config
    return AskedOutput(
        model,
        None if config is None else limit(config.max_tokens),
        path.endswith("-stream"),
        open_ended=(
            given(said.prompt_variables)
            or (model is not None and ":prompt/" in model)
            or (given(said.tool_config) and b'"systemTool"' in bytes(said.tool_config))
        ),
        extra_tokens=TOOL_USE_TOKENS if given(said.tool_config) else 0,
    )


class _Invoke(Struct, gc=False):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_tokens_to_sample: Any = None
    max_gen_len: Any = None
    tokens_max: Any = field(default=None, name="maxTokens")
    max_new_tokens: Any = None
    n: Any = None
    num_generations: Any = None
    num_results: Any = field(default=None, name="numResults")
    inference_config: _Inference | None = field(default=None, name="inferenceConfig")
    text_generation_config: _Inference | None = field(default=None, name="textGenerationConfig")
    tools: Raw = NOTHING


_invoke: Final = msgspec.json.Decoder(_Invoke)


def invoke(path: str, body: bytes) -> AskedOutput:
    """Read ``/model/{id}/invoke`` and ``/invoke-with-response-stream``.

    Raises:
        msgspec.DecodeError: the body is not such a JSON object.
    """
    said = _invoke.decode(body)
    model = bedrock_model(path)
    streams = path.endswith("-stream")
    if model is not None and ("embed" in model or "rerank" in model):
        return AskedOutput(model, 0, streams)
    config = said.inference_config or said.text_generation_config or _Inference()
    output = limit(
        said.max_completion_tokens,
        said.max_tokens,
        said.max_tokens_to_sample,
        said.max_gen_len,
        said.tokens_max,
        said.max_new_tokens,
        config.max_tokens,
        config.max_new_tokens,
        config.max_token_count,
    )
    return AskedOutput(
        model,
        times(output, said.n, said.num_generations, said.num_results),
        streams,
        extra_tokens=TOOL_USE_TOKENS if given(said.tools) else 0,
    )
