"""Replicas that cannot reach their PostgreSQL: it is silent, or refuses them, and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.conftest import Served, cases
from tests.support.private_server import private_postgres  # noqa: F401  # a fixture
from tests.support.proxy import ChaosProxy
from tests.support.replicas import (  # noqa: F401  # some are fixtures
    Site,
    private_dsn,
    site,
    socket_of,
    through,
)
from tests.support.waiting import until

REFUSED = (503, "GD-R002")
NOTICED_S = 40
"""A silent database is noticed within 5 seconds, or 15; the rest is for a busy machine."""

LEASE_MS = 10_000 if Site.is_patient else 6_000
AWAY_MS = max(Site.silence_ms, 3 * LEASE_MS // 2)


@pytest.fixture
def lines(private_dsn: str) -> Iterator[list[ChaosProxy]]:  # noqa: F811
    """What stands between each of two replicas and the database."""
    made = [ChaosProxy(socket_of(private_dsn)) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def heal(line: ChaosProxy) -> None:
    """Let new connections through; those that were open stay silent for ever."""
    line.strand()
    line.fault = "none"


def refused(site: Site, served: Served) -> None:  # noqa: F811
    """A replica refuses calls, soon after it has noticed, and says that it is not ready."""
    until(lambda: site.probe(served)[:2] == REFUSED, NOTICED_S)
    for _ in range(3):
        *answer, took_s = site.probe(served)
        assert tuple(answer) == REFUSED
        assert took_s < NOTICED_S / 2
    assert httpx.get(f"{served.base_url}/readyz", timeout=60).status_code == 503
    assert httpx.get(f"{served.base_url}/healthz", timeout=60).status_code == 200


def recovered(site: Site, served: Served) -> None:  # noqa: F811
    until(lambda: site.probe(served)[0] == 200)
    url = f"{served.base_url}/readyz"
    until(lambda: httpx.get(url, timeout=60).status_code == 200)


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", cases(["hang"], ["partition", "refuse"]))
def test_one_replica_is_cut_off(site: Site, lines: list[ChaosProxy], kind: str) -> None:  # noqa: F811
    """The balancer sees it, and agents and orders go on at the other one."""
    away, there = [site.replica(database=through(line, site.dsn)) for line in lines]
    ttl_ms = 30_000 if site.is_patient else 15_000
    site.prepare(reservation_ttl_ms=ttl_ms, lease_ttl_ms=ttl_ms, lease_grace_ms=0)
    site.spend()
    ordered = site.obey("pause-w", "a", "b")
    site.goes_on(20)
    lines[0].part(kind)
    site.goes_on(5)
    refused(site, away)
    site.balance(away)
    site.goes_on()
    site.tell(lambda admin: admin.kill("a"), at=there)
    ordered.sees("a", "killed")
    heal(lines[0])
    recovered(site, away)
    site.balance()
    site.front.cut()
    site.tell(lambda admin: admin.kill("b"), at=away)
    ordered.sees("b", "killed")
    site.tell(lambda admin: admin.pause("pause-w"), at=there)
    ordered.sees("pause-w", "paused")
    site.goes_on()
    site.check()


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", cases(["partition"], ["hang", "refuse"]))
def test_both_replicas_are_cut_off(site: Site, lines: list[ChaosProxy], kind: str) -> None:  # noqa: F811
    """For longer than leases last: what their holders have spent meanwhile is still theirs."""
    pair = [site.replica(database=through(line, site.dsn)) for line in lines]
    site.prepare(reservation_ttl_ms=2 * AWAY_MS, lease_ttl_ms=LEASE_MS, lease_grace_ms=0)
    site.spend()
    ordered = site.obey("pause-w", "a", "b")
    site.goes_on(20)
    until(lambda: site.leased() > 0)
    for line in lines:
        line.part(kind)
    began = time.monotonic()
    for each in pair:
        refused(site, each)
    until(lambda: time.monotonic() - began > AWAY_MS / 1000)
    for line in lines:
        heal(line)
    for each in pair:
        recovered(site, each)
    for workflow, served in zip("ab", pair, strict=True):
        site.tell(lambda admin, w=workflow: admin.kill(w), at=served)  # type: ignore[misc]
        ordered.sees(workflow, "killed")
    ordered.sees("pause-w", "running")
    site.goes_on()
    site.check()
