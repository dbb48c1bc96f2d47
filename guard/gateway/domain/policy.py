"""Policies evaluated against one call. Pure; the strictest rule that applies wins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from guard.core import globs, wire
from guard.core.tool_rules import blocked_by
from guard.gateway.domain import models
from guard.gateway.domain.commands import ApprovalNeed, CallRefusal
from guard.gateway.domain.rate_window import CapUse
from guard.gateway.domain.records import Policy, RateCap

WORK_MAX: Final = 2_000_000
"""Maximum of tool-name characters times patterns to compare for one call: at most 40 ms."""


class Rules(Struct, frozen=True):
    """One enabled policy, its patterns compiled."""

    policy: Policy
    tools_block: globs.Matcher
    tools_allow: globs.Matcher | None
    models_block: globs.Matcher
    models_allow: globs.Matcher | None
    sensitive_tools: globs.Matcher
    approval_tools: globs.Matcher
    cap_tools: tuple[globs.Matcher, ...]
    repeat_tools: tuple[globs.Matcher, ...]
    repeat_models: tuple[globs.Matcher, ...]
    glob_count: int


def compiled(policies: Iterable[Policy]) -> list[Rules]:
    """Compile the enabled policies; once for each change of the catalogue."""
    return [_rules(policy) for policy in policies if policy.enabled]


def _rules(policy: Policy) -> Rules:
    document = policy.document
    optional = [
        None if patterns is None else globs.Matcher(patterns)
        for patterns in (document.tools_allow, document.models_allow)
    ]
    block = globs.Matcher(document.tools_block)
    caps = tuple(globs.Matcher(cap.tools) for cap in document.rate_caps)
    by_tool = (block, *caps, *([] if optional[0] is None else [optional[0]]))
    return Rules(
        policy=policy,
        tools_block=block,
        tools_allow=optional[0],
        models_block=globs.Matcher(document.models_block),
        models_allow=optional[1],
        sensitive_tools=globs.Matcher(document.sensitive_tools),
        approval_tools=globs.Matcher(document.approval_tools),
        cap_tools=caps,
        repeat_tools=tuple(globs.Matcher(cap.tools) for cap in document.repeat_caps),
        repeat_models=tuple(globs.Matcher(cap.models) for cap in document.repeat_caps),
        glob_count=sum(matcher.glob_count for matcher in by_tool),
    )


class Verdict(Struct):
    """The decision of the policies on a call, before budgets are checked.

    ``lane_caps`` are the caps that count every call of the same workflow, agent and key alike, so
    that calls under them can be lent in advance. Any other cap depends on the tool
    (``is_capped_by_tool``): such calls have to ask one by one.
    """

    refusal: CallRefusal | None = None
    approval: ApprovalNeed | None = None
    sensitive: bool = False
    caps: list[CapUse] = []
    lane_caps: list[CapUse] = []
    is_capped_by_tool: bool = False


def evaluate(rules: Sequence[Rules], call: wire.GateRequest, key_id: str) -> Verdict:
    """Judge one call by all policies that apply to it.

    ``tool_name`` and every name in ``tools`` count: a call that could reach a blocked tool is
    refused as a whole. So is one with so many tools that comparing them would delay every other
    call (:data:`WORK_MAX`). For an LLM request only its model counts, and the rate caps if it
    belongs to no protected call.
    """
    if call.kind == "llm":
        return _evaluate_request(rules, call, key_id)
    verdict = Verdict(sensitive=call.sensitive, caps=[], lane_caps=[])
    named = [call.tool_name] if call.tool_name is not None else []
    tools = [*named, *call.tools]
    applying = [each for each in rules if applies(each.policy, call, key_id)]
    # This runs on the loop, and callers choose the names: without a bound, one call could delay all
    # others.
    glob_count = sum(each.glob_count for each in applying)
    if glob_count and glob_count * sum(map(len, tools)) > WORK_MAX:
        verdict.refusal = _too_many(applying[0].policy, call, len(tools))
        return verdict
    own_tool = _own_tool(call)
    for each in applying:
        policy = each.policy
        # The first refusal is the one that is reported.
        refusal = _blocked(each, call, tools)
        if refusal is not None:
            verdict.refusal = verdict.refusal or refusal
            continue
        document = policy.document
        if each.sensitive_tools.find_in_parts(own_tool) is not None:
            verdict.sensitive = True
        if verdict.sensitive and document.sensitive_action == "block":
            verdict.refusal = verdict.refusal or _refuse(
                policy, call, "GD-X001", "sensitive calls are blocked", "sensitive", own_tool
            )
        needs_person = each.approval_tools.find_in_parts(own_tool) is not None
        needs_person |= verdict.sensitive and document.sensitive_action == "approve"
        if needs_person and verdict.approval is None:
            verdict.approval = ApprovalNeed(
                tool_name=own_tool, timeout_ms=document.approval_timeout_ms
            )
        _add_caps(verdict, each, call, key_id, tools)
    return verdict


def _evaluate_request(rules: Sequence[Rules], call: wire.GateRequest, key_id: str) -> Verdict:
    verdict = Verdict(caps=[], lane_caps=[])
    for each in rules:
        if not applies(each.policy, call, key_id):
            continue
        verdict.refusal = verdict.refusal or _blocked_model(each, call, call.model)
        _add_caps(verdict, each, call, key_id, ())
    if call.within is not None or call.grows:  # counted with its call, or when it began
        verdict.caps = []
    return verdict


def wants_prices(rules: Sequence[Rules], call: wire.GateRequest, key_id: str) -> bool:
    """Return whether a policy refuses a call's model if its price is not known."""
    return any(
        each.policy.document.models_priced and applies(each.policy, call, key_id) for each in rules
    )


