"""A stream that broke off costs what its vendor says afterwards; else its bound, as without asking.

The vendors are a server on loopback that answers as OpenRouter, OpenAI and Azure do: a stream that
goes on until its reader leaves, and the look-up of a generation, or of a stored response, by its
id.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp
import httpx
import pytest
import requests
from msgspec import structs

import guard
from guard.core.usage import Call, find_endpoint
from guard.core.usage.generations import usage_of_generation
from guard.core.vendors import VENDORS
from guard.instrumentation import vendors_word
from tests.guard.conftest import Tenant
from tests.support.telling_vendor import (
    AZURE,
    CREATED,
    KEY,
    OPENAI,
    OPENROUTER,
    STORED,
    TOLD,
    Kind,
    Vendor,
)
from tests.support.waiting import until

KINDS: Final = [OPENROUTER, OPENAI, AZURE]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Kind], Vendor]]:
    """Vendors, each at its own name."""
    find = socket.getaddrinfo
    hosts: set[str | bytes] = set()
    monkeypatch.setattr(vendors_word, "ASKS_AFTER_S", 0.1)

    def found(host: Any, *args: Any, **options: Any) -> Any:
        return find("127.0.0.1" if host in hosts else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with contextlib.ExitStack() as stack:

        def start(kind: Kind) -> Vendor:
            hosts.update((kind.host, kind.host.encode()))
            server = Vendor(kind)
            bill = VENDORS[kind.name].bill
            assert bill is not None
            here = bill.url.replace("https://", "http://").replace("{host}", kind.host)
            here = here.replace(kind.host, f"{kind.host}:{server.server_address[1]}")
            told = structs.replace(VENDORS[kind.name], bill=structs.replace(bill, url=here))
            monkeypatch.setitem(VENDORS, kind.name, told)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            stack.callback(server.left.set)
            return server

        yield start


def by_httpx(vendor: Vendor, **more: Any) -> None:
    body, headers = vendor.kind.body | more, vendor.kind.headers
    with (
        contextlib.suppress(httpx.RemoteProtocolError),
        httpx.stream("POST", vendor.url, json=body, headers=headers, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        for _ in range(3):  # all of the first message, and more where it is cut off
            next(lines)
        if vendor.cuts:
            list(lines)


def by_requests(vendor: Vendor) -> None:
    body, headers = vendor.kind.body, vendor.kind.headers
    with (
        contextlib.suppress(requests.exceptions.ChunkedEncodingError),
        requests.post(vendor.url, json=body, headers=headers, stream=True, timeout=60) as answer,
    ):
        lines = answer.iter_lines(chunk_size=1)
        for _ in range(3):
            next(lines)
        if vendor.cuts:
            list(lines)


async def by_aiohttp(vendor: Vendor) -> None:
    async with (
        aiohttp.ClientSession(headers=vendor.kind.headers) as session,
        session.post(vendor.url, json=vendor.kind.body) as answer,
    ):
        with contextlib.suppress(aiohttp.ClientPayloadError):
            for _ in range(3):
                await answer.content.readline()
            if vendor.cuts:
                await answer.read()


@pytest.fixture
def balance(tenant: Tenant) -> Callable[[], dict[str, Any]]:
    rates = {"input_per_mtok": 10**9, "output_per_mtok": 10**10}
    tenant.admin.set_price("openai/gpt-5", **rates)
    tenant.admin.set_price("gpt-5", **rates)
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=10**9)

    def read() -> dict[str, Any]:
        (row,) = (row for row in tenant.admin.ledger() if row["scope_id"] == "w")
        return row

    return read


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["its reader leaves", "the vendor cuts it"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("drop", [by_httpx, by_requests, by_aiohttp])
async def test_a_stream_that_broke_off_costs_what_its_vendor_says(
    starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
    runtime: guard.GuardRuntime, caplog: pytest.LogCaptureFixture, drop: Callable[[Vendor], Any],
    kind: Kind, who: str,
) -> None:  # fmt: skip
    vendor = starts(kind)
    vendor.cuts = who == "the vendor cuts it"
    with caplog.at_level(logging.DEBUG), guard.workflow("w"):
        waits = drop(vendor)
        if waits is not None:
            await waits
    until(lambda: vendor.asked != [] and not runtime.instrumentation.later.works)
    runtime.flush()
    assert balance()["committed"] == kind.bill
    assert vendor.asked == [(kind.where, kind.repeated)], "once, with the caller's key"
    assert "sk-or-secret" not in caplog.text


TOO_LONG: Final = b'{"data": {"id": "%s"}}' % (b"x" * (1 << 21))
UNTOLD: Final = [
    (OPENROUTER, 404, b'{"error": {"message": "not found"}}'), (OPENROUTER, 200, b"{"),
    (OPENROUTER, 200, b"[]"), (OPENROUTER, 302, b""), (OPENROUTER, 200, TOO_LONG),
    (OPENROUTER, 200, json.dumps({"data": {**TOLD, "cancelled": False}}).encode()),
    (OPENROUTER, 200, json.dumps({"data": {**TOLD, "total_cost": -1}}).encode()),
    (OPENAI, 404, b'{"error": {"message": "Response with id resp_1 not found."}}'),
    (OPENAI, 200, json.dumps(CREATED).encode()), (OPENAI, 200, b"["), (OPENAI, 500, b""),
    (OPENAI, 200, json.dumps({**CREATED, "status": "cancelled"}).encode()),
    (OPENAI, 200, json.dumps(
        {**STORED, "usage": {**STORED["usage"], "dear_tokens": 10}}  # type: ignore[dict-item]
    ).encode()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "status", "said"), UNTOLD)
def test_where_the_vendor_does_not_say_it_costs_its_bound(
    starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
    runtime: guard.GuardRuntime, kind: Kind, status: int, said: bytes,
) -> None:  # fmt: skip
    vendor = starts(kind)
    vendor.status, vendor.said = status, said
    with guard.workflow("w"):
        by_httpx(vendor)
    until(lambda: vendor.asked != [] and not runtime.instrumentation.later.works)
    runtime.flush()
    assert balance()["committed"] >= 1000 * 10_000, "all of its output"
    assert len(vendor.asked) == 1


@pytest.mark.parametrize("kind", [OPENROUTER, OPENAI], ids=lambda kind: kind.name)
def test_a_process_that_ends_before_it_asks_pays_the_bound(
    starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
    runtime: guard.GuardRuntime, monkeypatch: pytest.MonkeyPatch, kind: Kind,
) -> None:  # fmt: skip
    monkeypatch.setattr(vendors_word, "ASKS_AFTER_S", 3600.0)
    vendor = starts(kind)
    with guard.workflow("w"):
        by_httpx(vendor)
    runtime.shutdown()
    assert balance()["committed"] >= 1000 * 10_000
    assert vendor.asked == []


def test_a_response_that_is_not_stored_is_not_asked_for(
    starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
    runtime: guard.GuardRuntime,
) -> None:  # fmt: skip
    vendor = starts(OPENAI)
    with guard.workflow("w"):
        by_httpx(vendor, store=False)
    until(lambda: not balance()["reserved"])
    assert not runtime.instrumentation.later.works
    assert balance()["committed"] >= 1000 * 10_000
    assert vendor.asked == []


@pytest.mark.parametrize(
    ("method", "host", "path", "headers"),
    [
        ("POST", "api.openai.com", "/v1/chat/completions", {"authorization": KEY}),
        ("POST", "api.openai.com", "/v1/responses", {"openai-api-key": KEY}),
        ("POST", "ours.openai.azure.com", "/openai/responses", {"api-key": KEY}),
        ("POST", "127.0.0.1", "/v1/responses", {"authorization": KEY}),
        ("POST", "api.x.ai", "/v1/responses", {"authorization": KEY}),
        ("GET", "api.openai.com", "/v1/responses/resp_1", {"authorization": KEY}),
    ],
)
def test_what_no_vendor_keeps_is_not_asked_for(
    method: str, host: str, path: str, headers: dict[str, str]
) -> None:
    endpoint = find_endpoint(method, host, path)
    assert endpoint is not None
    found = vendors_word.question_about("id", endpoint, host, Call(path), lambda: headers)
    assert found is None


class TestInTheBackground:
    """A response that its vendor goes on with, whoever reads it."""

    def drop(self, vendor: Vendor, balance: Callable[[], dict[str, Any]]) -> None:
        with guard.workflow("w"):
            by_httpx(vendor, background=True)
        until(lambda: vendor.asked != [])

    @pytest.mark.parametrize(
        ("status", "said"), [(200, {**CREATED, "status": "queued"}), (404, {}), (500, {})]
    )
    def test_stays_held_until_it_is_polled(
        self, starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
        runtime: guard.GuardRuntime, status: int, said: dict[str, Any],
    ) -> None:  # fmt: skip
        vendor = starts(OPENAI)
        vendor.status, vendor.said = status, json.dumps(said).encode()
        self.drop(vendor, balance)
        until(lambda: not runtime.instrumentation._word._asking)
        assert runtime.instrumentation.later.works
        runtime.flush()
        assert (balance()["committed"], balance()["reserved"] >= 1000 * 10_000) == (0, True)
        vendor.status, vendor.said = 200, json.dumps(STORED).encode()
        with guard.workflow("w"):
            httpx.get(f"{vendor.url}/resp_1", headers=OPENAI.headers)
        until(lambda: not runtime.instrumentation.later.works)
        runtime.flush()
        assert balance()["committed"] == OPENAI.bill

    def test_costs_what_is_told_once_it_is_done(
        self, starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
        runtime: guard.GuardRuntime,
    ) -> None:  # fmt: skip
        vendor = starts(OPENAI)
        self.drop(vendor, balance)
        until(lambda: not runtime.instrumentation.later.works)
        runtime.flush()
        assert balance()["committed"] == OPENAI.bill

    def test_is_not_asked_for_once_it_was_polled(
        self, starts: Callable[[Kind], Vendor], balance: Callable[[], dict[str, Any]],
        runtime: guard.GuardRuntime, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(vendors_word, "ASKS_AFTER_S", 1.0)
        vendor = starts(OPENAI)
        with guard.workflow("w"):
            by_httpx(vendor, background=True)
            until(lambda: runtime.instrumentation._word._questions)
            httpx.get(f"{vendor.url}/resp_1", headers=OPENAI.headers)
        until(lambda: not runtime.instrumentation._word._questions)
        runtime.flush()
        assert balance()["committed"] == OPENAI.bill
        assert len(vendor.asked) == 1, "the poll"


def test_ones_own_key_is_billed_beside() -> None:
    own = {**TOLD, "is_byok": True, "upstream_inference_cost": 0.01, "total_cost": 0.0005}
    found = usage_of_generation("openrouter", json.dumps({"data": own}).encode())
    assert found is not None
    assert (found.cost_nanousd, found.input_tokens, found.cache_read_tokens) == (10_500_000, 8, 3)
    assert (found.output_tokens, found.reasoning_tokens, found.estimated) == (22, 5, False)


def test_a_question_does_not_show_its_key() -> None:
    question = vendors_word.CostQuestion("u", {"authorization": KEY}, lambda body: None)
    assert "secret" not in repr(question)
