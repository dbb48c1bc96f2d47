"""One request through each real client, with its own retries switched on."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import aiohttp
import httpx
import httpx2
import requests

from guard.scope.scope import Entry, Scope
from tests.guard.instrumentation.matrix.other_cases import CONVERSE
from tests.support.waiting import WAIT_S

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello?"}]}
STREAM = {**ASK, "stream": True}
INSIDE = Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))


def by_httpx(url: str) -> None:
    httpx.post(url + CHAT, json=ASK)


def by_httpx2(url: str) -> None:
    httpx2.post(url + CHAT, json=ASK, timeout=WAIT_S)


def by_requests(url: str) -> None:
    from urllib3.util import Retry

    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=Retry(5)))
        session.post(url + CHAT, json=ASK)


def by_aiohttp(url: str) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=ASK):
            pass

    asyncio.run(main())


def by_openai(url: str) -> None:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=5) as api:
        api.chat.completions.create(**ASK)


def by_openai_async(url: str) -> None:
    import openai

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=5) as api:
            await api.chat.completions.create(**ASK)

    asyncio.run(main())


def by_anthropic(url: str) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=5) as api:
        api.messages.create(model="claude-x", max_tokens=9, messages=ASK["messages"])


def by_anthropic_async(url: str) -> None:
    import anthropic

    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=5) as api:
            await api.messages.create(model="claude-x", max_tokens=9, messages=ASK["messages"])

    asyncio.run(main())


def by_genai(url: str) -> None:
    with genai(url) as client:
        client.models.generate_content(model="gemini-x", contents="Hello?")


def by_genai_async(url: str) -> None:
    client = genai(url)

    async def main() -> None:
        async with client.aio as api:
            await api.models.generate_content(model="gemini-x", contents="Hello?")

    with warnings.catch_warnings():  # it subclasses aiohttp's session
        warnings.simplefilter("ignore")
        asyncio.run(main())


def genai(url: str) -> Any:
    from google import genai
    from google.genai import types

    options = types.HttpOptions(base_url=url, retry_options=types.HttpRetryOptions(attempts=5))
    return genai.Client(api_key="test", http_options=options)


def by_boto3(url: str) -> None:
    import boto3
    from botocore.config import Config

    boto3.client(
        "bedrock-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"max_attempts": 5, "mode": "standard"}),
    ).converse(**CONVERSE)


CLIENTS = [
    by_httpx, by_httpx2, by_requests, by_aiohttp, by_openai, by_openai_async, by_anthropic,
    by_anthropic_async, by_genai, by_genai_async, by_boto3,
]  # fmt: skip
