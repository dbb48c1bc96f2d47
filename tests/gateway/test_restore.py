"""Restore and migrate: a checked copy takes its place, or nothing changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from guard.gateway.cli.main import gateway as command
from guard.gateway.embedded import run_gateway
from guard.gateway.storage.sqlite import schema
from tests.gateway.conftest import new_tenant
from tests.support import release_0_7

NEWEST = schema.newest()
UP_TO_DATE = f"schema {NEWEST} of {NEWEST}\n"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], env={})


def fails(text: str, *words: str | Path) -> None:
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert text in result.output
    assert len(result.output.splitlines()) == 1


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A running gateway's backup: a budget, a charge, an open reservation, a directive."""
    target = tmp_path / "backup.sqlite3"
    with run_gateway(tmp_path / "origin.sqlite3") as gateway:
        tenant = new_tenant(gateway)
        tenant.admin.set_budget(1000)
        tenant.send(tenant.llm(2_000_000_000))
        tenant.allowed(model="gpt-4o", max_input_tokens=10, max_output_tokens=10)
        tenant.admin.kill("w")
        result = run("backup", target, "--database", tmp_path / "origin.sqlite3")
        assert result.exit_code == 0, result.output
        tenant.http.close()
        tenant.admin.close()
    return target


def change(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def left_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_backed_up_is_there_again(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "g.sqlite3"
    target.parent.mkdir()
    result = run("restore", backup, "--database", target)
    assert result.exit_code == 0, result.output
    assert "1 balances, 1 events, correct" in result.output
    head = result.output.split("audit head: ")[1].split()[0]
    assert left_of(target.parent) == {"g.sqlite3", "g.sqlite3.lock"}
    assert target.stat().st_mode & 0o777 == 0o600
    with run_gateway(target) as restored:
        report = restored.admin.verify_ledger()
        assert (report["problems"], report["reservations_open"]) == ([], 1)
        assert len(restored.admin.request("GET", "/organisations")) == 2
        assert restored.admin.verify_audit(head)["ok"]


def test_a_running_gateways_file_is_not_touched(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "live.sqlite3"
    with run_gateway(target) as gateway:
        gateway.admin.set_budget(10)
        fails("another gateway is using this database",
              "restore", backup, "--database", target, "--replace")  # fmt: skip
        fails("another gateway is using this database", "migrate", "up", "--database", target)
        assert run("migrate", "status", "--database", target).output == UP_TO_DATE
        assert gateway.admin.budgets()[0]["limit"] == 100_000_000


def test_what_was_there_is_kept_beside(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "g.sqlite3"
    with run_gateway(target) as gateway:
        gateway.admin.set_budget(10)
    fails("--replace", "restore", backup, "--database", target)
    for number in (1, 2):
        result = run("restore", backup, "--database", target, "--replace")
        assert result.exit_code == 0, result.output
        assert f"g.sqlite3.replaced-{number}" in result.output
    with run_gateway(tmp_path / "g.sqlite3.replaced-1") as old:
        assert old.admin.budgets()[0]["limit"] == 100_000_000


def test_the_log_of_a_gateway_that_was_killed_does_not_meet_the_new_file(
    backup: Path, tmp_path: Path
) -> None:
    """Its newest commits are in a log beside it, which belongs to the old file."""
    live, target = tmp_path / "live.sqlite3", tmp_path / "g.sqlite3"
    with run_gateway(live) as gateway:
        gateway.admin.set_budget(77)
        for end in ("", "-wal"):
            Path(f"{target}{end}").write_bytes(Path(f"{live}{end}").read_bytes())
    assert Path(f"{target}-wal").stat().st_size
    assert run("restore", backup, "--database", target, "--replace").exit_code == 0
    assert not Path(f"{target}-wal").exists()
    with run_gateway(target) as restored:
        assert len(restored.admin.request("GET", "/organisations")) == 2
    with run_gateway(tmp_path / "g.sqlite3.replaced-1") as old:
        assert old.admin.budgets()[0]["limit"] == 770_000_000


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("UPDATE balances SET committed = committed + 1", "does not add up: balance 1: committed"),
        ("UPDATE reservations SET held = held + 1 WHERE state = 'open'", "does not add up"),
        ("UPDATE audit SET actor = 'nobody' WHERE seq = 2", "audit log is wrong at entry 2"),
        (f"PRAGMA user_version = {NEWEST + 1}", "newer than this gateway"),
        ("PRAGMA user_version = 0", "not a gateway's database"),
    ],
)  # fmt: skip
def test_a_backup_with_something_wrong_changes_nothing(
    backup: Path, tmp_path: Path, sql: str, text: str
) -> None:
    change(backup, sql)
    target = tmp_path / "g.sqlite3"
    fails(text, "restore", backup, "--database", target)
    assert not left_of(tmp_path) & {"g.sqlite3", "g.sqlite3.restoring", "g.sqlite3-wal"}


def test_a_damaged_backup_is_noticed(backup: Path, tmp_path: Path) -> None:
    raw = bytearray(backup.read_bytes())
    for at in range(4096 * 5, len(raw), 4096):
        raw[at : at + 64] = b"\xff" * 64
    backup.write_bytes(raw)
    target = tmp_path / "g.sqlite3"
    result = run("restore", backup, "--database", target)
    assert result.exit_code == 1
    assert not target.exists()
    (tmp_path / "text").write_text("no database, and long enough to be one" * 99)
    fails("not a database", "restore", tmp_path / "text", "--database", target)
    (tmp_path / "empty").touch()
    fails("the backup is empty", "restore", tmp_path / "empty", "--database", target)
    fails("same file", "restore", tmp_path / "origin.sqlite3", "--replace",
          "--database", tmp_path / "origin.sqlite3")  # fmt: skip


def test_a_noted_head_must_be_in_it(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "g.sqlite3"
    words = ("restore", backup, "--database", target, "--expect")
    fails("audit log is wrong at entry 99", *words, "99:" + "0" * 64)
    assert run(*words, "nonsense").exit_code == 2


# -- migrate ---------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of release 0.7."""
    path = tmp_path / "old.sqlite3"
    release_0_7.filled(path)
    return path


def version_of(path: Path) -> Any:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_status_dry_run_and_up(old: Path) -> None:
    at = ("--database", old)
    status = json.loads(run("migrate", "status", "--json", *at).output)
    assert (status["version"], status["newest"]) == (2, NEWEST)
    first, *others = status["pending"]
    assert first == {"number": schema.BASELINE, "name": "from release 0.7"}
    assert [step["number"] for step in others] == list(range(schema.BASELINE + 1, NEWEST + 1))
    dry = run("migrate", "up", "--dry-run", *at)
    assert dry.output.splitlines()[0] == f"would be applied: {schema.BASELINE} from release 0.7"
    assert version_of(old) == 2, "nothing was changed"
    assert left_of(old.parent) == {"old.sqlite3", "old.sqlite3.lock"}
    applied = run("migrate", "up", *at).output.splitlines()
    assert applied[0] == f"applied: {schema.BASELINE} from release 0.7"
    assert version_of(old) == NEWEST
    assert run("migrate", "up", *at).output == "nothing to do\n"
    assert "pending" not in run("migrate", "status", *at).output
    with run_gateway(old):
        pass


def test_a_step_that_fails_leaves_what_was(old: Path) -> None:
    change(old, "ALTER TABLE events RENAME COLUMN event_seq TO n")
    for words in (("migrate", "up", "--dry-run"), ("migrate", "up")):
        fails("old.sqlite3: table events has no column named n", *words, "--database", old)
    assert version_of(old) == 2
    assert left_of(old.parent) == {"old.sqlite3", "old.sqlite3.lock"}


def test_there_must_be_a_database(tmp_path: Path) -> None:
    for words in (("status",), ("up",), ("up", "--dry-run")):
        fails("no database at", "migrate", *words, "--database", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.asyncio
async def test_a_backup_of_an_older_gateway_is_migrated(old: Path, tmp_path: Path) -> None:
    target = tmp_path / "g.sqlite3"
    result = await asyncio.to_thread(run, "restore", old, "--database", target)
    assert result.exit_code == 0, result.output
    assert "(schema 2)" in result.output
    assert (version_of(target), version_of(old)) == (NEWEST, 2), "the backup stays as it is"
