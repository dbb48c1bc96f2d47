"""Shares of rate caps: calls that leases allow in advance, never more than the cap in all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.conftest import Tenant
from tests.support.asker import ask, asker, call

HOUR_MS = 3_600_000
"""A window that ends in no test, however busy the machine."""


def opened(tenant: Tenant) -> Any:
    return asker(tenant.gateway.base_url, tenant.api_key)


@pytest.mark.asyncio
async def test_leases_carry_a_share_of_the_caps(tenant: Tenant) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, rate_caps=[{"calls": 12, "per_ms": HOUR_MS}])
    lease: dict[str, Any] = {"demand_nanousd": 100, "demand_calls": 4}
    async with opened(tenant) as client:
        [(_, reply)] = await client.ask(ask("a", call(1, lease=lease)))
        assert reply["lease"]["calls"] == 4
        again = {**lease, "lease_id": reply["lease"]["lease_id"], "calls_left": 2}
        [(_, first)] = await client.ask(ask("b", call(2, lease=again)))
        assert first["lease"]["calls"] == 4
        async with opened(tenant) as other:  # as after a lost connection
            [(_, repeat)] = await other.ask(ask("b", call(2, lease=again)))
        assert repeat == first
        # Made are the first, one of its lease, and the second; three are lent.
        update = {"lease_id": first["lease"]["lease_id"], "calls_left": 3, "close": True}
        await client.ask(ask("c", update, "gate/lease"))
        made = 0
        while (await client.ask(ask(f"d{made}", call(f"d{made}"))))[0][0] == 200:
            made += 1
        assert made == 12 - 3


@pytest.mark.asyncio
async def test_requests_within_a_call_carry_the_share_and_use_none(tenant: Tenant) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, rate_caps=[{"calls": 12, "per_ms": HOUR_MS}])
    body = call(1, kind="llm", function="openai", model="gpt-4o", max_input_tokens=1,
                max_output_tokens=1, within="x", lease={"demand_calls": 2})  # fmt: skip
    async with opened(tenant) as client:
        [(_, reply)] = await client.ask(ask("a", body))
        assert reply["lease"]["calls"] == 2


@pytest.mark.asyncio
async def test_calls_that_a_cap_of_tools_counts_get_no_lease(tenant: Tenant) -> None:
    caps = [{"calls": 12, "by": "tool"}, {"calls": 12, "tools": ["pay"]}]
    await asyncio.to_thread(tenant.admin.set_policy, rate_caps=caps[1:])
    lease = {"demand_nanousd": 100, "demand_calls": 4}
    async with opened(tenant) as client:
        answers = await client.ask(
            ask("a", call(1, lease=lease, tool_name="pay")), ask("b", call(2, lease=lease))
        )
        assert ["lease" in reply for _, reply in answers] == [False, True]
        assert "calls" not in answers[1][1]["lease"]
        await asyncio.to_thread(tenant.admin.set_policy, rate_caps=caps[:1])
        [(_, reply)] = await client.ask(ask("c", call(3, lease=lease)))
        assert "lease" not in reply
