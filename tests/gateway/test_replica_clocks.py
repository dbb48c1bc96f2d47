"""A replica whose machine's clock is wrong: its time is the database's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from guard.gateway.admin import AdminClient
from tests.gateway.conftest import SERVE, Served, serving
from tests.gateway.test_signing import BODY, SECRET, gate, signed
from tests.support import postgres
from tests.support.waiting import until

HOUR_MS = 3_600_000
TWO_YEARS_S = 2 * 365 * 86_400
SWEEPS_S = 0.5
"""Many sweeps of a replica."""

STEPPED = (
    """
import os, pathlib, time

_file, _time, _time_ns = pathlib.Path(os.environ["CLOCK_STEP_FILE"]), time.time, time.time_ns

def _step():
    return int(_file.read_text() or 0)

time.time = lambda: _time() + _step()
time.time_ns = lambda: _time_ns() + _step() * 10**9
"""
    + SERVE
)
"""A gateway whose clock is wrong by the seconds that a file says."""

_numbers = itertools.count(1)


class Clocks:
    """Two replicas: one is right, the other's clock can be stepped; and their database."""

    def __init__(self, start: Any, file: Path, dsn: str) -> None:
        self._file = file
        self.step(0)
        sweeping = ("--sweep-interval-ms", "20")
        self.right: Served = start(*sweeping)
        self.stepped: Served = start(*sweeping, program=STEPPED)
        self.dsn = dsn

    def step(self, by_s: int) -> None:
        """Make the clock wrong, at once."""
        other = self._file.with_suffix(".new")
        other.write_text(str(by_s))
        other.rename(self._file)


class Tenant:
    """An organisation of the test's own, at both replicas."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        served = clocks.right
        with_all = AdminClient(served.base_url, served.admin_key)
        made = with_all.create_organisation(f"o{next(_numbers)}")["organisation_id"]
        with_all.close()
        self.admin = AdminClient(served.base_url, served.admin_key, organisation=made)
        self.organisation_id = made
        self.api_key = self.admin.create_key("test")

    def gate(self, served: Served, key: str = "", **fields: Any) -> httpx.Response:
        headers = {"X-API-Key": key or self.api_key, "X-Guard-Protocol": "3"}
        body = {"call_id": f"c{next(_numbers)}", "kind": "call", "function": "f", **fields}
        return httpx.post(f"{served.base_url}/gate", json=body, headers=headers)

    def held(self) -> int:
        """Return how much is reserved."""
        return int(self.admin.ledger()[0]["reserved"])

    def age(self, by_ms: int) -> None:
        """Have everything that is held end sooner, as if time had passed."""
        with psycopg.connect(self.clocks.dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE reservations SET expires_at_ms = expires_at_ms - %s"
                " WHERE organisation_id = %s",
                (by_ms, self.organisation_id),
            )


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocks]:
    folder = tmp_path_factory.mktemp("clocks")
    with pytest.MonkeyPatch.context() as patch, serving(postgres.url_of(folder)) as start:
        patch.setenv("CLOCK_STEP_FILE", str(folder / "step"))
        yield Clocks(start, folder / "step", postgres.dsn_of(folder))


@pytest.fixture
def tenant(clocks: Clocks) -> Iterator[Tenant]:
    clocks.step(0)
    found = Tenant(clocks)
    yield found
    found.admin.close()
    admin = AdminClient(clocks.right.base_url, clocks.right.admin_key)
    assert admin.verify_ledger()["problems"] == []
    admin.close()


STEPS = pytest.mark.parametrize("step_s", [2 * 3600, -2 * 3600, TWO_YEARS_S],
                                ids=["ahead", "behind", "far"])  # fmt: skip


@STEPS
def test_nothing_ends_early_or_late(clocks: Clocks, tenant: Tenant, step_s: int) -> None:
    tenant.admin.update_settings(reservation_ttl_ms=HOUR_MS)
    tenant.admin.set_budget(10_000)
    for served in (clocks.stepped, clocks.right):
        assert tenant.gate(served).status_code == 200
    expires_at_ms = int(time.time() * 1000) + HOUR_MS
    made = tenant.admin.create_key_full("short", expires_at_ms=expires_at_ms)
    tenant.admin.pause("w", resume_after_ms=HOUR_MS)
    clocks.step(step_s)
    # An allowance of the stepped replica: the other one is not to expire it, nor this one its own.
    assert tenant.gate(clocks.stepped).status_code == 200
    held = tenant.held()
    time.sleep(SWEEPS_S)  # what a sweep with a wrong clock would end is ended by then
    assert tenant.held() == held > 0
    assert tenant.gate(clocks.stepped, made["api_key"]).status_code == 200, "the key is valid"
    paused = tenant.gate(clocks.stepped, workflow_id="w")
    assert (paused.status_code, paused.json()["error_code"]) == (403, "GD-W003")
    tenant.age(HOUR_MS)
    until(lambda: tenant.held() == 0)


@STEPS
def test_signatures_are_compared_with_the_time_of_the_database(
    clocks: Clocks, tenant: Tenant, step_s: int
) -> None:
    made = tenant.admin.create_key_full("signed", hmac_secret=SECRET)
    clocks.step(step_s)
    base, key = clocks.stepped.base_url, made["api_key"]
    assert gate(base, signed(base, key, "POST", "/gate", BODY)).status_code == 200
    late = gate(base, signed(base, key, "POST", "/gate", BODY, created=int(time.time()) + step_s))
    assert (late.status_code, late.json()["error_code"]) == (401, "GD-A001")
    assert abs(late.json()["server_time_ms"] / 1000 - time.time()) < 600


@STEPS
def test_orders_and_caps_keep_their_time(clocks: Clocks, tenant: Tenant, step_s: int) -> None:
    cap = {"calls": 3, "per_ms": HOUR_MS, "tools": ["pay"]}
    tenant.admin.set_policy(rate_caps=[cap])
    until(lambda: _is_capped(tenant))
    clocks.step(step_s)
    assert _is_capped(tenant), "the window has not ended"
    stepped = AdminClient(
        clocks.stepped.base_url, clocks.stepped.admin_key, organisation=tenant.organisation_id
    )
    stepped.kill("w")
    stepped.close()
    headers = {"X-API-Key": tenant.api_key, "X-Guard-Protocol": "3"}
    reply = httpx.get(f"{clocks.right.base_url}/api/v1/control", headers=headers).json()
    [killed] = [each for each in reply["messages"] if each["type"] == "kill"]
    assert abs(killed["at_ms"] / 1000 - time.time()) < 600
    assert tenant.gate(clocks.stepped, workflow_id="w").status_code == 403


def _is_capped(tenant: Tenant) -> bool:
    asked = [tenant.gate(tenant.clocks.stepped, tool_name="pay").status_code for _ in range(4)]
    return asked[-1] == 429
