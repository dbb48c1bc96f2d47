"""Policies evaluated against one call. Pure; the strictest rule that applies wins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import globs
from guard.gateway.domain.commands import ApprovalNeed, Refusal
from guard.gateway.domain.records import Policy, RateCap


class CapUse(Struct, frozen=True):
    """One rate cap as it counts one call: ``bucket`` names the counter."""

    bucket: str
    calls: int
    per_ms: int


class Verdict(Struct):
    """What the policies say about a call, before any budget is asked."""

    refusal: Refusal | None = None
    approval: ApprovalNeed | None = None
    sensitive: bool = False
    caps: list[CapUse] = []


def evaluate(policies: Sequence[Policy], call: wire.GateRequest, key_id: str) -> Verdict:
    """Judge one call by all policies that apply to it.

    ``tool_name`` and every name in ``tools`` count: a call that could reach a blocked tool is
    refused as a whole.
    """
    verdict = Verdict(sensitive=call.sensitive, caps=[])
    named = [call.tool_name] if call.tool_name is not None else []
    tools = [*named, *call.tools]
    for policy in policies:
        if not policy.enabled or not _applies(policy, call, key_id):
            continue
        refusal = _blocked(policy, call, tools)
        if refusal is not None:
            verdict.refusal = verdict.refusal or refusal
            continue
        document = policy.document
        own_tool = _own_tool(call)
        if globs.first_match(document.sensitive_tools, own_tool) is not None:
            verdict.sensitive = True
        if verdict.sensitive and document.sensitive_action == "block":
            verdict.refusal = verdict.refusal or _refuse(
                policy, call, "GD-X001", "sensitive calls are blocked", "sensitive", own_tool
            )
        needs_person = globs.first_match(document.approval_tools, own_tool) is not None
        needs_person |= verdict.sensitive and document.sensitive_action == "approve"
        if needs_person and verdict.approval is None:
            verdict.approval = ApprovalNeed(
                tool_name=own_tool, timeout_ms=document.approval_timeout_ms
            )
        verdict.caps += _caps(policy, call, key_id, tools)
    return verdict


def blocks_reported(
    policies: Sequence[Policy], event: wire.Event, tool_name: str, key_id: str
) -> bool:
    """Tell whether a tool call that was reported afterwards would have been blocked."""
    return any(
        policy.enabled
        and _applies(policy, event, key_id)
        and globs.first_match(policy.document.tools_block, tool_name) is not None
        for policy in policies
    )


def _own_tool(call: wire.GateRequest) -> str:
    return call.tool_name if call.tool_name is not None else call.function


def _applies(policy: Policy, call: wire.GateRequest | wire.Event, key_id: str) -> bool:
    if policy.scope_kind == "organisation":
        return True
    value = {"workflow": call.workflow_id, "agent": call.agent, "key": key_id}[policy.scope_kind]
    return value is not None and globs.matches(policy.scope_id, value)


def _blocked(policy: Policy, call: wire.GateRequest, tools: Iterable[str]) -> Refusal | None:
    document = policy.document
    for tool in tools:
        pattern = globs.first_match(document.tools_block, tool)
        if pattern is not None:
            reason = f"the tool is blocked by {pattern!r}"
            return _refuse(policy, call, "GD-T001", reason, "block", tool)
        allowed = document.tools_allow
        if allowed is not None and globs.first_match(allowed, tool) is None:
            reason = "the tool is not on the allow list"
            return _refuse(policy, call, "GD-T001", reason, "block", tool)
    if call.model == wire.UNKNOWN_MODEL:
        return None
    if globs.first_match(document.models_block, call.model) is not None:
        return _refuse(policy, call, "GD-X001", "the model is blocked", "model", call.tool_name)
    models = document.models_allow
    if models is not None and globs.first_match(models, call.model) is None:
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
) -> Refusal:
    return Refusal(
        status=403,
        error_code=error_code,
        title="Tool blocked" if error_code == "GD-T001" else "Blocked by policy",
        reason=reason,
        action=action,
        workflow_id=call.workflow_id,
        tool_name=tool_name,
        details={"policy": policy.name, "policy_version": policy.version},
    )


def _caps(
    policy: Policy, call: wire.GateRequest, key_id: str, tools: Sequence[str]
) -> list[CapUse]:
    uses = []
    for number, cap in enumerate(policy.document.rate_caps):
        if cap.tools and all(globs.first_match(cap.tools, tool) is None for tool in tools):
            continue
        bucket = f"{policy.policy_id}/{number}/{_counted(cap, call, key_id)}"
        uses.append(CapUse(bucket, cap.calls, cap.per_ms))
    return uses


def _counted(cap: RateCap, call: wire.GateRequest, key_id: str) -> str:
    values = {
        "organisation": "",
        "workflow": call.workflow_id,
        "agent": call.agent,
        "key": key_id,
        "tool": _own_tool(call),
    }
    return values[cap.by] or ""


def rate_refusal(call: wire.GateRequest, retry_after_ms: int) -> Refusal:
    """Return the refusal of a call that came too soon."""
    return Refusal(
        status=429,
        error_code="GD-R001",
        title="Rate cap reached",
        reason="the call rate set by the operator is reached",
        action="rate",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        retry_after_ms=retry_after_ms,
    )
