"""One wrong reading of the machine's clock changes nothing for long, in no process."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain.clock import CATCH_UP, SteadyClock
from guard.gateway.domain.commands import Actor, GateCommand, RequestOrigin
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.ledger import control, directory
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support.store import decide

TWO_YEARS = 2 * 365 * 86_400_000
START = 1_700_000_000_000
ACTOR = Actor("test")


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-(10**12), 10**12)), max_size=40))
def test_it_never_runs_backwards_nor_faster_than_its_bound(steps: list[tuple[int, int]]) -> None:
    wall = passed = 0
    clock = SteadyClock(0, 0, 0)
    for elapsed, error in steps:
        passed += elapsed
        wall += elapsed
        before = clock.now_ms
        after = clock.read(wall + error, passed)
        assert 0 <= after - before <= CATCH_UP * elapsed + 2000
    # Once the readings are right again, the clock waits, or catches up, and is right.
    for _ in range(3000):
        passed += 1000
        wall += 1000
        clock.read(wall, passed)
    assert clock.now_ms == wall


def test_a_suspended_machine_is_caught_up_with() -> None:
    clock = SteadyClock(0, START, 0)
    for second in range(1, 4000):
        clock.read(START + 28_800_000 + 1000 * second, 1000 * second)
    assert clock.now_ms == START + 28_800_000 + 3_999_000


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_catching_up_goes_no_further_than_the_machines_clock(idle_ms: int, jump_ms: int) -> None:
    """Also where the clock was not read for long: ten times an hour is more than a jump of 3 s."""
    clock = SteadyClock(0, START, 0)
    wall = START + idle_ms + jump_ms
    assert clock.read(wall, idle_ms) <= wall


@pytest.mark.parametrize(
    ("missed_s", "takes_s"), [(3, 1), (60, 7), (3600, 400), (86_400, 9600), (7 * 86_400, 67_200)]
)
def test_what_was_missed_is_caught_up_with_in_the_documented_time(
    missed_s: int, takes_s: int
) -> None:
    """A ninth of it; docs/hard-stop.md names a day's."""
    clock = SteadyClock(0, START, 0)
    wall = START + 1000 * missed_s
    took_s = next(
        second
        for second in itertools.count(1)
        if clock.read(wall + 1000 * second, 1000 * second) == wall + 1000 * second
    )
    # The last two seconds of a difference are followed at once.
    assert (missed_s - 2) / (CATCH_UP - 1) <= took_s <= takes_s
    said = " ".join((Path(__file__).parents[2] / "docs/hard-stop.md").read_text().split())
    assert "a ninth of what was missed, 2 h 40 min for a day" in said


@pytest.mark.parametrize("last", [START + TWO_YEARS, START + 500, 0])
def test_what_an_earlier_process_has_kept_is_believed_within_reason(last: int) -> None:
    clock = SteadyClock(last, START, 0)
    assert START <= clock.now_ms <= START + 2000


class Machine:
    wall = START
    passed = 0

    def wall_ms(self) -> int:
        return self.wall

    def passed_ms(self) -> int:
        return self.passed

    def advance(self, by_ms: int) -> None:
        self.wall += by_ms
        self.passed += by_ms


@pytest.mark.asyncio
async def test_a_reading_two_years_ahead_expires_no_reservation_and_is_not_kept(
    tmp_path: Path,
) -> None:
    machine = Machine()

    def storage() -> SqliteStorage:
        return SqliteStorage(
            tmp_path / "g.sqlite3", clock_ms=machine.wall_ms, monotonic_ms=machine.passed_ms
        )

    def gate(number: int, **fields: Any) -> GateCommand:
        request = RequestOrigin(organisation_id=org, key_id="k")
        call = wire.GateRequest(call_id=f"c{number}", kind="call", function="f", **fields)
        return GateCommand(request=request, call=call)

    store = storage()
    await store.open(lambda events: None)
    org = (
        await store.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    await store.write(
        within(org),
        directory.update_organisation,
        ACTOR,
        org,
        OrganisationSettings(reservation_ttl_ms=60_000),
    )
    assert (await decide(store, gate(1))).status == 200
    machine.advance(1000)
    machine.wall += TWO_YEARS
    assert await store.sweep() == 0, "the reservation is alive"
    machine.wall -= TWO_YEARS
    machine.advance(1000)
    assert await store.sweep() == 0
    pause = wire.ControlMessage(seq=0, type="pause", workflow_id="w", resume_after_ms=30_000)
    await store.write(within(org), control.issue_directive, ACTOR, org, pause)
    assert (await decide(store, gate(2, workflow_id="w"))).status == 403
    await store.close()

    store = storage()
    await store.open(lambda events: None)
    machine.advance(45_000)
    assert (await decide(store, gate(3, workflow_id="w"))).status == 200, "the pause has ended"
    machine.advance(30_000)
    assert await store.sweep() == 1, "only the first reservation is past its minute"
    await store.close()
