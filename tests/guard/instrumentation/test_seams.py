"""How the hooks come and go, and what passes them untouched."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests

import guard
from guard.breaker.exceptions import GuardBudgetError
from guard.breaker.refusals import Refusal
from guard.instrumentation import Instrumentation
from guard.scope.scope import OWN_TRAFFIC, Scope
from tests.guard.instrumentation.conftest import start_observing
from tests.guard.instrumentation.matrix.other_cases import CONVERSE, bedrock_client
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello?"}]}
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


def hooks() -> tuple[Any, ...]:
    import botocore.httpsession

    return (
        httpx.Client.send, httpx.AsyncClient.send, httpx2.Client.send, httpx2.AsyncClient.send,
        aiohttp.ClientSession._request, requests.adapters.HTTPAdapter.send,
        botocore.httpsession.URLLib3Session.send,
    )  # fmt: skip


class TestComingAndGoing:
    def test_reversible_and_idempotent(self) -> None:
        before = hooks()
        first = start_observing().instrumentation
        during = hooks()
        assert all(now is not then for now, then in zip(during, before, strict=True))
        first.install()
        assert hooks() == during
        first.uninstall()
        assert hooks() == before
        first.uninstall()
        assert hooks() == before

    def test_the_newest_instrumentation_observes(self, standin: StandIn) -> None:
        first, second = start_observing(), start_observing()
        httpx.post(standin.url + CHAT, json=ASK)
        first.instrumentation.uninstall()  # not the one that is active
        httpx.post(standin.url + CHAT, json=ASK)
        second.instrumentation.uninstall()
        httpx.post(standin.url + CHAT, json=ASK)
        assert (len(first.events), len(second.events)) == (0, 2)

    def test_below_another_tools_wrapper(
        self, standin: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        observed = start_observing()
        ours, seen = httpx.Client.send, []

        def theirs(self: Any, request: Any, **options: Any) -> Any:
            seen.append(request)
            return ours(self, request, **options)

        with monkeypatch.context() as patched:
            patched.setattr(httpx.Client, "send", theirs)
            observed.instrumentation.uninstall()
            assert httpx.Client.send is theirs
            httpx.post(standin.url + CHAT, json=ASK)
            observed.instrumentation.install()
            httpx.post(standin.url + CHAT, json=ASK)
        observed.instrumentation.uninstall()
        assert len(seen) == 2
        assert len(observed.events) == 1

    def test_clients_made_before(self, standin: StandIn) -> None:
        with (
            httpx.Client() as client,
            openai.OpenAI(base_url=f"{standin.url}/v1", api_key="k") as api,
        ):
            observed = start_observing()
            client.post(standin.url + CHAT, json=ASK)
            api.chat.completions.create(**ASK)
            observed.instrumentation.uninstall()
        assert len(observed.events) == 2

    def test_transports_imported_later(self, standin: StandIn) -> None:
        program = """
import sys, asyncio
from types import SimpleNamespace
from guard.instrumentation import Instrumentation
events = []
def record(kind, data, scope=None):
    events.append(data)
    return 1
Instrumentation(SimpleNamespace(
    record=record, check_request=lambda scope: None, request_gate=None, tools=None,
    enter_request=lambda frame, llm: None, leave_request=lambda request: None,
)).install()
assert not {"httpx", "httpx2", "aiohttp", "requests", "botocore"} & set(sys.modules)
import httpx, httpx2, requests, aiohttp
ask = {"model": "m"}
for module in (httpx, httpx2, requests):
    module.post(sys.argv[1], json=ask, timeout=60).json()
async def main():
    async with aiohttp.ClientSession() as session, session.post(sys.argv[1], json=ask) as response:
        await response.json()
