"""Gate, events and release over HTTP: statuses, codes, money."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from guard.gateway.domain.contexts import LARGEST_ANYWHERE

CENT = 10_000_000


def test_allows_and_holds(tenant: Any) -> None:
    tenant.admin.set_budget(10)
    reply = tenant.allowed(workflow_id="w")
    assert reply["reserved_nanousd"] > 0
    assert reply["budget"]["limit_cents"] == 10
    assert tenant.balance()["reserved"] == reply["reserved_nanousd"]


def test_budget_exhausted_is_402(tenant: Any) -> None:
    tenant.admin.set_budget(10)
    assert tenant.send(tenant.llm(10 * CENT, workflow_id="w")).status_code == 202
    problem = tenant.refused(402, "GD-B004", workflow_id="w")
    assert problem["budget"]["spent_cents"] == 10
    assert problem["action"] == "budget"


def test_events_travel_with_the_gate_and_count_first(tenant: Any) -> None:
    tenant.admin.set_budget(10)
    problem = tenant.refused(
        402, "GD-B004", events=[tenant.llm(10 * CENT, workflow_id="w")], workflow_id="w"
    )
    assert problem["events"]["accepted"] == 1


def test_reservation_shrinks_closes_and_late_events_commit(tenant: Any) -> None:
    tenant.admin.set_budget(100)
    tenant.admin.set_price("m", input_per_mtok=0, output_per_mtok=10 * CENT * 1000)
    call = {"model": "m", "max_input_tokens": 0, "max_output_tokens": 1000, "workflow_id": "w"}
    reply = tenant.allowed(**call)
    assert reply["reserved_nanousd"] == 10 * CENT
    own = reply["reservation_id"]
    tenant.send(tenant.llm(3 * CENT, reservation_id=own))
    tenant.send(tenant.llm(2 * CENT, reservation_id=own))
    assert tenant.balance()["reserved"] == 5 * CENT
    tenant.send(tenant.final(own))
    assert tenant.balance()["reserved"] == 0
    tenant.send(tenant.llm(1 * CENT, reservation_id=own))
    assert tenant.balance()["committed"] == 6 * CENT
    late = tenant.admin.events(type="llm")[-1]
    assert late["flags"] == ["late"]
    assert late["workflow_id"] == "w"  # inherited from the reservation


def test_overshoot_is_committed_then_422(tenant: Any) -> None:
    tenant.admin.set_budget(10)
    own = tenant.allowed()["reservation_id"]
    response = tenant.send(tenant.llm(12 * CENT, reservation_id=own))
    assert response.status_code == 422
    body = response.json()
    assert body["error_code"] == "GD-O001"
    assert body["accepted"] == 1
    assert tenant.balance()["committed"] == 12 * CENT


def test_strict_mode_reports_any_consumption_above_the_reservation(tenant: Any) -> None:
    tenant.admin.update_settings(strict=True)
    tenant.admin.set_budget(100_000)
    reply = tenant.allowed(model="gpt-4o", max_input_tokens=10, max_output_tokens=10)
    over = tenant.llm(reply["reserved_nanousd"] + 1, reservation_id=reply["reservation_id"])
    assert tenant.send(over).status_code == 422


def test_strict_mode_holds_the_worst_case(tenant: Any) -> None:
    tenant.admin.update_settings(strict=True)
    tenant.admin.set_price("m", input_per_mtok=1_000_000, output_per_mtok=2_000_000)
    assert tenant.allowed(model="m")["reserved_nanousd"] == LARGEST_ANYWHERE + 2 * 128_000


def test_epsilon_forgives(tenant: Any) -> None:
    tenant.admin.set_budget(10, epsilon_nanousd=3 * CENT)
    assert tenant.send(tenant.llm(12 * CENT)).status_code == 202
    assert tenant.send(tenant.llm(2 * CENT)).status_code == 422


def test_release_is_idempotent_and_confined(make_tenant: Any) -> None:
    tenant, other = make_tenant(), make_tenant()
    tenant.admin.set_budget(10)
    own = tenant.allowed()["reservation_id"]
    first = tenant.http.post("/gate/release", json={"reservation_id": own})
    assert first.json()["released_nanousd"] > 0
    again = tenant.http.post("/gate/release", json={"reservation_id": own})
    assert (again.status_code, again.json()["released_nanousd"]) == (200, 0)
    assert tenant.balance()["reserved"] == 0
    foreign = other.http.post("/gate/release", json={"reservation_id": own})
    assert foreign.status_code == 404


def test_events_are_charged_once(tenant: Any) -> None:
    tenant.admin.set_budget(100)
    event = tenant.llm(1 * CENT)
    assert tenant.send(event, event).json()["duplicates"] == 1
    assert tenant.send(event).json() | {"budget": None} == {
        "accepted": 0, "duplicates": 1, "decision": "allow", "budget": None,
    }  # fmt: skip
    response = {"provider": "openai", "response_id": "resp-1"}
    tenant.send(tenant.llm(1 * CENT, data=response))
    assert tenant.send(tenant.llm(1 * CENT, data=response)).json()["duplicates"] == 1
    assert tenant.balance()["committed"] == 2 * CENT


def test_bad_events_are_rejected_one_by_one(tenant: Any) -> None:
    good = tenant.llm(1)
    bad = tenant.llm(data={"input_tokens": -1})
    deep = {"event_id": "deep", "type": "tool", "at_ms": 1, "data": {"tool_name": 5}}
    long = {"event_id": "long", "type": "x", "at_ms": 1, "data": {"text": "x" * 70_000}}
    nameless = {"event_id": "", "type": "x", "at_ms": 1}
    reply = tenant.send(good, bad, deep, long, nameless).json()
    assert reply["accepted"] == 1
    codes = [r["error_code"] for r in reply["rejected"]]
    assert codes == ["GD-E001", "GD-E001", "GD-E002", "GD-E001"]


def test_every_scope_is_charged_without_a_reservation(tenant: Any) -> None:
    for kind, scope_id in (("organisation", ""), ("workflow", "w"), ("agent", "a"),
                           ("chain", "c"), ("user", "u"), ("model", "gpt-4o")):  # fmt: skip
        tenant.admin.set_budget(100, scope_kind=kind, scope_id=scope_id)
    tenant.send(tenant.llm(CENT, workflow_id="w", agent="a", chain_id="c", user="u"))
    assert [b["committed"] for b in tenant.admin.ledger()] == [CENT] * 6


def test_all_or_nothing_over_scopes(tenant: Any) -> None:
    tenant.admin.set_budget(100)
    tenant.admin.set_budget(0, scope_kind="workflow", scope_id="w")
    tenant.refused(402, "GD-B004", workflow_id="w")
    assert {b["reserved"] for b in tenant.admin.ledger()} == {0}


def test_template_budget_and_exact_one_in_its_place(tenant: Any) -> None:
    tenant.admin.set_budget(1, scope_kind="workflow", scope_id="*")
    tenant.admin.set_budget(5, scope_kind="workflow", scope_id="rich")
    assert tenant.allowed(workflow_id="a")["budget"]["limit_cents"] == 1
    assert tenant.allowed(workflow_id="b")["budget"]["reserved_cents"] == 0.25
    assert tenant.allowed(workflow_id="rich")["budget"]["limit_cents"] == 5


def test_a_glob_is_a_budget_for_each_id_that_matches(tenant: Any) -> None:
    tenant.admin.set_budget(1, scope_kind="workflow", scope_id="user-*")
    tenant.send(tenant.llm(CENT, workflow_id="user-1"))
    spent = tenant.refused(402, "GD-B004", workflow_id="user-1")["budget"]
    assert (spent["limit_cents"], spent["spent_cents"]) == (1, 1)
    assert tenant.allowed(workflow_id="user-2")["budget"]["spent_cents"] == 0
    assert tenant.allowed(workflow_id="other").get("budget") is None


def test_each_user_has_a_budget_across_workflows(tenant: Any) -> None:
    tenant.admin.set_budget(1, scope_kind="user", scope_id="user-*")
    tenant.send(tenant.llm(CENT, workflow_id="a", user="user-1"))
    spent = tenant.refused(402, "GD-B004", workflow_id="b", user="user-1")
    assert spent["budget"]["scope"] == "user user-1 (total)"
    assert tenant.allowed(workflow_id="a", user="user-2")["budget"]["spent_cents"] == 0
    assert tenant.allowed(workflow_id="a").get("budget") is None


def test_an_event_belongs_to_the_user_of_its_reservation(tenant: Any) -> None:
    held = tenant.allowed(workflow_id="w", user="u")["reservation_id"]
    tenant.send(tenant.llm(CENT, reservation_id=held, tags={"team": "billing"}))
    (event,) = tenant.admin.events()
    assert (event["user"], event["tags"]) == ("u", {"team": "billing"})
    (row,) = tenant.admin.usage("user")
    assert (row["group"], row["cost_nanousd"]) == ("u", CENT)


def test_usage_by_user_counts_what_was_done_for_nobody(tenant: Any) -> None:
    tenant.send(tenant.llm(CENT, user="u"), tenant.llm(2 * CENT, user="v"), tenant.llm(4 * CENT))
    expected = [(None, 4 * CENT), ("v", 2 * CENT), ("u", CENT)]
    for until_ms in (None, 2**52):  # by the running totals, and by the events
        rows = tenant.admin.usage("user", until_ms=until_ms)
        assert [(row["group"], row["cost_nanousd"]) for row in rows] == expected


@pytest.mark.parametrize(
    "bad", [{"user": "u" * 257}, {"tags": {"": "x"}}, {"tags": {"t" * 65: "x"}},
            {"tags": {"t": "x" * 257}}, {"tags": {f"t{n}": "x" for n in range(17)}}],
)  # fmt: skip
def test_users_and_tags_are_bounded(tenant: Any, bad: dict[str, Any]) -> None:
    assert tenant.gate(**bad).status_code == 400
    assert tenant.send(tenant.llm(1, **bad)).status_code == 400


def test_the_narrower_budget_of_a_window_applies(tenant: Any) -> None:
    tenant.admin.set_budget(9, scope_kind="workflow", scope_id="*")
    tenant.admin.set_budget(3, scope_kind="workflow", scope_id="user-*")
    tenant.admin.set_budget(2, scope_kind="workflow", scope_id="*-1?")
    tenant.admin.set_budget(5, scope_kind="workflow", scope_id="user-rich")
    tenant.admin.set_budget(7, scope_kind="workflow", scope_id="user-*", window="day")

    def limits(workflow_id: str) -> list[int]:
        before = {b["balance_id"] for b in tenant.admin.ledger()}
        tenant.allowed(workflow_id=workflow_id)
        new = [b for b in tenant.admin.ledger() if b["balance_id"] not in before]
        assert {b["scope_id"] for b in new} == {workflow_id}
        return sorted(b["limit"] // CENT for b in new)

    assert limits("other") == [9]
    assert limits("user-7") == [3, 7]
    assert limits("user-12") == [2, 3, 7]
    assert limits("user-rich") == [5, 7]


def test_a_glob_over_models_counts_by_family(tenant: Any) -> None:
    tenant.admin.set_budget(1, scope_kind="model", scope_id="gpt-*")
    tenant.send(tenant.llm(CENT, model="gpt-4o-2024-08-06"))
    tenant.refused(402, "GD-B004", model="gpt-4o")
    tenant.allowed(model="gpt-4")
    assert tenant.allowed(model="o1").get("budget") is None


def test_budget_set_later_counts_what_was_spent(tenant: Any) -> None:
    tenant.send(tenant.llm(7 * CENT, workflow_id="w"))
    tenant.admin.set_budget(5, scope_kind="workflow", scope_id="w", window="day")
    assert tenant.refused(402, "GD-B004", workflow_id="w")["budget"]["spent_cents"] == 7


def test_soft_budget_warns(tenant: Any) -> None:
    tenant.admin.set_budget(1, mode="soft")
    tenant.send(tenant.llm(2 * CENT))
    assert "over budget" in tenant.allowed()["warnings"][0]


def test_chain_may_go_over_to_its_ceiling(tenant: Any) -> None:
    tenant.admin.set_budget(10)
    tenant.send(tenant.llm(10 * CENT))
    tenant.refused(402, "GD-B004")
    reply = tenant.allowed(chain={"id": "c", "op": "start"})
    assert "chain allowance" in reply["warnings"][0]
    tenant.allowed(chain={"id": "c", "op": "continue"})
    tenant.send(tenant.llm(2 * CENT, chain_id="c"))
    assert tenant.refused(402, "GD-CH001", chain={"id": "c", "op": "continue"})["action"]


def test_closed_chain_has_no_allowance(tenant: Any) -> None:
    tenant.admin.set_budget(10)
    tenant.allowed(chain={"id": "c", "op": "start"})
    end = {"event_id": "end", "type": "chain", "at_ms": 1, "data": {"id": "c", "op": "end"}}
    assert tenant.send(end).json()["accepted"] == 1
    tenant.send(tenant.llm(10 * CENT))
    tenant.refused(402, "GD-B004", chain={"id": "c", "op": "continue"})


def test_learned_estimate_replaces_the_default(tenant: Any) -> None:
    first = tenant.allowed(workflow_id="w")
    tenant.send(tenant.llm(3 * CENT, reservation_id=first["reservation_id"]))
    tenant.send(tenant.final(first["reservation_id"]))
    assert tenant.allowed(workflow_id="w")["reserved_nanousd"] == 3 * CENT


def test_unknown_model_is_refused_and_never_free(tenant: Any) -> None:
    assert tenant.refused(403, "GD-X001", model="mystery-9")["action"] == "price"
    tenant.allowed(model="unknown")
    event = tenant.llm(data={"model": "mystery-9", "input_tokens": 1000, "output_tokens": 10})
    tenant.send(event)
    stored = tenant.admin.events()[-1]
    assert stored["cost_nanousd"] == 1000 * 15_000 + 10 * 75_000
    assert stored["flags"] == ["unpriced"]
    assert tenant.admin.usage()[0]["unpriced"] == 1


@pytest.mark.parametrize(
    ("price", "source"),
    [({}, "published"), ({"model": "gpt-4*"}, "operator"), ({"model": "*"}, "published")],
)
def test_price_order(tenant: Any, price: dict[str, str], source: str) -> None:
    if price:
        tenant.admin.set_price(**price, input_per_mtok=1_000_000, output_per_mtok=1_000_000)
    tenant.send(tenant.llm(data={"input_tokens": 1_000_000}))
    tenant.send(tenant.llm(data={"model": "mystery-9", "input_tokens": 5}, cost_nanousd=42))
    assert [e["price_source"] for e in tenant.admin.events()] == [source, "vendor"]


def test_operator_default_prices_unknown_models(tenant: Any) -> None:
    tenant.admin.set_price("*", input_per_mtok=2_000_000, output_per_mtok=0)
    tenant.allowed(model="mystery-9")
    tenant.send(tenant.llm(data={"model": "mystery-9", "input_tokens": 10}))
    event = tenant.admin.events()[-1]
    assert (event["price_source"], event["cost_nanousd"]) == ("default", 20)


def test_idempotency_replays_and_conflicts(tenant: Any) -> None:
    tenant.admin.set_budget(100)
    headers = {"Idempotency-Key": "k1"}
    first = tenant.gate(call_id="c", headers=headers)
    again = tenant.gate(call_id="c", headers=headers)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    conflict = tenant.gate(call_id="d", headers=headers)
    assert (conflict.status_code, conflict.json()["error_code"]) == (409, "GD-P001")
    assert len({b["reserved"] for b in tenant.admin.ledger()}) == 1


def test_gzip_and_its_limits(tenant: Any) -> None:
    def post(body: bytes, **headers: str) -> int:
        merged = {"content-type": "application/json", "content-encoding": "gzip", **headers}
        return tenant.http.post("/api/v1/events", content=body, headers=merged).status_code

    batch = json.dumps({"batch_id": "b", "sent_at_ms": 1, "events": []}).encode()
    assert post(gzip.compress(batch)) == 202
    assert post(gzip.compress(b" " * 50_000_000)) == 413
    assert post(gzip.compress(batch)[:-4]) == 400
    assert post(b"nonsense") == 400
    assert post(batch, **{"content-encoding": "br"}) == 415
    assert post(batch, **{"content-type": "text/plain", "content-encoding": "identity"}) == 415


def test_capabilities_and_old_protocol(tenant: Any) -> None:
    reply = tenant.http.get("/api/v1/capabilities").json()
    assert reply["protocol"] == 3
    for path in ("/api/v1/capabilities", "/api/v1/control"):
        old = tenant.http.get(path, headers={"X-Guard-Protocol": "2"})
        assert (old.status_code, old.json()["error_code"]) == (400, "PROTOCOL_TOO_OLD")
        assert old.json()["min_required_version"] == "0.6.0"


def test_keys_are_asked_for_and_end_at_once(tenant: Any) -> None:
    wrong = tenant.gate(headers={"X-API-Key": "gdk_wrong"})
    assert (wrong.status_code, wrong.json()["error_code"]) == (401, "GD-A003")
    own = tenant.admin.keys()[0]["key_id"]
    successor = tenant.admin.rotate_key(own)["api_key"]
    assert tenant.gate().status_code == 401
    assert tenant.gate(headers={"X-API-Key": successor}).status_code == 200
    tenant.admin.revoke_key(tenant.admin.keys()[-1]["key_id"])
    assert tenant.gate(headers={"X-API-Key": successor}).status_code == 401


def test_key_confined_to_a_workflow(make_tenant: Any) -> None:
    tenant = make_tenant(workflow_id="w")
    tenant.allowed(workflow_id="w")
    tenant.allowed()
    tenant.refused(403, "GD-W004", workflow_id="other")
    rejected = tenant.send(tenant.llm(1, workflow_id="other")).json()["rejected"]
    assert rejected[0]["error_code"] == "GD-W004"


def test_tenants_are_isolated(make_tenant: Any) -> None:
    one, two = make_tenant(), make_tenant()
    one.admin.set_budget(10)
    reply = one.allowed(workflow_id="w")
    two.send(two.llm(5 * CENT, workflow_id="w", reservation_id=reply["reservation_id"]))
    two.admin.kill("w")
    assert one.balance()["committed"] == 0
    assert one.balance()["reserved"] == reply["reserved_nanousd"]
    one.allowed(workflow_id="w")
    assert one.admin.events() == []
    assert two.admin.events()[0]["flags"] == ["unknown_reservation"]
    told = one.http.get("/api/v1/control").json()["messages"]
    assert [message["type"] for message in told] == ["policy"], "of its own budget, not the kill"
