"""Money and permissions belong to whoever got them: keys, workflows, calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from guard.core.ids import IdFactory
from guard.gateway.services.recalls import Recalls
from tests.gateway.conftest import Tenant
from tests.support.asker import Asker, ask, asker, call
from tests.support.waiting import until

HOUR_MS = 3_600_000
"""A window that ends in no test, however busy the machine."""

_numbers = itertools.count(1)


def _other_key(tenant: Tenant, **fields: Any) -> dict[str, str]:
    key = tenant.admin.create_key(f"other-{next(_numbers)}", **fields)
    return {"X-API-Key": key, "X-Guard-Protocol": "3"}


@pytest.mark.parametrize("confined", [True, False])
def test_a_reservation_is_released_by_its_own_key_only(tenant: Tenant, confined: bool) -> None:
    tenant.admin.set_budget(limit_nanousd=1000, scope_kind="workflow", scope_id="b")
    held = tenant.allowed(workflow_id="b", model="gpt-4o")
    other = _other_key(tenant, **({"workflow_id": "a"} if confined else {}))
    body = {"reservation_id": held["reservation_id"], "reason": "not mine"}
    answer = tenant.http.post("/gate/release", json=body, headers=other)
    assert answer.status_code == 404
    assert tenant.balance(scope_id="b")["reserved"] == held["reserved_nanousd"]
    mine = tenant.http.post("/gate/release", json=body)
    assert mine.json()["released_nanousd"] == held["reserved_nanousd"]


def test_a_reservation_is_settled_by_its_own_key_only(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=1000, scope_kind="workflow", scope_id="b")
    held = tenant.allowed(workflow_id="b")
    other = _other_key(tenant, workflow_id="a")
    event = tenant.llm(50, reservation_id=held["reservation_id"])
    closing = tenant.final(held["reservation_id"])
    assert tenant.send(event, closing, headers=other).json()["accepted"] == 2
    balance = tenant.balance(scope_id="b")
    assert balance["reserved"] == held["reserved_nanousd"], "b's hold stands"
    assert balance["committed"] == 0, "the cost is a's own"
    stored = {each["event_id"]: each for each in tenant.admin.events()}
    assert stored[event["event_id"]]["workflow_id"] == "a"
    assert "unknown_reservation" in stored[event["event_id"]]["flags"]


def test_a_key_for_one_workflow_does_not_touch_its_twin_for_another(
    make_tenant: Callable[..., Tenant],
) -> None:
    tenant = make_tenant(workflow_id="a")
    tenant.admin.set_budget(limit_nanousd=1000)
    held = tenant.allowed()
    body = {"reservation_id": held["reservation_id"], "reason": "done"}
    assert tenant.http.post("/gate/release", json=body).status_code == 200


def test_ids_of_reservations_cannot_be_guessed(tenant: Tenant) -> None:
    ids = [int(tenant.allowed()["reservation_id"].replace("-", ""), 16) for _ in range(50)]
    low = [number & ((1 << 62) - 1) for number in ids]
    assert len(set(low)) == 50
    steps = {abs(after - before) for before, after in itertools.pairwise(low)}
    assert min(steps) > 1 << 40, "no counter"


def test_an_unguessable_id_is_a_uuid_of_its_time() -> None:
    made = IdFactory().unguessable(0x0123456789AB)
    assert made.startswith("01234567-89ab-7")
    assert made[19] in "89ab"
    assert len(made) == 36


def test_an_approval_is_used_up_by_one_call(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["wire_*"])
    call = {"call_id": "call-once", "tool_name": "wire_money", "workflow_id": "w"}
    pending = tenant.gate(**call).json()
    tenant.admin.answer_approval(pending["approval_id"], approved=True, reason="this once")
    headers = {"Idempotency-Key": "the-admission"}
    first = tenant.allowed(**call, headers=headers)
    assert tenant.allowed(**call, headers=headers) == first, "a repeat of the same request"
    for _ in range(3):
        problem = tenant.refused(403, "GD-X001", **call)
        assert problem["reason"] == "approved for one call, which was made"
    shown = tenant.admin.approvals("used")
    assert [(each["status"], each["reason"]) for each in shown] == [("used", "this once")]


def test_a_budget_that_refuses_does_not_use_an_approval_up(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["wire_*"])
    tenant.admin.set_budget(limit_nanousd=10)
    call = {"call_id": "call-again", "tool_name": "wire_money", "model": "gpt-4o",
            "max_output_tokens": 1000}  # fmt: skip
    pending = tenant.gate(**call).json()
    tenant.admin.answer_approval(pending["approval_id"], approved=True)
    tenant.refused(402, "GD-B004", **call)
    tenant.admin.set_budget(100_000)
    tenant.allowed(**call)


def test_a_timed_pause_leaves_what_stood_before(tenant: Tenant) -> None:
    admin = tenant.admin
    admin.pause()
    admin.pause("w", resume_after_ms=1)
    tenant.refused(403, "GD-W003", workflow_id="other")
    tenant.refused(403, "GD-W003", workflow_id="w")
    admin.resume("w")
    tenant.allowed(workflow_id="w")
    admin.pause("w", resume_after_ms=60_000)
    tenant.refused(403, "GD-W003", workflow_id="w")
    admin.pause("w", resume_after_ms=1)
    until(lambda: tenant.gate(workflow_id="w").status_code == 200)
    tenant.refused(403, "GD-W003", workflow_id="other")


# -- leases ----------------------------------------------------------------------------------------


def _opened(tenant: Tenant, headers: dict[str, str] | None = None) -> Any:
    key = tenant.api_key if headers is None else headers["X-API-Key"]
    return asker(tenant.gateway.base_url, key)


async def _calls_left(client: Asker) -> int:
    made = 0
    while (await client.ask(ask(f"left-{made}", call(f"left-{made}"))))[0][0] == 200:
        made += 1
    return made


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["update", "close", "also", "gate"])
async def test_a_rate_loan_is_ended_by_its_own_key_only(tenant: Tenant, how: str) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, rate_caps=[{"calls": 12, "per_ms": HOUR_MS}])
    other = await asyncio.to_thread(_other_key, tenant, workflow_id="a")
    async with _opened(tenant) as holder, _opened(tenant, other) as thief:
        lease = {"demand_calls": 5}
        [(_, reply)] = await holder.ask(ask("h", call(1, workflow_id="b", lease=lease)))
        assert reply["lease"]["calls"] == 5, "one is made, four are lent"
        lease_id = reply["lease"]["lease_id"]
        body: dict[str, Any] = {"lease_id": lease_id, "calls_left": 4}
        if how == "gate":  # its own call is one of the twelve
            asked = call(2, workflow_id="a", lease={**body, "demand_calls": 1})
            [(status, _)] = await thief.ask(ask("t", asked))
            assert status == 200
        else:
            more: dict[str, dict[str, Any]] = {"close": {"close": True}, "also": {"also": ["none"]}}
            body |= more.get(how, {})
            await thief.ask(ask("t", body, "gate/lease"))
        assert await _calls_left(holder) == 12 - 5 - (how == "gate")


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["update", "gate"])
async def test_a_recall_is_answered_by_the_holder_only(
    tenant: Tenant, patient_recalls: Recalls, how: str
) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, limit_nanousd=1000)
    key = await asyncio.to_thread(_other_key, tenant, workflow_id="a")
    async with _opened(tenant) as holder, _opened(tenant) as other, _opened(tenant, key) as thief:
        fields = {"model": "gpt-4o", "max_input_tokens": 0, "max_output_tokens": 0}
        lease = {"demand_nanousd": 500}
        [(_, reply)] = await holder.ask(ask("h", call(1, **fields, workflow_id="b", lease=lease)))
        lease_id = reply["lease"]["lease_id"]
        dear = {**fields, "max_input_tokens": 300}  # 750 nano-dollars
        await other.send(ask("o", call(2, **dear, kind="llm", workflow_id="b")))
        while not any(message["type"] == "recall" for message in holder.pushed):
            await holder.read()
        assert patient_recalls.is_recalled(lease_id)
        if how == "gate":
            await thief.ask(
                ask("t", call(3, **fields, workflow_id="a", lease={"lease_id": lease_id}))
            )
        else:
            await thief.ask(ask("t", {"lease_id": lease_id}, "gate/lease"))
        assert patient_recalls.is_recalled(lease_id)
        unused = reply["lease"]["granted_nanousd"]
        await holder.ask(ask("u", {"lease_id": lease_id, "unused_nanousd": unused}, "gate/lease"))
        assert not patient_recalls.is_recalled(lease_id)


# -- approvals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["agent", "user", "run_id", "workflow_id", "function", "tool"])
def test_an_approval_is_of_what_the_operator_was_shown(tenant: Tenant, other: str) -> None:
    tenant.admin.set_policy(approval_tools=["wire_*"])
    asked = {"tool_name": "wire_money", "workflow_id": "w", "agent": "a", "user": "u",
             "run_id": "r", "function": "pay"}  # fmt: skip
    name = {"tool": "tool_name"}.get(other, other)
    for changed in ("wire_b", None):
        if changed is None and name in ("tool_name", "function"):
            continue
        made = {**asked, "call_id": f"one-{changed}"}
        approval_id = tenant.gate(**made).json()["approval_id"]
        forged: dict[str, Any] = {**made, name: changed}
        tenant.refused(403, "GD-X001", **forged)
        tenant.admin.answer_approval(approval_id, approved=True)
        problem = tenant.refused(403, "GD-X001", **forged)
        assert problem["details"] == {"approval_id": approval_id}
        assert problem["reason"] == "approved for another call"
        tenant.allowed(**made)


# -- chains ----------------------------------------------------------------------------------------


def _in_chain(tenant: Tenant, chain_id: str, op: str = "continue", **fields: Any) -> Any:
    """Ask for a call that only an open chain's allowance pays for."""
    chain = {"id": chain_id, "op": op}
    cost = {"kind": "llm", "function": "openai", "model": "gpt-4o", "max_input_tokens": 0,
            "max_output_tokens": 1}  # fmt: skip
    return tenant.gate(chain=chain, **cost, **fields)


