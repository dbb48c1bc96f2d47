"""What a person is shown with a question, and when a question ends without an answer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.core import wire
from guard.gateway.admin import AdminError
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger import approvals
from tests.gateway.conftest import Tenant
from tests.support.waiting import until

NOTE = {"message": "Pay the invoice?", "details": {"to": "ACME", "amount": 12.5, "items": [1, 2]}}


@pytest.fixture(autouse=True)
def needs_approval(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["pay"])


def ask(tenant: Tenant, call_id: str = "c", **fields: Any) -> str:
    reply = tenant.gate(call_id=call_id, tool_name="pay", workflow_id="w", **fields).json()
    assert reply["decision"] == "pending"
    return str(reply["approval_id"])


def shown(tenant: Tenant) -> dict[str, Any]:
    (approval,) = tenant.admin.approvals(None)
    return approval


def audited(tenant: Tenant) -> list[tuple[str, str, str]]:
    entries = tenant.admin.audit()
    return [
        (entry["actor"], entry["action"], entry["details"]["reason"])
        for entry in entries
        if entry["action"] in ("approval.withdraw", "approval.expire")
    ]


def renew(tenant: Tenant, approval_id: str) -> Any:
    return tenant.http.post("/gate/lease", json={"lease_id": approval_id})


def release(tenant: Tenant, approval_id: str) -> Any:
    return tenant.http.post("/gate/release", json={"reservation_id": approval_id})


def test_what_the_caller_shows_is_stored_with_the_approval(tenant: Tenant) -> None:
    ask(tenant, note=NOTE)
    assert (shown(tenant)["message"], shown(tenant)["details"]) == tuple(NOTE.values())


def test_without_a_note_nothing_is_shown(tenant: Tenant) -> None:
    ask(tenant)
    assert (shown(tenant)["message"], shown(tenant)["details"]) == ("", {})


def test_a_call_counts_once_however_often_it_asks(tenant: Tenant) -> None:
    def counted() -> list[tuple[str, int]]:
        return [(each["workflow_id"], each["calls"]) for each in tenant.admin.workflows()]

    for _ in range(3):
        ask(tenant)
    assert counted() == [("w", 0)], "known, so that it can be killed"
    tenant.admin.answer_approval(shown(tenant)["approval_id"], approved=True)
    tenant.allowed(call_id="c", tool_name="pay", workflow_id="w")
    assert counted() == [("w", 1)]


def test_a_call_that_needs_no_person_leaves_no_trace_of_its_note(tenant: Tenant) -> None:
    tenant.allowed(tool_name="read", note={"message": "canary-b2c1"})
    ask(tenant, note={"message": "canary-77f0"})
    everything = [
        tenant.admin.audit(),
        tenant.admin.request("GET", "/events"),
        tenant.http.get("/api/v1/control").json(),
        tenant.admin.request("POST", "/policies/preview",
                             {"name": "n", "policy": {"document": {"tools_block": ["*"]}}}),
    ]  # fmt: skip
    assert "canary" not in json.dumps(everything)
    assert "canary-b2c1" not in json.dumps(tenant.admin.approvals(None))


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ({"message": "x" * 1001}, "length"),
        ({"details": {"x": "y" * 8192}}, "8192 bytes"),
        ({"details": {"x": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}, "16 levels"),
        ({"details": [1]}, "object"),
        ("text", "object"),
    ],
)
def test_a_note_that_is_none(tenant: Tenant, note: Any, why: str) -> None:
    answer = tenant.gate(tool_name="pay", note=note)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "GD-P002")
    assert why in answer.text
    assert not tenant.admin.approvals(None)


def test_withdrawing_is_in_the_audit_log_and_no_answer_counts_after_it(tenant: Tenant) -> None:
    approval_id = ask(tenant)
    assert release(tenant, approval_id).json()["state"] == "withdrawn"
    assert tenant.admin.approvals() == []
    assert audited(tenant) == [("agent", "approval.withdraw", approvals.LEFT)]
    with pytest.raises(AdminError, match="409"):
        tenant.admin.answer_approval(approval_id, approved=True)
    tenant.refused(403, "GD-X001", call_id="c", tool_name="pay", workflow_id="w")


def test_an_approval_that_came_too_late_admits_nothing(tenant: Tenant) -> None:
    """The answer and the withdrawal cross: the caller has left before it heard of the yes."""
    approval_id = ask(tenant)
    tenant.admin.answer_approval(approval_id, approved=True)
    assert release(tenant, approval_id).json()["state"] == "withdrawn"
    tenant.refused(403, "GD-X001", call_id="c", tool_name="pay", workflow_id="w")
    assert shown(tenant)["status"] == "withdrawn"


def test_who_stops_renewing_is_gone(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "PRESENCE_MS", 300)
    ask(tenant, renews=True)
    ask(tenant, "of an older SDK", renews=False)
    until(lambda: audited(tenant))
    assert audited(tenant) == [("gateway", "approval.expire", approvals.GONE)]
    states = {each["call_id"]: (each["status"], each["reason"])
              for each in tenant.admin.approvals(None)}  # fmt: skip
    assert states == {"c": ("expired", approvals.GONE), "of an older SDK": ("pending", "")}
    problem = tenant.refused(403, "GD-X001", call_id="c", tool_name="pay", workflow_id="w")
    assert problem["reason"] == approvals.GONE


def test_renewing_keeps_a_question_open(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "PRESENCE_MS", 60_000)
    approval_id = ask(tenant, renews=True)
    first_ms = shown(tenant)["present_until_ms"]

    def renewed() -> bool:
        state = renew(tenant, approval_id).json()
        assert (state["state"], state["ttl_ms"]) == ("pending", 60_000)
        return int(shown(tenant)["present_until_ms"]) > first_ms + 300

    until(renewed)
    tenant.admin.answer_approval(approval_id, approved=False)
    assert renew(tenant, approval_id).json()["state"] == "refused"


def test_only_the_key_that_asked_renews(tenant: Tenant, make_tenant: Any) -> None:
    approval_id = ask(tenant, renews=True)
    other = make_tenant()
    for key in (other.api_key, tenant.admin.create_key("another")):
        headers = {wire.HEADER_API_KEY: key}
        body = {"lease_id": approval_id}
        assert tenant.http.post("/gate/lease", json=body, headers=headers).status_code == 404


def test_the_deadline_holds_however_often_it_is_renewed(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["pay"], approval_timeout_ms=200)
    approval_id = ask(tenant, renews=True)
    until(lambda: renew(tenant, approval_id).json()["state"] == "expired")
    assert shown(tenant)["reason"] == "no answer in time"


def test_a_restart_of_the_gateway_ends_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could renew while it was away: who lives does so now, who died has a while more."""
    monkeypatch.setattr(approvals, "PRESENCE_MS", 500)
    database = tmp_path / "gateway.sqlite3"
    with run_gateway(database, sweep_interval_ms=600_000) as before:
        before.admin.set_policy(approval_tools=["pay"])
        headers = {wire.HEADER_API_KEY: before.admin.create_key("t"), wire.HEADER_PROTOCOL: "3"}
        body = {"call_id": "c", "kind": "call", "function": "f", "tool_name": "pay", "renews": True}
        httpx.post(f"{before.base_url}/gate", json=body, headers=headers)
        (asked,) = before.admin.approvals()
    until(lambda: time.time() * 1000 > asked["present_until_ms"])
    monkeypatch.setattr(approvals, "PRESENCE_MS", 60_000)
    with run_gateway(database, sweep_interval_ms=20) as after:
        until(lambda: after.admin.approvals("pending"))
        update = {"lease_id": asked["approval_id"]}
        for presence_ms in (60_000, 100):  # it lives, and then it dies
            monkeypatch.setattr(approvals, "PRESENCE_MS", presence_ms)
            state = httpx.post(f"{after.base_url}/gate/lease", json=update, headers=headers).json()
            assert state["state"] == "pending"
        until(lambda: after.admin.approvals("expired"))
