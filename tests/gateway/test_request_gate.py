"""LLM requests asked for one by one: their worst case, their rules, their end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Tenant

GPT_4O = {"model": "gpt-4o", "function": "openai", "kind": "llm"}
IN, OUT = 2500, 10_000  # nano-dollars per token


def request(tenant: Tenant, **fields: Any) -> dict[str, Any]:
    return tenant.allowed(**{**GPT_4O, "max_input_tokens": 100, "max_output_tokens": 50, **fields})


def test_a_request_holds_its_worst_case_and_learns_the_rates(tenant: Tenant) -> None:
    reply = request(tenant)
    assert reply["reserved_nanousd"] == 100 * IN + 50 * OUT
    rows = reply["rates"].pop("rows")
    bucket = {"cache_read": 1250 * 10**6, "cache_write": IN * 10**6, "cache_write_1h": IN * 10**6}
    standard = ["", -1, IN * 10**6, OUT * 10**6, *bucket.values(), OUT * 10**6, 0, 0]
    assert rows[0] == standard
    assert {row[0] for row in rows} <= {"", "flex", "priority", "fast"}
    assert reply["rates"] == {
        "input_per_mtok": IN * 10**6, "output_per_mtok": OUT * 10**6,
        "cache_read_per_mtok": 1250 * 10**6, "cache_write_per_mtok": IN * 10**6,
        "reasoning_per_mtok": OUT * 10**6, "audio_per_mtok": OUT * 10**6,
        "worst_input_per_mtok": IN * 10**6, "worst_output_per_mtok": OUT * 10**6,
        "assumed_output_tokens": 16_384, "context_tokens": 128_000,
    }  # fmt: skip
    assert "rates" not in tenant.allowed(model="gpt-4o"), "calls have none"


def test_rates_are_those_of_the_largest_prompt(tenant: Tenant) -> None:
    reply = request(tenant, model="gemini-2.5-pro", function="google")
    assert reply["rates"]["worst_input_per_mtok"] == 2_500_000_000
    assert reply["rates"]["worst_output_per_mtok"] == 15_000_000_000


def test_an_event_settles_its_request(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=10_000_000)
    reply = request(tenant)
    tenant.send(tenant.llm(1000, reservation_id=reply["reservation_id"]))
    balance = tenant.balance()
    assert (balance["committed"], balance["reserved"]) == (1000, 0)


def test_a_request_without_a_limit_takes_the_largest_answer_of_its_model(tenant: Tenant) -> None:
    assert request(tenant, max_output_tokens=None)["reserved_nanousd"] == 100 * IN + 16_384 * OUT
    several = request(tenant, max_output_tokens=None, answers=3, beside_output_tokens=7)
    assert several["reserved_nanousd"] == 100 * IN + (3 * 16_384 + 7) * OUT
    assert request(tenant, max_input_tokens=None)["reserved_nanousd"] == 128_000 * IN + 50 * OUT


def test_a_model_that_is_not_listed_has_no_largest_answer(tenant: Tenant) -> None:
    tenant.admin.set_price(model="own", input_per_mtok=IN * 10**6, output_per_mtok=OUT * 10**6)
    own = {"model": "own", "max_output_tokens": None}
    reply = request(tenant, **own)
    assert "assumed_output_tokens" not in reply["rates"]
    assert reply["reserved_nanousd"] == 100 * IN + 128_000 * OUT, "the most of any model"
    tenant.admin.set_budget(limit_nanousd=100 * IN + 8 * 100 * OUT)
    tenant.refused(402, "GD-B004", **{**GPT_4O, **own}, max_input_tokens=100)
    stream = request(tenant, **own, streams=True)["reserved_nanousd"]
    assert stream < 100 * IN + 101 * OUT, "a stream is cut when its share is used up"


def test_a_limit_that_is_put_in_leaves_the_prompt_its_place_in_the_context(tenant: Tenant) -> None:
    gpt_4 = {"model": "gpt-4", "max_output_tokens": None, "max_input_tokens": 5000}
    tenant.admin.set_budget(limit_nanousd=500_000_000)  # pays for 5,833 tokens; 8,192 - 5,000 fit
    reply = request(tenant, **gpt_4, least_output_tokens=256)
    assert reply["max_output_tokens"] == 2048
    assert reply["reserved_nanousd"] == 5000 * 30_000 + 2048 * 60_000


def test_a_limit_that_is_put_in_is_a_power_of_two_for_each_answer(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=100 * IN + (3 * 1024 + 7) * OUT)
    fields = {"max_output_tokens": None, "answers": 3, "beside_output_tokens": 7}
    reply = request(tenant, **fields, least_output_tokens=3 * 256 + 7)
    assert reply["max_output_tokens"] == 3 * 1024 + 7


def test_a_request_without_a_limit_takes_what_such_answers_have_taken(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="learned")
    reply = request(tenant, max_output_tokens=None)
    assert reply["reserved_nanousd"] == 100 * IN + 4096 * OUT
    usage = {"input_tokens": 10, "output_tokens": 6000}
    tenant.send(tenant.llm(reservation_id=reply["reservation_id"], data=usage))
    reply = request(tenant, max_output_tokens=None)
    assert reply["rates"]["assumed_output_tokens"] == 6000
    assert reply["reserved_nanousd"] == 100 * IN + 6000 * OUT
    usage = {"input_tokens": 10, "output_tokens": 1}
    tenant.send(tenant.llm(reservation_id=reply["reservation_id"], data=usage))
    reply = request(tenant, max_output_tokens=None)
    assert 5900 < reply["rates"]["assumed_output_tokens"] < 6000, "a large one is remembered"


def test_what_is_assumed_shrinks_to_the_room_and_what_is_sure_does_not(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="learned")
    tenant.admin.set_budget(limit_nanousd=100 * IN + 10 * OUT)
    reply = request(tenant, max_output_tokens=None)
    assert reply["reserved_nanousd"] == 100 * IN + 10 * OUT
    tenant.http.post("/gate/release", json={"reservation_id": reply["reservation_id"]})
    tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=200)
    tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=100, max_output_tokens=11)
    tenant.allowed(**GPT_4O, max_input_tokens=100, max_output_tokens=10)


def test_streams_without_a_limit_share_what_is_unspent(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="learned")
    limit = 8 * (100 * IN + 10 * OUT)
    tenant.admin.set_budget(limit_nanousd=limit)
    stream = {**GPT_4O, "max_input_tokens": 100, "streams": True}
    held = [tenant.allowed(**stream)["reserved_nanousd"] for _ in range(8)]
    assert held == [limit // 8] * 8
    tenant.refused(402, "GD-B004", **stream)


def test_a_stream_under_way_takes_what_there_is(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="learned")
    tenant.admin.set_budget(limit_nanousd=8 * (100 * IN + 10 * OUT))
    tenant.allowed(**GPT_4O, max_input_tokens=0, max_output_tokens=220)
    more = {**GPT_4O, "max_input_tokens": 0, "streams": True}
    held = [tenant.allowed(**more)["reserved_nanousd"] for _ in range(2)]
    assert held == [100 * IN + 10 * OUT, 25 * OUT]
    tenant.refused(402, "GD-B004", **more)


def test_the_organisation_says_what_to_assume(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="learned")
    assert request(tenant, max_output_tokens=None)["reserved_nanousd"] == 100 * IN + 4096 * OUT
    tenant.admin.update_settings(unbounded_output="refuse")
    problem = tenant.refused(403, "GD-X001", **GPT_4O, max_input_tokens=100)
    assert problem["action"] == "output"
    assert "assumed_output_tokens" not in request(tenant)["rates"]


def test_an_unknown_price_is_held_as_it_is_charged(tenant: Tenant) -> None:
    reply = request(tenant, model="nobody-knows")
    event = tenant.llm(
        data={"model": "nobody-knows", "input_tokens": 100, "output_tokens": 50},
        reservation_id=reply["reservation_id"],
    )
    tenant.admin.set_budget(limit_nanousd=10**12)
    tenant.send(event)
    assert tenant.balance()["committed"] == reply["reserved_nanousd"]
    tenant.admin.update_settings(strict=True)
    tenant.refused(403, "GD-X001", **{**GPT_4O, "model": "nobody-knows"})


@pytest.mark.parametrize("asked", ["gpt-4o", "gpt-4o-2024-08-06"])
def test_a_model_is_blocked_by_its_family_too(tenant: Tenant, asked: str) -> None:
    tenant.admin.set_policy(models_block=["gpt-4o"])
    assert tenant.refused(403, "GD-X001", **{**GPT_4O, "model": asked})["action"] == "model"
    tenant.admin.set_policy(models_allow=["gpt-4o"])
    request(tenant, model=asked)
    tenant.refused(403, "GD-X001", **{**GPT_4O, "model": "gpt-4o-mini"})


def test_rules_of_tools_leave_requests_alone(tenant: Tenant) -> None:
    tenant.admin.set_policy(
        tools_allow=["nothing"], sensitive_tools=["*"], sensitive_action="block",
        approval_tools=["*"], rate_caps=[{"calls": 1, "by": "tool"}],
    )  # fmt: skip
    request(tenant)
    request(tenant, sensitive=True)


def test_rate_caps_count_requests_outside_of_calls_only(tenant: Tenant) -> None:
    tenant.admin.set_policy(rate_caps=[{"calls": 1, "per_ms": 3_600_000}])
    call = tenant.allowed(gates_requests=True)
    for _ in range(3):
        request(tenant, within=call["call_id"])
    tenant.refused(429, "GD-R001", **GPT_4O)


def test_the_first_request_releases_what_its_call_held_by_guess(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=10**9)
    call = tenant.allowed(gates_requests=True)
    assert call["reserved_nanousd"] == 1_000_000
    held = {"within": call["call_id"], "held": call["reservation_id"]}
    reply = request(tenant, **held)
    assert tenant.balance()["reserved"] == reply["reserved_nanousd"]
    request(tenant, **held)
    assert tenant.balance()["reserved"] == 2 * reply["reserved_nanousd"]
    tenant.send(tenant.llm(7, reservation_id=call["reservation_id"]))
    body = {"reservation_id": call["reservation_id"]}
    assert tenant.http.post("/gate/release", json=body).json()["state"] == "settled"


def test_a_request_draws_first_on_what_its_call_has_declared(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=10**9)
    call = tenant.allowed(gates_requests=True, model="gpt-4o", max_output_tokens=100)
    within = {"within": call["call_id"], "held": call["reservation_id"]}
    reply = request(tenant, **within)
    total = call["reserved_nanousd"]
    assert reply["reserved_nanousd"] < total
    assert tenant.balance()["reserved"] == total, "the same money, and not both"
    for _ in range(2):
        request(tenant, **within)
    assert tenant.balance()["reserved"] == max(total, 3 * reply["reserved_nanousd"])


def test_a_call_that_has_declared_all_that_is_left_can_make_its_request(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=11_500_000)
    call = tenant.allowed(gates_requests=True, model="gpt-4o", max_output_tokens=100)
    assert call["reserved_nanousd"] > 10_750_000, "nothing else would fit beside it"
    reply = request(tenant, within=call["call_id"], held=call["reservation_id"])
    assert reply["decision"] == "allow"


def test_what_gated_calls_cost_themselves_is_learned_apart(tenant: Tenant) -> None:
    old = tenant.allowed()
    tenant.send(
        tenant.llm(500, reservation_id=old["reservation_id"]), tenant.final(old["reservation_id"])
    )
    gated = tenant.allowed(gates_requests=True)
    assert gated["reserved_nanousd"] == 1_000_000, "nothing is known of it yet"
    tenant.send(tenant.final(gated["reservation_id"]))
    assert tenant.allowed(gates_requests=True)["reserved_nanousd"] == 1
    assert tenant.allowed()["reserved_nanousd"] == 500


def test_leases_are_not_granted_over_http(tenant: Tenant) -> None:
    reply = request(tenant, lease={"demand_nanousd": 10**8})
    assert "lease" not in reply
    assert reply["reserved_nanousd"] == 100 * IN + 50 * OUT


def test_a_lease_that_does_not_exist_is_not_found(tenant: Tenant) -> None:
    answer = tenant.http.post("/gate/lease", json={"lease_id": "nothing"})
    assert (answer.status_code, answer.json()["error_code"]) == (404, "GD-N001")
    assert tenant.http.get("/gate/lease").status_code == 405


def test_the_gateway_says_what_it_can(tenant: Tenant) -> None:
    features = tenant.http.get("/api/v1/capabilities").json()["features"]
    assert {"leases", "request_gate"} <= set(features)


def answered(tenant: Tenant, reply: dict[str, Any], model: str, cost: int) -> None:
    data = {"model": model, "source": "auto"}
    tenant.send(tenant.llm(cost, reservation_id=reply["reservation_id"], data=data))


def test_a_request_is_held_to_the_budget_of_the_model_that_answers(tenant: Tenant) -> None:
    dated = "gpt-4o-2024-08-06"
    tenant.admin.set_budget(limit_nanousd=2_000_000, scope_kind="model", scope_id=dated)
    answered(tenant, request(tenant), dated, 1_000_000)
    reply = request(tenant)
    balance = tenant.balance(scope_id=dated)
    assert balance["reserved"] == reply["reserved_nanousd"]
    answered(tenant, reply, dated, 1_000_000)
    tenant.refused(402, "GD-B004", **GPT_4O, max_input_tokens=1, max_output_tokens=1)
    request(tenant, model="gpt-4o-mini")


def test_a_request_is_refused_when_the_model_that_answers_is_blocked(tenant: Tenant) -> None:
    tenant.admin.set_policy(models_block=["my-model-2024-*"])
    reply = request(tenant, model="deployment")
    answered(tenant, reply, "my-model-2024-08-06", 1)
    assert tenant.refused(403, "GD-X001", **{**GPT_4O, "model": "deployment"})["action"] == "model"
    tenant.admin.set_policy(models_block=[], models_allow=["deployment"])
    request(tenant, model="deployment")


def test_reports_do_not_say_which_model_answers(tenant: Tenant) -> None:
    tenant.admin.set_policy(models_block=["other"])
    reply = request(tenant)
    tenant.send(tenant.llm(1, reservation_id=reply["reservation_id"], data={"model": "other"}))
    request(tenant)


def in_doubt(tenant: Tenant, cost: int = 600_000) -> dict[str, Any]:
    """Send the event of a request whose answer was lost, and return it as it was recorded."""
    data = {"model": "gpt-4o", "cost_nanousd": cost, "estimated": True, "estimate": "bound"}
    tenant.send(tenant.llm(reservation_id=request(tenant)["reservation_id"], data=data))
    return list(tenant.admin.events(type="llm"))[-1]


def test_what_is_in_doubt_costs_its_bound(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="learned")
    tenant.admin.set_budget(limit_nanousd=100_000_000)
    tenant.send(tenant.llm(1000, reservation_id=request(tenant)["reservation_id"]))
    event = in_doubt(tenant)
    assert (event["cost_nanousd"], event["flags"]) == (600_000, ["estimated", "in_doubt"])
    assert tenant.balance()["committed"] == 601_000
    assert [e["event_id"] for e in tenant.admin.events(flag="in_doubt")] == [event["event_id"]]
    both = tenant.admin.events(flag="cut_short,in_doubt")
    assert [e["event_id"] for e in both] == [event["event_id"]]
    reply = request(tenant, max_output_tokens=None)
    assert reply["rates"]["assumed_output_tokens"] <= 4096, "nothing is learned from it"


def test_an_organisation_may_charge_what_is_likely(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=10_000_000)
    tenant.admin.update_settings(in_doubt="likely")
    assert in_doubt(tenant)["cost_nanousd"] == 600_000, "nothing is known yet"
    for _ in range(3):
        tenant.send(tenant.llm(1000, reservation_id=request(tenant)["reservation_id"]))
    event = in_doubt(tenant)
    assert (event["cost_nanousd"], event["flags"][-1]) == (1000, "likely")
    assert in_doubt(tenant, cost=40)["cost_nanousd"] == 40, "never more than the bound"
    assert tenant.balance()["committed"] == 600_000 + 3000 + 1000 + 40
    tenant.admin.update_settings(in_doubt="bound")
    assert in_doubt(tenant)["cost_nanousd"] == 600_000
