"""Real agents in many processes at tight budgets, while holders, sockets and the gateway die."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.admin import AdminClient, AdminError
from tests.support.llm_vendor import vendor_process
from tests.support.proxy import ChaosProxy
from tests.support.spending_agent import MODEL
from tests.support.waiting import PATIENT, until

PROCESSES = 8
ROOT = Path(__file__).parents[2]
TTL_MS = 15_000
"""Of leases whose holders die: much longer than a busy machine stalls one that lives."""
PATIENT_TTL_MS = 60_000
"""Where none dies, so that nobody waits for its end."""
RAISE_NANOUSD = 400_000
"""By how much the limits rise at a time; a request costs up to 250,000."""


@pytest.fixture
def vendor() -> Iterator[str]:
    with vendor_process() as url:
        yield url


class Watch(threading.Thread):
    """Looks at every balance again and again, and raises the limits meanwhile.

    Not before one of them has refused something: the programs may take long to start.
    """

    def __init__(self, url: str, admin_key: str) -> None:
        super().__init__(daemon=True)
        self.admin = AdminClient(url, admin_key)
        self.looks = 0
        self.wrong: list[Any] = []
        self.limit = 0
        self._has_refused = False
        self._ended = threading.Event()

    def raise_limits(self) -> None:
        self.limit += RAISE_NANOUSD
        set_budget = self.admin.set_budget
        set_budget(scope_kind="workflow", scope_id="*", limit_nanousd=self.limit)
        set_budget(scope_kind="agent", scope_id="*", limit_nanousd=self.limit * 3 // 2)
        set_budget(scope_kind="user", scope_id="storm-*", limit_nanousd=self.limit * 5 // 4)
        set_budget(scope_kind="model", scope_id=MODEL, limit_nanousd=self.limit * 3)
        set_budget(limit_nanousd=self.limit * 3)

    def run(self) -> None:
        while not self._ended.wait(0.02):
            try:
                self.look()
                if self._has_refused and self.looks % 10 == 0:
                    self.raise_limits()
            except AdminError:
                continue  # the gateway is being killed

    def look(self) -> None:
        balances = self.admin.ledger()
        self.wrong += [
            balance
            for balance in balances
            if balance["committed"] + balance["reserved"] > balance["limit"] or balance["overshoot"]
        ]
        self._has_refused |= any(balance["exhausted"] for balance in balances)
        self.looks += 1

    def end(self) -> None:
        self._ended.set()
        self.join(60)

    def close(self) -> None:
        self.admin.close()


def agent_process(
    url: str, key: str, vendor: str, rounds: int, seed: int, **settings: str
) -> subprocess.Popen[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GUARD_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.spending_agent", vendor, str(rounds), str(seed)],
        env={**kept, "GUARD_API_URL": url, "GUARD_API_KEY": key, **settings},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def storm_settings(admin: AdminClient, ttl_ms: int = TTL_MS) -> None:
    admin.update_settings(lease_ttl_ms=ttl_ms, lease_grace_ms=0, reservation_ttl_ms=ttl_ms)
    admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=2 * 10**9)


def _llm_events(admin: AdminClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := admin.events(after=found[-1]["event_seq"] if found else 0, type="llm"):
        found += page
    return found


def answered_by(vendor: str) -> int:
    return int(httpx.get(f"{vendor}/stats").json()["answered"])


def _check(watch: Watch, admin: AdminClient) -> None:
    assert watch.looks
    assert watch.wrong == [], [*map(str, watch.wrong[:2]), *map(str, watch.wrong[-1:])]
    until(lambda: admin.verify_ledger()["reservations_open"] == 0)
    assert admin.verify_ledger()["problems"] == []
    assert all(balance["reserved"] == 0 for balance in admin.ledger())
    answers = [event["data"].get("response_id") for event in _llm_events(admin)]
    assert max(Counter(filter(None, answers)).values()) == 1


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_no_budget_is_passed(serve: Any, vendor: str, proof_scale: float) -> None:
    served = serve()
    watch = Watch(served.base_url, served.admin_key)
    storm_settings(watch.admin, PATIENT_TTL_MS)
    watch.raise_limits()
    watch.start()
    rounds = max(1, round(8 * proof_scale))
    # Nothing dies here: on a machine that is too slow for its default, no deadline passes either.
    agents = [
        agent_process(served.base_url, served.api_key, vendor, rounds, seed, **PATIENT)
        for seed in range(PROCESSES)
    ]
    outcomes: Counter[str] = Counter()
    for agent in agents:
        out, err = agent.communicate(timeout=600 * proof_scale)
        assert agent.returncode == 0, err
        outcomes.update(json.loads(out.splitlines()[-1]))
    watch.end()
    answered = answered_by(vendor)
    print(f"{sum(outcomes.values())} requests: {dict(outcomes)}; {watch.looks} looks")
    assert outcomes["ran"]
    assert outcomes["GuardBudgetError"] + outcomes["call: GuardBudgetError"]
    assert set(outcomes) <= {"ran", "GuardBudgetError", "call: GuardBudgetError"}, outcomes
    _check(watch, watch.admin)
    # Every answer was charged once, also those of streams that were left early (estimated).
    assert len(_llm_events(watch.admin)) == answered
    watch.close()


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_no_budget_is_passed_while_everything_dies(
    serve: Any, vendor: str, proof_scale: float
) -> None:
    served = serve()
    port = int(served.base_url.rsplit(":", 1)[1])
    watch = Watch(served.base_url, served.admin_key)
    storm_settings(watch.admin)
    watch.raise_limits()
    proxy = ChaosProxy(served.base_url)
    watch.start()
    rng = random.Random(5)
    seeds = iter(range(10_000))
    agents = [
        agent_process(proxy.url, served.api_key, vendor, 10_000, next(seeds))
        for _ in range(PROCESSES)
    ]
    deaths: Counter[str] = Counter()
    ends = time.monotonic() + 600 * max(1.0, proof_scale)
    while answered_by(vendor) < 600 * proof_scale or len(deaths) < 3:
        assert time.monotonic() < ends, (answered_by(vendor), deaths)
        time.sleep(rng.uniform(0.5, 2.5))  # a random moment is the point
        fate = rng.choice(("holder", "holder", "sockets", "gateway"))
        deaths[fate] += 1
        if fate == "holder":
            victim = rng.randrange(PROCESSES)
            agents[victim].kill()
            agents[victim].communicate()
            agents[victim] = agent_process(proxy.url, served.api_key, vendor, 10_000, next(seeds))
        elif fate == "sockets":
            proxy.cut()
        else:
            served.process.send_signal(signal.SIGKILL)
            served.process.wait(60)
            served = serve(port=port)
    for agent in agents:
        assert agent.poll() is None, agent.communicate()[1]  # no undocumented exception ended it
        agent.kill()
        agent.communicate()
    watch.end()
    print(f"{answered_by(vendor)} requests answered; deaths: {dict(deaths)}; {watch.looks} looks")
    _check(watch, watch.admin)
    proxy.close()
    # What dead holders had set aside is free again: each budget has its room.
    watch.raise_limits()
    last = agent_process(served.base_url, served.api_key, vendor, 5, next(seeds))
    out, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert json.loads(out.splitlines()[-1]).get("ran"), out
    watch.close()
