"""PostgreSQL is killed under two replicas, again and again, and comes back."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable

import httpx
import pytest

from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import new_tenant
from tests.gateway.test_database_partitions import REFUSED, recovered
from tests.support.asker import ask, asker, call
from tests.support.private_server import Server, private_postgres  # noqa: F401  # a fixture
from tests.support.replicas import Site, private_dsn, site  # noqa: F401  # fixtures
from tests.support.waiting import until

LEASE_MS = 10_000 if Site.is_patient else 5_000
HELD_MS = 15_000
"""The life of a lease that must not end before the database does."""

AWAY_S = (1.0, 1.5 * LEASE_MS / 1000)
"""Shorter than leases last, and longer."""

AT_ONCE_S = 30.0
"""How long a refusal takes at most; nothing waits, but the machine may be busy."""


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_agents_and_orders_go_on_when_it_is_back(site: Site, proof_scale: float) -> None:  # noqa: F811
    deaths = max(2, round(2 * proof_scale))
    pair = [site.replica(), site.replica()]
    site.prepare(reservation_ttl_ms=3 * LEASE_MS, lease_ttl_ms=LEASE_MS, lease_grace_ms=0)
    site.spend()
    ordered = site.obey("pause-w", *(f"{which}-{n}" for n in range(deaths) for which in "ab"))
    for death in range(deaths):
        until(lambda: site.leased() > 0)
        site.goes_on(20)
        # Its last commit is an order; whoever gave it was told so.
        site.tell(lambda admin, n=death: admin.kill(f"a-{n}"), at=pair[death % 2])  # type: ignore[misc]
        site.server.stop()
        began = time.monotonic()
        for each in pair:
            until(lambda each=each: site.probe(each)[:2] == REFUSED)  # type: ignore[misc]
            *answer, took_s = site.probe(each)
            assert tuple(answer) == REFUSED
            assert took_s < AT_ONCE_S
            assert httpx.get(f"{each.base_url}/readyz", timeout=60).status_code == 503
        time.sleep(max(0.0, began + AWAY_S[death % 2] - time.monotonic()))
        site.server.start()
        for each in pair:
            recovered(site, each)
        ordered.sees(f"a-{death}", "killed")
        site.tell(lambda admin, n=death: admin.kill(f"b-{n}"), at=pair[1 - death % 2])  # type: ignore[misc]
        ordered.sees(f"b-{death}", "killed")
        ordered.sees("pause-w", "running")
        site.goes_on()
    site.check()


@pytest.mark.fault
@pytest.mark.asyncio
async def test_what_a_holder_has_spent_meanwhile_is_still_its_own(
    private_postgres: Server,  # noqa: F811
    private_dsn: str,  # noqa: F811
) -> None:
    """Its lease has ended by the clock while no replica could renew it, or hear what it spent."""
    with run_gateway(private_dsn, sweep_interval_ms=50) as gateway:
        tenant = await asyncio.to_thread(new_tenant, gateway)
        admin = tenant.admin
        await asyncio.to_thread(admin.update_settings, lease_ttl_ms=HELD_MS, lease_grace_ms=0)
        await asyncio.to_thread(admin.set_budget, limit_nanousd=1000)
        price = {"input_per_mtok": 0, "output_per_mtok": 1_000_000}
        await asyncio.to_thread(functools.partial(admin.set_price, "m", **price))
        request = {"kind": "llm", "function": "openai", "model": "m", "max_input_tokens": 0}
        body = call(1, **request, max_output_tokens=0, lease={"demand_nanousd": 1000})
        async with asker(gateway.base_url, tenant.api_key) as holder:
            [(status, reply)] = await holder.ask(ask("h", body))
        assert status == 200
        granted = reply["lease"]["granted_nanousd"]
        assert granted == 500
        await asyncio.to_thread(private_postgres.stop)
        await asyncio.to_thread(tenant.gate)  # it notices
        await asyncio.sleep(HELD_MS / 1000 + 1)  # the lease ends by the clock meanwhile
        await asyncio.to_thread(private_postgres.start)
        more = {**request, "max_output_tokens": 600, "workflow_id": "another"}
        answer = await asyncio.to_thread(_answered, lambda: tenant.gate(**more))
        assert answer.status_code == 402, "the room is the holder's"
        spent = tenant.llm(granted, reservation_id=reply["lease"]["lease_id"])
        assert (await asyncio.to_thread(tenant.send, spent)).status_code == 202
        balance = await asyncio.to_thread(tenant.balance)
        assert (balance["committed"], balance["overshoot"]) == (granted, 0)
        await asyncio.to_thread(until, lambda: tenant.balance()["reserved"] == 0)
        tenant.http.close()
        admin.close()


def _answered(asked: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until the gateway has found its database again."""
    return until(lambda: found if (found := asked()).status_code != 503 else None)
