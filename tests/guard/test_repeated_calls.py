"""Repeats within a run, with the real SDK and gateway: tools, prompts, processes, privacy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import guard
from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardToolBlockedError,
    WorkflowPausedException,
)
from guard.core.arguments import digest, key_of
from guard.core.prompts import prompt_of
from guard.core.wire import codec
from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import Tenant, new_tenant
from tests.guard.instrumentation.standin.server import StandIn
from tests.support import postgres
from tests.support.waiting import PATIENT, WAIT_S, until

SECRET = "canary-of-an-argument"


@guard.protect
def search(query: str, limit: int = 10) -> str:
    return query


@guard.protect
async def search_async(query: str) -> str:
    return query


@guard.sensitive
@guard.protect
def pay(amount: int) -> int:
    return amount


@pytest.fixture
def ruled(start: Any, tenant: Any) -> Callable[..., guard.GuardRuntime]:
    """Start a runtime that knows a rule about repeats."""

    def begin(on_repeat: str = "refuse", **cap: Any) -> guard.GuardRuntime:
        tools = ["search*", "pay", "delete_files"]
        rule = {"times": 2, "tools": tools, "models": ["*"], "on_repeat": on_repeat, **cap}
        tenant.admin.set_policy("loops", repeat_caps=[rule])
        runtime: guard.GuardRuntime = start()
        until(lambda: runtime.enforcement.counts)
        return runtime

    return begin


def counted(tenant: Any) -> dict[str, Any]:
    """Return what rules with a limit of one would have stopped."""
    cap = {"times": 1, "tools": ["*"], "models": ["*"]}
    body = {"name": "x", "policy": {"document": {"repeat_caps": [cap]}}}
    return dict(tenant.admin.request("POST", "/policies/preview", body)["repeats"])


# -- tools -----------------------------------------------------------------------------------------


def test_a_repeat_is_refused_within_its_run(ruled: Any) -> None:
    ruled()
    for _ in range(2):
        with guard.workflow("w"):
            search("a")
            search(query="a", limit=10)  # by name, with its default: the same
            search("b")
            with pytest.raises(GuardToolBlockedError, match="called 2 times") as caught:
                search("a")
    assert caught.value.error_code == "GD-T001"
    assert caught.value.details["limit"] == 2


@pytest.mark.asyncio
async def test_a_repeat_is_refused_in_tasks(ruled: Any) -> None:
    ruled(times=3)
    async with guard.workflow("w"):
        found = await asyncio.gather(*(search_async("a") for _ in range(8)), return_exceptions=True)
    assert [each for each in found if each == "a"] == ["a"] * 3
    assert sum(isinstance(each, GuardToolBlockedError) for each in found) == 5


def test_a_repeat_of_a_sensitive_call_is_refused(ruled: Any) -> None:
    ruled()
    with guard.workflow("w"):
        pay(1)
        pay(1)
        with pytest.raises(GuardToolBlockedError, match="called 2 times"):
            pay(1)
        pay(2)


def test_a_paused_run_goes_on_when_it_is_resumed(ruled: Any, tenant: Any) -> None:
    runtime = ruled("pause")
    with guard.workflow("w"):
        search("a")
        search("a")
        with pytest.raises(WorkflowPausedException, match="called 2 times"):
            search("a")
        (run,) = tenant.admin.request("GET", "/runs")
        assert run["state"] == "paused"
        until(lambda: runtime.enforcement.halts)
        tenant.admin.request("POST", "/control", {"action": "resume", "run_id": run["run_id"]})
        until(lambda: runtime.enforcement.control.halt("w", run["run_id"], 0) is None)
        search("a")
        search("a")
        with pytest.raises(WorkflowPausedException):
            search("a")


def test_what_is_only_noticed_goes_on_under_its_lease(ruled: Any, tenant: Any) -> None:
    runtime = ruled("notice")
    with guard.workflow("w"):
        for _ in range(5):
            search("a")
    runtime.flush()
    found = until(lambda: counted(tenant) if counted(tenant)["calls"] == 5 else None)
    assert found["worst"][0]["subject"] == "search"
    spans = [each["data"] for each in tenant.admin.events(type="span") if each["call_id"]]
    said = {"tool": "search", "arguments": {"query": "a", "limit": 10}}
    expected = digest(said, key_of(runtime.settings.api_key))
    assert {span.get("digest") for span in spans} == {expected}


def test_without_a_rule_no_digest_is_made(
    start: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a digest was made")

    monkeypatch.setattr("guard.asking.repeats.digest", never)
    tenant.admin.set_policy("p", tools_block=["rm"])
    runtime = start()
    until(lambda: runtime.enforcement.control.tools)
    with guard.workflow("w"):
        search("a")
    runtime.flush()
    events = until(lambda: tenant.admin.events(type="span"))
    assert not any("digest" in event["data"] for event in events)
    assert counted(tenant)["calls"] == 0


def test_all_that_is_outside_of_workflows_is_one_run(ruled: Any) -> None:
    ruled()
    search("a")
    search("a")
    with pytest.raises(GuardToolBlockedError):
        search("a")


# -- prompts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vendor() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


@pytest.fixture
def client(vendor: StandIn) -> Iterator[openai.OpenAI]:
    vendor.reset()
    with openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, text: str = "hi", **options: Any) -> None:
    client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": text}], max_tokens=9, **options
    )


def test_the_same_prompt_is_refused(ruled: Any, client: openai.OpenAI, vendor: StandIn) -> None:
    ruled()

    def work() -> None:
        with guard.workflow("w"):
            ask(client)
            ask(client, temperature=0.5)  # the sampling is no part of the prompt
            ask(client, "another")
            ask(client)

    with pytest.raises(GuardBlockedException, match="asked 2 times with the same prompt"):
        work()
    assert len(vendor.bodies) == 3


def test_the_same_prompt_is_noticed_and_goes_on_under_its_lease(
    ruled: Any, client: openai.OpenAI, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = ruled("notice")
    session = until(lambda: runtime.link.session)
    until(lambda: session.asks.can_lease)
    courier, asked = runtime.gate._courier, list[Any]()
    put = courier.put

    def noted(question: Any, ticket: Any) -> None:
        asked.append(question.request)
        put(question, ticket)

    monkeypatch.setattr(courier, "put", noted)
    with guard.workflow("w"):
        for _ in range(10):
            ask(client)
    assert 0 < len(asked) < 10, "a lease covers the others"
    runtime.flush()
    found = until(lambda: counted(tenant) if counted(tenant)["calls"] == 10 else None)
    assert found["worst"][0]["kind"] == "model"


@pytest.mark.parametrize(
    ("path", "one", "other", "same"),
    [
        ("/v1/chat/completions", {"messages": [1]}, {"messages": [1], "n": 2}, True),
        ("/v1/chat/completions", {"messages": [1]}, {"messages": [2]}, False),
        ("/v1/messages", {"system": "a", "messages": []}, {"system": "b", "messages": []}, False),
        ("/v1/responses", {"input": "a"}, {"input": "a", "previous_response_id": "x"}, False),
        ("/v1beta/models/g:generateContent", {"contents": [1]}, {"contents": [1]}, True),
        ("/v1/new", {"unknown": 1}, {"unknown": 1}, True),
        ("/v1/new", {"unknown": 1}, {"unknown": 2}, False),
        ("/v1/new", [1], [1], True),
    ],
)
def test_what_is_the_same_prompt(path: str, one: Any, other: Any, same: bool) -> None:
    first, second = (prompt_of(path, json.dumps(each).encode()) for each in (one, other))
    assert first is not None
    assert (first == second) is same


def test_prompts_of_which_the_vendor_keeps_a_part_are_not_counted() -> None:
    assert prompt_of("/v1/threads/t/runs", b'{"assistant_id": "a"}') is None
    assert prompt_of("/v1/responses", b'{"input": "go on", "conversation": "c"}') is None
    assert prompt_of("/v1/chat/completions", b"") is None
    assert prompt_of("/v1/audio/transcriptions", b"--x\r\n") == b"--x\r\n"


# -- several processes, and privacy ----------------------------------------------------------------

WORKER = """
import sys
import guard
from tests.support.waiting import until
from guard.scope.scope import current_scope
from guard.breaker.exceptions import GuardToolBlockedError

