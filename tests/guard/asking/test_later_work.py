"""Work that a vendor finishes later is its maker's, whichever process fetches its result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from guard.gateway.admin import AdminClient
from guard.gateway.embedded import run_gateway
from tests.guard.asking.test_background_work import COST, INPUT, LIMIT, OUTPUT, Queueing
from tests.support import postgres

BEGIN: Final = f"""
import guard, httpx, os, signal, sys
runtime = guard.init()
with guard.workflow("maker"):
    body = {{"model": "m", "input": "a", "max_output_tokens": {OUTPUT}, "background": True}}
    work = httpx.post(sys.argv[1] + "/v1/responses", json=body).json()["id"]
runtime.flush(60)
print(work, flush=True)
if sys.argv[2] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
"""
FETCH: Final = """
import guard, httpx, sys
runtime = guard.init()
with guard.workflow("fetcher"):
    httpx.get(sys.argv[1] + "/v1/responses/" + sys.argv[2])
runtime.flush(60)
"""


@pytest.fixture(scope="module")
def queueing() -> Iterator[Queueing]:
    running = Queueing()
    yield running
    running.close()


class House:
    """A gateway with two keys, and the vendor."""

    def __init__(self, url: str, admin: AdminClient, vendor: Queueing, spool: Path) -> None:
        self.url, self.admin, self.vendor, self._spool = url, admin, vendor, spool
        self.maker, self.fetcher = admin.create_key("maker"), admin.create_key("fetcher")
        admin.set_price("*", input_per_mtok=10**9, output_per_mtok=4 * 10**9)
        for workflow in ("maker", "fetcher"):
            admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=LIMIT)

    def run(self, program: str, key: str, *words: str) -> str:
        """Run a process of its own, and return what it has printed."""
        env = {"GUARD_API_KEY": key, "GUARD_API_URL": self.url,
               "GUARD_SPOOL_DIR": str(self._spool / key[-6:])}  # fmt: skip
        command = [sys.executable, "-c", program, self.vendor.url, *words]
        done = subprocess.run(
            command, env=os.environ | env, check=False, capture_output=True, text=True, timeout=240
        )
        assert done.returncode in (0, -9), done.stderr
        return done.stdout.strip()

    def spent(self, workflow: str) -> int:
        return int(self.admin.workflow(workflow)["spent_nanousd"])

    def charges(self) -> list[tuple[str | None, str, bool]]:
        """Return each charge: its workflow, its key, whether it is an estimate."""
        return [(each["workflow_id"], each["key_id"], each["data"].get("estimated", False))
                for each in self.admin.events(type="llm") if each["cost_nanousd"]]  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def house(request: pytest.FixtureRequest, queueing: Queueing, tmp_path: Path) -> Iterator[House]:
    queueing.reset()
    queueing.billed, queueing.state = 0, "completed"
    database = None
    if request.param == "postgres":
        if postgres.server() is None:
            pytest.skip("no PostgreSQL")
        database = postgres.own_database()
    with run_gateway(database) as gateway:
        gateway.admin.create_organisation("house")
        admin = AdminClient(gateway.base_url, gateway.admin_key, organisation="house")
        yield House(gateway.base_url, admin, queueing, tmp_path)
        admin.close()


def test_the_maker_pays_once_although_it_has_died(house: House) -> None:
    work = house.run(BEGIN, house.maker, "dies")
    for _ in range(2):
        house.run(FETCH, house.fetcher, work)
    assert house.spent("maker") == house.vendor.billed == COST
    assert house.spent("fetcher") == 0
    # The next process with its key finds its journal: the same event, which is charged already.
    house.run(FETCH, house.maker, work)
    assert house.spent("maker") == COST
    ((workflow, key_id, estimated),) = house.charges()
    keys = house.admin.keys()
    (maker,) = [each["key_id"] for each in keys if each["name"] == "maker"]
    assert (workflow, key_id, estimated) == ("maker", maker, False)


def test_the_maker_pays_once_whose_end_charges_its_bound(house: House) -> None:
    work = house.run(BEGIN, house.maker, "ends")  # nobody has asked yet: it costs its bound
    assert house.spent("maker") >= house.vendor.billed
    charged = house.charges()
    house.run(FETCH, house.fetcher, work)
    assert house.charges() == charged
    assert len(charged) == 1


def test_work_that_nobody_has_begun_here_is_of_whoever_fetches_it(house: House) -> None:
    house.run(FETCH, house.fetcher, "resp_of_others")
    assert house.spent("fetcher") == INPUT * 1_000 + OUTPUT * 4_000
