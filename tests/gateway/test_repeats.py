"""The same answer reported twice is one charge; two requests are two, whatever the vendor's ids."""

from __future__ import annotations

from typing import Any

import pytest


def _event(tenant: Any, request_id: str | None = None, response_id: str = "chatcmpl-1") -> Any:
    data = {"provider": "ollama", "response_id": response_id}
    if request_id is not None:
        data["request_id"] = request_id
    return tenant.llm(10, data=data)


def _accepted(tenant: Any, *request_ids: str | None) -> list[int]:
    return [
        tenant.send(_event(tenant, request_id)).json()["accepted"] for request_id in request_ids
    ]


def test_two_requests_are_two_charges_though_the_vendor_repeats_its_ids(tenant: Any) -> None:
    tenant.admin.set_budget(1)
    assert _accepted(tenant, *(f"r{number}" for number in range(50))) == [1] * 50
    assert tenant.balance()["committed"] == 500


def test_the_same_request_is_charged_once(tenant: Any) -> None:
    assert _accepted(tenant, "r1", "r1", "r2", "r1") == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("reports", "accepted"),
    [
        (("r1", None), [1, 0]),  # a poll after the request
        ((None, "r1"), [1, 0]),  # a framework's report came first
        ((None, None), [1, 0]),
        ((None, "r1", "r2", None, "r1"), [1, 0, 1, 0, 0]),
        (("r1", "r2", None), [1, 1, 0]),
    ],
)
def test_a_report_without_a_request_repeats_one(
    tenant: Any, reports: tuple[str | None, ...], accepted: list[int]
) -> None:
    assert _accepted(tenant, *reports) == accepted


def test_another_response_or_provider_is_another_charge(tenant: Any) -> None:
    first = tenant.send(_event(tenant), _event(tenant, response_id="chatcmpl-2")).json()
    assert first["accepted"] == 2
    other = tenant.llm(10, data={"provider": "openai", "response_id": "chatcmpl-1"})
    assert tenant.send(other).json()["accepted"] == 1