def _chain_event(op: str, chain_id: str, workflow_id: str | None = None) -> dict[str, Any]:
    return {"event_id": f"chain-{next(_numbers)}", "type": "chain", "at_ms": 1,
            "workflow_id": workflow_id, "data": {"id": chain_id, "op": op}}  # fmt: skip


@pytest.mark.parametrize("way", ["event", "gate"])
def test_a_chain_is_ended_from_its_own_workflow_only(tenant: Tenant, way: str) -> None:
    other = _other_key(tenant, workflow_id="a")
    tenant.admin.set_budget(limit_nanousd=100_000)
    assert _in_chain(tenant, "n", "start", workflow_id="b").status_code == 200
    tenant.send(tenant.llm(100_000, workflow_id="b"))
    if way == "event":
        reply = tenant.send(_chain_event("end", "n"), headers=other).json()
        assert [each["error_code"] for each in reply["rejected"]] == ["GD-W004"]
    else:
        _in_chain(tenant, "n", "end", workflow_id="a", headers=other)
    assert _in_chain(tenant, "n", workflow_id="b").status_code == 200, "it is still open"
    assert _in_chain(tenant, "n", workflow_id="a", headers=other).status_code == 402
    tenant.send(_chain_event("end", "n", "b"))
    assert _in_chain(tenant, "n", workflow_id="b").status_code == 402


def test_a_chain_of_another_workflow_counts_as_none(tenant: Tenant) -> None:
    """Whoever takes a name first stops nobody's calls."""
    first, second = (_other_key(tenant, workflow_id=each) for each in "ab")
    assert _in_chain(tenant, "n", "start", workflow_id="a", headers=first).status_code == 200
    reply = _in_chain(tenant, "n", "start", workflow_id="b", headers=second)
    assert reply.status_code == 200
    assert any("another workflow" in each for each in reply.json()["warnings"])
    tenant.send(_chain_event("end", "n"), headers=first)
    reply = _in_chain(tenant, "n", "start", workflow_id="b", headers=second)
    assert "warnings" not in reply.json(), "one that is over can be anybody's"