@guard.protect
def search(query):
    return query

runtime = guard.GuardRuntime().open()
until(lambda: runtime.enforcement.counts)
allowed = refused = 0
with guard.workflow("w"):
    token = current_scope.set(current_scope.get().evolve(run_id="shared-run"))
    for _ in range(6):
        try:
            search(sys.argv[1])
            allowed += 1
        except GuardToolBlockedError:
            refused += 1
    current_scope.reset(token)
print(allowed, refused)
guard.shutdown(60)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Tenant, Path]]:
    """A tenant of a gateway whose files are known, on each engine."""
    database: Any = tmp_path / "gateway.sqlite3"
    if request.param == "postgres":
        database = postgres.url_of(tmp_path)
    with run_gateway(database) as gateway:
        tenant = new_tenant(gateway)
        yield tenant, tmp_path
        tenant.http.close()
        tenant.admin.close()


def test_all_processes_of_a_run_count_together_and_nothing_leaks(
    team: tuple[Tenant, Path],
) -> None:
    tenant, folder = team
    cap = {"times": 7, "tools": ["search"]}
    tenant.admin.set_policy("loops", repeat_caps=[cap])
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_API_KEY": tenant.api_key, **PATIENT,
           "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}  # fmt: skip
    workers = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORKER), SECRET], env=env,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]  # fmt: skip
    found = [[*map(int, worker.communicate(timeout=300)[0].split())] for worker in workers]
    assert [sum(column) for column in zip(*found, strict=True)] == [7, 11]
    stored = str(tenant.admin.events()) + str(tenant.admin.audit()) + str(counted(tenant))
    assert "search" in stored
    assert SECRET not in stored
    for file in folder.glob("gateway.sqlite3*"):
        assert SECRET.encode() not in file.read_bytes()


def test_no_argument_and_no_prompt_is_on_the_wire(
    ruled: Any, client: openai.OpenAI, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is encoded for the gateway: questions, events, over HTTP and the socket."""
    sent: list[bytes] = []
    lock = threading.Lock()
    encode = codec._encoder.encode

    class Recorder:
        def encode(self, message: Any) -> bytes:
            data = encode(message)
            with lock:
                sent.append(data)
            return data

    monkeypatch.setattr(codec, "_encoder", Recorder())
    for on_repeat in ("notice", "refuse"):
        runtime = ruled(on_repeat, times=9)
        with guard.workflow("w"):
            for _ in range(2):
                search(SECRET)
                ask(client, SECRET)
        runtime.flush()
        guard.shutdown(WAIT_S)
    everything = b"".join(sent)
    assert b'"digest"' in everything
    assert SECRET.encode() not in everything
    assert counted(tenant)["calls"] >= 8
