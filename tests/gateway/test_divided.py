"""What is large is done in parts: no unit of work is longer for it, and each can be repeated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guard.gateway.admin import AdminError
from guard.gateway.api.admin.rules import PART_RULES
from guard.gateway.domain.errors import StoreError
from guard.gateway.ledger import catalogue, charge
from guard.gateway.services.gatekeeper import PART_EVENTS
from tests.gateway.conftest import Tenant

PARTS = 5
EVENTS = PARTS * PART_EVENTS - 3


def batch(tenant: Tenant, **fields: Any) -> list[dict[str, Any]]:
    return [tenant.llm(1000, **fields) for _ in range(EVENTS)]


def spent(tenant: Tenant) -> int:
    return int(tenant.balance()["committed"])


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each unit of work gets of a request; one that is to fail raises."""
    found: list[int] = []
    ingest = charge.ingest

    def counted(unit: Any, command: Any) -> Any:
        found.append(len(command.events))
        return ingest(unit, command)

    monkeypatch.setattr(charge, "ingest", counted)
    return found


def test_a_batch_is_recorded_in_parts_and_answered_once(tenant: Tenant, parts: list[int]) -> None:
    tenant.admin.set_budget(10**6)
    events = batch(tenant)
    events[5] = {**events[5], "data": {"model": 7}}
    events[250] = events[0]
    key = {"Idempotency-Key": "one"}
    body = {"batch_id": "one", "sent_at_ms": 1, "events": events}
    first = tenant.http.post("/api/v1/events", json=body, headers=key)
    told = first.json()
    assert (first.status_code, told["accepted"], told["duplicates"]) == (202, EVENTS - 2, 1)
    assert [each["event_id"] for each in told["rejected"]] == [events[5]["event_id"]]
    assert told["budget"]["spent_nanousd"] == spent(tenant) == 1000 * (EVENTS - 2)
    assert max(parts) == PART_EVENTS
    assert len(parts) == PARTS
    again = tenant.http.post("/api/v1/events", json=body, headers=key)
    assert (again.json(), len(parts)) == (told, PARTS + 1), "stored with the last part"
    assert tenant.admin.verify_ledger()["problems"] == []


def test_a_batch_that_is_interrupted_is_completed_by_its_repeat(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.admin.set_budget(10**6)
    ingest, calls = charge.ingest, list[int]()

    def fails(unit: Any, command: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            raise StoreError("lost")
        return ingest(unit, command)

    monkeypatch.setattr(charge, "ingest", fails)
    events, key = batch(tenant), {"Idempotency-Key": "one"}
    body = {"batch_id": "one", "sent_at_ms": 1, "events": events}
    assert tenant.http.post("/api/v1/events", json=body, headers=key).status_code == 503
    assert spent(tenant) == 1000 * 2 * PART_EVENTS
    told = tenant.http.post("/api/v1/events", json=body, headers=key).json()
    assert told["duplicates"] == 2 * PART_EVENTS
    assert told["accepted"] == EVENTS - 2 * PART_EVENTS
    assert spent(tenant) == 1000 * EVENTS
    assert tenant.http.post("/api/v1/events", json=body, headers=key).json() == told


def test_a_batch_under_anothers_key_records_nothing(tenant: Tenant, parts: list[int]) -> None:
    tenant.admin.set_budget(10**6)
    key = {"Idempotency-Key": "one"}
    assert tenant.send(tenant.llm(1), headers=key).status_code == 202
    refused = tenant.send(*batch(tenant), headers=key)
    assert (refused.status_code, len(parts), spent(tenant)) == (409, 2, 1)


def test_the_answer_tells_of_a_cost_over_its_bound_in_any_part(tenant: Tenant) -> None:
    tenant.admin.set_budget(1)
    dear = tenant.llm(10**9, workflow_id="dear")
    answer = tenant.send(dear, *(tenant.llm(0) for _ in range(EVENTS)))
    told = answer.json()
    assert (answer.status_code, told["error_code"]) == (422, "GD-O001")
    assert told["workflow_id"] == "dear"
    assert told["accepted"] == EVENTS + 1


def test_events_of_a_question_are_charged_in_parts_before_it_is_decided(
    tenant: Tenant, parts: list[int]
) -> None:
    tenant.admin.set_budget(100)
    answer = tenant.gate(events=batch(tenant), kind="llm", model="gpt-4o", max_output_tokens=10)
    assert answer.status_code == 200, answer.text
    told = answer.json()["events"]
    assert (told["accepted"], told["duplicates"], told["rejected"]) == (EVENTS, 0, [])
    assert parts == [PART_EVENTS] * (PARTS - 2) + [PART_EVENTS - 3]
    assert spent(tenant) == 1000 * EVENTS
    # What they cost counts before the call.
    many = [tenant.llm(2 * 10**6) for _ in range(EVENTS)]
    tenant.refused(402, "GD-B004", events=many, kind="llm", model="gpt-4o", max_output_tokens=10)


RULES = 2 * PART_RULES + 3


def file_of(rules: int, **more: Any) -> dict[str, Any]:
    budgets = [{"scope_kind": "user", "scope_id": f"u{number}", "window": "day",
                "limit_nanousd": 1} for number in range(rules)]  # fmt: skip
    return {"budgets": budgets, "prune": True, **more}


def test_a_file_that_is_interrupted_is_completed_by_its_repeat(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, sizes = catalogue.apply, list[int]()

    def fails(unit: Any, actor: Any, own: str, wanted: Any, steps: Any, **flags: Any) -> Any:
        sizes.append(len(steps))
        if len(sizes) == 2:
            raise StoreError("lost")
        return apply(unit, actor, own, wanted, steps, **flags)

    monkeypatch.setattr(catalogue, "apply", fails)
    tenant.admin.set_budget(10**6)
    with pytest.raises(AdminError):
        tenant.admin.request("POST", "/apply", file_of(RULES))
    assert len(tenant.admin.budgets()) == 1 + PART_RULES, "adds before it removes"
    dry = tenant.admin.request("POST", "/apply", file_of(RULES, dry_run=True))
    plan = tenant.admin.request("POST", "/apply", file_of(RULES))
    assert (dry["changed"], plan["changed"]) == (RULES - PART_RULES + 1,) * 2
    assert dry["changes"] == plan["changes"]
    assert len(tenant.admin.budgets()) == RULES
    assert max(sizes) == PART_RULES
    assert tenant.admin.request("POST", "/apply", file_of(RULES))["changed"] == 0


def test_nothing_of_a_file_is_active_that_the_ledger_refuses(tenant: Tenant) -> None:
    alert = {"name": "a", "on": "kill", "channels": ["nowhere"]}
    with pytest.raises(AdminError, match="nowhere"):
        tenant.admin.request("POST", "/apply", file_of(RULES, alerts=[alert]))
    assert tenant.admin.budgets() == []


def test_files_take_turns(tenant: Tenant) -> None:
    """Two files at once would leave rules of both."""
    files = [file_of(RULES) for _ in range(4)]
    for number, each in enumerate(files):
        for budget in each["budgets"]:
            budget["limit_nanousd"] = number

    def apply(number: int) -> None:
        for _ in range(2):
            answer = tenant.http.post(path, json=files[number], headers=headers)
            assert answer.status_code == 200, answer.text

    path = f"/api/v1/admin/apply?organisation={tenant.organisation_id}"
    headers = {"Authorization": f"Bearer {tenant.gateway.admin_key}"}
    with ThreadPoolExecutor() as pool:
        list(pool.map(apply, range(4)))
    assert len({each["limit"] for each in tenant.admin.budgets()}) == 1
