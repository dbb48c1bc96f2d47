"""Budgets of tokens and of calls, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guard.gateway.admin import AdminError
from guard.gateway.embedded import Gateway, run_gateway
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres
from tests.support.store import Clock

GPT_4O = {"model": "gpt-4o", "function": "openai", "kind": "llm"}
LOCAL = {"model": "qwen3:4b", "function": "openai", "kind": "llm", "local": True}


def ask(tenant: Tenant, **fields: Any) -> Any:
    return tenant.gate(**{**GPT_4O, "max_input_tokens": 100, "max_output_tokens": 50, **fields})


def answer(
    tenant: Tenant, reply: dict[str, Any], tags: dict[str, str] | None = None, **data: int
) -> None:
    event = tenant.llm(reservation_id=reply["reservation_id"], data=data, tags=tags or {})
    assert tenant.send(event).status_code == 202


def counted(balance: dict[str, Any]) -> tuple[int, int]:
    return balance["committed"], balance["reserved"]


def test_a_request_holds_its_tokens_and_is_charged_what_it_used(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=400)
    reply = ask(tenant).json()
    assert counted(tenant.balance(unit="tokens")) == (0, 150)
    answer(
        tenant, reply, input_tokens=30, cache_read_tokens=40, output_tokens=5, reasoning_tokens=6
    )
    assert counted(tenant.balance(unit="tokens")) == (81, 0)
    ask(tenant)
    ask(tenant)
    problem = tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=1, max_output_tokens=19)
    assert problem["reason"] == (
        "budget exhausted: the organisation's budget of tokens: 81 of 400 tokens used, 300 set "
        "aside for what is under way; it could use 20, and 19 would fit"
    )
    assert "budget" not in problem
    assert problem["details"]["counted"]["left"] == 19
    assert ask(tenant, max_input_tokens=1, max_output_tokens=18).status_code == 200


def test_tokens_and_dollars_hold_at_once(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=1_000_000)
    tenant.admin.set_budget(limit_nanousd=800_000)
    assert ask(tenant).status_code == 200
    assert "budget:" in tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=100,
                                       max_output_tokens=50)["reason"]  # fmt: skip
    assert counted(tenant.balance(unit="tokens")) == (0, 150), "what money refuses holds no tokens"
    tenant.admin.set_budget(limit_nanousd=10**12)
    tenant.admin.set_budget(limit_tokens=299)
    assert ask(tenant).status_code == 402
    assert counted(tenant.balance(unit="usd")) == (0, 750_000), "nor the other way round"


def test_an_output_is_limited_to_the_tokens_that_are_left(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=20_000)
    free = {**LOCAL, "max_input_tokens": 100, "least_output_tokens": 256}
    reply = tenant.allowed(**free)
    assert reply["max_output_tokens"] == 16_384
    assert counted(tenant.balance()) == (0, 16_484)
    answer(tenant, reply, input_tokens=90, output_tokens=19_000)  # a vendor that keeps no limit
    assert tenant.allowed(**free, max_output_tokens=4096)["max_output_tokens"] == 512
    problem = tenant.refused(402, "GD-B004", **free)
    assert "19,090 of 20,000 tokens used" in problem["reason"]


def test_a_lost_answer_costs_its_bound_in_tokens(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=1000)
    reply = ask(tenant).json()
    event = tenant.llm(7, reservation_id=reply["reservation_id"],
                       data={"estimated": True, "estimate": "bound"})  # fmt: skip
    tenant.send(event)
    assert counted(tenant.balance()) == (150, 0)
    tenant.send(event)
    assert counted(tenant.balance()) == (150, 0)


def test_what_was_not_sent_gives_back_its_tokens_and_its_call(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=150)
    tenant.admin.set_budget(limit_calls=1)
    reply = ask(tenant).json()
    assert ask(tenant).status_code == 402
    release = {"reservation_id": reply["reservation_id"]}
    assert tenant.http.post("/gate/release", json=release).status_code == 200
    reply = ask(tenant).json()
    answer(tenant, reply, output_tokens=1)
    reason = tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=1,
                            max_output_tokens=1)["reason"]  # fmt: skip
    assert reason == "budget exhausted: the organisation's limit of calls: 1 of 1 calls made"


def test_a_limit_of_calls_counts_what_it_names(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_calls=2, counts=["search*", "gpt-4o*"], scope_kind="workflow",
                            scope_id="*")  # fmt: skip
    for _ in range(3):
        tenant.allowed(workflow_id="w", tool_name="pay")
    tenant.allowed(workflow_id="w", tool_name="Search_Web")
    assert ask(tenant, workflow_id="w").status_code == 200
    problem = tenant.refused(402, "GD-B004", workflow_id="w", tool_name="mcp__web__search")
    assert problem["reason"] == (
        "budget exhausted: the limit of calls of workflow w: 1 of 2 calls of gpt-4o*, search* "
        "made, 1 under way"
    )
    assert problem["tool_name"] == "mcp__web__search"
    tenant.allowed(workflow_id="other", tool_name="search")


def test_each_list_of_what_is_counted_is_a_budget_of_its_own(tenant: Tenant) -> None:
    admin = tenant.admin
    first = admin.set_budget(limit_calls=5, counts=["a", "b"])
    assert (
        admin.set_budget(limit_calls=6, counts=["b", "a", "a"])["budget_id"] == first["budget_id"]
    )
    admin.set_budget(limit_calls=7)
    admin.set_budget(limit_tokens=8)
    admin.set_budget(9)
    found = {(b["unit"], *b["counts"]): b["limit"] for b in admin.budgets()}
    assert found == {("calls", "a", "b"): 6, ("calls",): 7, ("tokens",): 8, ("usd",): 90_000_000}
    admin.delete_budget(first["budget_id"])
    assert len(admin.budgets()) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"limit_tokens": 1, "limit_calls": 1},
        {"limit_tokens": 1, "limit_nanousd": 1},
        {"limit_tokens": 1, "counts": ["a"]},
        {"limit_calls": 1, "epsilon_nanousd": 1},
    ],
)
def test_a_budget_has_one_unit(tenant: Tenant, fields: dict[str, Any]) -> None:
    with pytest.raises(AdminError):
        tenant.admin.set_budget(**fields)


def test_a_budget_that_is_removed_holds_nothing(tenant: Tenant) -> None:
    made = tenant.admin.set_budget(limit_calls=1)
    reply = ask(tenant).json()
    tenant.admin.delete_budget(made["budget_id"])
    answer(tenant, reply, output_tokens=1)
    assert ask(tenant).status_code == 200


def test_soft_ones_warn(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=100, mode="soft")
    assert "soft budget in use" in ask(tenant).json()["warnings"][0]


def test_many_at_once_are_exactly_as_many_as_the_limit(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_calls=20, counts=["search"])
    tenant.admin.set_budget(limit_tokens=1000)

    def search(_: int) -> int:
        return tenant.gate(tool_name="search").status_code

    def request(_: int) -> int:
        return int(ask(tenant).status_code)

    with ThreadPoolExecutor(16) as pool:
        searches = list(pool.map(search, range(60)))
        requests = list(pool.map(request, range(30)))
    assert (searches.count(200), searches.count(402)) == (20, 40)
    assert (requests.count(200), requests.count(402)) == (6, 24)


MIDDAY_MS = 1_800_016_200_000  # half past twelve of a day in the middle of January
FIRST_MS = 1_801_440_000_000  # at which an hour, a day and a month begin


@pytest.fixture(
    scope="module",
    params=[("sqlite", MIDDAY_MS), ("postgres", MIDDAY_MS), ("sqlite", FIRST_MS)],
    ids=["sqlite", "postgres", "sqlite-first"],
)
def still_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose clock stands: no hour, day or month ends within a test."""
    engine, now_ms = request.param
    database = None
    if engine == "postgres":
        database = postgres.url_of(tmp_path_factory.mktemp("still"))
    with run_gateway(database, clock_ms=Clock(now_ms)) as running:
        yield running


