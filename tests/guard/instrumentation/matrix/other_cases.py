"""The clients of Google, Mistral, Cohere, Ollama and Amazon."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tests.guard.instrumentation.matrix.registry import (
    MESSAGES,
    PROMPT,
    CallerError,
    UnavailableError,
    case,
    consume,
    consume_async,
)

STREAMING = ("stream", "early break", "exception")


# -- Google -----------------------------------------------------------------------------------

GEMINI: dict[str, Any] = {"model": "gemini-3-flash", "contents": PROMPT}


def google_client(url: str) -> Any:
    from google import genai

    return genai.Client(api_key="test", http_options={"base_url": url})


def closing(client: Any) -> Any:
    """Return a client's own context manager; the first releases have none."""
    if hasattr(client, "__enter__") or hasattr(client, "__aenter__"):
        return client
    return contextlib.nullcontext(client)


@case("google-genai", "generateContent", "plain")
def google_generate(url: str) -> None:
    with closing(google_client(url)) as api:
        assert api.models.generate_content(**GEMINI).text


@case("google-genai", "generateContent", "plain")
async def google_generate_async(url: str) -> None:
    async with closing(google_client(url).aio) as api:
        assert (await api.models.generate_content(**GEMINI)).text


@case("google-genai", "generateContent", *STREAMING)
def google_stream(url: str, mode: str) -> None:
    with closing(google_client(url)) as api, contextlib.suppress(CallerError):
        consume(api.models.generate_content_stream(**GEMINI), mode)


@case("google-genai", "generateContent", *STREAMING)
async def google_stream_async(url: str, mode: str) -> None:
    async with closing(google_client(url).aio) as api:
        with contextlib.suppress(CallerError):
            await consume_async(await api.models.generate_content_stream(**GEMINI), mode)


@case("google-genai", "generateContent", "helper")
def google_chat(url: str) -> None:
    with closing(google_client(url)) as api:
        consume(api.chats.create(model="gemini-3-flash").send_message_stream(PROMPT), "")


@case("google-genai", "embedContent", "plain", estimated=True)
def google_embed(url: str) -> None:
    with closing(google_client(url)) as api:
        api.models.embed_content(model="gemini-embedding-001", contents=[PROMPT])


# -- Mistral ----------------------------------------------------------------------------------


def mistral_client(url: str) -> Any:
    try:
        from mistralai.client import Mistral
    except ImportError:  # releases before 2
        from mistralai import Mistral

    return closing(Mistral(api_key="test", server_url=f"{url}/mistral"))


@case("mistralai", "chat", "plain")
def mistral_chat(url: str) -> None:
    with mistral_client(url) as api:
        assert api.chat.complete(model="mistral-large", messages=MESSAGES).choices


@case("mistralai", "chat", "plain")
async def mistral_chat_async(url: str) -> None:
    async with mistral_client(url) as api:
        assert (await api.chat.complete_async(model="mistral-large", messages=MESSAGES)).choices


@case("mistralai", "chat", *STREAMING)
def mistral_stream(url: str, mode: str) -> None:
    with (
        mistral_client(url) as api,
        contextlib.suppress(CallerError),
        closing(api.chat.stream(model="mistral-large", messages=MESSAGES)) as stream,
    ):
        consume(stream, mode)


@case("mistralai", "chat", *STREAMING)
async def mistral_stream_async(url: str, mode: str) -> None:
    async with mistral_client(url) as api:
        with contextlib.suppress(CallerError):
            stream = await api.chat.stream_async(model="mistral-large", messages=MESSAGES)
            async with closing(stream):
                await consume_async(stream, mode)


@case("mistralai", "embeddings", "plain")
def mistral_embeddings(url: str) -> None:
    with mistral_client(url) as api:
        api.embeddings.create(model="mistral-embed", inputs=[PROMPT])


# -- Cohere -----------------------------------------------------------------------------------


def cohere_client(url: str) -> Any:
    import cohere

    return cohere.ClientV2(api_key="test", base_url=url)


def cohere_client_async(url: str) -> Any:
    import cohere

    return cohere.AsyncClientV2(api_key="test", base_url=url)


@case("cohere", "chat", "plain", "raw")
def cohere_chat(url: str, mode: str) -> None:
    api = cohere_client(url)
    if mode == "raw" and not hasattr(api, "with_raw_response"):
        raise UnavailableError
    resource = api.with_raw_response if mode == "raw" else api
    resource.chat(model="command-a", messages=MESSAGES)


