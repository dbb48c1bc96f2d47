"""What is reserved for calls of which little is known, and for models under several names."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import model_names, wire
from guard.gateway.domain.commands import IngestCommand, PricedEvent
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION
from tests.gateway.conftest import Tenant
from tests.support.store import ACTOR, Clock, Store, ingest

CENT = 10_000_000
_numbers = itertools.count(1)


def _call(tenant: Tenant, cost: int, **fields: Any) -> dict[str, Any]:
    """Make one whole call and return the gate's reply."""
    reply = tenant.allowed(**fields)
    held = reply["reservation_id"]
    events = [tenant.llm(cost, reservation_id=held)] if cost else []
    assert tenant.send(*events, tenant.final(held)).status_code in (202, 422)
    return reply


# -- learned reservations ----------------------------------------------------------------------


def test_runs_that_are_named_anew_each_time_learn_by_their_function(tenant: Tenant) -> None:
    tenant.admin.set_budget(10_000)
    for number in range(30):
        _call(tenant, 2 * CENT, workflow_id=f"run-{number}", function="agent")
    assert tenant.allowed(workflow_id="run-31", function="agent")["reserved_nanousd"] == 2 * CENT
    assert tenant.allowed(workflow_id="run-31", function="other")["reserved_nanousd"] < CENT


def test_calls_that_cost_nothing_are_known_to(tenant: Tenant) -> None:
    tenant.admin.set_budget(1)
    _call(tenant, 0, function="search")
    held = [tenant.allowed(function="search")["reserved_nanousd"] for _ in range(20)]
    assert set(held) == {1}


def test_what_one_workflow_costs_does_not_refuse_another(tenant: Tenant) -> None:
    for _ in range(5):
        _call(tenant, 50 * CENT, workflow_id="dear", model="gpt-4o")
    tenant.admin.set_budget(1, scope_kind="workflow", scope_id="fresh")
    reply = tenant.allowed(workflow_id="fresh", model="gpt-4o", function="small")
    assert 0 < reply["reserved_nanousd"] <= CENT
    tenant.refused(402, "GD-B004", workflow_id="fresh", model="gpt-4o", function="small")


def test_of_unknown_calls_few_are_admitted_at_once_where_room_is_small(tenant: Tenant) -> None:
    tenant.admin.set_budget(2, scope_kind="workflow", scope_id="small")
    answers = [tenant.gate(workflow_id="small").status_code for _ in range(100)]
    assert 4 <= answers.count(200) <= 20
    assert set(answers) == {200, 402}
    tenant.admin.set_budget(100_000, scope_kind="workflow", scope_id="large")
    answers = [tenant.gate(workflow_id="large").status_code for _ in range(100)]
    assert answers == [200] * 100


def test_strict_mode_refuses_what_it_cannot_price(tenant: Tenant) -> None:
    tenant.admin.update_settings(strict=True)
    problem = tenant.refused(403, "GD-X001")
    assert "set_call_context" in problem["reason"]
    tenant.allowed(kind="tool", tool_name="search")
    tenant.allowed(model="gpt-4o")
    tenant.admin.set_price("*", input_per_mtok=CENT, output_per_mtok=CENT)
    assert tenant.allowed()["reserved_nanousd"] > 1000


# -- models under several names ----------------------------------------------------------------


@pytest.mark.parametrize("asked", ["gpt-4o", "gpt-4o-2024-08-06"])
def test_a_models_budget_is_charged_whatever_name_answers(tenant: Tenant, asked: str) -> None:
    tenant.admin.set_budget(100, scope_kind="model", scope_id="gpt-4o")
    held = tenant.allowed(model=asked)["reservation_id"]
    event = tenant.llm(CENT, reservation_id=held, data={"model": "gpt-4o-2024-08-06"})
    tenant.send(event, tenant.final(held))
    tenant.send(tenant.llm(CENT, data={"model": "gpt-4o-2024-11-20"}))
    balance = tenant.balance(scope_id="gpt-4o")
    assert (balance["committed"], balance["reserved"]) == (2 * CENT, 0)


def test_a_model_that_was_asked_for_is_charged_though_another_answers(tenant: Tenant) -> None:
    tenant.admin.set_budget(100, scope_kind="model", scope_id="our-alias", anyway=True)
    tenant.admin.set_price("our-alias", input_per_mtok=1, output_per_mtok=1)
    held = tenant.allowed(model="our-alias")["reservation_id"]
    tenant.send(tenant.llm(CENT, reservation_id=held, data={"model": "gpt-4o"}), tenant.final(held))
    assert tenant.balance(scope_id="our-alias")["committed"] == CENT


