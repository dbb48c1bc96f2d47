"""The service's other pages, its faults, and its socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from spamdetect import AsyncSpamClient, SpamAuthError, SpamRequestError, SpamServerError
from spamdetect.engine import Analysis, Engine, Preprocessed
from spamdetect.errors import SpamConfigError
from spamdetect.service.app import SpamService, open_store
from spamdetect.service.keys import KeySpec
from spamdetect.service.server import serving
from spamdetect.service.settings import ServiceSettings, read_service_settings
from spamdetect.testing import RunningService, run_service, run_service_async
from tests.support.private_server import schema_in

PREDICT = "/v1/spam-detection/predict"


@pytest.mark.asyncio
async def test_health_readiness_and_metrics_need_no_key(service: RunningService) -> None:
    async with httpx.AsyncClient(base_url=service.base_url) as client:
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["data"]) == (200, {"error_code": ""})
            assert (await client.head(path)).status_code == 200


@pytest.mark.asyncio
async def test_the_pages_without_a_key_move_to_a_port_of_their_own(tmp_path: Path) -> None:
    pages = ("/healthz", "/readyz", "/metrics", "/openapi.json")
    settings = read_service_settings(
        environ={"SPAMDETECT_MONITOR_PORT": "0"},
        port=0,
        database_url=f"sqlite:///{tmp_path / 'keys.sqlite3'}",
    )
    async with (
        serving(SpamService(settings)) as server,
        httpx.AsyncClient(base_url=server.base_url) as api,
        httpx.AsyncClient(base_url=server.monitor_url) as monitor,
    ):
        assert server.monitor_url != server.base_url
        assert [(await monitor.get(page)).status_code for page in pages] == [200] * 4
        assert [(await api.get(page)).status_code for page in pages] == [404] * 4
        assert (await api.get("/healthz")).json()["data"] == {"error_code": "NOT_FOUND"}
        assert (await api.post(PREDICT, json={"text": "a"})).status_code == 401
        assert (await monitor.post(PREDICT, json={"text": "a"})).status_code == 404


@pytest.mark.asyncio
async def test_a_monitor_port_in_use_is_named(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
    async with serving(SpamService(ServiceSettings(port=0, database_url=database))) as server:
        taken = int(server.base_url.rpartition(":")[2])
        again = ServiceSettings(port=0, monitor_port=taken, database_url=database)
        with pytest.raises(SpamConfigError, match="--monitor-port"):
            async with serving(SpamService(again)):
                pass


@pytest.mark.asyncio
async def test_metrics_count_what_happened_and_name_no_text_and_no_key() -> None:
    async with (
        run_service_async() as service,
        httpx.AsyncClient(base_url=service.base_url) as client,
    ):
        headers = {"x-api-key": service.api_key}
        for text in ("You won a free prize, claim now http://bit.ly/x", "See you at five?"):
            await client.post(PREDICT, json={"text": text}, headers=headers)
        await client.post(PREDICT, json={"text": 1}, headers=headers)
        await client.post(PREDICT, json={"text": "a"})
        metrics = (await client.get("/metrics")).text
    assert 'spamdetect_verdicts_total{verdict="spam"} 1.0' in metrics
    assert 'spamdetect_verdicts_total{verdict="ham"} 1.0' in metrics
    for line in (
        'endpoint="predict",error_code="",status="200"} 2.0',
        'endpoint="predict",error_code="INVALID_REQUEST",status="422"} 1.0',
        'endpoint="predict",error_code="MISSING_API_KEY",status="401"} 1.0',
        'spamdetect_request_seconds_count{endpoint="predict"} 4.0',
        "spamdetect_model_info{version=",
    ):
        assert line in metrics
    assert service.api_key[5:17] not in metrics
    assert "prize" not in metrics


@pytest.mark.asyncio
async def test_a_revoked_key_is_refused_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
    async with (
        run_service_async(database_url=url) as service,
        AsyncSpamClient(service.base_url, service.api_key) as spam,
    ):
        await spam.predict("hello")
        beside = await open_store(url)
        assert await beside.revoke(service.api_key.split("_")[1])
        await beside.close()
        with pytest.raises(SpamAuthError) as caught:
            await spam.predict("hello")
        assert caught.value.error_code == "INVALID_API_KEY"


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_services_that_start_together_make_one_first_key(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
        if kind == "postgres":
            server_url = request.getfixturevalue("postgres_url")
            url = await stack.enter_async_context(schema_in(server_url))
        settings = ServiceSettings(port=0, database_url=url)

        async def start() -> bool:
            server = await stack.enter_async_context(serving(SpamService(settings)))
            return server.first_key is not None

        assert sorted(await asyncio.gather(*(start() for _ in range(3)))) == [False, False, True]
        assert not await start()


@pytest.mark.asyncio
async def test_it_runs_under_any_asgi_server(tmp_path: Path) -> None:
    """The lifespan protocol, as another server would speak it."""
    settings = ServiceSettings(database_url=f"sqlite:///{tmp_path / 'keys.sqlite3'}")
    app = SpamService(settings)
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan"}, incoming.get, outgoing.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await outgoing.get())["type"] == "lifespan.startup.complete"
    key = await app.store.create(KeySpec())
    transport = httpx.ASGITransport(app)
    async with AsyncSpamClient("http://service", key.api_key, transport=transport) as spam:
        assert (await spam.predict("hello")).text_length == 5
    await incoming.put({"type": "lifespan.shutdown"})
    assert (await outgoing.get())["type"] == "lifespan.shutdown.complete"
    await running


@pytest.mark.asyncio
async def test_a_failed_start_is_told_to_the_asgi_server(tmp_path: Path) -> None:
    app = SpamService(
        ServiceSettings(model_path=tmp_path / "none", database_url=f"sqlite:///{tmp_path}/k")
    )
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    await incoming.put({"type": "lifespan.startup"})
    await app({"type": "lifespan"}, incoming.get, outgoing.put)
    message = await outgoing.get()
    assert message["type"] == "lifespan.startup.failed"
    assert "model" in message["message"]


@pytest.mark.asyncio
async def test_a_shorter_limit_and_another_threshold_hold() -> None:
    async with (
        run_service_async(max_text_chars=10, threshold=0.0) as service,
        AsyncSpamClient(service.base_url, service.api_key) as spam,
    ):
        assert (await spam.predict("0123456789")).is_spam
        with pytest.raises(SpamRequestError) as caught:
            await spam.predict("01234567890")
        assert caught.value.error_code == "TEXT_TOO_LONG"
        assert "10 characters" in caught.value.message


@pytest.mark.asyncio
async def test_feedback_is_not_kept_for_retraining_unless_turned_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
    async with (
        run_service_async(database_url=url) as service,
        AsyncSpamClient(service.base_url, service.api_key) as spam,
    ):
        assert await spam.send_feedback("canary text", is_spam=True)
        store = await open_store(url)
        assert await store.feedback() == []
        await store.close()
    for file in await asyncio.to_thread(lambda: list(tmp_path.iterdir())):
        assert b"canary" not in file.read_bytes()


@pytest.mark.asyncio
async def test_feedback_is_stored_once_for_retraining(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
    async with run_service_async(database_url=url, store_feedback=True) as service:
        async with httpx.AsyncClient(headers={"x-api-key": service.api_key}) as client:
            address = f"{service.base_url}/v1/spam-detection/feedback"
            for _ in range(2):
                report = {"text": "bad", "is_spam": True, "feedback_id": "one"}
                assert (await client.post(address, json=report)).status_code == 200
            too_long = {"text": "x", "is_spam": True, "feedback_id": "i" * 65}
            answer = await client.post(address, json=too_long)
            assert (answer.status_code, answer.json()["data"]["field"]) == (422, "feedback_id")
        store = await open_store(url)
        assert await store.feedback() == [("bad", True)]
        await store.close()


class Broken:
    """An engine that fails with the text in its error, as a bug could."""

    model_version = "broken"

    def __init__(self) -> None:
        self.works = True
        self._engine = Engine.load()

    def preprocess(self, text: str) -> Preprocessed:
        raise ValueError(text)

    def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
        if "canary" in "".join(texts):
            raise ValueError(str(texts))
        return self._engine.predict_many(texts)


@pytest.mark.asyncio
async def test_a_failing_engine_is_500_and_leaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        run_service_async(engine=Broken()) as service,
        AsyncSpamClient(service.base_url, service.api_key, retries=0) as spam,
    ):
        for call in (spam.predict, spam.preprocess):
            with pytest.raises(SpamServerError) as caught:
                await call("canary-text-4711")
            assert (caught.value.status_code, caught.value.error_code) == (500, "INTERNAL")
            assert "canary" not in str(caught.value)
        assert (await spam.predict("hello")).text_length == 5
    service_log = [r for r in caplog.records if r.name.startswith("spamdetect")]
    assert len(service_log) == 2
    assert "ValueError" in service_log[0].getMessage()
    assert "canary-text" not in caplog.text
    assert service.api_key not in caplog.text


@pytest.mark.asyncio
async def test_postgres_away_and_back(
    private_postgres: Any, until: Callable[..., Awaitable[None]]
) -> None:
    async with (
        schema_in(private_postgres.url) as url,
        run_service_async(database_url=url) as service,
        AsyncSpamClient(service.base_url, service.api_key, retries=0) as spam,
        httpx.AsyncClient(base_url=service.base_url) as client,
    ):
        await spam.predict("hello")
        await asyncio.to_thread(private_postgres.stop)
        try:
            with pytest.raises(SpamServerError) as caught:
                await spam.predict("hello")
            assert (caught.value.status_code, caught.value.error_code) == (503, "UNAVAILABLE")
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
        finally:
            await asyncio.to_thread(private_postgres.start)
        async with asyncio.timeout(60):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        async with AsyncSpamClient(service.base_url, service.api_key) as again:
            assert (await again.predict("hello")).text_length == 5


@contextlib.asynccontextmanager
async def _connection(service: RunningService) -> AsyncIterator[Any]:
    port = int(service.base_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _answer_of(raw: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["data"]


@pytest.mark.asyncio
async def test_a_head_that_does_not_come_is_408() -> None:
    async with run_service_async(header_timeout_s=0.2) as service:
        for beginning in (b"", b"POST /v1/spam-detection/predict HTTP/1.1\r\nhost: x\r\nx-a"):
            async with _connection(service) as (reader, writer), asyncio.timeout(60):
                writer.write(beginning)
                assert _answer_of(await reader.read()) == (408, {"error_code": "REQUEST_TIMEOUT"})


@pytest.mark.asyncio
async def test_a_second_head_that_does_not_come_is_408_too() -> None:
    async with run_service_async(header_timeout_s=0.2) as service, asyncio.timeout(60):
        while True:
            async with _connection(service) as (reader, writer):
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"HTTP/1.1 408"):
                    continue  # the machine was too slow for the first one
                assert head.startswith(b"HTTP/1.1 200")
                await reader.readuntil(b"}}")
                writer.write(b"GET /hea")
                assert _answer_of(await reader.read())[0] == 408
                break


@pytest.mark.asyncio
async def test_a_body_that_does_not_come_is_408() -> None:
    async with (
        run_service_async(body_timeout_s=0.2) as service,
        _connection(service) as (reader, writer),
        asyncio.timeout(60),
    ):
        writer.write(
            b"POST /v1/spam-detection/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
            b"content-type: application/json\r\nx-api-key: "
            + service.api_key.encode()
            + b'\r\n\r\n{"text'
        )
        status, data = _answer_of(await reader.read())
        assert (status, data) == (408, {"error_code": "REQUEST_TIMEOUT"})


@pytest.mark.asyncio
async def test_connections_beyond_the_cap_are_turned_away_and_later_taken(
    until: Callable[..., Awaitable[None]],
) -> None:
    async with run_service_async(max_connections=3) as service:
        async with contextlib.AsyncExitStack() as held:
            for _ in range(3):
                reader, writer = await held.enter_async_context(_connection(service))
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                await reader.readuntil(b"}}")
            async with _connection(service) as (reader, _), asyncio.timeout(60):
                assert _answer_of(await reader.read()) == (503, {"error_code": "OVERLOADED"})
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=service.base_url) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/healthz")).status_code == 200:
                        break
                await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_what_is_not_http_is_400_in_the_envelope(service: RunningService) -> None:
    async with _connection(service) as (reader, writer), asyncio.timeout(60):
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert _answer_of(await reader.read()) == (400, {"error_code": "INVALID_REQUEST"})


@pytest.mark.asyncio
async def test_pipelined_and_chunked_requests_are_answered(service: RunningService) -> None:
    request = (
        b"POST /v1/spam-detection/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\nx-api-key: "
        + service.api_key.encode()
        + b'\r\n\r\n7\r\n{"text"\r\n8\r\n: "hey"}\r\n0\r\n\r\n'
    )
    async with _connection(service) as (reader, writer), asyncio.timeout(60):
        writer.write(request * 3)
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            body = await reader.readuntil(b'"error_code":""}}')
            assert json.loads(body)["data"]["input_text"] == "hey"


@pytest.mark.asyncio
async def test_a_running_request_is_answered_before_the_service_stops() -> None:
    begun, stopping = asyncio.Event(), asyncio.Event()

    async def ask(service: RunningService) -> int:
        async with _connection(service) as (reader, writer):
            writer.write(
                b"POST /v1/spam-detection/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n"
                b"content-type: application/json\r\nx-api-key: "
                + service.api_key.encode()
                + b'\r\n\r\n{"text"'
            )
            await writer.drain()
            begun.set()
            await stopping.wait()
            writer.write(b': "hello"}')
            return _answer_of(await reader.read())[0]

    async with asyncio.timeout(60):
        async with run_service_async() as service:
            asking = asyncio.create_task(ask(service))
            await begun.wait()
            async with httpx.AsyncClient() as client:  # it has read what came before
                await client.get(f"{service.base_url}/healthz")
            asyncio.get_running_loop().call_later(0.3, stopping.set)
        assert await asking == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SPAMDETECT_PORT", "http", "SPAMDETECT_PORT"),
        ("SPAMDETECT_PORT", "70000", "SPAMDETECT_PORT"),
        ("SPAMDETECT_WORKERS", "0", "SPAMDETECT_WORKERS"),
        ("SPAMDETECT_STORE_FEEDBACK", "maybe", "SPAMDETECT_STORE_FEEDBACK"),
        ("SPAMDETECT_THRESHOLD", "1.5", "SPAMDETECT_THRESHOLD"),
    ],
)
async def test_a_wrong_variable_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(SpamConfigError, match=message):
        read_service_settings(environ={name: value})


@pytest.mark.asyncio
async def test_arguments_go_before_the_environment() -> None:
    environment = {"SPAMDETECT_PORT": "99", "SPAMDETECT_STORE_FEEDBACK": "1"}
    settings = read_service_settings(environ=environment, port=0)
    assert (settings.port, settings.store_feedback) == (0, True)
    with pytest.raises(SpamConfigError, match="port"):
        read_service_settings(environ={}, port=-1)
    assert "redis://u:secret@x" not in repr(
        read_service_settings(environ={"SPAMDETECT_REDIS_URL": "redis://u:secret@x"})
    )


def test_the_service_runs_from_a_thread_and_twice_at_once() -> None:
    with run_service() as one, run_service() as other:
        assert one.base_url != other.base_url
        answer = httpx.get(f"{other.base_url}/readyz")
        assert answer.status_code == 200
        refused = httpx.post(
            one.base_url + PREDICT, json={"text": "a"}, headers={"x-api-key": other.api_key}
        )
        assert refused.status_code == 401


def test_a_port_in_use_reaches_the_caller(service: RunningService) -> None:
    port = int(service.base_url.rpartition(":")[2])
    with pytest.raises(SpamConfigError, match="in use"), run_service(port=port):
        pass