def blocks_reported(rules: Sequence[Rules], event: wire.Event, tool_name: str, key_id: str) -> bool:
    """Return whether a tool call that was reported afterwards would have been blocked."""
    return any(
        applies(each.policy, event, key_id)
        and each.tools_block.find_in_parts(tool_name) is not None
        for each in rules
    )


def _own_tool(call: wire.GateRequest) -> str:
    return call.tool_name if call.tool_name is not None else call.function


class Placed(Protocol):
    """Something that belongs to a workflow and an agent, or to none."""

    @property
    def workflow_id(self) -> str | None:
        """Its workflow."""

    @property
    def agent(self) -> str | None:
        """Its agent."""


def applies(policy: Policy, placed: Placed, key_id: str) -> bool:
    """Return whether a policy covers a call, what an event reports, or a count of either."""
    if policy.scope_kind == "organisation":
        return True
    value = {"workflow": placed.workflow_id, "agent": placed.agent, "key": key_id}[
        policy.scope_kind
    ]
    return value is not None and globs.matches(policy.scope_id, value)


def _too_many(policy: Policy, call: wire.GateRequest, count: int) -> CallRefusal:
    reason = f"{count} tools are too many for as many patterns as the policies have"
    return _refuse(policy, call, "GD-T001", reason, "block", call.tool_name)


def _blocked(rules: Rules, call: wire.GateRequest, tools: Iterable[str]) -> CallRefusal | None:
    policy = rules.policy
    for tool in tools:
        pattern = rules.tools_block.find_in_parts(tool)
        if pattern is not None:
            return _refuse(policy, call, "GD-T001", blocked_by(pattern, tool), "block", tool)
        allowed = rules.tools_allow
        if allowed is not None and allowed.find(tool) is None:
            reason = "the tool is not on the allow list"
            return _refuse(policy, call, "GD-T001", reason, "block", tool)
    return _blocked_model(rules, call, call.model)


