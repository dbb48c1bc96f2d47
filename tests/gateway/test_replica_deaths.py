"""One of two replicas is killed again and again, under agents with leases and an operator."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.conftest import Served
from tests.support.private_server import private_postgres  # noqa: F401  # a fixture
from tests.support.replicas import Site, private_dsn, site  # noqa: F401  # fixtures
from tests.support.waiting import until

ORPHANS = 5
"""Calls that a replica has allowed just before it dies, and that nobody ends."""


def leave_orphans(site: Site, served: Served, name: str) -> None:  # noqa: F811
    headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
    for number in range(ORPHANS):
        body = {"call_id": f"{name}-{number}", "kind": "call", "function": "f",
                "workflow_id": "orphans"}  # fmt: skip
        reply = httpx.post(f"{served.base_url}/gate", json=body, headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_agents_and_orders_go_on_at_the_other(site: Site, proof_scale: float) -> None:  # noqa: F811
    deaths = max(1, round(3 * proof_scale))
    pair = [site.replica(), site.replica()]
    site.prepare(reservation_ttl_ms=5_000, lease_ttl_ms=10_000, lease_grace_ms=0)
    site.tell(lambda admin: admin.set_budget(10**6, scope_kind="workflow", scope_id="orphans"))
    site.spend()
    ordered = site.obey("pause-w", *(f"{which}-{n}" for n in range(deaths) for which in "ab"))
    for death in range(deaths):
        dying, staying = pair[death % 2], pair[1 - death % 2]
        until(lambda: site.leased() > 0)
        site.goes_on(20)
        leave_orphans(site, dying, f"orphan-{death}")
        # The last thing that it says is "done".
        site.tell(lambda admin, n=death: admin.kill(f"a-{n}"), at=dying)  # type: ignore[misc]
        site.tell(lambda admin: admin.pause("pause-w"), at=dying)
        site.kill(dying)
        site.balance()
        site.tell(lambda admin, n=death: admin.kill(f"b-{n}"), at=staying)  # type: ignore[misc]
        for workflow in (f"a-{death}", f"b-{death}"):
            ordered.sees(workflow, "killed")
        ordered.sees("pause-w", "paused")
        site.tell(lambda admin: admin.resume("pause-w"), at=staying)
        ordered.sees("pause-w", "running")
        site.goes_on()
        pair[death % 2] = site.replica()
    ends = "SELECT state, count(*) FROM reservations WHERE workflow_id = 'orphans' GROUP BY state"
    until(lambda: site.rows(ends) == [("expired", ORPHANS * deaths)])
    site.check()
