"""Money and permissions belong to whoever got them: keys, workflows, calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from guard.core.ids import IdFactory
from tests.gateway.conftest import Tenant
from tests.support.waiting import until

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
    assert tenant.balance(scope_id="b")["reserved_nanousd"] == held["reserved_nanousd"]
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
    assert balance["reserved_nanousd"] == held["reserved_nanousd"], "b's hold stands"
    assert balance["committed_nanousd"] == 0, "the cost is a's own"
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
