"""The gateway's statuses to exceptions: each row of the protocol's table, and everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.breaker import exceptions as tree
from guard.transport.replies import Reply, exception_for

NOW_S = 1_800_000_000.0


def answered(
    status: int, problem: dict[str, Any] | bytes = b"", retry_after: str | None = None
) -> BaseException | None:
    body = problem if isinstance(problem, bytes) else json.dumps(problem).encode()
    return exception_for(Reply("/gate", status, body, retry_after=retry_after, now_s=NOW_S))


ROWS = [
    (400, "PROTOCOL_TOO_OLD", tree.GuardProtocolError, "GD-P001"),
    (401, None, tree.GuardAuthError, "GD-A003"),
    (401, "GD-A003", tree.GuardAuthError, "GD-A003"),
    (401, "GD-A001", tree.GuardAuthenticationError, "GD-A001"),
    (403, "GD-A001", tree.GuardAuthenticationError, "GD-A001"),
    (402, None, tree.GuardBudgetError, "GD-B004"),
    (402, "GD-B004", tree.GuardBudgetError, "GD-B004"),
    (402, "GD-CH001", tree.GuardChainError, "GD-CH001"),
    (403, "GD-T001", tree.GuardToolBlockedError, "GD-T001"),
    (403, "GD-W002", tree.WorkflowKilledInterrupt, "GD-W002"),
    (403, "GD-W003", tree.WorkflowPausedException, "GD-W003"),
    (403, "GD-W004", tree.GuardWorkflowInactiveError, "GD-W004"),
    (403, "GD-X001", tree.GuardBlockedException, "GD-X001"),
    (403, None, tree.GuardBlockedException, "GD-X001"),
    (409, None, tree.GuardProtocolError, "GD-P001"),
    (413, None, tree.GuardTransportError, "GD-B001"),
    (415, None, tree.GuardTransportError, "GD-B001"),
    (422, None, tree.GuardConsumeOverbudgetError, "GD-O001"),
    (429, None, tree.RateLimitError, "GD-R001"),
    (503, "RATE_LIMIT_STORE", tree.GuardRateLimitRedisError, "GD-R002"),
    (503, "GD-R002", tree.GuardRateLimitRedisError, "GD-R002"),
    (500, None, tree.GuardBackendError, "GD-B002"),
    (502, None, tree.GuardBackendError, "GD-B002"),
    (503, None, tree.GuardBackendError, "GD-B002"),
    (504, None, tree.GuardBackendError, "GD-B002"),
    (599, None, tree.GuardBackendError, "GD-B002"),
]


@pytest.mark.parametrize(("status", "code", "kind", "error_code"), ROWS)
def test_each_row_of_the_table(
    status: int, code: str | None, kind: type[Any], error_code: str
) -> None:
    problem = {"title": "No.", "reason": "because"} | ({"error_code": code} if code else {})
    exc: Any = answered(status, problem)
    assert type(exc) is kind
    assert exc.error_code == error_code


@pytest.mark.parametrize(("status", "code", "kind", "error_code"), ROWS)
@pytest.mark.parametrize("damage", [{"details": None}, {"title": 5}, {"retry_after_ms": 10**400}])
def test_each_row_with_a_damaged_member(
    status: int, code: str | None, kind: type[Any], error_code: str, damage: dict[str, object]
) -> None:
    """The code decides (a kill is a kill), whatever else is wrong with the document."""
    exc: Any = answered(status, damage | ({"error_code": code} if code else {}))
    assert type(exc) is kind
    assert exc.error_code == error_code


DEFAULTS = {
    400: tree.GuardTransportError, 401: tree.GuardAuthError, 402: tree.GuardBudgetError,
    403: tree.GuardBlockedException, 404: tree.GuardTransportError, 409: tree.GuardProtocolError,
    418: tree.GuardTransportError, 422: tree.GuardConsumeOverbudgetError,
    429: tree.RateLimitError, 500: tree.GuardBackendError, 503: tree.GuardBackendError,
    301: tree.GuardTransportError, 302: tree.GuardTransportError, 304: tree.GuardTransportError,
    100: tree.GuardTransportError, 199: tree.GuardTransportError, 999: tree.GuardBackendError,
    0: tree.GuardTransportError,
}  # fmt: skip


@pytest.mark.parametrize(("status", "kind"), DEFAULTS.items())
@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b"5", b'"GD-W002"', b"{}", b'{"error_code": "GD-Z999"}',
        b'{"error_code": null}', b'{"error_code": 7}', b'{"error_code": ["GD-W002"]}',
        b'{"error_code": ""}', b"<html><h1>502 Bad Gateway</h1></html>", b"\xff\xfe",
        b'{"error_code": "GD-W002"', b"[" * 10_000,
    ],
)  # fmt: skip
def test_without_a_known_code_the_status_decides(status: int, kind: type[Any], body: bytes) -> None:
    assert type(answered(status, body)) is kind


problem_members = st.fixed_dictionaries(
    {},
    optional={
        name: st.none() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
        for name in ("title", "detail", "status", "reason", "action", "workflow_id", "tool_name",
                     "details", "retry_after_ms", "resume_after_ms", "min_required_version",
                     "upgrade_url", "server_time_ms", "budget", "events")
    }
    | {"error_code": st.sampled_from([row[1] for row in ROWS]) | st.text(max_size=8)},
)  # fmt: skip


@given(
    st.integers(0, 999).filter(lambda status: not 200 <= status < 300),
    problem_members.map(lambda members: json.dumps(members).encode()) | st.binary(max_size=60),
    st.none() | st.text(max_size=40),
)
def test_no_answer_but_a_2xx_is_ever_an_allow(
    status: int, body: bytes, retry_after: str | None
) -> None:
    exc = answered(status, body, retry_after)
    assert isinstance(exc, tree.GuardError | tree.WorkflowKilledInterrupt)
    assert str(exc)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_2xx_is_no_exception(status: int) -> None:
    assert answered(status, b"<html>") is None


def test_a_block_tells_everything_that_the_gateway_said() -> None:
    exc = answered(
        403,
        {"error_code": "GD-T001", "workflow_id": "w", "reason": "no shells", "action": "block",
         "tool_name": "shell", "details": {"policy": "p1"}},
    )  # fmt: skip
    assert isinstance(exc, tree.GuardToolBlockedError)
    assert (exc.workflow_id, exc.reason, exc.action) == ("w", "no shells", "block")
    assert (exc.tool_name, exc.details, exc.status_code) == ("shell", {"policy": "p1"}, 403)


def test_a_budget_refusal_carries_the_budget() -> None:
    budget = {
        "limit_nanousd": 10, "spent_nanousd": 10, "reserved_nanousd": 0, "remaining_nanousd": 0,
        "limit_cents": 1e-6, "spent_cents": 1e-6, "reserved_cents": 0.0, "remaining_cents": 0.0,
    }  # fmt: skip
    exc = answered(402, {"budget": budget, "details": {"scope": "org"}})
    assert isinstance(exc, tree.GuardBudgetError)
    assert exc.status_code == 402
    assert exc.details["scope"] == "org"
    assert exc.details["budget"].limit_nanousd == 10


def test_a_kill_names_the_workflow() -> None:
    exc = answered(403, {"error_code": "GD-W002", "workflow_id": "w", "reason": "runaway"})
    assert isinstance(exc, tree.WorkflowKilledInterrupt)
    assert (exc.workflow_id, exc.reason) == ("w", "runaway")


@pytest.mark.parametrize(
    ("wait_ms", "resume_after"), [(None, None), (1500, NOW_S + 1.5), (0, NOW_S), (-5, None)]
)
def test_a_pause_tells_when_it_lifts_itself(
    wait_ms: int | None, resume_after: float | None
) -> None:
    exc = answered(403, {"error_code": "GD-W003", "resume_after_ms": wait_ms})
    assert isinstance(exc, tree.WorkflowPausedException)
    assert exc.resume_after == resume_after


def test_a_protocol_error_tells_the_version_to_upgrade_to() -> None:
    """Spec part 9: 400 PROTOCOL_TOO_OLD raises the protocol error."""
    exc = answered(400, {"error_code": "PROTOCOL_TOO_OLD", "min_required_version": "9.1"})
    assert isinstance(exc, tree.GuardProtocolError)
    assert exc.min_required_version == "9.1"
    assert not exc.retryable


@pytest.mark.parametrize(
    ("header", "member_ms", "expected"),
    [
        ("7", None, 7.0),
        ("7", 2000, 7.0),
        (None, 2500, 2.5),
        (None, None, None),
        ("soon", 2500, 2.5),
        ("nan", None, None),
        (None, 10**9, 300.0),
        (None, 10**400, None),
        (None, -1, None),
        ("Fri, 15 Jan 2027 08:00:10 GMT", None, 10.0),
    ],
)
def test_a_rate_cap_tells_how_long_to_wait(
    header: str | None, member_ms: int | None, expected: float | None
) -> None:
    exc = answered(429, {"retry_after_ms": member_ms, "upgrade_url": "https://x/up"}, header)
    assert isinstance(exc, tree.RateLimitError)
    assert exc.retry_after == expected
    assert exc.upgrade_url == "https://x/up"
    assert exc.retryable


def test_a_rate_caps_body_is_what_the_gateway_said() -> None:
    exc = answered(429, {"title": "Slow down", "reason": "60 calls a minute", "details": {"n": 60}})
    assert isinstance(exc, tree.RateLimitError)
    assert exc.body == {
        "title": "Slow down", "reason": "60 calls a minute", "details": {"n": 60}
    }  # fmt: skip
    empty = answered(429)
    assert isinstance(empty, tree.RateLimitError)
    assert empty.body == {}


@pytest.mark.parametrize("status", [400, 404, 413, 415, 302, 418])
def test_what_would_only_be_refused_again_is_not_retried(status: int) -> None:
    exc = answered(status)
    assert isinstance(exc, tree.GuardTransportError)
    assert not exc.retryable
    assert (exc.source, exc.endpoint) == ("GATEWAY_ERROR", "/gate")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_may_be_retried(status: int) -> None:
    exc = answered(status)
    assert isinstance(exc, tree.GuardBackendError)
    assert exc.retryable
    assert (exc.status_code, exc.source, exc.endpoint) == (status, "GATEWAY_ERROR", "/gate")


def test_a_replys_body_is_not_in_its_repr() -> None:
    assert "canary" not in repr(Reply("/gate", 200, b"canary"))
