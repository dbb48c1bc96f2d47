"""The async client against servers that misbehave in every way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from spamdetect import (
    AsyncSpamClient,
    SpamAuthError,
    SpamConfigError,
    SpamError,
    SpamRequestError,
    SpamResponseError,
    SpamServerError,
    SpamTimeoutError,
    SpamTransportError,
)
from spamdetect.testing import RunningService

pytestmark = pytest.mark.asyncio
Serving = Callable[..., contextlib.AbstractAsyncContextManager[Any]]

_CANARY_KEY = "spam_aaaaaaaaaaaa_canarykeycanarykeycanarykeycanarykeycanary"
_CANARY_TEXT = "canary-text-9817"


async def test_predict_and_preprocess(
    service: RunningService, spam_text: str, ham_text: str
) -> None:
    async with AsyncSpamClient(service.base_url, service.api_key) as spam:
        found = await spam.predict(spam_text)
        assert found.is_spam
        assert found.input_text == spam_text
        assert found.text_length == len(spam_text)
        assert found.language.language == "en"
        assert found.prediction.ham_score + found.prediction.spam_score == pytest.approx(1)
        assert not (await spam.predict(ham_text)).is_spam
        cleaned = await spam.preprocess(spam_text)
        assert cleaned.processed_text == found.processed_text
        assert "prediction" not in cleaned.raw["data"]
        assert "error_code" not in cleaned.raw["data"]


async def test_predict_many_is_ordered_and_bounded(service: RunningService) -> None:
    async with AsyncSpamClient(service.base_url, service.api_key) as spam:
        texts = [f"text number {n}" for n in range(200)]
        taken = 0

        def source() -> Any:
            nonlocal taken
            for text in texts:
                taken += 1
                yield text

        seen = 0
        async for item in spam.predict_many(source(), concurrency=8):
            assert item.index == seen
            assert item.unwrap().input_text == texts[seen]
            seen += 1
            assert taken <= seen + 8
        assert seen == 200


async def test_predict_many_of_an_async_source_does_not_wait_for_the_window(
    service: RunningService,
) -> None:
    release = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        yield "first"
        await release.wait()
        yield "second"

    async with AsyncSpamClient(service.base_url, service.api_key) as spam:
        async with asyncio.timeout(60):
            items = spam.predict_many(source())
            first = await anext(items)
            assert first.unwrap().input_text == "first"
            release.set()
            assert [item.index async for item in items] == [1]


async def test_one_bad_text_fails_alone(service: RunningService) -> None:
    async with AsyncSpamClient(service.base_url, service.api_key) as spam:
        texts: list[Any] = ["good", None, "half \ud800", "x" * 100_001, "good"]
        items = [item async for item in spam.predict_many(texts)]
    assert [item.error is None for item in items] == [True, False, False, False, True]
    assert isinstance(items[3].error, SpamRequestError)
    assert items[3].error.error_code == "TEXT_TOO_LONG"
    with pytest.raises(SpamRequestError):
        items[1].unwrap()


async def test_leaving_predict_many_early_stops_what_is_under_way(wire: Serving) -> None:
    open_requests = 0

    async def script(state: Any, reader: Any, writer: Any) -> None:
        nonlocal open_requests
        await reader.readuntil(b"\r\n\r\n")
        open_requests += 1
        try:
            if open_requests > 1:
                while await reader.read(1000):
                    pass
            else:
                writer.write(b"HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n")
                await reader.read()
        finally:
            open_requests -= 1

    async with wire(script) as server, AsyncSpamClient(server.base_url, "key") as spam:
        items = spam.predict_many((str(n) for n in range(100)), concurrency=10)
        async for item in items:
            assert isinstance(item.error, SpamAuthError)
            break
        await items.aclose()  # type: ignore[attr-defined]  # an async generator
        async with asyncio.timeout(60):
            await spam.aclose()
            while open_requests:
                await asyncio.sleep(0.01)


async def test_a_closed_client_ends_what_it_does_and_opens_no_connection(
    wire: Any,
) -> None:
    seen = asyncio.Event()

    async def script(
        state: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.set()
        await reader.read()

    async with wire(script) as server:
        spam = AsyncSpamClient(server.base_url, "key", timeout=60)
        under_way = asyncio.create_task(spam.predict("hello"))
        async with asyncio.timeout(60):
            await seen.wait()
            await spam.aclose()
            with pytest.raises(RuntimeError, match="client has been closed"):
                await under_way
        connections = server.connections
        for call in (spam.predict("a"), spam.predict_batch(["a"]), spam.lists()):
            with pytest.raises(RuntimeError, match="client has been closed"):
                await call
        with pytest.raises(RuntimeError, match="client has been closed"):
            async with spam:
                pass
        assert server.connections == connections


# The connections of a loop that ended cannot be closed any more; asyncio says so when freed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_second_loop_gets_its_own_connections(service: RunningService) -> None:
    spam = AsyncSpamClient(service.base_url, service.api_key)

    def in_a_loop_of_its_own() -> bool:
        return asyncio.run(spam.predict("hello")).is_spam

    assert await asyncio.to_thread(in_a_loop_of_its_own) in {True, False}
    await spam.predict("hello")
    assert await asyncio.to_thread(in_a_loop_of_its_own) in {True, False}
    await spam.predict("hello")
    await spam.aclose()
    gc.collect()


async def test_two_loops_at_once_keep_their_connections_and_both_are_closed(
    wire: Any, answer: Callable[..., bytes]
) -> None:
    open_connections = 0

    async def script(
        state: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and await reader.readuntil(b"}"):
                writer.write(answer(401, b"{}"))
        finally:
            open_connections -= 1

    async with wire(script) as server:
        spam = AsyncSpamClient(server.base_url, "key", retries=0)
        finished = threading.Event()

        async def elsewhere(called: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
            with pytest.raises(SpamAuthError):
                await spam.predict("hello")
            loop.call_soon_threadsafe(called.set_result, None)
            while not finished.is_set():
                await asyncio.sleep(0.01)

        here = asyncio.get_running_loop()
        called = here.create_future()
        with pytest.raises(SpamAuthError):
            await spam.predict("hello")
        beside = asyncio.create_task(
            asyncio.to_thread(lambda: asyncio.run(elsewhere(called, here)))
        )
        async with asyncio.timeout(60):
            await called
            with pytest.raises(SpamAuthError):
                await spam.predict("hello")
            assert (server.connections, open_connections) == (2, 2)
            await spam.aclose()
            while open_connections:
                await asyncio.sleep(0.01)
            finished.set()
            await beside


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}", SpamTransportError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", SpamResponseError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", SpamResponseError),
        (b"HTTP/1.1 204 No\r\n\r\n", SpamResponseError),
        (b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", SpamResponseError),
        (b"\x00\x01garbage\r\n\r\n", SpamTransportError),
        (b"", SpamTransportError),
    ],
    ids=["truncated", "empty object", "html", "no content", "redirect", "not http", "closed"],
)
async def test_what_is_no_answer_is_never_a_verdict(
    wire: Serving, raw: bytes, error: type[SpamError]
) -> None:
    async def script(state: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()

    async with wire(script) as server, AsyncSpamClient(server.base_url, "key") as spam:
        with pytest.raises(error):
            await spam.predict("hello")


async def test_an_endless_answer_ends_at_the_cap(wire: Serving) -> None:
    sent = 0

    async def script(state: Any, reader: Any, writer: Any) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            sent += 65536
            await writer.drain()

    async with wire(script) as server, AsyncSpamClient(server.base_url, "key") as spam:
        with pytest.raises(SpamResponseError, match="larger than any"):
            await spam.predict("hello")
    assert sent < 20_000_000


async def test_a_decompression_bomb_is_not_decompressed(answering: Serving, answer: Any) -> None:
    bomb = answer(200, gzip.compress(b" " * 50_000_000), "content-encoding: gzip")
    async with answering(bomb) as server, AsyncSpamClient(server.base_url, "key") as spam:
        with pytest.raises(SpamResponseError, match="compressed"):
            await spam.predict("hello")


async def test_a_dripping_answer_ends_at_the_total_deadline(wire: Serving) -> None:
    """Each piece comes soon, the whole of it only after half an hour."""

    async def script(state: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with wire(script) as server, AsyncSpamClient(server.base_url, "key", 0.5) as spam:
        with pytest.raises(SpamTimeoutError, match=r"0\.5 s"):
            await spam.predict("hello")


async def test_time_starts_when_a_call_is_sent(wire: Serving, answer: Any) -> None:
    async def slow(state: Any, reader: Any, writer: Any) -> None:
        while await reader.readuntil(b'"}'):
            await asyncio.sleep(0.1)
            writer.write(answer(404, b"{}"))

    async with (
        wire(slow) as server,
        AsyncSpamClient(server.base_url, "key", 3, max_connections=1) as spam,
    ):
        calls = [spam.predict("hello") for _ in range(40)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {SpamRequestError}


async def test_waiting_for_a_turn_has_a_deadline_of_its_own(wire: Serving) -> None:
    asked = asyncio.Event()

    async def silent(state: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()

    async with (
        wire(silent) as server,
        AsyncSpamClient(server.base_url, "key", 60, max_connections=1, queue_timeout=0.1) as spam,
    ):
        first = asyncio.create_task(spam.predict("first"))
        await asked.wait()
        with pytest.raises(SpamTimeoutError, match=r"Nothing was sent: .* 1 connections.* 0\.1 s"):
            await spam.predict("second")
        assert not first.done()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


@pytest.mark.parametrize("text", ["abc", b"abc"])
async def test_one_text_is_not_many(service: RunningService, text: Any) -> None:
    for spam in (AsyncSpamClient(service.base_url, service.api_key), AsyncSpamClient(local=True)):
        async with spam:
            with pytest.raises(SpamRequestError, match=r"call predict, or pass \[text\]"):
                async for _ in spam.predict_many(text):
                    pass


async def test_a_refused_connection_is_named() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with AsyncSpamClient(url, "key") as spam:
            with pytest.raises(SpamTransportError, match="Is the service running"):
                await spam.predict("hello")


async def test_a_dead_connection_of_the_pool_is_replaced(wire: Serving, answer: Any) -> None:
    good = json.dumps(
        {
            "message": "",
            "data": {
                "input_text": "",
                "processed_text": "",
                "text_length": 0,
                "word_count": 0,
                "language": {"language": "und", "probability": 0, "is_reliable": False},
                "prediction": {"is_spam": False, "ham_score": 1, "spam_score": 0},
                "error_code": "",
            },
        }
    ).encode()

    async def script(state: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(200, good))
        await writer.drain()

    async with wire(script) as server, AsyncSpamClient(server.base_url, "key") as spam:
        for _ in range(5):
            assert not (await spam.predict("hello")).is_spam
        assert server.connections >= 5


async def test_5xx_is_retried_and_then_raised(answering: Serving, answer: Any) -> None:
    async with (
        answering(answer(500, b"oops")) as server,
        AsyncSpamClient(server.base_url, "key", retries=2) as spam,
    ):
        with pytest.raises(SpamServerError) as caught:
            await spam.predict("hello")
        assert caught.value.status_code == 500
        assert len(server.requests) == 3


async def test_the_request_is_the_contract(answering: Serving, answer: Any) -> None:
    async with (
        answering(answer(401, b"{}")) as server,
        AsyncSpamClient(f"{server.base_url}/prefix/", "my-key") as spam,
    ):
        with pytest.raises(SpamAuthError):
            await spam.predict("héllo")
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = [line.lower() for line in head.split(b"\r\n")]
    assert lines[0] == b"post /prefix/v1/spam-detection/predict http/1.1"
    assert b"accept: application/json" in lines
    assert b"content-type: application/json" in lines
    assert b"x-api-key: my-key" in lines
    assert json.loads(body) == {"text": "héllo"}


async def test_cancelling_a_call_cancels_it(wire: Serving) -> None:
    closed = asyncio.Event()

    async def script(state: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        state.requests.append(b"")
        while await reader.read(1000):
            pass
        closed.set()

    async with wire(script) as server, AsyncSpamClient(server.base_url, "key") as spam:
        call = asyncio.create_task(spam.predict("hello"))
        async with asyncio.timeout(60):
            while not server.requests:
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await closed.wait()


async def test_neither_key_nor_text_is_shown_anywhere(
    answering: Serving, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for status in (200, 401, 500):
        async with (
            answering(answer(status, b"{}")) as server,
            AsyncSpamClient(server.base_url, _CANARY_KEY, retries=0) as spam,
        ):
            try:
                await spam.predict(_CANARY_TEXT)
            except SpamError as error:
                shown += [repr(error), *traceback.format_exception(error)]
            shown += [repr(spam), repr(vars(spam))]
    # asyncio's own selector line and httpx's request line are there: logging does work.
    assert "127.0.0.1" in caplog.text
    everything = caplog.text + "".join(shown)
    assert "canarykey" not in everything
    assert _CANARY_TEXT not in everything


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "No API key"),
        ({"api_key": " "}, "No API key"),
        ({"api_key": "schlüssel"}, "characters"),
        ({"api_key": "a\nb"}, "characters"),
        ({"api_key": "k", "base_url": "example.com"}, "must look like"),
        ({"api_key": "k", "base_url": "ftp://example.com"}, "must look like"),
        ({"api_key": "k", "base_url": "http://u:p@example.com"}, "without user name"),
        ({"api_key": "k", "base_url": "http://example.com/?a"}, "without user name"),
        ({"api_key": "k", "base_url": "http://example.com:x"}, "must look like"),
        ({"api_key": "k", "timeout": 0}, "timeout"),
        ({"api_key": "k", "timeout": float("nan")}, "timeout"),
        ({"api_key": "k", "retries": -1}, "retries"),
        ({"api_key": "k", "max_connections": 0}, "max_connections"),
    ],
)
async def test_a_wrong_setting_says_which(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BASE_URL", "API_KEY", "TIMEOUT_MS", "RETRIES"):
        monkeypatch.delenv(f"SPAMDETECT_{name}", raising=False)
    with pytest.raises(SpamConfigError, match=message):
        AsyncSpamClient(**arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIMEOUT_MS", "soon"), ("TIMEOUT_MS", "0"), ("RETRIES", "99"), ("RETRIES", "nan")],
)
async def test_a_wrong_variable_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPAMDETECT_API_KEY", "key")
    monkeypatch.setenv(f"SPAMDETECT_{name}", value)
    with pytest.raises(SpamConfigError, match=f"SPAMDETECT_{name}"):
        AsyncSpamClient()


async def test_the_environment_is_the_default(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPAMDETECT_BASE_URL", service.base_url)
    monkeypatch.setenv("SPAMDETECT_API_KEY", service.api_key)
    async with AsyncSpamClient() as spam:
        assert (await spam.predict("hello")).text_length == 5


async def test_local_mode_gives_what_the_service_gives(
    service: RunningService, spam_text: str, ham_text: str
) -> None:
    texts = [spam_text, ham_text, "", "   ", "😀", "日本語のテキスト", "\x00", "a" * 5000]
    async with (
        AsyncSpamClient(service.base_url, service.api_key) as remote,
        AsyncSpamClient(local=True) as local,
    ):
        for text in texts:
            assert await local.predict(text) == await remote.predict(text)
            assert await local.preprocess(text) == await remote.preprocess(text)
            assert (await local.predict(text)).raw == (await remote.predict(text)).raw
        many = [item.unwrap() async for item in local.predict_many(texts)]
        assert many == [item.unwrap() async for item in remote.predict_many(texts)]
        with pytest.raises(SpamConfigError, match="local mode"):
            await local.send_feedback("text", is_spam=True)
        for bad in ("a" * 100_001, "half a pair \ud83d", None):
            refusals = []
            for spam in (remote, local):
                for call in (spam.predict, spam.preprocess):
                    with pytest.raises(SpamRequestError) as caught:
                        await call(bad)  # type: ignore[arg-type]
                    refusals.append((caught.value.message, caught.value.error_code))
            assert len(set(refusals)) == 1, refusals
        mixed: list[Any] = ["good", None]
        assert [item.error is None async for item in local.predict_many(mixed)] == [True, False]


async def test_feedback_is_taken(service: RunningService) -> None:
    async with AsyncSpamClient(service.base_url, service.api_key) as spam:
        await spam.withdraw_feedback(
            await spam.send_feedback("this was spam \x00 indeed", is_spam=True)
        )


async def test_errors_survive_pickling_by_a_process_pool() -> None:
    import pickle

    from spamdetect import SpamRateLimitError

    error = SpamRateLimitError("slow down", retry_after=3.5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.retry_after, copy.status_code, str(copy)) == (
        SpamRateLimitError,
        "slow down",
        3.5,
        429,
        "slow down",
    )
