"""Lines at several replicas: money that comes back at one is heard of by who waits at another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from guard.gateway.services.waiting_line import WaitingLine
from tests.gateway.conftest import Tenant
from tests.gateway.test_replicas import database, replicas, tenants  # noqa: F401  # fixtures
from tests.support.asker import Asker, ask, asker, call
from tests.support.waiting import WAIT_S, until_async

pytestmark = pytest.mark.usefixtures("lasting_places")

TOKEN: Final = 10_000
"""What a token of an answer costs, in nano-dollars."""


def request(name: str, output: int, **fields: Any) -> dict[str, Any]:
    return call(name, kind="llm", function="openai", model="gpt-4o", max_input_tokens=0,
                max_output_tokens=output, **fields)  # fmt: skip


def line_of(tenant: Tenant) -> WaitingLine:
    return tenant.gateway._server.app._line  # type: ignore[union-attr]


async def hears_of_waiting(tenant: Tenant) -> None:
    await until_async(lambda: line_of(tenant).awaited(tenant.organisation_id))


async def pushed(client: Asker, is_it: Callable[[dict[str, Any]], bool]) -> None:
    """Read until a message has come; pings come all the time."""
    async with asyncio.timeout(WAIT_S):
        while not any(is_it(message) for message in client.pushed):
            await client.read()


async def wait(client: Asker, number: int, **fields: Any) -> dict[str, Any]:
    """Ask for the one call that does not fit, under another key each time."""
    body = request("waits", 100, wait_ms=600_000, workflow_id="b", **fields)
    [(status, reply)] = await client.ask(ask(f"w{number}", body))
    assert (status, reply["decision"]) == (200, "waiting")
    return dict(reply)


@pytest.mark.asyncio
async def test_money_that_comes_back_at_one_wakes_who_waits_at_the_other(
    tenants: list[Tenant],  # noqa: F811
) -> None:
    """And their wait begins anew, although it is too little for them."""
    a, b = tenants
    await asyncio.to_thread(a.admin.set_budget, limit_nanousd=180 * TOKEN)
    async with (
        asker(a.gateway.base_url, a.api_key) as holder,
        asker(b.gateway.base_url, b.api_key) as other,
    ):
        [_, (_, small)] = await holder.ask(ask("1", request("1", 150)), ask("2", request("2", 30)))
        idle_ms, number = 0, 0
        while idle_ms < 1500:
            number += 1
            idle_ms = (await wait(other, number))["idle_ms"]
            await asyncio.sleep(0.1)
        await hears_of_waiting(a)
        began_s = time.monotonic()
        [(status, _)] = await holder.ask(
            ask("r", {"reservation_id": small["reservation_id"]}, "gate/release")
        )
        assert status == 200
        await pushed(other, lambda message: "call-waits" in message.get("calls", ()))
        anew_ms = (await wait(other, number + 1))["idle_ms"]
        passed_ms = (time.monotonic() - began_s) * 1000
        assert anew_ms < idle_ms / 2 + passed_ms, "counted from when it came back"


@pytest.mark.asyncio
async def test_leases_at_one_are_in_return_mode_while_somebody_waits_at_the_other(
    tenants: list[Tenant],  # noqa: F811
) -> None:
    a, b = tenants
    await asyncio.to_thread(a.admin.set_budget, limit_nanousd=180 * TOKEN)
    async with (
        asker(a.gateway.base_url, a.api_key) as holder,
        asker(b.gateway.base_url, b.api_key) as other,
    ):
        lease = {"demand_nanousd": 100 * TOKEN}
        [(_, first)] = await holder.ask(ask("h", request("h", 90, workflow_id="a", lease=lease)))
        assert not first["lease"].get("returns_ms")
        await wait(other, 1)
        await pushed(holder, lambda message: message.get("returns_ms", 0) > 0)
        await hears_of_waiting(a)
        lease = {"lease_id": first["lease"]["lease_id"], "demand_nanousd": 60 * TOKEN}
        [(_, more)] = await holder.ask(ask("m", request("m", 5, workflow_id="a", lease=lease)))
        assert more["lease"]["returns_ms"] > 0
        assert more["lease"]["granted_nanousd"] == 5 * TOKEN, "no more than the call needs"
