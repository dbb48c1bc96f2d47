"""Requests outside of any workflow belong to the process's default one; budgets hold for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

import guard
from guard import GuardRuntime
from guard.core import wire
from tests.guard.conftest import Tenant
from tests.support.llm_vendor import vendor_process
from tests.support.waiting import WAIT_S, until

BODY: dict[str, Any] = {
    "model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip
Start = Callable[..., GuardRuntime]


@pytest.fixture(scope="module")
def vendor() -> Iterator[str]:
    with vendor_process() as url:
        yield url


def answered(vendor: str) -> int:
    return int(httpx.get(f"{vendor}/stats").json()["answered"])


def by_httpx(url: str) -> None:
    httpx.post(f"{url}/v1/chat/completions", json=BODY).raise_for_status()


def by_openai(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=1) as client:
        client.chat.completions.create(**BODY)


def by_openai_async(url: str) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=1) as client:
            await client.chat.completions.create(**BODY)

    asyncio.run(main())


def refused(call: Callable[[str], None], vendor: str) -> BaseException:
    """Return what a refused request ends with; nothing has left."""
    before = answered(vendor)
    with pytest.raises((guard.GuardError, openai.APIConnectionError)) as failed:
        call(vendor)
    assert answered(vendor) == before
    return failed.value


BUDGETS: list[dict[str, Any]] = [
    {},
    {"scope_kind": "key", "scope_id": "*"},
    {"scope_kind": "user", "scope_id": "*"},
    {"scope_kind": "model", "scope_id": "gpt-4o"},
    {"scope_kind": "workflow", "scope_id": "default"},
]


@pytest.mark.parametrize("call", [by_httpx, by_openai, by_openai_async])
@pytest.mark.parametrize("scope", BUDGETS, ids=lambda each: each.get("scope_kind", "organisation"))
def test_budgets_hold_outside_of_workflows(
    start: Start, tenant: Tenant, vendor: str, call: Callable[[str], None], scope: dict[str, Any]
) -> None:
    tenant.admin.set_budget(0.16, **scope)  # two requests, of 0.0513 cents each
    runtime = start()
    has_edge = scope.get("scope_kind") == "user"
    send = guard.context.user("u")(call) if has_edge else call
    send(vendor)
    send(vendor)
    error = refused(send, vendor)
    # A vendor's client may wrap it; a protected call, a workflow or a user's block is an edge.
    assert isinstance(error.__cause__ or error, guard.GuardBudgetError)
    runtime.flush(WAIT_S)
    events = tenant.llm_events("default")
    assert len(events) == 2
    assert {event["run_id"] for event in events} != {None}
    with guard.workflow("other"):
        guard.track_event("life.goes.on")


def test_its_name(start: Start, tenant: Tenant) -> None:
    assert start().status().workflow == "default"
    guard.shutdown()
    assert start(workflow="night-shift").status().workflow == "night-shift"
    guard.shutdown()
    bound = tenant.admin.create_key("bound", workflow_id="billing")
    assert start(api_key=bound).status().workflow == "billing"
    assert guard.track_llm(1)["workflow_id"] == "billing"


def test_a_key_of_one_workflow_keeps_it(start: Start, tenant: Tenant, vendor: str) -> None:
    runtime = start(api_key=tenant.admin.create_key("bound", workflow_id="billing"))
    by_httpx(vendor)
    guard.track_tool("t")
    runtime.flush(WAIT_S)
    assert {event["workflow_id"] for event in tenant.admin.events()} == {"billing"}
    assert guard.status().events_lost == 0


def test_a_kill_of_it_ends_requests_and_not_the_process(
    start: Start, tenant: Tenant, vendor: str
) -> None:
    runtime = start()
    tenant.admin.kill("default")
    until(lambda: runtime.enforcement.halts)
    with pytest.raises(guard.WorkflowKilledInterrupt):
        by_httpx(vendor)
    with guard.workflow("another"):
        by_httpx(vendor)


def test_without_gating_nothing_is_held_or_named(start: Start, tenant: Tenant, vendor: str) -> None:
    tenant.admin.set_budget(0.01)
    runtime = start(gate_requests=False)
    assert runtime.status().workflow is None
    by_httpx(vendor)
    runtime.flush(WAIT_S)
    assert [event["workflow_id"] for event in tenant.llm_events()] == [None]


def test_observing_refuses_nothing(start: Start, tenant: Tenant, vendor: str) -> None:
    tenant.admin.set_budget(0.01)
    runtime = start(mode="observe")
    by_httpx(vendor)
    runtime.flush(WAIT_S)
    [observed] = tenant.admin.events(type="sdk.observed")
    assert (observed["workflow_id"], observed["data"]["error_code"]) == ("default", "GD-B004")


def test_an_older_gateway_gets_no_name_that_it_might_refuse(start: Start) -> None:
    runtime = start()
    runtime._outside = None
    older = wire.Capabilities(protocol=3, min_sdk_version="0.1", server="older", features=["spend"])
    runtime._learned(older)
    assert runtime.status().workflow is None


def test_a_gateway_that_is_away_refuses_them_too(vendor: str) -> None:
    GuardRuntime("k", "http://127.0.0.1:9", timeout_ms=200).open()
    assert isinstance(refused(by_httpx, vendor), guard.GuardTransportError)
    guard.shutdown(0.1, flush=False)
    by_httpx(vendor)
