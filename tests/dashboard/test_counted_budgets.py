"""Budgets of tokens and of calls on the dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.dashboard.conftest import Tenant, Visitor


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_they_are_set_shown_and_edited(tenant: Tenant, visit: Callable[..., Visitor]) -> None:
    visitor = visit(tenant.organisation_id)
    fields: dict[str, Any] = {"do": "save", "window": "total", "thresholds": "80"}
    saved = visitor.post("/budgets", unit="tokens", limit="20,000", **fields)
    assert saved.status_code == 303, saved.text
    saved = visitor.post("/budgets", unit="calls", counts="search, web_*", limit="20", **fields)
    assert saved.status_code == 303, saved.text
    tenant.gate("w", tool_name="search")
    tenant.gate("w", kind="llm", model="m", max_input_tokens=100, max_output_tokens=900)
    page = text_of(visitor.get("/budgets").text)
    assert "20,000 tokens in total" in page
    assert "0 + 1,000 set aside of 20,000 tokens 0% 19,000 left" in page
    assert "20 calls of search, web_* in total" in page
    assert "1 of 20 calls of search, web_* 5% 19 left" in page
    assert "1 of 20 calls of search, web_*" in text_of(visitor.get("/").text)
    assert "of 20,000 tokens" in text_of(visitor.get("/workflow", id="w").text)
    (tokens,) = [each for each in tenant.admin.budgets() if each["unit"] == "tokens"]
    form = visitor.get("/budgets/edit", id=tokens["budget_id"]).text
    assert 'name="unit" value="tokens"' in form
    assert 'name="limit" inputmode="decimal" required size="10" value="20000"' in form
    preview = visitor.post("/budgets", unit="tokens", limit="5", **{**fields, "do": "preview"})
    assert "no preview" in preview.text or "none for this unit" in preview.text
    wrong = visitor.post("/budgets", unit="tokens", limit="1.5", **fields)
    assert wrong.status_code == 400
    assert {each["limit"] for each in tenant.admin.budgets()} == {20_000, 20}


def test_a_team_has_a_budget_by_the_week(tenant: Tenant, visit: Callable[..., Visitor]) -> None:
    visitor = visit(tenant.organisation_id)
    for team, cost in (("search", 3 * 10**9), ("ads", 10**9)):
        event = {"type": "llm", "data": {"model": "m", "cost_nanousd": cost}}
        tenant.send("w", {**event, "tags": {"team": team, "feature": "chat"}})
    fields: dict[str, Any] = {"scope_kind": "tag", "scope_id": "team=*", "window": "week",
                              "limit": "2", "thresholds": "80"}  # fmt: skip
    preview = text_of(visitor.post("/budgets", do="preview", **fields).text)
    assert "team=search" in preview
    assert "team=ads" not in preview.split("Reached at")[-1]
    assert visitor.post("/budgets", do="save", **fields).status_code == 303
    tenant.send("w", {**event, "tags": {"team": "ads"}})
    page = text_of(visitor.get("/budgets").text)
    assert "$2.00 per week" in page
    assert "team=ads" in page
    wrong = visitor.post("/budgets", do="save", **{**fields, "scope_id": "search"})
    assert wrong.status_code == 400
    assert "team=search" in wrong.text
