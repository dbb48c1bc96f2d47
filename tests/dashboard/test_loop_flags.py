"""Rules about repeats in the form of policies, their preview, and flags on a run's page."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from tests.dashboard.conftest import Tenant, Visitor
from tests.dashboard.test_counted_budgets import text_of

FORM: dict[str, Any] = {
    "name": "loops", "is_new": "1", "enabled": "1", "approval_timeout_s": "300",
    "cap_calls": "", "cap_seconds": "60", "cap_by": "organisation", "cap_tools": "",
    "cap_on_limit": "refuse", "repeat_times": "2", "repeat_tools": "search, find_*",
    "repeat_models": "gpt-4o", "repeat_action": "notice",
}  # fmt: skip


def report(tenant: Tenant, times: int, digest: str = "d") -> None:
    data = {"name": "f", "tool_name": "search", "digest": digest}
    for _ in range(times):
        tenant.send("w", {"type": "span", "run_id": "r", "data": data})


def test_a_rule_is_previewed_set_shown_and_kept(
    tenant: Tenant, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(tenant.organisation_id)
    nothing = text_of(visitor.post("/policies", do="preview", **FORM).text)
    assert "No repeats were counted yet" in nothing
    saved = visitor.post("/policies", do="save", **FORM)
    assert saved.status_code == 303, saved.text
    cap = {"times": 2, "tools": ["search", "find_*"], "models": ["gpt-4o"], "on_repeat": "notice"}
    assert tenant.admin.policies()[0]["document"]["repeat_caps"] == [cap]
    page = text_of(visitor.get("/policies").text)
    assert "2 times the same (search, find_*, gpt-4o), then the run is flagged" in page
    form = visitor.get("/policies/edit", name="loops").text
    assert 'name="repeat_times" inputmode="numeric" value="2"' in form
    assert html.unescape(form).count('value="search, find_*"') == 1
    report(tenant, 5)
    changed = {**FORM, "is_new": "0", "repeat_times": "3", "repeat_action": "pause"}
    found = text_of(visitor.post("/policies", do="preview", **changed).text)
    assert "would have stopped 2 , in 1 runs; most often search , 5 times the same" in found
    wrong = visitor.post("/policies", do="save", **{**changed, "repeat_tools": "",
                                                    "repeat_models": ""})  # fmt: skip
    assert wrong.status_code == 400
    assert "names tools or models" in wrong.text


def test_a_run_that_loops_has_a_flag(tenant: Tenant, visit: Callable[..., Visitor]) -> None:
    visitor = visit(tenant.organisation_id)
    visitor.post("/policies", do="save", **FORM)
    report(tenant, 2)
    page: dict[str, Any] = {"id": "w", "tab": "spans", "run": "r"}
    assert "data-loop" not in visitor.get("/workflow", **page).text
    report(tenant, 1)
    shown = visitor.get("/workflow", **page).text
    assert 'data-loop="tool"' in shown
    assert "search was called 3 times with the same arguments" in text_of(shown)
    tenant.admin.set_policy(
        "stop", repeat_caps=[{"times": 1, "tools": ["x"], "on_repeat": "pause"}]
    )
    codes = [tenant.gate("w", tool_name="x", run_id="r", digest="x").json() for _ in range(2)]
    assert codes[1].get("error_code") == "GD-W003", codes
    shown = text_of(visitor.get("/workflow", **page).text)
    assert "x was called once with the same arguments, and the run was paused" in shown


def test_a_rule_about_accelerating_spend_is_previewed_set_shown_and_kept(
    tenant: Tenant, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(tenant.organisation_id)
    form = {**FORM, "repeat_times": "", "on_accelerating_spend": "pause"}
    nothing = text_of(visitor.post("/policies", do="preview", **form).text)
    assert "No run has spent anything in the last seven days" in nothing
    tenant.send("w", {"type": "llm", "run_id": "r", "data": {"model": "x", "cost_nanousd": 10**9}})
    found = text_of(visitor.post("/policies", do="preview", **form).text)
    assert "Of 1 run that has spent since" in found
    assert "0 would have been found to spend faster and faster." in found
    visitor.post("/policies", do="save", **form)
    assert tenant.admin.policies()[0]["document"]["on_accelerating_spend"] == "pause"
    assert "Accelerating spend the run is paused" in text_of(visitor.get("/policies").text)
    edit = visitor.get("/policies/edit", name="loops").text
    assert '<option value="pause" selected>pause the run' in edit
    visitor.post("/policies", do="save", **{**form, "is_new": "0", "on_accelerating_spend": ""})
    assert tenant.admin.policies()[0]["document"]["on_accelerating_spend"] is None


def test_the_kind_of_alert_can_be_chosen(tenant: Tenant, visit: Callable[..., Visitor]) -> None:
    page = visit(tenant.organisation_id).get("/alerts").text
    assert '<option value="loop">a run repeats the same call or prompt' in page
