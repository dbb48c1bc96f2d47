"""The gateway holds, refuses and charges what requests cost besides tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Tenant

IN, OUT = 2500, 10_000  # nano-dollars per token of gpt-4o
SEARCH = 10_000_000
TOKENS = 100 * IN + 50 * OUT
GPT_4O: dict[str, Any] = {"model": "gpt-4o", "function": "openai", "kind": "llm",
                          "max_input_tokens": 100, "max_output_tokens": 50}  # fmt: skip
OPEN: dict[str, Any] = {**GPT_4O, "fees": {"openai web search": 1},
                        "unnumbered": "searches without a number: set max_tool_calls"}  # fmt: skip


def test_a_request_holds_its_fees_beside_its_tokens(tenant: Tenant) -> None:
    reply = tenant.allowed(**GPT_4O, fees={"openai web search": 3, "anthropic web search": 1})
    assert reply["reserved_nanousd"] == TOKENS + 4 * SEARCH
    tenant.admin.set_budget(limit_nanousd=4 * SEARCH)
    tenant.refused(402, "GD-B004", **GPT_4O, fees={"openai web search": 4})


def test_a_batch_holds_half_the_price_of_all_its_prompts(tenant: Tenant) -> None:
    many = {**GPT_4O, "max_input_tokens": 1000 * 128_000, "max_output_tokens": 50_000}
    reply = tenant.allowed(**many, answers=1000, tier="batch")
    assert reply["reserved_nanousd"] == (1000 * 128_000 * IN + 50_000 * OUT) // 2
    reply = tenant.allowed(**many)
    assert reply["reserved_nanousd"] == 128_000 * IN + 50_000 * OUT, "one prompt has a context"


def test_an_answer_is_charged_what_it_names(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=10**10)
    reply = tenant.allowed(**GPT_4O, fees={"openai web search": 3})
    used = {"model": "gpt-4o", "provider": "openai", "input_tokens": 100, "output_tokens": 50,
            "fees": {"openai web search": 2, "of a newer sdk": 7}}  # fmt: skip
    tenant.send(tenant.llm(data=used, reservation_id=reply["reservation_id"]))
    balance = tenant.balance()
    assert balance["committed"] == TOKENS + 2 * SEARCH
    assert balance["reserved"] == 0
    [event] = tenant.admin.events(type="llm")
    assert event["data"]["fees"] == used["fees"]
    vendors = {**used, "cost_nanousd": 7}
    tenant.send(tenant.llm(data=vendors))
    assert tenant.balance()["committed"] == TOKENS + 2 * SEARCH + 7


@pytest.mark.parametrize("fees", [{"a": -1}, {"a": 10**9 + 1}, {"a": 0.5},
                                  {str(number): 1 for number in range(33)}])  # fmt: skip
def test_what_is_no_number_of_units_is_rejected(tenant: Tenant, fees: Any) -> None:
    assert tenant.gate(**GPT_4O, fees=fees).status_code == 400
    answer = tenant.send(tenant.llm(data={"model": "gpt-4o", "fees": fees}))
    assert [each["error_code"] for each in answer.json()["rejected"]] == ["GD-E001"]


def test_what_has_no_number_is_refused_under_a_hard_limit(tenant: Tenant) -> None:
    assert tenant.allowed(**OPEN)["reserved_nanousd"] == TOKENS + SEARCH, "nothing limits it"
    tenant.admin.set_budget(limit_nanousd=10**10, mode="soft")
    tenant.allowed(**OPEN)
    tenant.admin.set_budget(limit_nanousd=10**10)
    problem = tenant.refused(403, "GD-X001", **OPEN)
    assert problem["action"] == "fees"
    assert "set max_tool_calls" in problem["detail"]
    assert "unbounded_output=learned" in problem["detail"]
    tenant.admin.update_settings(unbounded_output="learned")
    assert tenant.allowed(**OPEN)["reserved_nanousd"] == TOKENS + SEARCH


def test_who_refuses_what_is_unbounded_refuses_it_without_any_limit(tenant: Tenant) -> None:
    tenant.admin.update_settings(unbounded_output="refuse")
    tenant.refused(403, "GD-X001", **OPEN)
    tenant.allowed(**GPT_4O, fees={"openai web search": 3})
