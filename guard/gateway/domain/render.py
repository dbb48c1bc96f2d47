"""Decisions as the protocol's bodies."""

from __future__ import annotations

from typing import Final

import msgspec

from guard.core import wire
from guard.gateway.domain.commands import CallRefusal, EncodedAnswer

PROBLEM_BASE: Final = "https://guard.invalid/problems/"
"""Base of problem type URIs: identifiers (RFC 9457 part 3.1.1), not addresses."""

_TRANSIENT: Final = frozenset({401, 408, 429, 500, 503})


def problem(
    status: int,
    error_code: str,
    title: str,
    *,
    detail: str = "",
    events: wire.EventsOutcome | None = None,
    refusal: CallRefusal | None = None,
    server_time_ms: int | None = None,
    min_required_version: str | None = None,
    reason: str | None = None,
) -> wire.Problem:
    """Build a problem document; ``refusal`` fills in the protocol's own members."""
    document = wire.Problem(
        type=f"{PROBLEM_BASE}{error_code.lower()}",
        title=title,
        status=status,
        detail=detail,
        error_code=error_code,
        events=events,
        server_time_ms=server_time_ms,
        min_required_version=min_required_version,
        reason=reason,
    )
    if refusal is not None:
        document.detail = refusal.reason
        document.reason = refusal.reason
        document.action = refusal.action
        document.workflow_id = refusal.workflow_id
        document.tool_name = refusal.tool_name
        document.retry_after_ms = refusal.retry_after_ms
        document.resume_after_ms = refusal.resume_after_ms
        document.budget = refusal.budget
        document.details = refusal.details
    return document


def refused(refusal: CallRefusal, events: wire.EventsOutcome | None = None) -> EncodedAnswer:
    """Return the answer to a call that is refused."""
    document = problem(
        refusal.status, refusal.error_code, refusal.title, refusal=refusal, events=events
    )
    return EncodedAnswer(
        refusal.status,
        wire.encode(document),
        refusal.retry_after_ms,
        kept=refusal.status not in _TRANSIENT,
    )


def conflict() -> EncodedAnswer:
    """Return the answer to an idempotency key that was used for another request."""
    document = problem(
        409,
        "GD-P001",
        "Idempotency key reused",
        detail="this Idempotency-Key was used before with another request",
    )
    return EncodedAnswer(409, wire.encode(document), kept=False)


def not_found(detail: str) -> EncodedAnswer:
    """Return the answer to a request for something that does not exist."""
    return EncodedAnswer(
        404, wire.encode(problem(404, "GD-N001", "Not found", detail=detail)), kept=False
    )


def over_budget(reply: wire.EventsReply, budget: wire.Budget, workflow_id: str | None) -> bytes:
    """Return the 422 body: the batch's outcome together with the problem's members."""
    document = problem(
        422,
        "GD-O001",
        "Consumed over budget",
        refusal=CallRefusal(
            status=422,
            error_code="GD-O001",
            title="Consumed over budget",
            reason=f"cost above the reservation, recorded in full: {budget.scope}",
            action="budget",
            workflow_id=workflow_id,
            budget=budget,
        ),
    )
    body = msgspec.to_builtins(document)
    body.update(msgspec.to_builtins(reply))
    body["budget"] = msgspec.to_builtins(budget)
    return wire.encode(body)


def withdrawn(name: str) -> EncodedAnswer:
    """Return the answer to a caller that has given up before anything was reserved."""
    body = {
        "reservation_id": name,
        "state": "withdrawn",
        "released_nanousd": 0,
        "spent_nanousd": 0,
    }
    return EncodedAnswer(200, wire.encode(body))
