"""What a vendor has billed replaces what was charged in doubt, on each engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from guard.gateway.admin import AdminError
from guard.gateway.api.admin.handlers import PART_ROWS
from guard.gateway.cli.main import gateway as cli
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.windows import HOUR_MS
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger import reconciliation
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres

CENT = 10_000_000
LOST = {"estimated": True, "estimate": "bound", "provider": "openai"}
SEEN = {"provider": "openai"}
START_MS = 1_800_000_000_000 - 1_800_000_000_000 % HOUR_MS
HOUR = "2027-01-15T08:00Z"


class Clock:
    """Moved by the tests."""

    def __init__(self) -> None:
        self.now_ms = START_MS + 60_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def tenant(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Tenant]:
    """A tenant of a gateway whose clock can be moved."""
    database = None if request.param == "sqlite" else postgres.url_of(tmp_path)
    with run_gateway(database, clock_ms=clock, sweep_interval_ms=20) as gateway:
        made = new_tenant(gateway)
        yield made
        made.http.close()
        made.admin.close()


@pytest.fixture
def spent(tenant: Tenant, clock: Clock) -> Tenant:
    """Twelve cents within an hour that has ended, of them seven in doubt."""
    tenant.admin.set_budget(12, window="day")
    tenant.admin.set_budget(50, scope_kind="model", scope_id="gpt-4o")
    tenant.admin.set_budget(50, scope_kind="workflow", scope_id="*")
    tenant.send(
        tenant.llm(5 * CENT, workflow_id="w", data={**SEEN, "model": "gpt-4o-2024-08-06"}),
        tenant.llm(7 * CENT, workflow_id="w", data=LOST),
    )
    clock.now_ms += HOUR_MS
    return tenant


def run(tenant: Tenant, file: Path, text: str, *options: str) -> Any:
    file.write_text(text)
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
           "COLUMNS": "200"}  # fmt: skip
    words = ["reconcile", str(file), *options, "--organisation", tenant.organisation_id]
    return CliRunner().invoke(cli, words, env=env)


def totals(
    tenant: Tenant, budgets: tuple[str, ...] = ("organisation", "model")
) -> dict[str, list[int]]:
    """Return cost and doubt in cents as usage, and as budgets."""
    found = {
        by: [
            sum(row[name] for row in tenant.admin.usage(by)) // CENT
            for name in ("cost_nanousd", "uncertain_nanousd")
        ]
        for by in ("total", "model", "provider", "hour", "day")
    }
    ledger = {row["scope_kind"]: row for row in tenant.admin.ledger()}
    for kind in budgets:
        row = ledger[kind]
        found[kind] = [row["committed_cents"], row["uncertain_cents"]]
    return found


CSV = f"hour,model,cost_usd\n{HOUR},gpt-4o-2024-08-06,0.05\n{HOUR},gpt-4o,0.02\n"


def test_one_adjustment_replaces_the_estimate(spent: Tenant, tmp_path: Path, clock: Clock) -> None:
    assert set(map(tuple, totals(spent).values())) == {(12, 7)}
    before = totals(spent)
    (doubt,) = spent.admin.doubts()
    assert doubt["doubt_nanousd"] == 7 * CENT

    done = run(spent, tmp_path / "a.csv", CSV, "--dry-run", "--provider", "openai")
    assert "1 adjustment would be booked, -$0.05 in all" in done.output
    assert totals(spent) == before

    done = run(spent, tmp_path / "a.csv", CSV, "--provider", "openai")
    assert done.exit_code == 0, done.output
    assert "1 adjustment booked, -$0.05 in all" in done.output
    assert set(map(tuple, totals(spent).values())) == {(7, 0)}
    assert spent.admin.verify_ledger()["problems"] == []
    assert spent.admin.doubts() == [], "the bill has ended it"
    with pytest.raises(AdminError):
        spent.admin.settle_doubt(doubt["event_id"], 0)

    done = run(spent, tmp_path / "a.csv", CSV, "--provider", "openai")
    assert "0 adjustments booked" in done.output
    assert set(map(tuple, totals(spent).values())) == {(7, 0)}

    entries = [e for e in spent.admin.audit() if e["action"] == "usage.reconcile"]
    assert len(entries) == 1
    assert entries[0]["target"].startswith("a.csv sha256:")
    assert spent.admin.verify_audit()["ok"]
    # What a bill by model cannot say: whose requests it was.
    assert spent.admin.workflow("w")["spent_nanousd"] == 12 * CENT


def test_a_budget_that_was_used_up_by_an_estimate_has_room_again(
    spent: Tenant, tmp_path: Path
) -> None:
    spent.refused(402, "GD-B004", call_id="c1", declared_cost_nanousd=CENT)
    run(spent, tmp_path / "a.csv", CSV)
    assert spent.allowed(call_id="c2", declared_cost_nanousd=CENT)


def test_more_than_was_charged_is_booked_too(spent: Tenant, tmp_path: Path) -> None:
    run(spent, tmp_path / "a.csv", f"hour,model,cost_usd\n{HOUR},gpt-4o,0.20\n")
    assert set(map(tuple, totals(spent).values())) == {(20, 0)}
    assert spent.admin.verify_ledger()["problems"] == []


def test_what_is_charged_later_is_reconciled_by_the_same_file(
    tenant: Tenant, tmp_path: Path, clock: Clock
) -> None:
    """An event of a call that began in an hour whose bill is booked already."""
    late = tenant.allowed(call_id="c", declared_cost_nanousd=4 * CENT)["reservation_id"]
    tenant.send(tenant.llm(9 * CENT, data=LOST))
    clock.now_ms += HOUR_MS
    assert "-$0.02 in all" in run(tenant, tmp_path / "a.csv", CSV).output
    for _ in range(2):
        tenant.send(tenant.llm(4 * CENT, data=LOST, reservation_id=late))
        assert "-$0.04 in all" in run(tenant, tmp_path / "a.csv", CSV).output
        assert set(map(tuple, totals(tenant, budgets=()).values())) == {(7, 0)}


def test_events_of_two_hours_in_one_batch(tenant: Tenant, clock: Clock) -> None:
    late = tenant.allowed(call_id="c", declared_cost_nanousd=4 * CENT)["reservation_id"]
    clock.now_ms += HOUR_MS
    tenant.send(tenant.llm(CENT), tenant.llm(2 * CENT, reservation_id=late))
    tenant.admin.set_budget(50, window="hour")
    tenant.admin.set_budget(50, window="day")
    tenant.send(tenant.llm(CENT))
    committed = {row["window"]: row["committed_cents"] for row in tenant.admin.ledger()}
    assert committed == {"hour": 2, "day": 4}


def test_an_hour_without_a_line_was_not_billed(spent: Tenant, tmp_path: Path, clock: Clock) -> None:
    """Between two hours that the vendor knows of."""
    clock.now_ms += HOUR_MS
    spent.send(spent.llm(3 * CENT, data=LOST))
    clock.now_ms += HOUR_MS
    spent.send(spent.llm(1 * CENT, data=SEEN))
    clock.now_ms += HOUR_MS
    text = CSV + "2027-01-15T11:00Z,gpt-4o,0.01\n"
    assert "2 adjustments booked, -$0.08 in all" in run(spent, tmp_path / "a.csv", text).output
    assert totals(spent)["total"] == [8, 0]


def test_what_is_left_alone_is_named(spent: Tenant, tmp_path: Path) -> None:
    text = f"hour,model,cost_usd\n{HOUR},o3,9.00\n2027-01-15T09:00Z,gpt-4o,1\n"
    output = run(spent, tmp_path / "a.csv", text).output
    assert "not charged here" in output
    assert "has not ended" in output
    assert set(map(tuple, totals(spent).values())) == {(12, 7)}


def test_the_models_of_a_file_are_booked_at_once(
    tenant: Tenant, tmp_path: Path, clock: Clock
) -> None:
    """One request for each model left half of the bill booked when one of them failed."""
    o3 = {**LOST, "model": "o3"}
    tenant.send(tenant.llm(8 * CENT, data=LOST), tenant.llm(3 * CENT, data=o3))
    clock.now_ms += HOUR_MS
    done = run(tenant, tmp_path / "a.csv", CSV + f"{HOUR},o3,0.01\n")
    assert "2 adjustments booked, -$0.03 in all" in done.output
    entries = [e for e in tenant.admin.audit() if e["action"] == "usage.reconcile"]
    assert [entry["details"]["models"] for entry in entries] == [["gpt-4o", "o3"]]


def test_a_large_bill_that_is_cut_off_is_completed_by_booking_it_again(
    tenant: Tenant, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.admin.set_budget(100)
    names = [f"m{number:03}" for number in range(2 * PART_ROWS + 7)]
    tenant.send(*(tenant.llm(1000, data={**SEEN, "model": name}) for name in names))
    clock.now_ms += HOUR_MS
    rows = [
        {"start_ms": START_MS, "width_ms": HOUR_MS, "model": name, "cost_nanousd": 900}
        for name in names
    ]
    book, sizes = reconciliation.book, list[int]()

    def fails(unit: Any, actor: Any, own: str, part: Any, *args: Any) -> Any:
        sizes.append(len(part))
        if len(sizes) == 2:
            raise StoreError("lost")
        return book(unit, actor, own, part, *args)

    def booked() -> list[Any]:
        found = [e["details"] for e in tenant.admin.audit() if e["action"] == "usage.reconcile"]
        return [(each["part"], each["parts"], each["adjustments"]) for each in found]

    monkeypatch.setattr(reconciliation, "book", fails)
    fields: dict[str, Any] = {"source": "s", "provider": "openai"}
    dry = tenant.admin.reconcile(rows, dry_run=True, **fields)
    assert [each["adjustment_nanousd"] for each in dry] == [-100] * len(rows)
    assert (sizes, booked()) == ([], []), "judged, and nothing is booked"
    with pytest.raises(AdminError):
        tenant.admin.reconcile(rows, dry_run=False, **fields)
    assert booked() == [(1, 3, PART_ROWS)]
    made = tenant.admin.reconcile(rows, dry_run=False, **fields)
    assert [each["adjustment_nanousd"] for each in made] == (
        [0] * PART_ROWS + [-100] * (len(rows) - PART_ROWS)
    )
    assert sorted(booked()) == [(1, 3, PART_ROWS), (2, 3, PART_ROWS), (3, 3, 7)]
    assert max(sizes) == PART_ROWS
    assert tenant.balance()["committed"] == 900 * len(rows)
    again = tenant.admin.reconcile(rows, dry_run=False, **fields)
    assert {each["adjustment_nanousd"] for each in again} == {0}
    assert tenant.admin.verify_ledger()["problems"] == []


def test_a_row_within_its_hour_is_refused(spent: Tenant) -> None:
    """It would be compared with no hour, and what is charged in its hour counted as not billed."""
    row = {"start_ms": START_MS + 1, "width_ms": HOUR_MS, "model": "gpt-4o", "cost_nanousd": 1}
    with pytest.raises(AdminError, match="begins within an hour"):
        spent.admin.reconcile([row], source="s", provider=None, dry_run=False)
    assert set(map(tuple, totals(spent).values())) == {(12, 7)}


def test_a_bad_line_is_named_and_nothing_is_booked(spent: Tenant, tmp_path: Path) -> None:
    text = CSV + "yesterday,gpt-4o,1\n" + f"{HOUR},gpt-4o,many\n{HOUR},gpt-4o,-1\n{HOUR},o3,\n"
    done = run(spent, tmp_path / "a.csv", text)
    assert done.exit_code == 1
    for line in (4, 5, 6, 7):
        assert f"line {line}: " in done.output
    assert set(map(tuple, totals(spent).values())) == {(12, 7)}


OPENAI_COSTS = {
    "object": "page",
    "data": [
        {"object": "bucket", "start_time": START_MS // 1000 - 8 * 3600,
         "end_time": START_MS // 1000 + 16 * 3600,
         "results": [
             {"object": "organization.costs.result", "line_item": line,
              "amount": {"value": value, "currency": "usd"}, "project_id": None}
             for line, value in (
                 ("gpt-4o-2024-08-06, input", 0.04), ("gpt-4o-2024-08-06, output", "0.03"),
             )
         ]},
    ],
}  # fmt: skip
OPENAI_CSV = (
    "start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,line_item\n"
    f"{START_MS // 1000 - 8 * 3600},{START_MS // 1000 + 16 * 3600},,,0.07,usd,"
    '"gpt-4o-2024-08-06, input"\n'
)


@pytest.mark.parametrize("text", [json.dumps(OPENAI_COSTS), OPENAI_CSV], ids=["json", "csv"])
def test_the_costs_of_a_day_by_openai(
    spent: Tenant, tmp_path: Path, clock: Clock, text: str
) -> None:
    assert "has not ended" in run(spent, tmp_path / "a", text).output
    clock.now_ms += 24 * HOUR_MS
    assert "-$0.05 in all" in run(spent, tmp_path / "a", text).output
    assert totals_of_usage(spent) == {"gpt-4o-2024-08-06": 5, "gpt-4o": 2}


def totals_of_usage(tenant: Tenant) -> dict[str, int]:
    return {row["group"]: row["cost_nanousd"] // CENT for row in tenant.admin.usage("model")}
