"""What the vendors' newest clients send of themselves is neither refused nor dear without need."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any, Final

import anthropic
import boto3
import botocore.config
import cohere
import groq
import httpx
import httpx2
import mistralai.client
import openai
import pytest
from botocore.awsrequest import AWSResponse
from google import genai
from google.genai import types

from guard.core.bounds import InputRatios, bound_of
from guard.core.request_bound import RequestBound
from guard.core.usage.vendors import find_endpoint

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"max_searches": {"type": "integer"}},
}
CHAT_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": SCHEMA},
}
ASKED: Final[list[Any]] = [{"role": "user", "content": "hello"}]
Sent = list[tuple[str, str, bytes]]


def answering(sent: Sent, package: Any = httpx) -> Any:
    def answer(request: Any) -> Any:
        sent.append((request.url.host, request.url.path, request.read()))
        return package.Response(400, json={"error": {"message": "no"}, "message": "no"})

    return package.MockTransport(answer)


def by_openai(ask: Callable[[openai.OpenAI], Any]) -> Callable[[Sent], Any]:
    def asked(sent: Sent) -> Any:
        client: Any = httpx.Client(transport=answering(sent))
        return ask(openai.OpenAI(api_key="none", http_client=client, max_retries=0))

    return asked


def by_anthropic(sent: Sent, **more: Any) -> Any:
    client: Any = httpx2.Client(transport=answering(sent, httpx2))
    vendor = anthropic.Anthropic(api_key="none", http_client=client, max_retries=0)
    tools: Any = [{"name": "look", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}]
    return vendor.messages.create(
        model="claude-opus-5", max_tokens=100, messages=ASKED, tools=tools, **more
    )


def by_groq(sent: Sent) -> Any:
    vendor = groq.Groq(api_key="none", http_client=httpx.Client(transport=answering(sent)))
    tools: Any = [CHAT_TOOL]
    return vendor.with_options(max_retries=0).chat.completions.create(
        model="openai/gpt-oss-120b", messages=ASKED, tools=tools, reasoning_format="parsed",
        max_completion_tokens=100, include_reasoning=True,
    )  # fmt: skip


def by_mistral(ask: Callable[[Any], Any]) -> Callable[[Sent], Any]:
    def asked(sent: Sent) -> Any:
        client = httpx.Client(transport=answering(sent))
        return ask(mistralai.client.Mistral(api_key="none", client=client))

    return asked


def by_cohere(ask: Callable[[cohere.ClientV2], Any]) -> Callable[[Sent], Any]:
    def asked(sent: Sent) -> Any:
        client = httpx.Client(transport=answering(sent))
        return ask(
            cohere.ClientV2("none", httpx_client=client, log_warning_experimental_features=False)
        )

    return asked


def by_google(ask: Callable[[genai.Client], Any]) -> Callable[[Sent], Any]:
    def asked(sent: Sent) -> Any:
        client = httpx.Client(transport=answering(sent))
        options = types.HttpOptions(httpx_client=client)
        return ask(genai.Client(api_key="none", http_options=options))

    return asked


def by_boto(sent: Sent, **more: Any) -> Any:
    client = boto3.client(
        "bedrock-runtime", region_name="us-east-1", aws_access_key_id="a",
        aws_secret_access_key="s", config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip

    def answer(request: Any, **_: Any) -> AWSResponse:
        url = httpx.URL(request.url)
        sent.append((url.host, url.path, request.body))
        raw: Any = io.BytesIO(b"{}")
        return AWSResponse(request.url, 400, {}, raw)

    client.meta.events.register("before-send.bedrock-runtime", answer)
    return client.converse(
        modelId="anthropic.claude-opus-5",
        messages=[
            {"role": "user", "content": [{"text": "hello"}, {"cachePoint": {"type": "default"}}]}
        ],
        inferenceConfig={"maxTokens": 100, "temperature": 0.5},
        toolConfig={"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": SCHEMA}}}]},
        **more,
    )


SOUND: Final = (
    b"RIFF$\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00"
    b"\x80>\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00"
)
CLIENTS: Final[dict[str, Callable[[Sent], Any]]] = {
    "openai, embeddings": by_openai(lambda client: client.embeddings.create(
        model="text-embedding-3-small", input=["a", "b"], dimensions=256, encoding_format="float",
    )),
    "openai, images": by_openai(lambda client: client.images.generate(
        model="gpt-image-1", prompt="a cat", n=2, size="1024x1024", quality="low", moderation="low",
        background="transparent", output_format="webp", output_compression=50,
    )),
    "openai, images to edit": by_openai(lambda client: client.images.edit(
        model="gpt-image-1", prompt="a cat", image=b"png", input_fidelity="high",
    )),
    "openai, speech": by_openai(lambda client: client.audio.speech.create(
        model="tts-1", input="hello", voice="alloy", instructions="slowly", speed=1.5,
        response_format="wav", stream_format="audio",
    )),
    "openai, transcripts": by_openai(lambda client: client.audio.transcriptions.create(
        model="whisper-1", file=("a.wav", SOUND), language="en", timestamp_granularities=["word"],
        response_format="verbose_json", temperature=0.1,
    )),
    "anthropic": by_anthropic,
    "anthropic, thinking": lambda sent: by_anthropic(
        sent, thinking={"type": "adaptive"}, output_config={"effort": "low"}, system="be kind",
        metadata={"user_id": "u"}, service_tier="standard_only", stop_sequences=["x"],
    ),
    "groq": by_groq,
    "mistral": by_mistral(lambda client: client.chat.complete(
        model="mistral-large-latest", messages=ASKED, tools=[CHAT_TOOL], max_tokens=100,
        random_seed=3, safe_prompt=True,
    )),
    "mistral, code": by_mistral(lambda client: client.fim.complete(
        model="codestral-latest", prompt="def f(", suffix="return a", max_tokens=100,
    )),
    "mistral, embeddings": by_mistral(lambda client: client.embeddings.create(
        model="mistral-embed", inputs=["a"], output_dimension=64,
    )),
    "cohere": by_cohere(lambda client: client.chat(
        model="command-a-03-2025", messages=ASKED, tools=[CHAT_TOOL], max_tokens=100,  # type: ignore[arg-type,list-item]  # as its documentation has it
        documents=["a", {"id": "b", "data": {"max_searches": "3"}}], k=3, p=0.5,  # type: ignore[list-item]  # as above
    )),
    "cohere, embed": by_cohere(lambda client: client.embed(
        model="embed-v4.0", input_type="search_query", texts=["a"], embedding_types=["float"],
        output_dimension=256,
    )),
    "cohere, rerank": by_cohere(lambda client: client.rerank(
        model="rerank-v3.5", query="a", documents=["a", "b"], top_n=1, max_tokens_per_doc=100,
    )),
    "google": by_google(lambda client: client.models.generate_content(
        model="gemini-3-pro", contents="hello", config=types.GenerateContentConfig(
            max_output_tokens=100, system_instruction="be kind", temperature=0.3,
            response_mime_type="application/json", response_schema=SCHEMA,
            safety_settings=[types.SafetySetting(
                category=types.HarmCategory.HARM_CATEGORY_HARASSMENT,
                threshold=types.HarmBlockThreshold.BLOCK_NONE,
            )],
            tools=[types.Tool(function_declarations=[types.FunctionDeclaration(
                name="look", parameters_json_schema=SCHEMA,
            )])],
        ),
    )),
    "google, embeddings": by_google(lambda client: client.models.embed_content(
        model="gemini-embedding-001", contents=["a", "b"],
        config=types.EmbedContentConfig(task_type="RETRIEVAL_QUERY", output_dimensionality=64),
    )),
    "boto3": by_boto,
    "boto3, thinking": lambda sent: by_boto(
        sent, system=[{"text": "be kind"}], serviceTier={"type": "flex"},
        additionalModelRequestFields={"thinking": {"type": "enabled", "budget_tokens": 50}},
        requestMetadata={"agent": "a"},
    ),
}  # fmt: skip


def sent_by(name: str) -> RequestBound:
    sent: Sent = []
    # Each client has an exception of its own for what it is answered.
    with contextlib.suppress(Exception):
        CLIENTS[name](sent)
    assert len(sent) == 1, "it asks once"
    host, path, body = sent[0]
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    assert not endpoint.is_unknown
    return bound_of(endpoint.format, path, body, InputRatios(), frozenset())


@pytest.mark.parametrize("name", CLIENTS)
def test_what_clients_send_of_themselves_is_known(name: str) -> None:
    found = sent_by(name)
    assert (found.unknown, found.unjudged, found.unnumbered) == ((), (), "")
    assert found.model is not None
    assert found.output_tokens is not None
    assert found.input_tokens is not None
