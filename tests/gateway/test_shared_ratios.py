"""What one process has learned of a tokeniser is known to the next one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.input_ratios import raised
from guard.core.leases import fitting_output, worst_case
from guard.core.rates import prompt_tokens
from guard.core.request_bound import RequestBound
from guard.core.wire import ModelRates
from tests.gateway.conftest import Tenant

IN, OUT = 2500, 10_000  # nano-dollars per token of gpt-4o


def ask(tenant: Tenant, text: int, **fields: Any) -> dict[str, Any]:
    return tenant.allowed(model="gpt-4o", function="openai", kind="llm", max_output_tokens=50,
                          max_input_tokens=text + 32, text_tokens=text, **fields)  # fmt: skip


def answer(tenant: Tenant, reply: dict[str, Any], text: int, tokens: int, **more: Any) -> None:
    data = {"input_tokens": tokens, "output_tokens": 50, "text_tokens": text, **more}
    tenant.send(tenant.llm(data=data, reservation_id=reply["reservation_id"]))


@pytest.mark.parametrize(("text", "tokens"), [(5000, 10_000), (100, 900)])
def test_an_overshoot_raises_the_next_bound_of_its_model(
    tenant: Tenant, text: int, tokens: int
) -> None:
    first = ask(tenant, text)
    assert first["reserved_nanousd"] == (text + 32) * IN + 50 * OUT
    answer(tenant, first, text, tokens)
    second = ask(tenant, text)
    assert second["reserved_nanousd"] >= tokens * IN + 50 * OUT
    bound = RequestBound("openai", "gpt-4o", text + 32, 50, text)
    rates = ModelRates(IN * 10**6, OUT * 10**6, 0, 0, 0, 0, IN * 10**6, OUT * 10**6,
                       text_permille=second["rates"]["text_permille"],
                       text_overhead=second["rates"]["text_overhead"])  # fmt: skip
    held = worst_case(rates, bound)
    assert held is not None
    assert held[0] == second["reserved_nanousd"], "the lease covers the next by the same"
    media = tenant.allowed(model="gpt-4o", function="openai", kind="llm", max_output_tokens=50,
                           max_input_tokens=text + 32)  # fmt: skip
    assert media["reserved_nanousd"] == first["reserved_nanousd"], "of pictures nothing is known"


def test_what_is_only_estimated_or_less_teaches_nothing(tenant: Tenant) -> None:
    answer(tenant, ask(tenant, 5000), 5000, 10_000, estimated=True)
    answer(tenant, ask(tenant, 5000), 5000, 4000)
    assert "text_permille" not in ask(tenant, 5000)["rates"]


def test_no_report_can_raise_a_bound_without_end(tenant: Tenant) -> None:
    answer(tenant, ask(tenant, 3000), 3000, 10**8)
    assert ask(tenant, 3000)["rates"]["text_permille"] <= 8_000


@given(st.lists(st.tuples(st.integers(1, 50_000), st.floats(0.2, 4)), min_size=1, max_size=9))
def test_each_prompt_that_was_seen_is_within_its_bound(seen: list[tuple[int, float]]) -> None:
    ratio, overhead = 1.0, 32
    for text, times in seen:
        tokens = int(text * times)
        ratio, overhead = raised(ratio, overhead, text, tokens)
        rates = ModelRates(1, 1, 1, 1, 1, 1, 10**6, 10**6, largest_output_tokens=9,
                           text_permille=int(ratio * 1000) + 1, text_overhead=overhead)  # fmt: skip
        assert (prompt_tokens(rates, text + 32, text) or 0) >= min(tokens, text * 8)
        bound = RequestBound("o", "m", text + 32, None, text, least_output=1)
        held = worst_case(rates, bound)
        assert held is not None
        assert held[0] >= tokens + 9
        assert fitting_output(rates, bound, held[0]) == 9
