"""Maps the gateway's HTTP statuses to exceptions (spec part 7; protocol: Every request).

A reply that cannot be understood is an exception too: it never counts as "allow".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from guard.breaker.exceptions import (
    GuardAuthenticationError,
    GuardAuthError,
    GuardBackendError,
    GuardBlockedException,
    GuardBudgetError,
    GuardChainError,
    GuardConsumeOverbudgetError,
    GuardProtocolError,
    GuardRateLimitRedisError,
    GuardToolBlockedError,
    GuardTransportError,
    GuardWorkflowInactiveError,
    RateLimitError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.breaker.rejection import CallerRejectedError
from guard.core import mistaken
from guard.core.retry import RETRY_AFTER_MAX_S, retry_after_s
from guard.core.wire import (
    CAPABILITIES_PATH,
    CONTROL_PATH,
    EVENTS_PATH,
    GATE_PATH,
    LEASE_PATH,
    Problem,
    salvage,
)  # fmt: skip


class BodyRefusedError(GuardTransportError):
    """The gateway will never accept this body: it is too large or partly unreadable."""


class UnreadableReplyError(GuardTransportError):
    """The status says success, but the rest is missing, or is not what the protocol says."""


@attrs.frozen
class Reply:
    """One complete reply of the gateway.

    Attributes:
        endpoint: the path that was requested.
        status: the HTTP status.
        body: the bytes of the body, decoded and capped.
        retry_after: the ``Retry-After`` header, if any.
        now_s: when it was read, in Unix seconds.
        nonce: the nonce in the request's signature; empty when it was not signed.
        signature: the ``X-Guard-Signature`` header of the reply.
    """

    endpoint: str
    status: int
    body: bytes = attrs.field(repr=False)
    retry_after: str | None = None
    now_s: float = 0.0
    nonce: str = ""
    signature: str = ""

    def problem(self) -> Problem:
        """Return the usable part of the problem document; all defaults when there is none."""
        return salvage(self.body, Problem)


class NotAGatewayError(GuardTransportError):
    """A server answers at the address, but it is not a gateway: the address is wrong."""

    user_action = "Set GUARD_API_URL to the address of a guard gateway."


Row = Callable[[Reply, Problem], BaseException]


def not_a_gateway(reply: Reply, address: str = "") -> NotAGatewayError:
    """Return the error for a reply to the first request that no gateway would give.

    Args:
        reply: the reply.
        address: the address that the request was sent to.
    """
    advice = "check the address, and what stands before the gateway"
    if address:
        advice = f"{mistaken.not_a_gateway(address)}, or look at what stands before the gateway"
    return NotAGatewayError(
        f"{reply.endpoint} answered {reply.status}, but not as a guard gateway does: {advice}",
        source="GATEWAY_ERROR",
        endpoint=reply.endpoint,
        retryable=False,
    )


def exception_for(reply: Reply) -> BaseException | None:
    """Return the exception that a reply means for the caller; None for a 2xx status.

    A kill comes back as :class:`WorkflowKilledInterrupt`, which is not an ``Exception``.
    """
    if 200 <= reply.status < 300:
        return None
    problem = reply.problem()
    # A gateway never sends these without an error code, so it is a proxy's or another server's.
    if problem.error_code is None and reply.status in _FOREIGN.get(reply.endpoint, ()):
        return not_a_gateway(reply)
    # The error code decides where the table knows it, else the status alone.
    row = _ROWS.get((reply.status, problem.error_code or "")) or _ROWS.get((reply.status, ""))
    if row is not None:
        return row(reply, problem)
    if reply.status >= 500:
        return _backend(reply, problem)
    return GuardTransportError(
        _says(reply, problem), source="GATEWAY_ERROR", endpoint=reply.endpoint, retryable=False
    )


_FOREIGN: Final[Mapping[str, frozenset[int]]] = {
    CAPABILITIES_PATH: frozenset({403, 404, 405}),
    CONTROL_PATH: frozenset({403, 404, 405}),
    EVENTS_PATH: frozenset({403}),
    GATE_PATH: frozenset({404, 405}),
    LEASE_PATH: frozenset({404, 405}),
}
"""Statuses that a gateway sends only with an error code."""

_MEANING: Final = {
    413: "the request is larger than the gateway, or a proxy before it, takes",
    415: "the gateway takes JSON only",
}


def _says(reply: Reply, problem: Problem) -> str:
    said = problem.reason or problem.detail or problem.title or _MEANING.get(reply.status)
    return f"{reply.endpoint} answered {reply.status}" + (f": {said}" if said else "")


def _details(problem: Problem) -> Mapping[str, object]:
    details: dict[str, object] = dict(problem.details)
    if problem.budget is not None:
        details["budget"] = problem.budget
    return details


def _backend(reply: Reply, problem: Problem) -> BaseException:
    return GuardBackendError(
        _says(reply, problem), endpoint=reply.endpoint, status_code=reply.status
    )


def _protocol(reply: Reply, problem: Problem) -> BaseException:
    return GuardProtocolError(
        _says(reply, problem), min_required_version=problem.min_required_version
    )


def _key_rejected(reply: Reply, problem: Problem) -> BaseException:
    code = problem.error_code if problem.error_code == "GD-A005" else None
    return GuardAuthError(_says(reply, problem), error_code=code, status_code=reply.status)


def _caller_rejected(reply: Reply, problem: Problem) -> BaseException:
    return CallerRejectedError(_says(reply, problem), status_code=reply.status)


def _signature_refused(reply: Reply, problem: Problem) -> BaseException:
    return GuardAuthenticationError(_says(reply, problem))


def _blocked(kind: type[GuardBlockedException]) -> Row:
    def make(reply: Reply, problem: Problem) -> BaseException:
        return kind(
            workflow_id=problem.workflow_id,
            reason=problem.reason or problem.detail or problem.title,
            action=problem.action or "block",
            tool_name=problem.tool_name,
            details=_details(problem),
            status_code=reply.status,
        )

    return make


def _decided(
    kind: type[GuardChainError | GuardConsumeOverbudgetError | GuardWorkflowInactiveError],
) -> Row:
    def make(reply: Reply, problem: Problem) -> BaseException:
        return kind(
            workflow_id=problem.workflow_id,
            reason=problem.reason or problem.detail or problem.title,
            details=_details(problem),
            status_code=reply.status,
        )

    return make


def _killed(reply: Reply, problem: Problem) -> BaseException:
    return WorkflowKilledInterrupt(workflow_id=problem.workflow_id, reason=problem.reason or "")


def _paused(reply: Reply, problem: Problem) -> BaseException:
    wait_ms = problem.resume_after_ms
    return WorkflowPausedException(
        workflow_id=problem.workflow_id,
        reason=problem.reason or "",
        resume_after=None if wait_ms is None else reply.now_s + wait_ms / 1000,
    )


def _rate_limited(reply: Reply, problem: Problem) -> BaseException:
    wait_s = retry_after_s(reply.retry_after, now_s=reply.now_s)
    if wait_s is None and problem.retry_after_ms is not None:
        wait_s = min(problem.retry_after_ms / 1000, RETRY_AFTER_MAX_S)
    body: dict[str, object] = {}
    if problem != Problem():
        body = {
            name: getattr(problem, name)
            for name in ("title", "detail", "error_code", "reason", "workflow_id", "details")
            if getattr(problem, name)
        }
    return RateLimitError(
        _says(reply, problem),
        retry_after=wait_s,
        upgrade_url=problem.upgrade_url,
        body=body,
        endpoint=reply.endpoint,
    )


def _store_failed(reply: Reply, problem: Problem) -> BaseException:
    return GuardRateLimitRedisError(_says(reply, problem))


_ROWS: Final[dict[tuple[int, str], Row]] = {
    (400, "PROTOCOL_TOO_OLD"): _protocol,
    (401, ""): _key_rejected,
    (401, "GD-A001"): _signature_refused,
    (401, "GD-A004"): _caller_rejected,
    (402, ""): _blocked(GuardBudgetError),
    (402, "GD-CH001"): _decided(GuardChainError),
    (403, ""): _blocked(GuardBlockedException),
    (403, "GD-A001"): _signature_refused,
    (403, "GD-A003"): _key_rejected,
    (403, "GD-B004"): _blocked(GuardBudgetError),
    (403, "GD-CH001"): _decided(GuardChainError),
    (403, "GD-T001"): _blocked(GuardToolBlockedError),
    (403, "GD-W002"): _killed,
    (403, "GD-W003"): _paused,
    (403, "GD-W004"): _decided(GuardWorkflowInactiveError),
    (409, ""): _protocol,
    (422, ""): _decided(GuardConsumeOverbudgetError),
    (429, ""): _rate_limited,
    (503, "RATE_LIMIT_STORE"): _store_failed,
    (503, "GD-R002"): _store_failed,
}
