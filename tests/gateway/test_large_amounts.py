"""Numbers that clients send: no sum of them stops an organisation, its neighbours or retention."""

from __future__ import annotations

from typing import Any

import pytest

from guard.core import wire
from guard.core.wire import EVENT_TOKENS_MAX
from guard.gateway.domain.ledger import EVENT_NANOUSD_MAX

TOTAL_MAX = wire.NANOUSD_MAX


def test_two_huge_events_stop_nobody(make_tenant: Any) -> None:
    tenant, other = make_tenant(), make_tenant()
    events = [tenant.llm(TOTAL_MAX - 1, workflow_id="w") for _ in range(2)]
    reply = tenant.send(*events).json()
    assert [each["error_code"] for each in reply["rejected"]] == ["GD-E001"] * 2
    assert tenant.send(tenant.llm(5, workflow_id="w")).json()["accepted"] == 1
    tenant.allowed(workflow_id="w")
    other.allowed(workflow_id="w")


def test_an_organisation_full_to_the_brim_still_gets_answers(make_tenant: Any) -> None:
    tenant, other = make_tenant(), make_tenant()
    tenant.admin.set_budget(100, window="day", mode="soft")
    tenant.admin.set_budget(100, scope_kind="workflow", scope_id="*", mode="soft")
    accepted = rejected = 0
    for _ in range(5):
        events = [tenant.llm(EVENT_NANOUSD_MAX, workflow_id="w", run_id="r") for _ in range(1000)]
        reply = tenant.send(*events).json()
        accepted += reply["accepted"]
        rejected += len(reply.get("rejected", []))
    assert (accepted, rejected) == (TOTAL_MAX // EVENT_NANOUSD_MAX, 5000 - accepted)
    assert [row["cost_nanousd"] for row in tenant.admin.usage("total")] == [
        accepted * EVENT_NANOUSD_MAX
    ]
    tenant.allowed(workflow_id="w")
    other.allowed(workflow_id="w")
    assert other.send(other.llm(5)).json()["accepted"] == 1


def test_reservations_of_a_soft_budget_have_an_end(tenant: Any) -> None:
    tenant.admin.set_price("huge", input_per_mtok=10**15, output_per_mtok=10**15)
    tenant.admin.set_budget(1, mode="soft")
    call = {"model": "huge", "max_input_tokens": 2**40, "max_output_tokens": 2**40}
    reply = tenant.allowed(**call)
    assert reply["reserved_nanousd"] <= TOTAL_MAX
    for _ in range(3):
        tenant.refused(402, "GD-B004", **call)
    assert tenant.balance(scope_kind="organisation")["reserved"] <= TOTAL_MAX


def test_the_ceiling_of_a_chain_is_bounded(tenant: Any) -> None:
    tenant.admin.update_settings(chain_over_permille=10_000)
    limit = {"limit_nanousd": TOTAL_MAX, "window": "total"}
    tenant.admin.request("PUT", "/budgets", {"scope_kind": "organisation", **limit})
    tenant.admin.set_price("huge", input_per_mtok=10**15, output_per_mtok=10**15)
    call = {"model": "huge", "max_input_tokens": 2**40, "max_output_tokens": 2**40}
    tenant.allowed(chain={"id": "c", "op": "start"}, **call)
    tenant.refused(402, "GD-CH001", chain={"id": "c"}, **call)
    assert tenant.balance(scope_kind="organisation")["reserved"] <= TOTAL_MAX


@pytest.mark.parametrize(
    "field",
    # How large a prompt's text was bounded is not charged.
    [
        name
        for name in wire.LlmData.__struct_fields__
        if name.endswith("_tokens") and name != "text_tokens"
    ],
)
def test_tokens_of_one_event_are_bounded(tenant: Any, field: str) -> None:
    reply = tenant.send(
        tenant.llm(1, data={field: EVENT_TOKENS_MAX}),
        tenant.llm(1, data={field: EVENT_TOKENS_MAX + 1}),
    ).json()
    assert (reply["accepted"], len(reply["rejected"])) == (1, 1)


def test_the_last_moment_of_the_calendar_is_shown(tenant: Any) -> None:
    event = {**tenant.llm(1, workflow_id="w"), "at_ms": 2**53}
    assert tenant.send(event).json()["accepted"] == 1
    assert tenant.admin.events()[-1]["at_ms"] == 2**53