@case("cohere", "chat", "plain")
async def cohere_chat_async(url: str) -> None:
    async with cohere_client_async(url) as api:
        await api.chat(model="command-a", messages=MESSAGES)


@case("cohere", "chat", *STREAMING)
def cohere_stream(url: str, mode: str) -> None:
    with contextlib.suppress(CallerError):
        consume(cohere_client(url).chat_stream(model="command-a", messages=MESSAGES), mode)


@case("cohere", "chat", *STREAMING)
async def cohere_stream_async(url: str, mode: str) -> None:
    async with cohere_client_async(url) as api:
        with contextlib.suppress(CallerError):
            await consume_async(api.chat_stream(model="command-a", messages=MESSAGES), mode)


@case("cohere", "embed", "plain")
def cohere_embed(url: str) -> None:
    cohere_client(url).embed(
        model="embed-v4.0", input_type="search_query", texts=[PROMPT], embedding_types=["float"]
    )


@case("cohere", "rerank", "plain")
def cohere_rerank(url: str) -> None:
    cohere_client(url).rerank(model="rerank-v4", query=PROMPT, documents=["one", "two"])


# -- Ollama -----------------------------------------------------------------------------------


@case("ollama", "chat", "plain")
def ollama_chat(url: str) -> None:
    import ollama

    ollama.Client(host=url).chat(model="qwen3", messages=MESSAGES)


@case("ollama", "chat", "plain")
async def ollama_chat_async(url: str) -> None:
    import ollama

    await ollama.AsyncClient(host=url).chat(model="qwen3", messages=MESSAGES)


@case("ollama", "chat", *STREAMING)
def ollama_stream(url: str, mode: str) -> None:
    import ollama

    with contextlib.suppress(CallerError):
        consume(ollama.Client(host=url).chat(model="qwen3", messages=MESSAGES, stream=True), mode)


@case("ollama", "chat", *STREAMING)
async def ollama_stream_async(url: str, mode: str) -> None:
    import ollama

    api = ollama.AsyncClient(host=url)
    with contextlib.suppress(CallerError):
        await consume_async(await api.chat(model="qwen3", messages=MESSAGES, stream=True), mode)


@case("ollama", "generate", "plain", "stream")
def ollama_generate(url: str, mode: str) -> None:
    import ollama

    api = ollama.Client(host=url)
    if mode == "stream":
        consume(api.generate(model="qwen3", prompt=PROMPT, stream=True), mode)
    else:
        api.generate(model="qwen3", prompt=PROMPT)


@case("ollama", "embed", "plain")
def ollama_embed(url: str) -> None:
    import ollama

    ollama.Client(host=url).embed(model="nomic-embed", input=PROMPT)


# -- Amazon Bedrock ---------------------------------------------------------------------------

CONVERSE: dict[str, Any] = {
    "modelId": "amazon.nova-pro-v1:0",
    "messages": [{"role": "user", "content": [{"text": PROMPT}]}],
}
INVOKE: dict[str, Any] = {
    "modelId": "meta.llama4-maverick-17b-instruct-v1:0",
    "body": json.dumps({"prompt": PROMPT}),
}


def bedrock_client(url: str, **config: Any) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "bedrock-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(**{"retries": {"max_attempts": 0}, **config}),
    )


@case("boto3", "converse", "plain")
def bedrock_converse(url: str) -> None:
    assert bedrock_client(url).converse(**CONVERSE)["usage"]


@case("boto3", "converse", *STREAMING)
def bedrock_converse_stream(url: str, mode: str) -> None:
    stream = bedrock_client(url).converse_stream(**CONVERSE)["stream"]
    with contextlib.suppress(CallerError), contextlib.closing(stream):
        consume(stream, mode)


@case("boto3", "invokeModel", "plain")
def bedrock_invoke(url: str) -> None:
    assert json.loads(bedrock_client(url).invoke_model(**INVOKE)["body"].read())


@case("boto3", "invokeModel", *STREAMING)
def bedrock_invoke_stream(url: str, mode: str) -> None:
    stream = bedrock_client(url).invoke_model_with_response_stream(**INVOKE)["body"]
    with contextlib.suppress(CallerError), contextlib.closing(stream):
        consume(stream, mode)
