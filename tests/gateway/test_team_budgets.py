"""Budgets of tags and of weeks: exact, whatever holds money in advance."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.domain.windows import DAY_MS, period_of
from guard.gateway.embedded import run_gateway
from guard.gateway.unit.catalogue_tables import BUDGETS_FEW
from tests.support import postgres
from tests.support.asker import ask, asker, call

_numbers = itertools.count(1)
MONDAY = 1_699_833_600_000  # 2023-11-13 00:00 UTC
WEEK_MS = 7 * DAY_MS


def _spend(tenant: Any, nanousd: int, **fields: Any) -> httpx.Response:
    event = {"event_id": f"team-{next(_numbers)}", "type": "llm", "at_ms": 1, "workflow_id": "w",
             "data": {"model": "m", "cost_nanousd": nanousd}, **fields}  # fmt: skip
    reply: httpx.Response = tenant.send(event)
    return reply


def _balances(admin: AdminClient) -> dict[str, int]:
    return {each["scope_id"]: each["committed"] for each in admin.ledger()}


def test_a_team_that_has_spent_its_budget_is_refused_alone(tenant: Any) -> None:
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=search", window="week", anyway=True,
                            limit_nanousd=1000)  # fmt: skip
    assert _spend(tenant, 1000, tags={"team": "search", "feature": "x"}).status_code == 202
    refused = tenant.refused(402, "GD-B004", workflow_id="w", tags={"team": "search"})
    assert "tag team=search" in refused["detail"]
    assert "of the week" in refused["detail"]
    for tags in ({"team": "ads"}, {}, {"feature": "search"}, {"team": "search2"}):
        tenant.allowed(workflow_id="w", tags=tags)
    [balance] = tenant.admin.ledger()
    assert balance["committed"] == 1000
    assert balance["ends_ms"] - balance["epoch_ms"] == WEEK_MS


def test_each_team_by_itself_and_each_tag_of_a_call(tenant: Any) -> None:
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=*", limit_nanousd=1000)
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=ads", limit_nanousd=300, anyway=True)
    tenant.admin.set_budget(
        scope_kind="tag", scope_id="feature=chat", limit_nanousd=500, anyway=True
    )
    _spend(tenant, 200, tags={"team": "search", "feature": "chat"})
    _spend(tenant, 250, tags={"team": "ads", "feature": "chat", "other": "y"})
    _spend(tenant, 70)
    assert _balances(tenant.admin) == {"team=search": 200, "team=ads": 250, "feature=chat": 450}
    _spend(tenant, 50, tags={"team": "ads"})
    tenant.refused(402, "GD-B004", workflow_id="w", tags={"team": "ads"})
    tenant.allowed(workflow_id="w", tags={"team": "search"})


def test_a_keys_team_is_a_tag_that_no_call_can_change(make_tenant: Any) -> None:
    tenant = make_tenant(team="search")
    below = tenant.admin.create_key("other", team="ads")
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=search", limit_nanousd=1000)
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=*", window="day", limit_nanousd=5000)
    tenant.admin.set_budget(scope_kind="tag", scope_id="env=*", limit_nanousd=10**9)
    _spend(tenant, 400)
    _spend(tenant, 500, tags={"team": "ads", "env": "prod"})
    reply = tenant.allowed(workflow_id="w", tags={"env": "prod"})
    _spend(tenant, 100, reservation_id=reply["reservation_id"])
    found = {
        (each["scope_id"], each["window"]): each["committed"] for each in tenant.admin.ledger()
    }
    assert found == {("team=search", "total"): 1000, ("team=search", "day"): 1000,
                     ("env=prod", "total"): 600}  # fmt: skip
    for tags in ({}, {"team": "ads"}):
        assert "team=search" in tenant.refused(402, "GD-B004", workflow_id="w", tags=tags)["detail"]
    headers = {"X-API-Key": below}
    body = {"call_id": "b", "kind": "call", "function": "f", "workflow_id": "w",
            "tags": {"team": "search"}}  # fmt: skip
    assert tenant.http.post("/gate", json=body, headers=headers).status_code == 200


def test_a_team_is_known_once_a_key_or_a_group_has_it(make_tenant: Any) -> None:
    tenant = make_tenant(team="search")
    for name in ("search", "ads"):
        known = name == "search"
        with contextlib.nullcontext() if known else pytest.raises(AdminError, match="no tag"):
            tenant.admin.set_budget(1, scope_kind="tag", scope_id=f"team={name}")
    tenant.admin.set_budget(1, scope_kind="tag", scope_id="team=*")
    tenant.admin.set_budget(1, scope_kind="tag", scope_id="team=late", anyway=True)
    assert tenant.admin.unmatched() == {("tag", "team=late")}
    group = f"late-{tenant.organisation_id}"
    tenant.admin.put_sign_on_group(group, team="late")
    assert tenant.admin.unmatched() == set()
    tenant.admin.delete_sign_on_group(group)


def test_an_event_without_tags_has_those_of_its_call(tenant: Any) -> None:
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=*", limit_nanousd=10**9)
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=*", window="week", limit_tokens=10**6)
    reply = tenant.allowed(workflow_id="w", tags={"team": "search"})
    _spend(tenant, 100, reservation_id=reply["reservation_id"],
           data={"model": "m", "cost_nanousd": 100, "input_tokens": 7})  # fmt: skip
    found = {each["unit"]: each["committed"] for each in tenant.admin.ledger()}
    assert found == {"usd": 100, "tokens": 7}


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [{"limit_nanousd": 10**9}, {"limit_tokens": 10**6}])
async def test_no_lease_is_granted_for_calls_with_other_tags(
    tenant: Any, limit: dict[str, int]
) -> None:
    """A lease pays for every call of its lane; what tags those have is not known in advance."""
    wanted = {"demand_nanousd": 10**6, "demand_calls": 4}
    async with asker(tenant.gateway.base_url, tenant.api_key) as holder:

        async def asked(lease: dict[str, Any], tags: dict[str, str]) -> tuple[int, dict[str, Any]]:
            name = f"c{next(_numbers)}"
            fields = {"workflow_id": "w", "lease": lease, "tags": tags}
            [(status, reply)] = await holder.ask(ask(name, call(name, **fields)))
            return status, dict(reply)

        _, before = await asked(wanted, {})
        lease_id = before["lease"]["lease_id"]
        await asyncio.to_thread(
            tenant.admin.set_budget, scope_kind="tag", scope_id="team=search", anyway=True, **limit
        )
        again = {**wanted, "lease_id": lease_id, "unused_nanousd": 1}
        for tags in ({}, {"team": "search"}, {"team": "ads"}):
            for lease in (wanted, again):
                status, reply = await asked(lease, tags)
                assert (status, reply.get("lease")) == (200, None)
                assert reply["reservation_id"] != lease_id
            status, _ = await asked({**again, "ahead": True}, tags)
            assert status == 404


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_calls_at_once_never_pass_the_limit(tenant: Any, many: bool) -> None:
    tenant.admin.update_settings(default_hold_nanousd=100)
    if many:
        body = {"budgets": [
            {"scope_kind": "user", "scope_id": f"u{number}", "limit_nanousd": 10**9}
            for number in range(BUDGETS_FEW + 1)
        ]}  # fmt: skip
        tenant.admin.request("POST", "/apply", body)
    tenant.admin.set_budget(scope_kind="tag", scope_id="team=*", window="week", limit_nanousd=1050)
    tags = [{"team": "a"}, {"team": "b", "x": "y"}, {}]

    def ask_for(number: int) -> tuple[int, int]:
        reply = tenant.gate(workflow_id=f"w{number % 4}", tags=tags[number % 3])
        return number % 3, reply.status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(ask_for, range(90)))
    assert got.count((2, 200)) == 30
    assert got.count((0, 402)) > 10 < got.count((1, 402))
    held = {e["scope_id"]: e["reserved"] for e in tenant.admin.ledger()}
    assert {held["team=a"], held["team=b"]} == {1050}, "all of it, and no more"


def test_the_program_sees_the_budgets_of_its_tags(tenant: Any) -> None:
    tenant.admin.set_budget(
        scope_kind="tag", scope_id="team=search", limit_nanousd=1000, anyway=True
    )
    _spend(tenant, 10, tags={"team": "search"})
    asked = {"workflow": "w", "tags": "team=search\nother=x"}
    [budget] = tenant.http.get("/api/v1/spend", params=asked).json()["budgets"]
    assert budget["spent_nanousd"] == 10
    assert (
        tenant.http.get("/api/v1/spend", params={"workflow": "w"}).json().get("budgets", []) == []
    )


@pytest.mark.parametrize("scope_id", ["search", "=search", "", "*=", "a" * 257])
def test_a_tag_has_a_name_and_a_value(tenant: Any, scope_id: str) -> None:
    if scope_id == "*=":  # a glob: tags without a value
        tenant.admin.set_budget(scope_kind="tag", scope_id=scope_id, limit_nanousd=1)
        return
    with pytest.raises(AdminError) as caught:
        tenant.admin.set_budget(scope_kind="tag", scope_id=scope_id, limit_nanousd=1)
    assert caught.value.status == 400


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_week_ends_on_sunday_night(tmp_path: Path, engine: str) -> None:
    now = [MONDAY + 2 * DAY_MS]
    database = str(tmp_path / "g.sqlite3") if engine == "sqlite" else postgres.url_of(tmp_path)
    with run_gateway(database, clock_ms=lambda: now[0]) as gateway:
        headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"}
        with httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False) as http:

            def spend(nanousd: int) -> int:
                number = next(_numbers)
                event = {"event_id": f"e{number}", "type": "llm", "at_ms": 1, "user": "u",
                         "data": {"model": "m", "cost_nanousd": nanousd}}  # fmt: skip
                body = {"batch_id": f"b{number}", "sent_at_ms": 1, "events": [event]}
                return http.post("/api/v1/events", json=body).status_code

            def gate() -> int:
                body = {"call_id": f"c{next(_numbers)}", "kind": "call", "function": "f",
                        "user": "u"}  # fmt: skip
                return http.post("/gate", json=body).status_code

            assert spend(300) == 202
            # Set on Wednesday, it counts what the week has cost before.
            gateway.admin.set_budget(scope_kind="user", scope_id="*", window="week",
                                     limit_nanousd=1000)  # fmt: skip
            assert spend(1) == 202
            assert _balances(gateway.admin) == {"u": 301}
            now[0] = MONDAY + WEEK_MS - 1000
            assert spend(699) == 202
            assert gate() == 402
            now[0] = MONDAY + WEEK_MS
            assert gate() == 200
            assert _balances(gateway.admin) == {"u": 0}
            assert gateway.admin.verify_ledger()["problems"] == []


@pytest.mark.parametrize("day", range(14))
def test_weeks_begin_on_mondays(day: int) -> None:
    at_ms = MONDAY + day * DAY_MS
    expected = MONDAY if day < 7 else MONDAY + WEEK_MS
    for moment in (at_ms, at_ms + DAY_MS - 1):
        assert period_of("week", moment) == (expected, expected + WEEK_MS)
    assert period_of("week", 0) == (-3 * DAY_MS, 4 * DAY_MS)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize(("own", "several"), [("u", "*"), ("u*", "*"), ("u", "u*")])
@pytest.mark.parametrize("unit", ["usd", "tokens"])
def test_a_removed_budget_leaves_nothing_uncounted(
    tmp_path: Path, engine: str, own: str, several: str, unit: str
) -> None:
    database = str(tmp_path / "g.sqlite3") if engine == "sqlite" else postgres.url_of(tmp_path)
    with run_gateway(database) as gateway:
        headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"}
        with httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False) as http:

            def use(user: str, amount: int) -> None:
                number = next(_numbers)
                data = {"model": "m", "cost_nanousd": amount, "input_tokens": amount}
                event = {"event_id": f"e{number}", "type": "llm", "at_ms": 1, "user": user,
                         "data": data}  # fmt: skip
                body = {"batch_id": f"b{number}", "sent_at_ms": 1, "events": [event]}
                assert http.post("/api/v1/events", json=body).status_code in (202, 422)

            def gate(user: str) -> int:
                body = {"call_id": f"c{next(_numbers)}", "kind": "call", "function": "f",
                        "user": user}  # fmt: skip
                return http.post("/gate", json=body).status_code

            def limit(scope_id: str, most: int) -> Any:
                return gateway.admin.set_budget(
                    scope_kind="user", scope_id=scope_id, window="month",
                    **{"limit_nanousd" if unit == "usd" else "limit_tokens": most},
                )  # fmt: skip

            limit(several, 1000)
            use("u", 300)
            use("us", 300)
            raised = limit(own, 10_000)
            use("u", 900)
            assert gate("u") == 200
            gateway.admin.delete_budget(raised["budget_id"])
            assert _balances(gateway.admin) == {"u": 1200, "us": 300}
            if unit == "usd":  # this call asks for no tokens
                assert (gate("u"), gate("us")) == (402, 200)
            use("u", 1)
            assert _balances(gateway.admin) == {"u": 1201, "us": 300}
            assert gateway.admin.verify_ledger()["problems"] == []