def refuse_model(
    rules: Sequence[Rules], call: wire.GateRequest, key_id: str, model: str
) -> CallRefusal | None:
    """Refuse a request because of the model that is expected to answer it."""
    for each in rules:
        if applies(each.policy, call, key_id):
            refusal = _blocked_model(each, call, model, call.model)
            if refusal is not None:
                return refusal
    return None


def allows_model(rules: Sequence[Rules], call: wire.GateRequest, key_id: str, model: str) -> bool:
    """Return whether no policy over a request refuses a model, whichever one it names."""
    named = msgspec.structs.replace(call, model=model)
    return refuse_model(rules, named, key_id, model) is None


def _blocked_model(rules: Rules, call: wire.GateRequest, *named: str) -> CallRefusal | None:
    """Refuse a model if any of its names is blocked, or none of them is on the allow list."""
    policy = rules.policy
    if call.model == wire.UNKNOWN_MODEL:
        # One that may be for any model, since it cannot be read, may be for a blocked one.
        if call.unnumbered and rules.models_block:
            reason = "some models are blocked, and it allows " + call.unnumbered
        elif call.kind == "llm" and rules.models_allow is not None:
            reason = "it does not say for which model it is, and only some models are allowed"
        else:
            return None
        return _refuse(policy, call, "GD-X001", reason, "model", call.tool_name)
    names = models.names(*named)
    if any(rules.models_block.find(name) is not None for name in names):
        return _refuse(policy, call, "GD-X001", "the model is blocked", "model", call.tool_name)
    allowed = rules.models_allow
    if allowed is not None and all(allowed.find(name) is None for name in names):
        reason = "the model is not on the allow list"
        return _refuse(policy, call, "GD-X001", reason, "model", call.tool_name)
    return None


def _refuse(
    policy: Policy,
    call: wire.GateRequest,
    error_code: str,
    reason: str,
    action: str,
    tool_name: str | None,
) -> CallRefusal:
    details = {"policy": policy.name, "policy_version": policy.version}
    refusal = blocked(call, reason, action, details)
    title = "Tool blocked" if error_code == "GD-T001" else refusal.title
    return msgspec.structs.replace(refusal, error_code=error_code, title=title, tool_name=tool_name)


def blocked(
    call: wire.GateRequest, reason: str, action: str, details: dict[str, Any] | None = None
) -> CallRefusal:
    """Return the refusal of a call that the operator's rules do not allow."""
    return CallRefusal(
        status=403,
        error_code="GD-X001",
        title="Blocked by policy",
        reason=reason,
        action=action,
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        details=details or {},
    )


def _add_caps(
    verdict: Verdict, rules: Rules, call: wire.GateRequest, key_id: str, tools: Sequence[str]
) -> None:
    policy = rules.policy
    for number, cap in enumerate(policy.document.rate_caps):
        matcher = rules.cap_tools[number]
        if matcher and all(matcher.find_in_parts(tool) is None for tool in tools):
            continue
        if call.kind == "llm" and cap.by == "tool":
            continue  # a request is no tool
        bucket = f"{policy.policy_id}/{number}/{_counted(cap, call, key_id)}"
        use = CapUse(bucket, cap.calls, cap.per_ms, cap.on_limit == "wait")
        verdict.caps.append(use)
        if matcher or cap.by == "tool":
            verdict.is_capped_by_tool = True
        else:
            verdict.lane_caps.append(use)


def _counted(cap: RateCap, call: wire.GateRequest, key_id: str) -> str:
    values = {
        "organisation": "",
        "workflow": call.workflow_id,
        "agent": call.agent,
        "key": key_id,
        "tool": _own_tool(call),
    }
    return values[cap.by] or ""


def rate_refusal(call: wire.GateRequest, retry_after_ms: int) -> CallRefusal:
    """Return the refusal of a call that came too soon."""
    return CallRefusal(
        status=429,
        error_code="GD-R001",
        title="Rate cap reached",
        reason="the call rate set by the operator is reached",
        action="rate",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        retry_after_ms=retry_after_ms,
    )
