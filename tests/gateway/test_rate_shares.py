"""Shares of rate caps: calls that leases allow in advance, never more than the cap in all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from guard.gateway.domain.policy import CapUse
from guard.gateway.storage.memory_rates import MemoryRates
from tests.gateway.conftest import Tenant
from tests.support.asker import ask, asker, call
from tests.support.store import Clock

MINUTE = 60_000
TTL = 30_000
USES = [CapUse("b", 12, MINUTE)]


async def free(rates: MemoryRates) -> int:
    """Use up what is left, and return how much that was."""
    count = 0
    while await rates.take("o", USES) is None:
        count += 1
    return count


@pytest.mark.asyncio
async def test_lent_calls_count_until_they_are_returned() -> None:
    rates = MemoryRates(Clock())
    assert await rates.lend("o", USES, "a", 100, TTL) == 6, "half, for one to come"
    assert await rates.lend("o", USES, "b", 1, TTL) == 1
    await rates.settle("o", "a", 4)
    await rates.settle("o", "a", 4)
    assert await free(rates) == 12 - 2 - 1
    await rates.settle("o", "b", 1)
    assert await free(rates) == 1
    assert await rates.lend("o", USES, "c", 5, TTL) == 0


@pytest.mark.asyncio
async def test_lent_calls_may_be_made_at_the_last_moment() -> None:
    clock = Clock()
    rates = MemoryRates(clock)
    await rates.lend("o", USES, "a", 6, TTL)
    clock.now += TTL + MINUTE - 1
    assert await free(rates) == 6
    clock.now += 1
    assert await free(rates) == 6, "those of the loan are over"


@pytest.mark.asyncio
async def test_a_loan_is_renewed_and_renamed() -> None:
    clock = Clock()
    rates = MemoryRates(clock)
    await rates.lend("o", USES, "question", 6, TTL)
    await rates.extend("o", "question", TTL, "lease")
    clock.now += MINUTE
    await rates.extend("o", "lease", TTL)
    clock.now += MINUTE
    await rates.settle("o", "lease", 3, unless="question")
    assert await free(rates) == 6, "the question is repeated: its own loan stays"
    await rates.settle("o", "lease", 3, unless="another")
    assert await free(rates) == 3


@pytest.mark.asyncio
async def test_a_refused_wait_is_short_while_calls_are_lent() -> None:
    rates = MemoryRates(Clock())
    await rates.lend("o", [CapUse("b", 2, MINUTE)], "a", 1, TTL)
    assert await rates.take("o", [CapUse("b", 1, MINUTE)]) == 1000


# -- over the socket -------------------------------------------------------------------------------


def opened(tenant: Tenant) -> Any:
    return asker(tenant.gateway.base_url, tenant.api_key)


@pytest.mark.asyncio
async def test_leases_carry_a_share_of_the_caps(tenant: Tenant) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, rate_caps=[{"calls": 12}])
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
        # Made are the first, one of its lease, the second and its repeat; three are lent.
        update = {"lease_id": first["lease"]["lease_id"], "calls_left": 3, "close": True}
        await client.ask(ask("c", update, "gate/lease"))
        made = 0
        while (await client.ask(ask(f"d{made}", call(f"d{made}"))))[0][0] == 200:
            made += 1
        assert made == 12 - 4


@pytest.mark.asyncio
async def test_requests_within_a_call_carry_the_share_and_use_none(tenant: Tenant) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, rate_caps=[{"calls": 12}])
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