@pytest.fixture
def still_tenant(still_gateway: Gateway) -> Iterator[Tenant]:
    made = new_tenant(still_gateway)
    yield made
    assert still_gateway.admin.verify_ledger()["problems"] == []
    made.http.close()
    made.admin.close()


@pytest.mark.parametrize("window", ["total", "hour", "day", "month"])
@pytest.mark.parametrize("scope", ["organisation", "workflow", "user", "model", "tag"])
def test_tokens_count_what_was_used_before_in_the_period(
    still_tenant: Tenant, window: str, scope: str
) -> None:
    tenant = still_tenant
    own: dict[str, Any] = {"workflow_id": "w", "user": "u", "tags": {"team": "a"}}
    reply = ask(tenant, **own).json()
    answer(tenant, reply, tags=own["tags"], input_tokens=30, output_tokens=5)
    other: dict[str, Any] = {"workflow_id": "x", "user": "v", "tags": {"team": "b"}}
    answer(tenant, ask(tenant, **other).json(), tags=other["tags"], input_tokens=100)
    scope_id = {"organisation": "", "workflow": "w", "user": "u", "model": "gpt-4o",
                "tag": "team=a"}[scope]  # fmt: skip
    before = 135 if scope in ("organisation", "model") else 35
    budget = {"scope_kind": scope, "scope_id": scope_id, "window": window}
    tenant.admin.set_budget(limit_tokens=before + 160, **budget)
    if scope == "workflow":  # before any call has opened its balance
        reply = tenant.http.get("/api/v1/spend", params={"workflow": "w"}).json()
        assert reply["counted"][0]["used"] == before
    reply = ask(tenant, **own).json()
    assert counted(tenant.balance(unit="tokens")) == (before, 150)
    problem = tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=11, max_output_tokens=0,
                             **own)  # fmt: skip
    assert f"{before:,} of {before + 160:,} tokens used" in problem["reason"]
    answer(tenant, reply, input_tokens=7)
    assert counted(tenant.balance(unit="tokens")) == (before + 7, 0)
