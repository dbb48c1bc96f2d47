"""Spec part 7: wire statuses to exceptions, row by row, and replies that are no answer at all."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import (
    GuardAuthenticationError,
    GuardAuthError,
    GuardBackendError,
    GuardBlockedException,
    GuardBudgetError,
    GuardChainError,
    GuardConsumeOverbudgetError,
    GuardError,
    GuardProtocolError,
    GuardRateLimitRedisError,
    GuardToolBlockedError,
    GuardTransportError,
    GuardWorkflowInactiveError,
    RateLimitError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from tests.guard.conformance.conftest import CONTROL
from tests.support.waiting import until

HTML = b"<!doctype html><html><body>Bad gateway</body></html>"
PROBLEM: dict[str, Any] = {
    "type": "about:blank",
    "title": "Refused",
    "detail": "the detail",
    "reason": "the reason",
    "action": "block",
    "workflow_id": "w",
    "tool_name": "t",
    "details": {"policy": "p"},
}
ROWS: list[tuple[int, str | None, type[BaseException], str]] = [
    (400, "PROTOCOL_TOO_OLD", GuardProtocolError, "GD-P001"),
    (401, None, GuardAuthError, "GD-A003"),
    (401, "GD-A003", GuardAuthError, "GD-A003"),
    (401, "GD-A001", GuardAuthenticationError, "GD-A001"),
    (402, None, GuardBudgetError, "GD-B004"),
    (402, "GD-B004", GuardBudgetError, "GD-B004"),
    (402, "GD-CH001", GuardChainError, "GD-CH001"),
    (403, None, GuardBlockedException, "GD-X001"),
    (403, "GD-X001", GuardBlockedException, "GD-X001"),
    (403, "GD-T001", GuardToolBlockedError, "GD-T001"),
    (403, "GD-W004", GuardWorkflowInactiveError, "GD-W004"),
    (403, "GD-W003", WorkflowPausedException, "GD-W003"),
    (403, "GD-W002", WorkflowKilledInterrupt, "GD-W002"),
    (403, "GD-A001", GuardAuthenticationError, "GD-A001"),
    (409, None, GuardProtocolError, "GD-P001"),
    (413, None, GuardTransportError, "GD-B001"),
    (415, None, GuardTransportError, "GD-B001"),
    (422, None, GuardConsumeOverbudgetError, "GD-O001"),
    (429, None, RateLimitError, "GD-R001"),
    (500, None, GuardBackendError, "GD-B002"),
    (502, None, GuardBackendError, "GD-B002"),
    (503, None, GuardBackendError, "GD-B002"),
    (503, "RATE_LIMIT_STORE", GuardRateLimitRedisError, "GD-R002"),
    (599, None, GuardBackendError, "GD-B002"),
    (404, None, GuardTransportError, "GD-B001"),
    (418, "GD-NEW-99", GuardTransportError, "GD-B001"),
]
SPOILT: dict[str, Any] = {
    "empty": b"",
    "HTML": HTML,
    "not an object": b"[1,2]",
    "not UTF-8": b'{"title": "\xff"}',
    "cut short": b'{"title": "Re',
    "deep": b"[" * 10_000,
    "wrong types": dict.fromkeys(PROBLEM, 17) | {"retry_after_ms": "soon"},
    "no members": {},
    "unknown members": {"surprise": True},
}


@guard.protect
def step() -> str:
    return "ran"


def _refused() -> BaseException:
    with pytest.raises((GuardError, WorkflowKilledInterrupt)) as raised:
        step()
    return raised.value


@pytest.fixture(autouse=True)
def _runtime(scripted: Any, start: Callable[..., GuardRuntime]) -> None:
    start(
        api_url=scripted.url,
        transport_mode="http",
        flush_interval_ms=3_600_000,
    )


class TestStatuses:
    @pytest.mark.parametrize(("status", "code", "kind", "error_code"), ROWS)
    def test_row(
        self, scripted: Any, status: int, code: str | None, kind: type[Any], error_code: str
    ) -> None:
        """Part 7, table, and protocol, statuses: one exception for each row."""
        scripted.answer("/gate", status, {**PROBLEM, "status": status, "error_code": code})
        error: Any = _refused()
        assert kind in type(error).__mro__[:2]  # it, or a private kind of it
        assert error.error_code == error_code
        for name, value in (("workflow_id", "w"), ("reason", "the reason"), ("tool_name", "t")):
            if hasattr(error, name) and not isinstance(error, WorkflowPausedException):
                assert getattr(error, name) == value
        if hasattr(error, "status_code"):
            assert error.status_code == status

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (401, GuardAuthError),
            (402, GuardBudgetError),
            (403, GuardBlockedException),
            (422, GuardConsumeOverbudgetError),
            (429, RateLimitError),
        ],
    )
    def test_the_status_alone_is_enough(self, scripted: Any, status: int, kind: type[Any]) -> None:
        """Part 7, wire statuses: also when the document that explains them is unusable."""
        for name, body in SPOILT.items():
            scripted.answer("/gate", status, body)
            error = _refused()
            assert type(error) is kind, name
            assert guard.format_user_message(error)

    def test_one_bad_member_does_not_hide_the_others(self, scripted: Any) -> None:
        """Part 7: what can be used of a document is used."""
        scripted.answer("/gate", 403, {**PROBLEM, "error_code": "GD-T001", "details": "oops"})
        error = _refused()
        assert isinstance(error, GuardToolBlockedError)
        assert error.tool_name == "t"

    def test_protocol_too_old(self, scripted: Any) -> None:
        """Part 7 and 9: has min_required_version; upgrade the SDK."""
        for path in ("/gate", CONTROL):  # a poll that succeeds would say that all is well
            scripted.answer(
                path, 400, {"error_code": "PROTOCOL_TOO_OLD", "min_required_version": "9.1.0"}
            )
        error = _refused()
        assert isinstance(error, GuardProtocolError)
        assert error.min_required_version == "9.1.0"
        assert "pgrade" in error.user_action
        until(lambda: guard.status().state == "misconfigured")

    @pytest.mark.parametrize(
        ("wait_ms", "expected"), [(None, None), (60_000, 60.0), ("soon", None), (-5, None)]
    )
    def test_a_pause_may_carry_when_it_ends(
        self, scripted: Any, wait_ms: Any, expected: float | None
    ) -> None:
        """Part 3 and 7: resume_after."""
        scripted.answer("/gate", 403, {"error_code": "GD-W003", "resume_after_ms": wait_ms})
        error = _refused()
        assert isinstance(error, WorkflowPausedException)
        if expected is None:
            assert error.resume_after is None
        else:
            assert error.resume_after == pytest.approx(time.time() + expected, abs=30)


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "expected"),
        [
            ("7", 7.0),
            ("0", 0.0),
            ("1.5", 1.5),
            ("999999999", 300.0),
            ("soon", None),
            ("-5", None),
            ("inf", None),
            ("nan", None),
            ("", None),
        ],
    )
    def test_in_seconds(self, scripted: Any, header: str, expected: float | None) -> None:
        """Part 7: RateLimitError has retry_after; rule 3: callers wait it before retrying."""
        scripted.answer("/gate", 429, {}, Retry_After=header)
        error = _refused()
        assert isinstance(error, RateLimitError)
        assert error.retry_after == expected

    def test_as_a_date(self, scripted: Any) -> None:
        """Part 7: retry_after, from a date."""
        header = email.utils.formatdate(time.time() + 60, usegmt=True)
        scripted.answer("/gate", 429, {}, Retry_After=header)
        error = _refused()
        assert isinstance(error, RateLimitError)
        assert error.retry_after == pytest.approx(60, abs=30)

    def test_from_the_document(self, scripted: Any) -> None:
        """Part 7: retry_after, upgrade_url, body."""
        scripted.answer(
            "/gate",
            429,
            {
                "title": "Rate cap",
                "retry_after_ms": 2500,
                "upgrade_url": "https://x.example/up",
                "details": {"cap": 3},
            },
        )
        error = _refused()
        assert isinstance(error, RateLimitError)
        assert (error.retry_after, error.upgrade_url) == (2.5, "https://x.example/up")
        assert error.body["title"] == "Rate cap"
        assert error.body["details"] == {"cap": 3}

    def test_a_rate_cap_is_not_retried_by_itself(self, scripted: Any) -> None:
        """Part 7, rule 3: callers wait; the SDK does not hammer."""
        scripted.answer("/gate", 429, {}, Retry_After="1")
        _refused()
        assert len(scripted.calls("/gate")) == 1


ALLOW = {"decision": "allow", "call_id": "another"}
NO_ANSWER: dict[str, tuple[int, Any]] = {
    "empty": (200, b""),
    "HTML": (200, HTML),
    "an array": (200, b"[]"),
    "a string": (200, b'"allow"'),
    "null": (200, b"null"),
    "no members": (200, {}),
    "no call_id": (200, {"decision": "allow"}),
    "another call": (200, ALLOW),
    "unknown decision": (200, {"decision": "perhaps", "call_id": "x"}),
    "decision of a wrong type": (200, {"decision": True, "call_id": "x"}),
    "not UTF-8": (200, b'{"decision":"allow\xff"}'),
    "deep": (200, b"[" * 100_000),
    "no content": (204, b""),
    "created, with HTML": (201, HTML),
    "a redirect": (302, b""),
}


class TestNoAnswer:
    @pytest.mark.parametrize("name", NO_ANSWER)
    def test_is_never_read_as_allow(self, scripted: Any, name: str) -> None:
        """Protocol, statuses: no answer, bad JSON, wrong type: GuardTransportError."""
        status, body = NO_ANSWER[name]
        scripted.answer("/gate", status, body)
        error = _refused()
        assert isinstance(error, GuardTransportError)
        assert error.source == "GATEWAY_ERROR"
        assert error.endpoint == "/gate"

    def test_an_oversized_reply(self, scripted: Any) -> None:
        """Protocol: a reply is read up to a cap."""
        scripted.answer("/gate", 200, b'{"x":"' + b"y" * 10_000_000 + b'"}')
        error = _refused()
        assert isinstance(error, GuardTransportError)
        assert len(str(error)) < 500

    def test_a_decompression_bomb(self, scripted: Any) -> None:
        """Protocol: counted after decompression."""
        import gzip

        bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
        assert len(bomb) < 100_000
        scripted.answer("/gate", 200, bomb, Content_Encoding="gzip")
        assert isinstance(_refused(), GuardTransportError)

    def test_what_is_not_gzip_though_it_says_so(self, scripted: Any) -> None:
        """Protocol: not an answer."""
        scripted.answer("/gate", 200, b"not gzip", Content_Encoding="gzip")
        assert isinstance(_refused(), GuardTransportError)

    def test_the_text_does_not_repeat_the_reply(self, scripted: Any) -> None:
        """Part 7 (security): what came back is described, not quoted."""
        scripted.answer("/gate", 200, {"decision": "canary-value", "call_id": "x"})
        assert "canary" not in str(_refused())


class TestNetwork:
    def test_no_gateway_is_a_network_error(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 7: gateway unreachable; retryable; source and endpoint."""
        guard.shutdown(flush=False)
        start(api_url="http://127.0.0.1:1", timeout_ms=500, transport_mode="websocket")
        error = _refused()
        assert isinstance(error, GuardTransportError)
        assert (error.source, error.endpoint) == ("NETWORK_ERROR", "/gate")
        assert error.retryable

    def test_a_breaker_that_is_open(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 7: source BREAKER_OPEN (semantics: GD-B005)."""
        guard.shutdown(flush=False)
        start(api_url="http://127.0.0.1:1", timeout_ms=500)
        for _ in range(20):
            error = _refused()
            assert isinstance(error, GuardTransportError)
            if error.source == "BREAKER_OPEN":
                break
        assert error.error_code == "GD-B005"
        # Half open for the moment in which it is tried again.
        until(lambda: (s := guard.status()).breaker == "open" and s.state == "offline")

    def test_a_gateway_that_hangs_is_given_up_at_the_deadline(
        self, proxy: Any, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Semantics, Settings: GUARD_TIMEOUT_MS is a total deadline."""
        guard.shutdown(flush=False)
        start(api_url=proxy.url, api_key=tenant.key, timeout_ms=400)
        proxy.fault = "hang"
        error = _refused()
        assert isinstance(error, GuardTransportError)
        assert error.source == "NETWORK_ERROR"
        proxy.fault = "none"
