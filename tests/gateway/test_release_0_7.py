"""A file of release 0.7 opens, with everything in it; other old files are left as they are."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from guard.gateway.cli.main import gateway as command
from guard.gateway.domain.errors import StoreError
from guard.gateway.embedded import run_gateway
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sqlite import release_0_7 as converter
from guard.gateway.storage.sqlite import schema
from guard.gateway.storage.sqlite.migrations import convert_0_7
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.support import postgres, release_0_7

NOW_MS = release_0_7.WRITTEN_AT_MS
RENAMED = {"orders": "directives"}
SUMMED = {"figures", "workflows", "runs"}
"""Tables whose contents are in the one of usage now."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "g.sqlite3"
    release_0_7.filled(path)
    return path


def rows_of(path: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def all_rows(path: Path) -> dict[str, list[Any]]:
    tables = rows_of(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name: sorted(rows_of(path, f"SELECT * FROM {name}"), key=repr) for (name,) in tables}


def test_every_row_is_there_and_the_old_file_is_kept(old: Path) -> None:
    before = all_rows(old)
    kept = convert_0_7(old)
    assert kept == old.with_name("g.sqlite3.0.7-1")
    assert all_rows(kept) == before
    after = all_rows(old)
    for name, rows in before.items():
        if name in SUMMED:
            continue
        if name == "keys":
            made = {row[0]: row for row in after["secrets"]}
            for key_id, _, _, _, prefix, hashed, _, hmac_secret, made_ms, _, _ in rows:
                assert made[hashed] == (
                    hashed, key_id, prefix, hmac_secret, made_ms, None, None, None, None
                )  # fmt: skip
            own = [(*row[:4], row[6], *row[8:]) for row in rows]
            assert sorted(row[: len(own[0])] for row in after["keys"]) == sorted(own)
            continue
        found = after[RENAMED.get(name, name)]
        if name == "facts":
            assert set(rows) <= set(found)
        elif name == "orders":
            assert {row[:5] for row in found} >= set(rows)
        else:
            width = len(rows[0]) if rows else 0
            assert sorted((row[:width] for row in found), key=repr) == rows, name
    assert rows_of(old, "PRAGMA foreign_key_check") == []
    assert rows_of(old, "PRAGMA user_version") == [(schema.newest(),)]
    assert convert_0_7(old) is None, "it is one of today's"


def test_the_sums_that_it_did_not_have_are_those_of_its_events(old: Path) -> None:
    events = rows_of(
        old, "SELECT workflow_id, model, cost_nanousd, type, charged_at_ms, run_id FROM events"
    )
    seen = rows_of(old, "SELECT workflow_id, calls, first_seen_ms, last_seen_ms FROM workflows")
    runs = rows_of(old, "SELECT run_id, workflow_id, first_seen_ms, last_seen_ms FROM runs")
    convert_0_7(old)

    def used(size_ms: int, **scope: str) -> list[Any]:
        where = " AND ".join(f"{name} = '{value}'" for name, value in scope.items())
        return rows_of(
            old,
            "SELECT start_ms, sum(cost_nanousd), sum(events) FROM usage WHERE"
            f" size_ms = {size_ms} AND events <> 0 AND {where} GROUP BY start_ms",
        )

    def expected(size_ms: int, members: list[Any]) -> list[Any]:
        found: dict[int, list[int]] = {}
        for _, _, cost, _, at_ms, _ in members:
            of_time = found.setdefault(at_ms - at_ms % size_ms if size_ms else 0, [0, 0])
            of_time[0] += cost
            of_time[1] += 1
        return [(start_ms, *numbers) for start_ms, numbers in sorted(found.items())]

    for size_ms in (0, 900_000):
        of_all = used(size_ms, scope_kind="organisation")
        assert of_all == expected(size_ms, events) != []
        for name in ("alpha", "beta", "poor"):
            own = [each for each in events if each[0] == name]
            assert used(size_ms, scope_kind="workflow", scope_id=name) == expected(size_ms, own)
        for model in {each[1] for each in events if each[1]}:
            own = [each for each in events if each[1] == model]
            found = used(size_ms, scope_kind="organisation", model=model)
            assert found == expected(size_ms, own)
    own = [each for each in events if each[5] == "run-1"]
    assert used(0, scope_kind="run", scope_id="run-1") == expected(0, own)
    own = [each for each in events if each[3] == "tool"]  # all of one tool
    for size_ms in (0, 900_000):
        found = used(size_ms, scope_kind="tool", scope_id="search")
        assert found == expected(size_ms, own) != []
    listed = "scope_kind = '{}' AND size_ms = 0 AND first_ms IS NOT NULL"
    columns = "scope_id, calls, first_ms, last_ms"
    assert rows_of(old, f"SELECT {columns} FROM usage WHERE {listed.format('workflow')}") == seen
    columns = "scope_id, owner, first_ms, last_ms"
    assert rows_of(old, f"SELECT {columns} FROM usage WHERE {listed.format('run')}") == runs


def test_a_gateway_goes_on_with_it(old: Path) -> None:
    spent = sum(cost for (cost,) in rows_of(old, "SELECT cost_nanousd FROM events"))
    with (
        run_gateway(old, clock_ms=lambda: NOW_MS) as gateway,
        httpx.Client(base_url=gateway.base_url) as http,
    ):
        headers = {"X-API-Key": release_0_7.API_KEY, "X-Guard-Protocol": "3"}
        call = {"kind": "call", "function": "work"}

        def ask(workflow_id: str) -> int:
            body = {**call, "call_id": workflow_id, "workflow_id": workflow_id}
            return http.post("/gate", json=body, headers=headers).status_code

        statuses = {name: ask(name) for name in ("alpha", "beta", "gamma", "poor")}
        assert statuses == {"alpha": 200, "beta": 403, "gamma": 403, "poor": 402}
        reply = http.post("/gate", headers=headers, json={
            "call_id": "t", "kind": "tool", "function": "t", "tool_name": "delete_all",
        })  # fmt: skip
        assert reply.status_code == 403, "its policy holds"
        admin = gateway.admin
        assert admin.verify_ledger()["problems"] == []
        assert admin.verify_audit()["ok"]
        assert len(admin.budgets()) == 4
        (total,) = [b for b in admin.ledger() if (b["scope_kind"], b["ends_ms"]) == (
            "organisation", None)]  # fmt: skip
        assert total["committed_nanousd"] == spent
        # The reservation that was open, and the one of the call above.
        assert total["reserved_nanousd"] >= 1_250_000


@pytest.mark.asyncio
async def test_it_can_be_copied_to_postgresql(old: Path, tmp_path: Path) -> None:
    target = postgres.url_of(tmp_path)
    before = all_rows(old)
    run = CliRunner().invoke
    assert run(command, ["migrate", "up", "--database", str(old)]).exit_code == 0
    result = run(command, ["copy", "--from", f"sqlite:{old}", "--to", target])
    assert result.exit_code == 0, result.output
    storage = PostgresStorage(target, clock_ms=lambda: NOW_MS)
    await storage.open(lambda events: None)
    try:
        assert (await storage.verify_ledger()).problems == []
        assert await storage.audit_head() == max((row[0], row[-1]) for row in before["audit"])
        (organisation_id,) = {row[1] for row in before["events"]}
        budgets = await storage.budgets(organisation_id)
        assert sorted(b.budget_id for b in budgets) == [row[0] for row in before["budgets"]]
        views = await storage.balances(organisation_id, current_only=False)
        assert {v.balance_id: v.committed for v in views} == {
            row[0]: row[6] for row in before["balances"]
        }
        assert len(await storage.keys(None)) == len(before["keys"])
    finally:
        await storage.close()


def test_an_interrupted_conversion_begins_anew(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = all_rows(old)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert_0_7(old)
    assert all_rows(old) == before
    # A process that is killed leaves its file behind.
    Path(f"{old}.converting").write_text("half of a database")
    assert convert_0_7(old) == old.with_name("g.sqlite3.0.7-2")
    assert all_rows(old)["events"]
    assert not Path(f"{old}.converting").exists()


def test_sums_of_many_events_are_written_in_batches(
    old: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.sqlite3"
    release_0_7.filled(other)
    convert_0_7(other)
    monkeypatch.setattr(converter, "BATCH_EVENTS", 3)
    convert_0_7(old)
    assert all_rows(old) == all_rows(other)


@pytest.mark.parametrize("version", [1, 3, 10])
@pytest.mark.asyncio
async def test_a_file_between_two_releases_is_refused_and_left_as_it_is(
    old: Path, version: int
) -> None:
    with contextlib.closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = all_rows(old)
    text = f"schema {version}, which no release has written.*0.7.*Nothing was changed"
    with pytest.raises(StoreError, match=text):
        await SqliteStorage(old).open(lambda events: None)
    for words in (["migrate", "status"], ["migrate", "up"]):
        result = CliRunner().invoke(command, [*words, "--database", str(old)])
        assert result.exit_code == 1
        assert "no release has written" in result.output
    assert all_rows(old) == before
    assert rows_of(old, "PRAGMA user_version") == [(version,)]
