"""The tool rules that are sent to the SDK of one key. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from guard.core import globs, wire
from guard.gateway.domain.key_hierarchy import lineage
from guard.gateway.domain.records import BudgetRule, Policy

RULES_BYTES_MAX: Final = 64 * 1024
"""Larger rules are not sent: the SDK asks the gateway about every tool instead."""

_NO_RULES: Final = wire.ToolRules()


def rules_for(
    policies: Iterable[Policy],
    key_id: str,
    key_workflow_id: str | None,
    call_limits: Iterable[BudgetRule] = (),
) -> wire.ToolRules:
    """Return the tool rules of the enabled policies and limits of calls that can affect a key.

    Args:
        policies: of the organisation.
        key_id: the key.
        key_workflow_id: the only workflow of the key, if it has one.
        call_limits: the organisation's limits of calls: the gateway counts each call under them.
    """
    concerned = [
        policy
        for policy in policies
        if policy.enabled and _concerns(policy, key_id, key_workflow_id)
    ]
    acts_on_sensitive = any(p.document.sensitive_action != "allow" for p in concerned)
    rules = [
        rule
        for policy in concerned
        if (rule := _rule(policy, key_workflow_id, acts_on_sensitive)) is not None
    ]
    for policy in concerned:
        rules += _counted(policy, key_workflow_id)
    rules += [_counting(limit) for limit in call_limits if _limits(limit, key_id)]
    if not rules:
        return _NO_RULES
    # The version is that of the full rules, also where they are too large to be sent: it changes
    # with each of them.
    encoded = wire.encode(rules)
    if len(encoded) > RULES_BYTES_MAX:
        rules = _asking(rules)
    # With the size, so that a rule set cannot be taken for another by a collision of short digests.
    version = f"{hashlib.blake2b(encoded, digest_size=12).hexdigest()}-{len(encoded)}"
    return wire.ToolRules(version, rules)


def _concerns(policy: Policy, key_id: str, key_workflow_id: str | None) -> bool:
    if policy.scope_kind == "key":
        return globs.matches(policy.scope_id, key_id)
    if policy.scope_kind == "workflow" and key_workflow_id is not None:
        return globs.matches(policy.scope_id, key_workflow_id)
    return True


def _rule(
    policy: Policy, key_workflow_id: str | None, acts_on_sensitive: bool
) -> wire.ToolRule | None:
    document = policy.document
    ask = [*document.approval_tools, *(document.sensitive_tools if acts_on_sensitive else ())]
    blocks_sensitive = document.sensitive_action == "block"
    says = document.tools_block or document.tools_allow is not None or ask or blocks_sensitive
    if not says:
        return None
    return _of(
        policy,
        key_workflow_id,
        block=document.tools_block,
        allow=document.tools_allow,
        ask=ask,
        blocks_sensitive=blocks_sensitive,
    )


def _of(policy: Policy, key_workflow_id: str | None, **says: Any) -> wire.ToolRule:
    """Return a policy's rule, with the scope in which the SDK applies it."""
    own = policy.scope_kind
    # The rules are for this key alone, so what matched the key or its workflow applies throughout.
    everywhere = own in ("organisation", "key") or (
        own == "workflow" and key_workflow_id is not None
    )
    return wire.ToolRule(
        policy=policy.name,
        policy_version=policy.version,
        scope_kind="organisation" if everywhere else "agent" if own == "agent" else "workflow",
        scope_id="*" if everywhere else policy.scope_id,
        **says,
    )


def _counted(policy: Policy, key_workflow_id: str | None) -> list[wire.ToolRule]:
    """Return the rules by which the SDK has repeats counted: stopping ones, and other ones."""
    found = []
    for asks in (True, False):
        caps = [cap for cap in policy.document.repeat_caps if cap.stops == asks]
        if caps:
            tools = [tool for cap in caps for tool in cap.tools]
            models = [model for cap in caps for model in cap.models]
            found.append(
                _of(policy, key_workflow_id, repeat_tools=tools, repeat_models=models,
                    repeat_asks=asks)
            )  # fmt: skip
    return found


def _limits(limit: BudgetRule, key_id: str) -> bool:
    """Return whether a limit of calls can apply to calls of a key."""
    if limit.scope_kind != "key":
        return True
    return any(globs.matches(limit.scope_id, name) for name in lineage(key_id))


def _counting(limit: BudgetRule) -> wire.ToolRule:
    """Return the rule by which the SDK asks the gateway about tools whose calls are limited."""
    # For other scopes, the SDK asks about too many calls rather than too few.
    is_of_scope = limit.scope_kind in ("workflow", "agent")
    return wire.ToolRule(
        policy="limit of calls",
        policy_version=limit.version,
        scope_kind=limit.scope_kind if is_of_scope else "organisation",
        scope_id=limit.scope_id if is_of_scope else "*",
        ask=limit.counts or ["*"],
    )


def _asking(rules: Sequence[wire.ToolRule]) -> list[wire.ToolRule]:
    """Return the one rule that replaces rules that are too many to send."""
    first = rules[0]
    blocks_sensitive = any(rule.blocks_sensitive for rule in rules)
    counts = any(rule.repeat_tools or rule.repeat_models for rule in rules)
    return [
        wire.ToolRule(
            first.policy, first.policy_version, ask=["*"], blocks_sensitive=blocks_sensitive,
            repeat_tools=["*"] if counts else [], repeat_models=["*"] if counts else [],
            repeat_asks=counts,
        )
    ]  # fmt: skip
