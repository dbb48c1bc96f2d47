"""Real agents in several processes under limits of tokens and calls; some of them are killed."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from guard.gateway.admin import AdminClient
from tests.gateway.test_hard_stop_hammer import TTL_MS, agent_process, answered_by, storm_settings
from tests.support.llm_vendor import vendor_process
from tests.support.spending_agent import MODEL
from tests.support.waiting import PATIENT, until

PROCESSES = 3


@pytest.fixture
def vendor() -> Iterator[str]:
    with vendor_process() as url:
        yield url


@pytest.fixture
def served(serve: Any) -> Any:
    return serve()


@pytest.fixture
def admin(served: Any) -> Iterator[AdminClient]:
    with contextlib.closing(AdminClient(served.base_url, served.admin_key)) as admin:
        storm_settings(admin)
        yield admin


def counted(admin: AdminClient, unit: str) -> int:
    found = [each["committed"] for each in admin.ledger() if each["unit"] == unit]
    return sum(found)  # of one balance, or none yet


def check(admin: AdminClient) -> None:
    until(lambda: admin.verify_ledger()["reservations_open"] == 0)
    assert admin.verify_ledger()["problems"] == []
    for balance in admin.ledger():
        assert balance["reserved"] == 0
        assert balance["overshoot"] == 0
        assert balance["committed"] <= balance["limit"]


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", [{"limit_calls": 40, "counts": [MODEL]}, {"limit_tokens": 2500}])
def test_processes_share_a_limit_exactly(
    served: Any, admin: AdminClient, vendor: str, limit: dict[str, Any]
) -> None:
    # Nobody dies here: what a busy machine holds up must not expire.
    admin.update_settings(lease_ttl_ms=60_000, reservation_ttl_ms=60_000)
    admin.set_budget(**limit)
    agents = [
        agent_process(served.base_url, served.api_key, vendor, 4, seed, **PATIENT)
        for seed in range(PROCESSES)
    ]
    for agent in agents:
        _, err = agent.communicate(timeout=300)
        assert agent.returncode == 0, err
    check(admin)
    if "limit_calls" in limit:
        assert answered_by(vendor) == counted(admin, "calls") == 40
    else:
        # At least what a request of this agent can hold at most was left to refuse one.
        assert counted(admin, "tokens") > 2500 - 500


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_killed_process_leaves_no_more_than_it_had_under_way(
    served: Any, admin: AdminClient, vendor: str
) -> None:
    admin.set_budget(limit_calls=150, counts=[MODEL])
    admin.set_budget(limit_tokens=60_000)
    rng = random.Random(7)
    seeds = iter(range(1000))

    def start() -> Any:
        return agent_process(served.base_url, served.api_key, vendor, 1000, next(seeds))

    agents = [start() for _ in range(PROCESSES)]
    killed = 0
    while (before := counted(admin, "calls")) < 150:
        # On a busy machine a program takes longer to start than it would live.
        until(lambda before=before: counted(admin, "calls") > before)  # type: ignore[misc]
        time.sleep(rng.uniform(0.3, 1.5))  # a random moment is the point
        victim = rng.randrange(PROCESSES)
        agents[victim].kill()
        agents[victim].communicate()
        agents[victim] = start()
        killed += 1
    for agent in agents:
        agent.kill()
        agent.communicate()
    assert killed
    time.sleep(TTL_MS / 1000)  # what they held expires
    check(admin)
    assert answered_by(vendor) <= counted(admin, "calls") == 150
