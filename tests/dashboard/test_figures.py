"""Charts, trees, previews and texts: pure parts, and what the store keeps for them."""

from __future__ import annotations

import doctest
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from guard.core.wire.fields import decimal_dollars
from guard.gateway.dashboard import charts, formatting, spans
from guard.gateway.domain.preview import preview_budget
from guard.gateway.domain.records import BudgetRule, StoredEvent
from guard.gateway.domain.usage import HOUR_MS, ChargedEvent


@pytest.mark.parametrize("module", [charts, formatting], ids=lambda m: m.__name__)
def test_the_examples_in_the_docstrings(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@given(st.floats(1e-9, 1e9))
def test_axes_end_at_or_above_the_highest_value_and_not_far_above(value: float) -> None:
    top, parts = charts.nice_ceiling(value)
    assert value <= top * (1 + 1e-6)
    assert top <= value * 2.01
    assert parts in (3, 4)


@given(st.integers(0, 10**15))
def test_an_amount_survives_its_field(nanousd: int) -> None:
    from guard.gateway.dashboard import forms

    assert forms.nanousd(decimal_dollars(nanousd), "it") == nanousd


def event(kind: str, at_ms: int, span: str | None, parent: str | None, **data: Any) -> StoredEvent:
    return StoredEvent(
        event_seq=at_ms, event_id=str(at_ms), type=kind, at_ms=at_ms, received_at_ms=at_ms,
        workflow_id="w", run_id="r", chain_id=None, agent=None, call_id=None, reservation_id=None,
        key_id="k", model="m", cost_nanousd=5 if kind == "llm" else 0, price_source=None, flags=[],
        data=data, span_id=span, parent_span_id=parent,
    )  # fmt: skip


def test_spans_become_a_tree_with_running_totals() -> None:
    events = [
        event("llm", 10, "b", "a", latency_ms=5),
        event("span", 11, "b", "a", name="inner", duration_ms=8),
        event("llm", 14, "c", "a"),
        event("span", 20, "a", None, name="outer", duration_ms=20),
    ]
    (root,) = spans.tree(events)
    assert (root.name, root.total_nanousd()) == ("outer", 10)
    drawn = [(line.depth, line.node.name) for line in spans.lines([root])]
    assert drawn == [(0, "outer"), (1, "inner"), (2, "m"), (1, "running"), (2, "m")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["llm", "span", "tool", "x"]),
            st.integers(0, 50),
            st.sampled_from(["a", "b", "c", None]),
            st.sampled_from(["a", "b", "c", None]),
        ),
        max_size=20,
    )
)
def test_no_event_is_lost_in_the_tree_whatever_the_parents_say(rows: Any) -> None:
    events = [event(kind, at, span, parent, name="n") for kind, at, span, parent in rows]
    drawn = spans.lines(spans.tree(events))
    leaves = [e for e in events if e.type != "span" or e.span_id is None]
    assert sum(line.node.kind not in ("span", "call", "open") for line in drawn) == sum(
        e.type != "span" for e in leaves
    )
    assert all(0 <= line.left <= 100 and line.left + line.width <= 100.01 for line in drawn)


def budget(limit: int, **fields: Any) -> BudgetRule:
    known = {"scope_kind": "organisation", "scope_id": "", "window": "hour", **fields}
    return BudgetRule(budget_id="", organisation_id="o", limit=limit, **known)


@given(st.lists(st.tuples(st.integers(0, 5 * HOUR_MS), st.integers(1, 50)), max_size=60),
       st.integers(1, 100))  # fmt: skip
def test_a_preview_stops_what_comes_after_the_limit(
    charges: list[tuple[int, int]], limit: int
) -> None:
    ordered = sorted(charges)
    stopped = 0
    spent: dict[int, int] = {}
    for at, cost in ordered:
        window = at // HOUR_MS
        stopped += spent.get(window, 0) >= limit
        spent[window] = spent.get(window, 0) + cost
    found = preview_budget(
        budget(limit), [ChargedEvent(at, cost, "") for at, cost in reversed(ordered)]
    )
    assert (found.charges, found.stopped_calls) == (len(charges), stopped)
    assert found.reached == sum(total >= limit for total in spent.values())


def test_a_preview_of_each_workflow_keeps_them_apart() -> None:
    charges = [ChargedEvent(3, 6, "a"), ChargedEvent(2, 6, "b"), ChargedEvent(1, 6, "a")]
    own = {"scope_kind": "workflow", "scope_id": "*"}
    assert preview_budget(budget(5, **own), charges).stopped_calls == 1
    assert preview_budget(budget(5, **own | {"scope_id": "b"}), charges).charges == 1
    assert preview_budget(budget(5, **own | {"scope_id": "b*"}), charges).charges == 1


@pytest.mark.parametrize("path", ["/", "/budgets", "/workflow"])
def test_money_that_is_set_aside_stands_beside_what_is_spent(
    visitor: Any, tenant: Any, path: str
) -> None:
    tenant.admin.set_budget(5000, scope_kind="workflow", scope_id="w")
    tenant.spend("w", 10**9)
    assert "set aside" not in visitor.get(path, id="w").text
    held = {"kind": "llm", "function": "openai", "model": "gpt-4o", "max_input_tokens": 0}
    assert tenant.gate("w", max_output_tokens=200_000, **held).status_code == 200
    assert "+ $2.00 set aside" in visitor.get(path, id="w").text


@pytest.mark.parametrize("page", [("/", {}), ("/workflow", {"id": "w", "tab": "models"})])
def test_models_at_fallback_prices_are_marked(visitor: Any, tenant: Any, page: Any) -> None:
    path, query = page
    used = {"model": "gpt-4o", "input_tokens": 1000, "output_tokens": 10}
    tenant.send("w", {"type": "llm", "data": used})
    assert "fallback price" not in visitor.get(path, **query).text
    tenant.send("w", {"type": "llm", "data": used | {"model": "our-own-model"}})
    assert visitor.get(path, **query).text.count(">fallback price<") == 1


@pytest.mark.parametrize("path", ["/", "/workflows", "/workflow", "/users", "/budgets"])
def test_what_was_charged_in_doubt_stands_beside_what_is_spent(
    visitor: Any, tenant: Any, path: str
) -> None:
    tenant.admin.set_budget(5000, scope_kind="workflow", scope_id="w")
    tenant.spend("w", 8 * 10**8)
    assert "uncertain" not in visitor.get(path, id="w").text
    tenant.spend("w", 4 * 10**8, estimated=True, estimate="bound")
    assert "of it up to $0.40 uncertain" in visitor.get(path, id="w").text
