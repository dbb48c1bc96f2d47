"""The tool rules of a key: over the control socket, by long poll, and what is in them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.client import ClientConnection, connect

from guard.core import wire
from guard.core.tool_rules import CompiledToolRules
from guard.gateway.domain import policy as policies
from guard.gateway.domain.records import BudgetRule, Policy, PolicyDocument
from guard.gateway.domain.tool_rules import RULES_BYTES_MAX, rules_for
from tests.gateway.test_control import next_message


def open_channel(tenant: Any, tools: str | None = "none") -> ClientConnection:
    url = tenant.gateway.base_url.replace("http", "ws") + "/api/v1/control/ws?after=0"
    return connect(
        url if tools is None else f"{url}&tools={tools}",
        subprotocols=["guard.v3"],  # type: ignore[list-item]
        additional_headers={"X-API-Key": tenant.api_key, "X-Guard-Protocol": "3"},
    )


def next_rules(channel: ClientConnection) -> dict[str, Any]:
    while True:
        message = next_message(channel, "policy")
        if "tools" in message:
            assert message["seq"] == 0
            return dict(message["tools"])


def test_the_hello_holds_the_rules_and_changes_are_pushed(tenant: Any) -> None:
    tenant.admin.set_policy("p", tools_block=["rm", "delete_*"], approval_tools=["pay"])
    with open_channel(tenant) as channel:
        tools = next_message(channel, "hello")["tools"]
        assert tools["rules"] == [
            {"policy": "p", "policy_version": 1, "block": ["rm", "delete_*"], "ask": ["pay"]}
        ]
        tenant.admin.set_policy("p", tools_allow=["read"])
        changed = next_rules(channel)
        assert changed["rules"] == [{"policy": "p", "policy_version": 2, "allow": ["read"]}]
        assert changed["version"] != tools["version"]
        tenant.admin.delete_policy("p")
        assert next_rules(channel) == {}  # defaults are left out: version "none", no rules
    with open_channel(tenant) as channel:
        assert "tools" not in next_message(channel, "hello")


def test_rules_that_are_known_are_not_sent_again(tenant: Any) -> None:
    tenant.admin.set_policy("p", tools_block=["rm"])
    with open_channel(tenant) as channel:
        version = next_message(channel, "hello")["tools"]["version"]
    with open_channel(tenant, version) as channel:
        assert "tools" not in next_message(channel, "hello")
        tenant.admin.set_price("m", input_per_mtok=1, output_per_mtok=1)  # wakes it as well
        tenant.admin.set_policy("p", tools_block=["rm", "mv"])
        assert next_rules(channel)["rules"][0]["block"] == ["rm", "mv"]


def test_a_client_that_does_not_know_of_rules_gets_none(tenant: Any) -> None:
    tenant.admin.set_policy("p", tools_block=["rm"])
    with open_channel(tenant, None) as channel:
        assert "tools" not in next_message(channel, "hello")
        tenant.admin.set_policy("p", tools_block=["mv"])
        tenant.admin.kill("w")
        while (message := next_message(channel))["type"] != "kill":
            assert "tools" not in message
    reply = tenant.http.get("/api/v1/control?after=0").json()
    assert all("tools" not in message for message in reply["messages"])


def test_a_long_poll_brings_the_rules_and_wakes_for_a_change(tenant: Any) -> None:
    def poll(tools: str, wait_ms: int = 0) -> list[dict[str, Any]]:
        seq = tenant.http.get("/api/v1/control?after=0").json()["seq"]
        query = f"after={seq}&wait_ms={wait_ms}&tools={tools}"
        reply = tenant.http.get(f"/api/v1/control?{query}", timeout=60).json()
        return [m["tools"] for m in reply["messages"] if "tools" in m]

    assert poll("none") == []
    tenant.admin.kill("w")  # so that there is a snapshot
    tenant.admin.set_policy("p", tools_block=["rm"])
    first = tenant.http.get("/api/v1/control?after=0&tools=none").json()
    assert [m["type"] for m in first["messages"]][-1] == "policy"
    assert first["seq"] > 0
    (tools,) = poll("none")
    assert tools == first["messages"][-1]["tools"]
    assert poll(tools["version"]) == []
    timer = threading.Timer(0.2, tenant.admin.set_policy, ["p"], {"tools_block": ["mv"]})
    timer.start()
    changed = poll(tools["version"], 15_000)
    timer.join()
    # The numbered message about the policy may come first; the next poll brings the rules.
    (changed_rules,) = changed or poll(tools["version"])
    assert changed_rules["rules"][0]["block"] == ["mv"]


def test_each_key_gets_the_rules_that_concern_it(
    tenant: Any, make_tenant: Callable[..., Any]
) -> None:
    tenant.admin.set_policy("mine", scope_kind="workflow", scope_id="w-*", tools_block=["rm"])
    key_id = tenant.admin.keys()[0]["key_id"]
    tenant.admin.set_policy("key", scope_kind="key", scope_id=key_id, tools_block=["mv"])
    tenant.admin.set_policy("off", enabled=False, tools_block=["cp"])
    with open_channel(tenant) as channel:
        rules = next_message(channel, "hello")["tools"]["rules"]
    assert sorted((r["policy"], r.get("scope_kind"), r.get("scope_id")) for r in rules) == [
        ("key", None, None), ("mine", "workflow", "w-*")
    ]  # fmt: skip
    tenant.api_key = tenant.admin.create_key("other", workflow_id="w-1")
    with open_channel(tenant) as channel:
        rules = next_message(channel, "hello")["tools"]["rules"]
    assert [(r["policy"], r.get("scope_kind")) for r in rules] == [("mine", None)]
    other = make_tenant()
    with open_channel(other) as channel:
        assert "tools" not in next_message(channel, "hello")


def policy(
    name: str = "p", scope: str = "organisation", scope_id: str = "*", **rules: Any
) -> Policy:
    return Policy(
        policy_id=name, organisation_id="o", name=name, scope_kind=scope, scope_id=scope_id,  # type: ignore[arg-type]
        document=PolicyDocument(**rules),
    )  # fmt: skip


def test_rules_that_are_too_large_become_questions() -> None:
    many = [f"tool-{number}-{'x' * 200}" for number in range(1000)]
    rules = rules_for([policy(tools_block=many, sensitive_action="block")], "k", None)
    assert len(wire.encode(rules)) < 1000 < RULES_BYTES_MAX
    known = CompiledToolRules(rules).for_scope("w", None)
    assert known is not None
    assert known.blocks_sensitive
    verdict = known.verdict("anything")
    assert verdict is not None
    assert verdict.kind == "ask"
    fewer = rules_for([policy(tools_block=many[1:], sensitive_action="block")], "k", None)
    assert fewer.version != rules.version


def test_sensitive_tools_are_asked_about_where_a_policy_acts_on_them() -> None:
    named = policy("named", sensitive_tools=["pay"])
    assert rules_for([named], "k", None) == wire.ToolRules()
    acting = policy("acting", "agent", "a", sensitive_action="approve")
    (rule,) = rules_for([named, acting], "k", None).rules
    assert rule.ask == ["pay"]
    (blocking,) = rules_for([policy(sensitive_action="block")], "k", None).rules
    assert blocking.blocks_sensitive


names = st.sampled_from(["rm", "RM ", "delete_file", "ｒm", "read", "pay", "a[b]", "*"])
patterns = st.lists(
    st.sampled_from(["rm", "delete_*", "r?", "read", "*", "a[b]", "pay"]), max_size=3
)
scopes = st.sampled_from([("organisation", "*"), ("workflow", "w*"), ("agent", "a"), ("key", "k")])


@given(
    st.lists(st.tuples(scopes, patterns, st.none() | patterns, patterns), max_size=3),
    names,
    st.sampled_from([None, "w", "x"]),
    st.sampled_from([None, "a", "b"]),
)
def test_the_sdk_judges_as_the_gateway_does(
    drawn: list[Any], tool: str, workflow_id: str | None, agent: str | None
) -> None:
    known = [
        policy(f"p{n}", *scope, tools_block=block, tools_allow=allow, approval_tools=approve)
        for n, (scope, block, allow, approve) in enumerate(drawn)
    ]
    call = wire.GateRequest("c", "tool", "f", tool_name=tool, workflow_id=workflow_id, agent=agent)
    there = policies.evaluate(policies.compiled(known), call, "k")
    rules = CompiledToolRules(rules_for(known, "k", None)).for_scope(workflow_id, agent)
    here = None if rules is None else rules.verdict(tool)
    if there.refusal is not None:
        assert here is not None
        assert (here.kind, here.reason) == ("block", there.refusal.reason)
        assert here.policy == there.refusal.details["policy"]
    elif there.approval is not None:
        assert here is not None
        assert here.kind == "ask"
    else:
        assert here is None


def test_limits_of_calls_have_the_gateway_asked_about_their_tools() -> None:
    limits = [
        BudgetRule(budget_id="", organisation_id="o", scope_kind=kind, scope_id=scope_id,  # type: ignore[arg-type]
                   window="total", limit=5, unit="calls", counts=counts)
        for kind, scope_id, counts in (
            ("workflow", "w-*", ["search*"]), ("key", "k1", ["pay"]), ("user", "*", []),
        )
    ]  # fmt: skip

    def asked(key_id: str) -> list[tuple[str, str, list[str]]]:
        rules = rules_for([], key_id, None, limits).rules
        return [(rule.scope_kind, rule.scope_id, rule.ask) for rule in rules]

    everywhere = ("organisation", "*", ["*"])
    assert asked("k2") == [("workflow", "w-*", ["search*"]), everywhere]
    assert ("organisation", "*", ["pay"]) in asked("k1")
    assert ("organisation", "*", ["pay"]) in asked("k1.below")
    assert rules_for([], "k2", None).rules == []
