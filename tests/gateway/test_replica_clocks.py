"""A replica whose machine's clock is wrong: its time is the database's."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.cli.admin_client import AdminClient
from tests.gateway.conftest import SERVE, Served
from tests.gateway.test_signing import BODY, SECRET, gate, signed
from tests.support import postgres
from tests.support.waiting import until

TWO_YEARS_S = 2 * 365 * 86_400
SOON_S = 1.5
"""Some sweeps of a replica."""

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
    """Two replicas: one is right, the other's clock can be stepped."""

    def __init__(self, serve: Any, file: Path) -> None:
        self._file = file
        self.step(0)
        self.right: Served = serve()
        self.stepped: Served = serve(program=STEPPED)
        self.admin = AdminClient(self.right.base_url, self.right.admin_key)

    def step(self, by_s: int) -> None:
        """Make the clock wrong, at once."""
        other = self._file.with_suffix(".new")
        other.write_text(str(by_s))
        other.rename(self._file)

    def post(self, served: Served, path: str, body: Any, key: str = "") -> httpx.Response:
        headers = {"X-API-Key": key or served.api_key, "X-Guard-Protocol": "3"}
        return httpx.post(f"{served.base_url}{path}", json=body, headers=headers, timeout=60)

    def gate(self, served: Served, key: str = "", **fields: Any) -> httpx.Response:
        body = {"call_id": f"c{next(_numbers)}", "kind": "call", "function": "f", **fields}
        return self.post(served, "/gate", body, key)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


@pytest.fixture
def clocks(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    file = tmp_path / "step"
    monkeypatch.setenv("CLOCK_STEP_FILE", str(file))
    found = Clocks(serve, file)
    with contextlib.closing(found.admin):
        yield found
        assert found.admin.verify_ledger()["problems"] == []


STEPS = pytest.mark.parametrize("step_s", [600, -600, TWO_YEARS_S], ids=["ahead", "behind", "far"])


@STEPS
def test_nothing_ends_early_or_late(clocks: Clocks, step_s: int) -> None:
    clocks.admin.update_settings(reservation_ttl_ms=10_000)
    clocks.admin.set_budget(10_000)
    for served in (clocks.stepped, clocks.right):
        assert clocks.gate(served).status_code == 200
    made = clocks.admin.create_key_full("short", expires_at_ms=int(time.time() * 1000) + 120_000)
    clocks.admin.pause("w", resume_after_ms=120_000)
    clocks.step(step_s)
    # An allowance of the stepped replica: the other one is not to expire it, nor this one its own.
    assert clocks.gate(clocks.stepped).status_code == 200
    time.sleep(SOON_S)
    assert clocks.admin.verify_ledger()["reservations_open"] == 3
    assert clocks.gate(clocks.stepped, made["api_key"]).status_code == 200, "the key is valid"
    paused = clocks.gate(clocks.stepped, workflow_id="w")
    assert (paused.status_code, paused.json()["error_code"]) == (403, "GD-W003")
    until(lambda: clocks.admin.verify_ledger()["reservations_open"] == 0)


@STEPS
def test_signatures_are_compared_with_the_time_of_the_database(clocks: Clocks, step_s: int) -> None:
    made = clocks.admin.create_key_full("signed", hmac_secret=SECRET)
    clocks.step(step_s)
    base, key = clocks.stepped.base_url, made["api_key"]
    assert gate(base, signed(base, key, "POST", "/gate", BODY)).status_code == 200
    late = gate(base, signed(base, key, "POST", "/gate", BODY, created=int(time.time()) + step_s))
    assert (late.status_code, late.json()["error_code"]) == (401, "GD-A001")
    assert abs(late.json()["server_time_ms"] / 1000 - time.time()) < 30


@STEPS
def test_orders_and_caps_keep_their_time(clocks: Clocks, step_s: int) -> None:
    clocks.admin.set_policy(rate_caps=[{"calls": 3, "per_s": 60, "tools": ["pay"]}])
    until(lambda: _is_capped(clocks))
    clocks.step(step_s)
    assert _is_capped(clocks), "the window has not ended"
    stepped = AdminClient(clocks.stepped.base_url, clocks.stepped.admin_key)
    stepped.kill("w")
    stepped.close()
    headers = {"X-API-Key": clocks.right.api_key, "X-Guard-Protocol": "3"}
    reply = httpx.get(f"{clocks.right.base_url}/api/v1/control", headers=headers).json()
    [killed] = [each for each in reply["messages"] if each["type"] == "kill"]
    assert abs(killed["at_ms"] / 1000 - time.time()) < 30
    assert clocks.gate(clocks.stepped, workflow_id="w").status_code == 403


def _is_capped(clocks: Clocks) -> bool:
    asked = [clocks.gate(clocks.stepped, tool_name="pay").status_code for _ in range(4)]
    return asked[-1] == 429
