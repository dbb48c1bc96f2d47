"""Spec part 9: versioning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import GuardProtocolError


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@guard.protect
def step() -> str:
    return "ran"


class TestProbe:
    def test_an_old_sdk_at_init(self, scripted: Any) -> None:
        """Part 9: a backend reply 400 PROTOCOL_TOO_OLD raises the protocol error."""
        scripted.answer(
            "/api/v1/capabilities",
            400,
            {"error_code": "PROTOCOL_TOO_OLD", "min_required_version": "99.0.0"},
        )
        with pytest.raises(GuardProtocolError) as refused:
            guard.init("gdk_key", scripted.url)
        assert refused.value.min_required_version == "99.0.0"

    def test_an_old_sdk_by_the_capabilities(self, scripted: Any) -> None:
        """Part 9: probes to validate the v3 contract."""
        scripted.answer(
            "/api/v1/capabilities",
            body={"protocol": 3, "min_sdk_version": "99.0.0", "server": "x"},
        )
        with pytest.raises(GuardProtocolError) as refused:
            guard.init("gdk_key", scripted.url)
        assert refused.value.min_required_version == "99.0.0"
        assert not refused.value.retryable

    def test_the_real_gateway_answers_an_old_protocol_so(self, tenant: Any) -> None:
        """Part 9: 400 PROTOCOL_TOO_OLD, with the version that is needed."""
        import httpx

        reply = httpx.get(
            f"{tenant.url}/api/v1/capabilities",
            headers={"X-API-Key": tenant.key, "X-Guard-Protocol": "2"},
        )
        assert reply.status_code == 400
        assert reply.json()["error_code"] == "PROTOCOL_TOO_OLD"
        assert reply.json()["min_required_version"] == guard.SDK_MIN_VERSION_FOR_V3

    @pytest.mark.parametrize("body", [b"", b"<html>", b"[]", {"server": "x"}])
    def test_something_that_is_no_gateway_is_not_trusted(
        self, scripted: Any, start: Callable[..., GuardRuntime], body: Any
    ) -> None:
        """Part 9: validate the v3 contract; what is not understood is not spoken to as v3."""
        scripted.answer("/api/v1/capabilities", 200, body)
        start(api_url=scripted.url, transport_mode="http")
        assert guard.status().protocol is None


class TestConstant:
    def test_this_sdk_is_new_enough_for_v3(self) -> None:
        """Part 9: the constant SDK_MIN_VERSION_FOR_V3."""
        assert isinstance(guard.SDK_MIN_VERSION_FOR_V3, str)
        assert _numbers(guard.__version__) >= _numbers(guard.SDK_MIN_VERSION_FOR_V3)

    def test_call_context_supplies_real_values_from_0_6_0(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 9: from 0.6.0 set_call_context supplies real values."""
        assert _numbers(guard.__version__) >= (0, 6, 0)
        with guard.workflow("w"):
            guard.set_call_context("gpt-4o", ["search"])
            step()
        (asked,) = scripted.calls("/gate")
        assert (asked.json["model"], asked.json["tools"]) == ("gpt-4o", ["search"])
