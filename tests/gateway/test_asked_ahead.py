"""Leases that are topped up before a call has to wait: judged like a call, counted as none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.conftest import Tenant
from tests.support.asker import Asker, ask, asker, call

LIMIT = 1_000_000
pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def long_leases(tenant: Tenant) -> None:
    """Nobody renews the leases here, however long a busy machine takes."""
    tenant.admin.update_settings(lease_ttl_ms=3_600_000)


async def admin(method: Any, *args: Any, **fields: Any) -> Any:
    return await asyncio.to_thread(method, *args, **fields)


def opened(tenant: Tenant) -> Any:
    return asker(tenant.gateway.base_url, tenant.api_key)


def request(number: object, **fields: Any) -> dict[str, Any]:
    return call(number, kind="llm", function="openai", model="gpt-4o", max_input_tokens=0,
                max_output_tokens=1, workflow_id="w", **fields)  # fmt: skip


async def granted(client: Asker, demand: int = 100_000, **fields: Any) -> str:
    """Have a lease granted by a call's own question; return its id."""
    question = request("own", lease={"demand_nanousd": demand}, **fields)
    [(status, reply)] = await client.ask(ask("own", question))
    assert status == 200, reply
    return str(reply["lease"]["lease_id"])


async def ahead(
    client: Asker, lease_id: str, number: int = 1, demand: int = 50_000, **fields: Any
) -> tuple[int, Any]:
    lease = {"lease_id": lease_id, "demand_nanousd": demand, "ahead": True}
    question = request(f"ahead-{number}", lease=lease, **fields)
    [answer] = await client.ask(ask(f"ahead-{number}", question))
    return answer


async def reserved(tenant: Tenant) -> int:
    found = await admin(tenant.admin.ledger)
    return int(
        next(each for each in found if each["scope_kind"] == "organisation")["reserved_nanousd"]
    )


async def test_it_adds_the_demand_or_a_share_of_the_room(tenant: Tenant) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=LIMIT)
    async with opened(tenant) as client:
        lease_id = await granted(client)
        status, reply = await ahead(client, lease_id)
        assert (status, reply["lease"]["lease_id"]) == (200, lease_id)
        assert reply["lease"]["granted_nanousd"] == 50_000
        assert await reserved(tenant) == 150_000
        _, reply = await ahead(client, lease_id, 2, demand=10 * LIMIT)
        assert reply["lease"]["granted_nanousd"] == 850_000 // 2
        assert await reserved(tenant) == 150_000 + 425_000


async def test_it_counts_as_no_call(tenant: Tenant) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=LIMIT)
    async with opened(tenant) as client:
        lease_id = await granted(client)
        before = await admin(tenant.admin.workflow, "w")
        await ahead(client, lease_id)
        await admin(tenant.admin.set_policy, models_block=["gpt-4o"])
        status, _ = await ahead(client, lease_id, 2)
        assert status == 403
        after = await admin(tenant.admin.workflow, "w")
        assert after == before, "neither a call nor a refusal"


@pytest.mark.parametrize("what", ["kill", "budget", "price", "chain"])
async def test_it_is_refused_like_a_call(tenant: Tenant, what: str) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=LIMIT)
    chain: dict[str, Any] = {"chain": {"id": "c", "op": "start"}} if what == "chain" else {}
    async with opened(tenant) as client:
        lease_id = await granted(client, **chain)
        if what == "kill":
            await admin(tenant.admin.kill, "w")
        elif what == "budget":
            await admin(tenant.admin.set_budget, limit_nanousd=100_000)
        elif what == "price":
            await admin(tenant.admin.set_policy, models_block=["gpt-4o"])
        else:
            await admin(tenant.admin.set_budget, limit_nanousd=100_000)
            end = request("end", chain={"id": "c", "op": "end"})
            await client.ask(ask("end", end))
        held = await reserved(tenant)
        status, problem = await ahead(client, lease_id, **chain)
        assert status == {"kill": 403, "price": 403}.get(what, 402), problem
        assert await reserved(tenant) == held


async def test_a_new_budget_wants_a_question_of_its_own(tenant: Tenant) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=LIMIT)
    async with opened(tenant) as client:
        lease_id = await granted(client)
        await admin(
            tenant.admin.set_budget, limit_nanousd=LIMIT, scope_kind="workflow", scope_id="w"
        )
        status, problem = await ahead(client, lease_id)
        assert (status, problem["error_code"]) == (404, "GD-N001")


async def test_a_lease_that_is_closed_is_not_topped_up(tenant: Tenant) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=LIMIT)
    async with opened(tenant) as client:
        lease_id = await granted(client)
        close = {"lease_id": lease_id, "unused_nanousd": 100_000, "close": True}
        await client.ask(ask("close", close, "gate/lease"))
        status, _ = await ahead(client, lease_id)
        assert status == 404
        assert await reserved(tenant) == 0


async def test_what_is_counted_or_asks_a_person_is_not_topped_up(tenant: Tenant) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=10**10)
    async with opened(tenant) as client:
        question = call("own", tool_name="wire", lease={"demand_nanousd": 1000})
        [(_, reply)] = await client.ask(ask("own", question))
        lease = {
            "lease_id": reply["lease"]["lease_id"], "demand_nanousd": 1000, "ahead": True
        }  # fmt: skip
        policies: list[dict[str, Any]] = [
            {"approval_tools": ["wire"]},
            {"sensitive_tools": ["wire"]},
            {"rate_caps": [{"calls": 1}]},
        ]
        for number, policy in enumerate(policies):
            await admin(tenant.admin.set_policy, **policy)
            for each in range(3):
                question = call(f"{number}-{each}", tool_name="wire", lease=lease)
                [(status, answer)] = await client.ask(ask(f"{number}-{each}", question))
                assert status == 404, (policy, answer)
        assert await admin(tenant.admin.approvals) == []
        # The cap of one call has not been touched.
        [(status, _)] = await client.ask(ask("capped", call("capped", tool_name="wire")))
        assert status == 200


@pytest.mark.usefixtures("patient_recalls")
async def test_nothing_is_added_while_a_refusal_waits_for_what_a_lease_does_not_use(
    tenant: Tenant,
) -> None:
    await admin(tenant.admin.set_budget, limit_nanousd=LIMIT)
    async with opened(tenant) as holder, opened(tenant) as other:
        lease_id = await granted(holder, 400_000)
        body = request("o", lease={"demand_nanousd": 1})
        body.update(workflow_id="b", max_output_tokens=90)
        asking = asyncio.create_task(other.ask(ask("o", body)))
        while not any(message["type"] == "recall" for message in holder.pushed):
            await holder.read()
        status, _ = await ahead(holder, lease_id)
        assert status == 404
        update = {"lease_id": lease_id, "unused_nanousd": 390_000}
        await holder.ask(ask("u", update, "gate/lease"))
        [(status, reply)] = await asking
        assert (status, reply["reserved_nanousd"]) == (200, 900_000)
