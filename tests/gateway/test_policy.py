"""Tool and model policy, rate caps, approvals, previews."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import globs, wire
from guard.gateway.admin import AdminError
from guard.gateway.domain import policy
from guard.gateway.domain.preview import TOTAL_BYTES_MAX, RecentCall, RecentCalls
from guard.gateway.domain.records import Policy, PolicyDocument, RateCap
from tests.support.waiting import until


@pytest.mark.parametrize(
    "call",
    [
        {"tool_name": "delete_file"},
        {"tools": ["search", "Delete_File"]},
        {"tool_name": "ｄｅｌｅｔｅ_file"},
        {"tool_name": " DELETE_x "},
        {"tool_name": "mcp__files__delete_x"},
    ],
)
def test_blocked_tools(tenant: Any, call: dict[str, Any]) -> None:
    tenant.admin.set_policy(tools_block=["delete_*"])
    problem = tenant.refused(403, "GD-T001", **call)
    assert problem["tool_name"] == call.get("tool_name", call.get("tools", [""])[-1])
    tenant.allowed(tool_name="search")


def test_block_wins_over_allow_and_the_rest_is_refused(tenant: Any) -> None:
    tenant.admin.set_policy(tools_allow=["read_*", "search"], tools_block=["read_secret"])
    tenant.allowed(tools=["read_file", "search"])
    tenant.refused(403, "GD-T001", tool_name="read_secret")
    tenant.refused(403, "GD-T001", tools=["search", "write_file"])


def test_models(tenant: Any) -> None:
    tenant.admin.set_policy(models_allow=["gpt-4o*"], models_block=["gpt-4o-mini"])
    tenant.allowed(model="gpt-4o")
    tenant.allowed()  # a call without a model is judged by its events
    assert tenant.refused(403, "GD-X001", model="gpt-4o-mini")["action"] == "model"
    tenant.refused(403, "GD-X001", model="claude-sonnet-4-5")


def test_a_request_that_cannot_be_read_may_be_for_a_blocked_model(tenant: Any) -> None:
    unread = {"kind": "llm", "function": "openai", "unnumbered": "any model and any answer, ..."}
    tenant.allowed(**unread)
    tenant.admin.set_policy(models_block=["gpt-5-pro"])
    tenant.allowed(kind="llm", function="openai")  # its model stands in its vendor's account
    refused = tenant.refused(403, "GD-X001", **unread)
    assert (refused["action"], "some models are blocked" in refused["detail"]) == ("model", True)
    tenant.allowed(**unread, model="gpt-5")  # by its path


def test_policy_scopes_and_removal(tenant: Any) -> None:
    tenant.admin.set_policy("night", scope_kind="workflow", scope_id="night-*", tools_block=["*"])
    tenant.refused(403, "GD-T001", workflow_id="night-1", tool_name="x")
    tenant.allowed(workflow_id="day", tool_name="x")
    tenant.admin.set_policy("night", enabled=False)
    tenant.allowed(workflow_id="night-1", tool_name="x")
    tenant.admin.delete_policy("night")
    versions = tenant.admin.request("GET", "/policies/night/versions")
    assert [v["version"] for v in versions] == [2, 1]


def test_policy_change_is_pushed(tenant: Any) -> None:
    tenant.admin.set_policy(tools_block=["x"])
    tenant.admin.set_policy(tools_block=["x"])  # the same again changes nothing
    messages = tenant.http.get("/api/v1/control").json()["messages"]
    assert [m["type"] for m in messages] == ["policy"]


def test_rate_cap(tenant: Any) -> None:
    tenant.admin.set_policy(rate_caps=[{"calls": 2, "per_ms": 3_600_000, "by": "workflow"}])
    tenant.allowed(workflow_id="w")
    tenant.allowed(workflow_id="w")
    response = tenant.gate(workflow_id="w")
    assert response.json()["error_code"] == "GD-R001"
    assert 3500 < int(response.headers["retry-after"]) <= 3600
    assert response.json()["retry_after_ms"] > 3_500_000
    tenant.allowed(workflow_id="other")


def test_refused_calls_still_have_their_events_recorded(tenant: Any) -> None:
    tenant.admin.set_policy(tools_block=["x"])
    problem = tenant.refused(403, "GD-T001", tool_name="x", events=[tenant.llm(5)])
    assert problem["events"]["accepted"] == 1


def test_kill_comes_before_policy(tenant: Any) -> None:
    tenant.admin.set_policy(tools_block=["x"])
    tenant.admin.kill("w")
    tenant.refused(403, "GD-W002", tool_name="x", workflow_id="w")


@pytest.mark.parametrize("approved", [True, False])
def test_approval(tenant: Any, approved: bool) -> None:
    tenant.admin.set_policy(approval_tools=["wire_*"])
    call = {"call_id": "call-a", "tool_name": "wire_money", "workflow_id": "w"}
    headers = {"Idempotency-Key": "approval"}
    pending = tenant.gate(**call, headers=headers).json()
    assert pending["decision"] == "pending"
    assert tenant.gate(**call, headers=headers).json()["approval_id"] == pending["approval_id"]
    waiting = tenant.admin.approvals()
    assert [a["approval_id"] for a in waiting] == [pending["approval_id"]]
    tenant.admin.answer_approval(pending["approval_id"], approved=approved, reason="because")
    message = tenant.http.get("/api/v1/control").json()["messages"][-1]
    assert (message["type"], message["approved"]) == ("approval", approved)
    if approved:
        assert tenant.gate(**call, headers=headers).json()["decision"] == "allow"
        # The approval is for that call, not for another one under its id.
        tenant.refused(403, "GD-X001", **{**call, "tool_name": "wire_all"})
    else:
        assert tenant.refused(403, "GD-X001", **call, headers=headers)["reason"] == "because"
    with pytest.raises(AdminError, match="409"):
        tenant.admin.answer_approval(pending["approval_id"], approved=True)


def test_approval_without_an_answer_refuses(tenant: Any) -> None:
    tenant.admin.set_policy(sensitive_action="approve", approval_timeout_ms=100)
    call = {"call_id": "call-t", "sensitive": True}
    assert tenant.gate(**call).json()["decision"] == "pending"

    def newest() -> Any:
        return tenant.http.get("/api/v1/control").json()["messages"][-1]

    until(lambda: newest().get("approved") is False)
    tenant.refused(403, "GD-X001", **call)


def test_sensitive_calls_can_be_blocked(tenant: Any) -> None:
    tenant.admin.set_policy(sensitive_tools=["deploy"], sensitive_action="block")
    tenant.refused(403, "GD-X001", tool_name="deploy")
    tenant.refused(403, "GD-X001", sensitive=True)
    tenant.allowed(tool_name="read")


def test_preview_against_recent_calls(tenant: Any) -> None:
    for tool in ("read", "delete_a", "delete_b"):
        tenant.allowed(tool_name=tool)
    body = {"name": "new", "policy": {"document": {"tools_block": ["delete_*"]}}}
    preview = tenant.admin.request("POST", "/policies/preview", body)
    assert (preview["calls"], preview["newly_refused"]) == (3, 2)
    assert [e["tool_name"] for e in preview["examples"]] == ["delete_a", "delete_b"]
    tenant.allowed(tool_name="delete_a")  # nothing was changed


def test_apply_is_idempotent(tenant: Any) -> None:
    body = {
        "budgets": [{"limit_cents": 5}, {"limit_cents": 1, "scope_kind": "workflow",
                                         "scope_id": "*", "window": "day"}],
        "policies": [{"name": "p", "document": {"tools_block": ["x"]}}],
        "prices": [{"model": "m", "rates": {"input_per_mtok": 1, "output_per_mtok": 2}}],
    }  # fmt: skip
    dry = tenant.admin.request("POST", "/apply", {**body, "dry_run": True})
    assert (dry["changed"], tenant.admin.budgets()) == (4, [])
    assert tenant.admin.request("POST", "/apply", body)["changed"] == 4
    assert tenant.admin.request("POST", "/apply", body)["changed"] == 0
    plan = tenant.admin.request("POST", "/apply", {"prune": True})
    assert [c["change"] for c in plan["changes"]] == ["delete"] * 4
    with pytest.raises(AdminError, match="named twice"):
        tenant.admin.request("POST", "/apply", {"budgets": body["budgets"][:1] * 2})


# -- globs -------------------------------------------------------------------------------------


def _matches_slowly(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(_matches_slowly(pattern[1:], name[i:]) for i in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and _matches_slowly(pattern[1:], name[1:])


@given(st.text("ab*?.[", max_size=8), st.text("ab.[\n", max_size=8))
def test_globs_agree_with_the_definition(pattern: str, name: str) -> None:
    assert globs.matches(pattern, name) == _matches_slowly(pattern, name)


# -- patterns and what they cost -----------------------------------------------------------------


@given(
    st.lists(st.text("abAB*?_", min_size=1, max_size=6), max_size=6),
    st.text("abAB_", max_size=8),
)
def test_a_matcher_finds_what_its_patterns_match_one_by_one(patterns: list[str], name: str) -> None:
    one_by_one = {p for p in patterns if globs.matches(globs.fold(p), globs.fold(name))}
    found = globs.Matcher(patterns).find(name)
    assert (found is None) == (not one_by_one)
    assert found is None or found in one_by_one


SEPARATORS = "_/.:-"


@given(
    st.lists(st.text("abAB*?_.", min_size=1, max_size=6), max_size=6),
    st.text("abAB_/.:-", max_size=8),
)
def test_a_matcher_finds_what_matches_a_name_or_what_follows_a_separator(
    patterns: list[str], name: str
) -> None:
    folded = globs.fold(name)
    parts = [folded, *(folded[n + 1 :] for n, sign in enumerate(folded) if sign in SEPARATORS)]
    one_by_one = {p for p in patterns for part in parts if globs.matches(globs.fold(p), part)}
    found = globs.Matcher(patterns).find_in_parts(name)
    assert (found is None) == (not one_by_one)
    assert found is None or found in one_by_one
    if found is not None:
        part = globs.part_of(found, name)
        assert (part is None) == globs.matches(globs.fold(found), folded)
        assert part is None or part in parts


def _with(**rules: Any) -> list[policy.Rules]:
    return policy.compiled(
        [
            Policy(
                policy_id="p",
                organisation_id="o",
                name="n",
                scope_kind="organisation",
                scope_id="",
                document=PolicyDocument(**rules),
            )
        ]
    )


def _call(tools: list[str]) -> wire.GateRequest:
    return wire.GateRequest(call_id="c", kind="call", function="f", tools=tools)


def test_more_comparisons_than_one_call_may_cost_are_a_refusal() -> None:
    rules = _with(tools_block=[f"*x{number}*" for number in range(1000)])
    names = ["q" * 200 for _ in range(1024)]
    refusal = policy.evaluate(rules, _call(names), "k").refusal
    assert refusal is not None
    assert "too many" in refusal.reason
    assert policy.evaluate(rules, _call(names[:5]), "k").refusal is None
    exact = _with(tools_block=[f"tool-{number}" for number in range(1000)])
    assert policy.evaluate(exact, _call(names), "k").refusal is None, "exact names are looked up"


DELETES = (
    "delete_all", "mcp__files__delete_all", "mcp_files_delete_all", "files_delete_all",
    "P-delete_all", "server/delete_all", "files.delete_all", "mcp:files:Delete_All",
)  # fmt: skip


@pytest.mark.parametrize("tool", DELETES)
def test_a_rule_for_a_tool_holds_for_it_under_the_names_that_programs_give_it(tool: str) -> None:
    def judged(**rules: Any) -> policy.Verdict:
        call = wire.GateRequest(call_id="c", kind="tool", function=tool, tool_name=tool)
        return policy.evaluate(_with(**rules), call, "k")

    refusal = judged(tools_block=["delete_*"]).refusal
    assert refusal is not None
    by_part = "" if tool == "delete_all" else ", which its part 'delete_all' matches"
    assert refusal.reason == f"the tool is blocked by 'delete_*'{by_part}"
    assert judged(tools_block=["delete_all"]).refusal is not None
    assert judged(tools_block=["elete_*", "delete"]).refusal is None
    assert judged(approval_tools=["delete_*"]).approval is not None
    assert judged(sensitive_tools=["delete_all"]).sensitive
    capped = judged(rate_caps=[RateCap(calls=1, per_ms=1000, by="tool", tools=["delete_*"])])
    assert capped.is_capped_by_tool
    # A name that a program has put together does not get through because its end is allowed.
    allowed = judged(tools_allow=["delete_*"]).refusal
    assert (allowed is None) == (tool == "delete_all")


def test_recent_calls_are_bounded_in_bytes_and_one_organisation_does_not_evict_the_others() -> None:
    recent = RecentCalls()
    recent.note("quiet", RecentCall(1, "k", _call(["search"])))
    for number in range(3000):
        recent.note("loud", RecentCall(number, "k", _call([f"{number:05}" * 10] * 60)))
        recent.note("loud", RecentCall(number, "k", _call(["x" * 256] * 1024)))
    assert len(recent.newest("quiet", 10)) == 1
    kept = recent.newest("loud", 10_000)
    assert 0 < len(kept) < 1000
    assert kept[-1].at_ms == 2999
    for number in range(2 * TOTAL_BYTES_MAX // 4_000_000):
        for _ in range(400):
            recent.note(f"org-{number}", RecentCall(1, "k", _call(["x" * 100] * 20)))
    assert recent._bytes <= TOTAL_BYTES_MAX
    assert recent.newest("quiet", 10) == [], "the quietest is forgotten first"