asyncio.run(main())
from guard.core.events import llm_data
print(len(events), sum(llm_data(e, "").input_tokens for e in events) > 4000)
"""
        done = subprocess.run(
            [sys.executable, "-c", program, standin.url + CHAT],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.stdout.split() == ["4", "True"], done.stderr

    def test_public_functions(self, standin: StandIn, start: Callable[..., Any]) -> None:
        before = hooks()
        runtime = start(auto_instrument=False)
        assert hooks() == before
        guard.instrument()
        guard.instrument()
        httpx.post(standin.url + CHAT, json=ASK)
        guard.uninstrument()
        guard.uninstrument()
        httpx.post(standin.url + CHAT, json=ASK)
        assert hooks() == before
        runtime.flush()
        assert runtime.status().events_sent == 1
        assert "instrument" not in dir(guard)


class TestUntouched:
    def test_the_first_chunk_is_not_held_back(self, standin: StandIn, observed: Any) -> None:
        """The server waits for ever after two thirds; the first third has arrived by then."""
        standin.hold = True
        with httpx.Client() as client, client.stream("POST", standin.url + CHAT, json=STREAM) as r:
            assert next(r.iter_raw()).startswith(b"data: ")
        assert len(observed.events) == 1

    def test_connections_go_back_to_the_pool(self, standin: StandIn, observed: Any) -> None:
        with httpx.Client() as client:
            for _ in range(3):
                with client.stream("POST", standin.url + CHAT, json=STREAM) as response:
                    for _ in response.iter_lines():
                        pass
            pool: Any = client._transport._pool  # type: ignore[attr-defined]
            assert [c.is_idle() for c in pool.connections] == [True]
        assert len(observed.events) == 3

    @pytest.mark.asyncio
    async def test_cancelled_in_mid_stream(self, standin: StandIn, observed: Any) -> None:
        standin.hold = True
        begun = asyncio.Event()

        async def read() -> None:
            async with (
                httpx.AsyncClient() as client,
                client.stream("POST", standin.url + CHAT, json=STREAM) as response,
            ):
                async for _ in response.aiter_lines():
                    begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [event.estimated for event in observed.events] == [True]

    def test_opened_and_never_read(self, standin: StandIn, observed: Any) -> None:
        standin.hold = True
        with httpx.Client() as client, client.stream("POST", standin.url + CHAT, json=STREAM):
            pass
        assert len(observed.events) + len(observed.instrumentation.unseen_hosts()) == 1

    def test_the_server_breaks_off(self, standin: StandIn, observed: Any) -> None:
        standin.tear = True
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.Client() as client,
            client.stream("POST", standin.url + CHAT, json=STREAM) as response,
        ):
            for _ in response.iter_lines():
                pass
        assert [event.estimated for event in observed.events] == [True]

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    @pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
    def test_compressed_answers(
        self, standin: StandIn, observed: Any, encoding: str, body: dict[str, Any]
    ) -> None:
        standin.encoding = encoding
        with httpx.stream("POST", standin.url + CHAT, json=body) as response:
            assert "Disjoint" in "".join(response.iter_text())
        with requests.post(standin.url + CHAT, json=body, stream=True, timeout=120) as answer:
            assert b"Disjoint" in b"".join(answer.iter_content(512))

        async def over_aiohttp() -> None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(standin.url + CHAT, json=body) as response,
            ):
                assert "Disjoint" in await response.text()

        asyncio.run(over_aiohttp())
        assert [e.input_tokens for e in observed.events] == [
            usage.input_tokens for usage in standin.said if usage
        ]
        assert not any(event.estimated for event in observed.events)

    def test_errors_and_other_urls_are_nothing(self, standin: StandIn, observed: Any) -> None:
        httpx.post(standin.url + "/v1/something", json=ASK)
        httpx.get(standin.url + "/v1/models")
        standin.status = 429
        httpx.post(standin.url + CHAT, json=ASK)
        with httpx.stream("POST", standin.url + CHAT, json=STREAM) as response:
            response.read()
        requests.post(standin.url + CHAT, json=ASK, timeout=120)
        assert observed.events == []
        assert observed.instrumentation.unseen_hosts() == ()

    def test_own_traffic(self, standin: StandIn, observed: Any) -> None:
        with httpx.Client() as client:
            client.post(standin.url + CHAT, json=ASK, extensions={OWN_TRAFFIC: True})
        assert observed.events == []

    def test_event_hooks_that_read_the_answer(self, standin: StandIn, observed: Any) -> None:
        with httpx.Client(event_hooks={"response": [lambda r: r.read()]}) as client:
            client.post(standin.url + CHAT, json=ASK)
            with client.stream("POST", standin.url + CHAT, json=STREAM) as response:
                response.read()
        assert [event.estimated for event in observed.events] == [False, False]


class TestOnce:
    def test_a_background_response_is_counted_when_it_is_done_and_once(
        self, standin: StandIn, observed: Any
    ) -> None:
        with openai.OpenAI(base_url=f"{standin.url}/v1", api_key="k") as api:
            begun = api.responses.create(model="gpt-5", input="Hello?", background=True)
            assert observed.events == []
            for _ in range(3):
                done = api.responses.retrieve(begun.id)
        assert [event.response_id for event in observed.events] == [done.id]
        assert observed.instrumentation.unseen_hosts() == ()

    def test_two_requests_are_two_charges_whatever_the_vendor_calls_them(
        self, standin: StandIn, observed: Any
    ) -> None:
        """Local servers draw their ids out of a few, or use constants."""
        usage = {"prompt_tokens": 5, "completion_tokens": 2}
        body = encoded({"id": "chatcmpl-same", "model": "m", "choices": [], "usage": usage})
        standin.instead = Reply(None, body)
        for _ in range(3):
            httpx.post(standin.url + CHAT, json=ASK)
        assert len({event.request_id for event in observed.events}) == 3
        assert {event.response_id for event in observed.events} == {"chatcmpl-same"}

    def test_what_a_cache_repeats_is_one_charge(self, standin: StandIn, observed: Any) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 2}
        body = encoded({"id": "chatcmpl-same", "model": "m", "choices": [], "usage": usage})
        standin.instead = Reply(None, body)
        httpx.post(standin.url + CHAT, json=ASK)
        standin.instead = Reply(None, body, headers={"age": "7"})
        for _ in range(2):
            httpx.post(standin.url + CHAT, json=ASK)
        assert len(observed.events) == 1

    def test_a_poll_repeats_and_carries_no_request_id(
        self, standin: StandIn, observed: Any
    ) -> None:
        usage = {"input_tokens": 5, "output_tokens": 2}
        body = encoded({"id": "resp_1", "object": "response", "status": "completed", "model": "m",
                        "usage": usage})  # fmt: skip
        standin.instead = Reply(None, body)
        for _ in range(3):
            httpx.get(standin.url + "/v1/responses/resp_1")
        (event,) = observed.events
        assert (event.response_id, event.request_id) == ("resp_1", None)

    def test_httpx_over_aiohttp_is_one_call(self, standin: StandIn, observed: Any) -> None:
        async def main() -> None:
            async with openai.AsyncOpenAI(
                base_url=f"{standin.url}/v1", api_key="k", http_client=openai.DefaultAioHttpClient()
            ) as api:
                await api.chat.completions.create(**ASK)

        asyncio.run(main())
        assert len(observed.events) == 1

    def test_retries_of_the_client(self, standin: StandIn, observed: Any) -> None:
        standin.status = 500

        def heal(request: Any) -> None:
            if len(standin.said) >= 1:
                standin.status = 200

        with openai.OpenAI(
            base_url=f"{standin.url}/v1", api_key="k", max_retries=2,
            http_client=httpx2.Client(timeout=WAIT_S, event_hooks={"request": [heal]}),
        ) as api:  # fmt: skip
            api.chat.completions.create(**ASK)
        assert len(standin.said) == 2
        assert len(observed.events) == 1

    def test_threads(self, standin: StandIn, observed: Any) -> None:
        with httpx.Client() as client:
            threads = [
                threading.Thread(target=lambda: client.post(standin.url + CHAT, json=ASK))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        assert len({event.response_id for event in observed.events}) == 8


class TestSilence:
    def test_an_answer_without_usage_is_reported(self, standin: StandIn, observed: Any) -> None:
        standin.instead = Reply(None, encoded({"choices": []}))
        httpx.post(standin.url + CHAT, json=ASK)
        httpx.post(standin.url + CHAT, json=ASK)
        assert observed.events == []
        assert observed.instrumentation.unseen_hosts() == ("127.0.0.1",)

    def test_a_path_that_others_use_too_is_not(self, standin: StandIn, observed: Any) -> None:
        standin.instead = Reply(None, encoded({"id": "sms-1", "status": "queued"}))
        for path in ("/v1/messages", "/v1/responses", "/api/chat", "/v2/chat", "/v1/embeddings"):
            httpx.post(standin.url + path, json={"to": "+44"})
        assert observed.events == []
        assert observed.instrumentation.unseen_hosts() == ()


def refusing(scope: Scope) -> None:
    raise Refusal(GuardBudgetError(reason="spent", action="block"))


class TestRefusal:
    """Clients retry an ``Exception``; what stops the next request passes through all of them."""

    def calls(self, url: str) -> list[Callable[[], object]]:
        def over_aiohttp() -> None:
            async def main() -> None:
                async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=ASK):
                    pass

            asyncio.run(main())

        def openai_async() -> None:
            async def main() -> None:
                async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as api:
                    await api.chat.completions.create(**ASK)

            asyncio.run(main())

        def openai_sync() -> None:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as api:
                api.chat.completions.create(**ASK)

        return [
            lambda: httpx.post(url + CHAT, json=ASK),
            lambda: httpx2.post(url + CHAT, json=ASK),
            lambda: requests.post(url + CHAT, json=ASK, timeout=120),
            over_aiohttp,
            openai_sync,
            openai_async,
            lambda: bedrock_client(url).converse(**CONVERSE),
        ]

    def test_before_anything_is_sent(self, standin: StandIn) -> None:
        observed = start_observing(check=refusing)
        for call in self.calls(standin.url):
            with pytest.raises(Refusal):
                call()
        observed.instrumentation.uninstall()
        assert standin.said == []
        assert observed.events == []

    def test_other_requests_go_on(self, standin: StandIn) -> None:
        observed = start_observing(check=refusing)
        assert httpx.get(standin.url + "/v1/models").status_code == 200
        assert httpx.get(standin.url + "/v1/responses/resp_1").status_code == 200
        observed.instrumentation.uninstall()


def test_a_dead_server_is_the_clients_error(observed: Any) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen: no other program gets the port meanwhile
        port = dead.getsockname()[1]
        for client, error in ((httpx, httpx.ConnectError), (requests, requests.ConnectionError)):
            with pytest.raises(error):
                client.post(f"http://127.0.0.1:{port}{CHAT}", json=ASK, timeout=120)
    assert observed.events == []
    assert isinstance(observed.instrumentation, Instrumentation)


HALF_IMPORTED = """
import sys, threading, time
import guard
from guard.instrumentation import patching

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "websockets.asyncio.connection":
            time.sleep(2)

runtime = guard.GuardRuntime()
sys.meta_path.insert(0, Slow())
importing = threading.Thread(target=lambda: __import__("websockets.asyncio.client"))

def begin():
    importing.start()
    while "websockets.asyncio.client" not in sys.modules:
        time.sleep(0.001)

LATE = "late" in sys.argv
if LATE:  # it begins when guard has looked for such imports
    wait = patching._wait_for_imports
    patching._wait_for_imports = lambda: (wait(), begin())
else:
    begin()
runtime.instrumentation.install()
importing.join()
print(patching.hooked()["websockets.asyncio.client"])
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_client_that_another_thread_is_importing(when: str) -> None:
    """A half of its module is there already; it is patched when the whole is."""
    done = subprocess.run(
        [sys.executable, "-c", HALF_IMPORTED, when],
        env={**os.environ, "GUARD_API_KEY": "key"},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert "cannot be instrumented" not in done.stderr
    assert done.stdout == "True\n"
