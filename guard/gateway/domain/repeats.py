"""Repeated calls within a run: which rules count them, and what these would stop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from guard.core import globs, wire
from guard.gateway.domain import models
from guard.gateway.domain.commands import CallRefusal, RepeatUse
from guard.gateway.domain.policy import Rules, applies
from guard.gateway.domain.records import Policy

WORST_MAX: Final = 8
PREVIEWED_MAX: Final = 50_000
"""Counts that a preview looks at, the newest."""

LoopKind = Literal["tool", "model", "spend"]


class RepeatCount(Struct, kw_only=True):
    """How often a run has made one call.

    Args:
        run_id, workflow_id, agent, key_id: of the first such call.
        kind, subject: a ``tool`` by its name, a ``model``, or the ``spend`` of the run.
        allowed: how often the gateway has allowed it, since the count began.
        seen: how often events have reported it, since then.
        began_ms, last_ms: when the count began, and when it last changed.
        began_seq: the number of the newest control message when it began.
        noticed_ms: when the run was flagged for it.
        action: what was done then.
    """

    run_id: str
    workflow_id: str | None
    agent: str | None
    key_id: str
    kind: LoopKind
    subject: str
    allowed: int
    seen: int
    began_ms: int
    last_ms: int
    began_seq: int = 0
    noticed_ms: int | None = None
    action: str = ""

    @property
    def times(self) -> int:
        """How often the call was made. Not the sum: an allowed call is reported as well."""
        return max(self.allowed, self.seen)


def of_call(rules: Sequence[Rules], call: wire.GateRequest, key_id: str) -> tuple[RepeatUse, ...]:
    """Return the rules that count a call with a digest."""
    if call.run_id is None or call.digest is None or call.grows:
        return ()
    kind: Literal["tool", "model"] = "model" if call.kind == "llm" else "tool"
    subject = call.model if kind == "model" else call.tool_name or call.function
    return _uses(rules, call, key_id, kind, subject, call.digest)


def of_event(rules: Sequence[Rules], event: wire.Event, key_id: str) -> tuple[RepeatUse, ...]:
    """Return the rules that count an event with a digest, which was checked."""
    kind: Literal["tool", "model"] = "model" if event.type == "llm" else "tool"
    subject = event.data.get("model" if kind == "model" else "tool_name")
    if event.run_id is None or not subject:
        return ()
    return _uses(rules, event, key_id, kind, subject, event.data["digest"])


def _uses(
    rules: Sequence[Rules], call: wire.GateRequest | wire.Event, key_id: str,
    kind: Literal["tool", "model"], subject: str, digest: str,
) -> tuple[RepeatUse, ...]:  # fmt: skip
    found = []
    for each in rules:
        policy = each.policy
        if not policy.document.repeat_caps or not applies(policy, call, key_id):
            continue
        matchers = each.repeat_models if kind == "model" else each.repeat_tools
        for cap, matcher in zip(policy.document.repeat_caps, matchers, strict=True):
            if _counts(matcher, kind, subject):
                found.append(
                    RepeatUse(
                        kind=kind, subject=subject, digest=digest, times=cap.times,
                        action=cap.on_repeat, policy=policy.name, policy_version=policy.version,
                    )
                )  # fmt: skip
    return tuple(found)


def _counts(matcher: globs.Matcher, kind: LoopKind, subject: str) -> bool:
    """Return whether a rule counts a tool, or a model by any of its names."""
    if kind == "tool":
        return matcher.find_in_parts(subject) is not None
    return any(matcher.find(name) is not None for name in models.names(subject))


def what(kind: str, subject: str, count: int) -> str:
    """Return what was repeated, in words.

    >>> what("tool", "search", 5)
    'search was called 5 times with the same arguments in this run'
    """
    times = "once" if count == 1 else f"{count} times"
    if kind == "tool":
        return f"{subject} was called {times} with the same arguments in this run"
    return f"{subject} was asked {times} with the same prompt in this run"


def refusal(use: RepeatUse, call: wire.GateRequest, count: int) -> CallRefusal:
    """Return the refusal of a call that was made as often as a rule allows."""
    is_tool = use.kind == "tool"
    return CallRefusal(
        status=403,
        error_code="GD-T001" if is_tool else "GD-X001",
        title="Tool blocked" if is_tool else "Blocked by policy",
        reason=what(use.kind, use.subject, count),
        action="repeat",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        details={
            "policy": use.policy, "policy_version": use.policy_version, "count": count,
            "limit": use.times,
        },
    )  # fmt: skip


# -- previews --------------------------------------------------------------------------------------


class RepeatedRun(Struct, kw_only=True):
    """One call that a run has repeated more often than a rule allows."""

    run_id: str
    workflow_id: str | None
    kind: LoopKind
    subject: str
    times: int
    stopped_calls: int
    last_ms: int


class RepeatPreview(Struct, kw_only=True):
    """What rules about repeats would have stopped.

    ``since_ms`` is when the oldest of the counts began; ``None`` without any, as calls are only
    counted while a rule asks for it.
    """

    calls: int
    since_ms: int | None
    runs: int
    stopped_calls: int
    worst: list[RepeatedRun]


def preview(policy: Policy, counts: Sequence[RepeatCount]) -> RepeatPreview:
    """Apply a policy's rules about repeats to stored counts."""
    caps = [
        (cap.times, globs.Matcher(cap.tools), globs.Matcher(cap.models))
        for cap in policy.document.repeat_caps
    ]
    calls, since_ms, repeated = 0, None, []
    for count in counts:
        if count.kind == "spend" or not applies(policy, count, count.key_id):
            continue
        limits = [
            times
            for times, tools, asked in caps
            if _counts(tools if count.kind == "tool" else asked, count.kind, count.subject)
        ]
        if not limits:
            continue
        calls += count.times
        since_ms = count.began_ms if since_ms is None else min(since_ms, count.began_ms)
        over = count.times - min(limits)
        if over > 0:
            repeated.append(
                RepeatedRun(
                    run_id=count.run_id, workflow_id=count.workflow_id, kind=count.kind,
                    subject=count.subject, times=count.times, stopped_calls=over,
                    last_ms=count.last_ms,
                )
            )  # fmt: skip
    repeated.sort(key=lambda each: (-each.stopped_calls, -each.last_ms, each.run_id))
    return RepeatPreview(
        calls=calls,
        since_ms=since_ms,
        runs=len({each.run_id for each in repeated}),
        stopped_calls=sum(each.stopped_calls for each in repeated),
        worst=repeated[:WORST_MAX],
    )


class RepeatPlace(Struct, frozen=True, kw_only=True):
    """Identifies a count: of one call of one run.

    Args:
        organisation_id, run_id: the run.
        kind, subject: of the call. A run's ``spend`` has no subject, so there is one for each run.
            A request's is the model that was asked for, or the one that has answered.
        digest: of the tool and its arguments, or of the model and the prompt.
        workflow_id, agent, key_id: of the call.
    """

    organisation_id: str
    run_id: str
    kind: LoopKind
    subject: str = ""
    digest: str = ""
    workflow_id: str | None = None
    agent: str | None = None
    key_id: str = ""
