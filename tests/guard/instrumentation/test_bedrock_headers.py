"""Every client's headers are read before an InvokeModel leaves: they can make it dearer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Final

import aiohttp
import botocore.exceptions
import httpx
import pytest
import requests

from guard.core.rates import PRIORITY
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.matrix.other_cases import bedrock_client
from tests.guard.instrumentation.standin.server import StandIn

PATH: Final = "/model/amazon.nova-pro-v1:0/invoke"
BODY: Final = {"messages": [], "inferenceConfig": {"maxTokens": 9}}
HEADERS: Final = {"X-Amzn-Bedrock-Service-Tier": "priority"}


def by_httpx(url: str) -> None:
    httpx.post(url + PATH, json=BODY, headers=HEADERS)


def by_requests(url: str) -> None:
    requests.post(url + PATH, json=BODY, headers=HEADERS, timeout=60)


def by_aiohttp(url: str) -> None:
    async def send() -> None:
        async with (
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.post(url + PATH, json=BODY) as answer,
        ):
            await answer.read()

    asyncio.run(send())


def by_boto3(url: str) -> None:
    client = bedrock_client(url)
    with contextlib.closing(client), contextlib.suppress(botocore.exceptions.ClientError):
        answer = client.invoke_model(
            modelId="amazon.nova-pro-v1:0", body=json.dumps(BODY), serviceTier="priority"
        )
        answer["body"].read()


@pytest.mark.parametrize("send", [by_httpx, by_requests, by_aiohttp, by_boto3])
def test_the_tier_of_a_header_is_held(
    send: Callable[[str], None], standin: StandIn, gate: FakeGate, gated: Observed
) -> None:
    send(standin.url)
    assert gate.holds[0].bound.terms.tier == PRIORITY