def test_one_balance_for_a_family_under_a_budget_of_every_model(tenant: Tenant) -> None:
    tenant.admin.set_budget(1, scope_kind="model", scope_id="*")
    tenant.send(tenant.llm(CENT, data={"model": "gpt-4o-2024-08-06"}))
    tenant.refused(402, "GD-B004", model="gpt-4o")
    tenant.refused(402, "GD-B004", model="gpt-4o-2024-11-20")
    tenant.allowed(model="gpt-4o-mini")


def test_a_call_that_names_no_model_is_held_to_the_one_it_used_last(tenant: Tenant) -> None:
    tenant.admin.set_budget(5, scope_kind="model", scope_id="gpt-4o")
    for workflow_id in ("w", None):
        for _ in range(2):  # the second passes the limit: what is not named is not known before
            held = tenant.allowed(function="agent", workflow_id=workflow_id)["reservation_id"]
            event = tenant.llm(CENT, reservation_id=held, data={"model": "gpt-4o-2024-08-06"})
            tenant.send(event, tenant.final(held))
    tenant.allowed(function="agent")  # one cent is left: a guess does not refuse
    tenant.send(tenant.llm(CENT, data={"model": "gpt-4o"}))
    for fields in ({"workflow_id": "w"}, {"workflow_id": "fresh"}, {}):
        problem = tenant.refused(402, "GD-B004", function="agent", **fields)
        assert "model gpt-4o" in problem["reason"]
    tenant.allowed(function="other")
    tenant.allowed(function="agent", model="gpt-4o-mini")
    tenant.refused(402, "GD-B004", function="agent", model="gpt-4o")


def test_the_last_model_changes_and_is_forgotten(tenant: Tenant) -> None:
    tenant.admin.set_budget(1, scope_kind="model", scope_id="gpt-4o")
    held = tenant.allowed(function="agent")["reservation_id"]
    first = tenant.llm(0, reservation_id=held, data={"model": "gpt-4o"})
    tenant.send(first, tenant.llm(0, reservation_id=held, data={"model": "gpt-4o-mini"}),
                tenant.final(held))  # fmt: skip
    tenant.send(tenant.llm(CENT, data={"model": "gpt-4o"}))
    tenant.allowed(function="agent")


@pytest.mark.asyncio
async def test_the_last_model_is_known_for_an_hour(
    storage_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    """A refused call cannot show that its model has changed."""
    clock = Clock()
    storage = storage_factory(tmp_path, clock_ms=clock)
    await storage.open(lambda _: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    await store.budget(10, scope_kind="model", scope_id="m")
    reply = wire.decode((await store.gate(1)).body, wire.GateReply)
    event = wire.Event(event_id="e", type="llm", at_ms=1, reservation_id=reply.reservation_id)
    priced = PricedEvent(event, b"{}", cost=10, model="m", final=True)
    await ingest(storage, IngestCommand(request=store.request(), events=[priced]))
    clock.now += 3_599_000
    assert (await store.gate(1)).status == 402
    clock.now += 1000
    assert (await store.gate(1)).status == 200
    await storage.close()


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4o-2024-08-06", "gpt-4o"), ("gpt-3.5-turbo-0125", "gpt-3.5-turbo"),
        ("claude-3-5-sonnet-20241022", "claude-3-5-sonnet"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("anthropic.claude-3-haiku-20240307-v1:0", "anthropic.claude-3-haiku"),
        ("gemini-2.5-pro-preview-05-06", "gemini-2.5-pro-preview"),
        ("gemini-1.5-pro-002", "gemini-1.5-pro"), ("mistral-large-2411", "mistral-large"),
        ("mistral-large-latest", "mistral-large"), ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("gpt-4.1-mini", "gpt-4.1-mini"), ("o3", "o3"), ("llama3.1:8b", "llama3.1:8b"),
        ("-2024", "-2024"),
    ],
)  # fmt: skip
def test_families(model: str, family: str) -> None:
    assert model_names.family(model) == family


@given(st.text("a1-:@v.0", max_size=20))
def test_a_family_is_its_own_family_and_never_empty(model: str) -> None:
    family = model_names.family(model)
    assert model_names.family(family) == family
    assert bool(family) == bool(model)
    assert model.startswith(family)
