"""Keys that release 0.7 rotated become one key again, with what was set for it and counted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
from click.testing import CliRunner

from guard.core.wire import dollars
from guard.gateway.cli.main import gateway as command
from guard.gateway.domain.commands import Actor
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger.audit import _hash
from guard.gateway.storage.sqlite.migrations import SqliteMigrator, convert_0_7
from guard.gateway.unit.state import AuditRow
from tests.support import postgres, release_0_7

NOW_MS: Final = release_0_7.WRITTEN_AT_MS
DAY_MS: Final = 86_400_000
CENT: Final = 10**7
ADMIN_KEY: Final = "gda_" + "x" * 40
OWN: Final = "01a1ee56-5e00-7c75-8e5b-518800000001"
FIRST: Final = "01a1ee56-5e00-7f42-ae5f-e5dc00000001"
"""The key of the fixture's programs, which its events are charged to."""


@attrs.define
class OldFile:
    """A file of release 0.7 whose keys are rotated as its gateway did it."""

    path: Path
    connection: sqlite3.Connection
    number: int = 100

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        return self.connection.execute(sql, arguments).fetchall()

    def audit(self, at_ms: int, action: str, target: str, details: dict[str, Any]) -> None:
        ((seq, head),) = self.rows("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
        text = json.dumps(details, sort_keys=True, separators=(",", ":"))
        row = AuditRow(seq + 1, at_ms, OWN, Actor("ada").name, action, target, text, head, "")
        row = row._replace(hash=_hash(head, row))
        self.rows("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def rotate(self, key_id: str, at_ms: int, *, overlap_ms: int = DAY_MS) -> str:
        """Make a successor, and end the key after an overlap."""
        self.number += 1
        made = f"01a1ee56-5e00-7f42-ae5f-e5dc{self.number:08}"
        secret = secret_of(made)
        self.rows(
            "INSERT INTO keys SELECT ?, organisation_id, role, name, ?, ?, workflow_id, NULL, ?,"
            " NULL, NULL FROM keys WHERE key_id = ?",
            made, secret[:12], hashlib.sha256(secret.encode()).digest(), at_ms, key_id,
        )  # fmt: skip
        self.rows("UPDATE keys SET expires_at_ms = ? WHERE key_id = ?", at_ms + overlap_ms, key_id)
        self.audit(at_ms, "key.create", made, {"name": "worker", "prefix": secret[:12]})
        self.audit(at_ms, "key.rotate", key_id, {"overlap_ms": overlap_ms, "successor": made})
        return made

    def budget(self, key_id: str, limit: int, at_ms: int, window: str = "total") -> str:
        self.number += 1
        budget_id = f"01a1ee56-5e00-7c75-8e5b-5188{self.number:08}"
        self.rows(
            "INSERT INTO budgets VALUES (?, ?, 'key', ?, ?, ?, 'hard', 0, '[0.8, 1.0]', 1, ?, ?)",
            budget_id, OWN, key_id, window, limit, at_ms, at_ms,
        )  # fmt: skip
        return budget_id

    def spend(self, key_id: str, cost: int, at_ms: int, balance_ids: tuple[int, ...] = ()) -> None:
        """Charge an event, and count it on balances."""
        self.number += 1
        self.rows(
            "INSERT INTO events (organisation_id, event_id, type, at_ms, received_at_ms,"
            " charged_at_ms, key_id, workflow_id, input_tokens, output_tokens, cost_nanousd, flags,"
            " balance_ids, data) VALUES (?, ?, 'llm', ?, ?, ?, ?, 'alpha', 0, 0, ?, '', ?, '{}')",
            OWN, f"e{self.number}", at_ms, at_ms, at_ms, key_id, cost, json.dumps(balance_ids),
        )  # fmt: skip
        for each in balance_ids:
            self.rows(
                "UPDATE balances SET committed = committed + ? WHERE balance_id = ?", cost, each
            )

    def balance(self, budget_id: str, scope_id: str, opening: int = 0) -> int:
        ((limit,),) = self.rows("SELECT limit_nanousd FROM budgets WHERE budget_id = ?", budget_id)
        self.rows(
            "INSERT INTO balances (budget_id, scope_id, epoch_ms, opening, committed, reserved,"
            " overshoot, bound, level, exhausted) VALUES (?, ?, 0, ?, ?, 0, 0, ?, 0, 0)",
            budget_id, scope_id, opening, opening, max(opening, limit),
        )  # fmt: skip
        return int(self.rows("SELECT max(balance_id) FROM balances")[0][0])


def secret_of(key_id: str) -> str:
    return f"gdk_{key_id[-8:]}" + "s" * 20


@pytest.fixture
def old(tmp_path: Path) -> Iterator[OldFile]:
    path = tmp_path / "g.sqlite3"
    release_0_7.filled(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield OldFile(path, connection)


def spent_by(old: OldFile, key_id: str) -> int:
    ((cost,),) = old.rows("SELECT sum(cost_nanousd) FROM events WHERE key_id = ?", key_id)
    return int(cost or 0)


def ask(http: httpx.Client, secret: str, call_id: str) -> int:
    body = {"kind": "call", "function": "f", "call_id": call_id, "workflow_id": "alpha"}
    headers = {"X-API-Key": secret, "X-Guard-Protocol": "3"}
    return http.post("/gate", json=body, headers=headers).status_code


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, old: OldFile, tmp_path: Path) -> Any:
    """Convert the file, and run a gateway on it or on its copy in PostgreSQL."""

    @contextlib.contextmanager
    def opened(*, carry: bool = False) -> Iterator[Any]:
        convert_0_7(old.path, carry=carry, now_ms=NOW_MS)
        target: Any = old.path
        if request.param == "postgres":
            target = postgres.url_of(tmp_path)
            words = ["copy", "--from", f"sqlite:{old.path}", "--to", target]
            result = CliRunner().invoke(command, words)
            assert result.exit_code == 0, result.output
        with run_gateway(target, clock_ms=lambda: NOW_MS) as gateway:
            yield gateway

    return opened


def test_they_are_one_key_with_all_that_was_set_for_it(old: OldFile, opened: Any) -> None:
    before = spent_by(old, FIRST)
    second = old.rotate(FIRST, NOW_MS - 3 * DAY_MS)
    third = old.rotate(second, NOW_MS - DAY_MS, overlap_ms=2 * DAY_MS)
    old.spend(second, 3 * CENT, NOW_MS - 2 * DAY_MS)
    old.spend(third, 4 * CENT, NOW_MS - 1000)
    old.budget(FIRST, 100 * CENT, NOW_MS - 9 * DAY_MS, "day")
    document = json.loads(old.rows("SELECT record FROM policies")[0][0])
    document |= {"name": "of the second", "policy_id": "p2", "scope_kind": "key",
                 "scope_id": second}  # fmt: skip
    old.rows("INSERT INTO policies VALUES ('p2', 1, ?, 'of the second', 1, ?)", OWN,
             json.dumps(document))  # fmt: skip
    with opened() as gateway, httpx.Client(base_url=gateway.base_url) as http:
        admin = gateway.admin
        listed = admin.keys()
        (key,) = [each for each in listed if each["name"] == "worker"]
        assert key["key_id"] == FIRST
        assert (key["expires_at_ms"], key["revoked_at_ms"]) == (None, None)
        prefixes = [each["prefix"] for each in key["secrets"]]
        assert prefixes == [secret_of(third)[:12], secret_of(second)[:12]], "the first has ended"
        assert ask(http, release_0_7.API_KEY, "1") == 401
        assert [ask(http, secret_of(each), each) for each in (second, third)] == [200, 200]
        (usage,) = [each for each in admin.usage("key") if each["group"] == FIRST]
        assert usage["cost_nanousd"] == before + 7 * CENT
        assert not {each["group"] for each in admin.usage("key")} & {second, third}
        (policy,) = [each for each in admin.policies() if each["name"] == "of the second"]
        assert policy["scope_id"] == FIRST
        (budget,) = [each for each in admin.budgets() if each["scope_kind"] == "key"]
        assert (budget["scope_id"], budget["window"]) == (FIRST, "day")
        assert admin.verify_ledger()["problems"] == []
        assert admin.verify_audit()["ok"]
        # Each old id is a name for it.
        for alias, limit in ((second, 50), (third, 60), (FIRST, 70)):
            made = admin.set_budget(limit, scope_kind="key", scope_id=alias, window="week")
            assert made["scope_id"] == FIRST
        below = admin.create_key_full("inner", owner_id=third)["key"]["key_id"]
        assert below.startswith(f"{FIRST}.")
        rotated = admin.rotate_key(second)
        assert rotated["key"]["key_id"] == FIRST
        assert ask(http, secret_of(third), "5") == 401
        assert ask(http, rotated["api_key"], "6") == 200
        assert admin.revoke_key(third)["key_id"] == FIRST
        assert ask(http, rotated["api_key"], "7") == 401


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("limit", [20 * CENT, 300 * CENT])
def test_the_budget_that_was_set_last_stays_and_counts_all(
    old: OldFile, opened: Any, carry: bool, limit: int
) -> None:
    before = spent_by(old, FIRST)
    second = old.rotate(FIRST, NOW_MS - 3 * DAY_MS)
    third = old.rotate(second, NOW_MS - 2 * DAY_MS, overlap_ms=9 * DAY_MS)
    of_first = old.budget(FIRST, 900 * CENT, NOW_MS - 9 * DAY_MS)
    of_third = old.budget(third, limit, NOW_MS - 2 * DAY_MS)
    old.rows("UPDATE budgets SET updated_at_ms = ? WHERE budget_id = ?", NOW_MS, of_first)
    old.rows("UPDATE budgets SET updated_at_ms = ? WHERE budget_id = ?", NOW_MS + 1, of_third)
    counted = (old.balance(of_first, FIRST, opening=before), old.balance(of_third, third))
    old.spend(FIRST, 11 * CENT, NOW_MS - 4 * DAY_MS, counted[:1])
    old.spend(second, 13 * CENT, NOW_MS - 2 * DAY_MS)  # no budget was for it
    old.spend(third, 17 * CENT, NOW_MS - DAY_MS, counted[1:])
    joined = before + 41 * CENT
    lines = "\n".join(SqliteMigrator(old.path).preview(carry=carry))
    assert f"budget of total: {dollars(limit)}, which was set last, stays; $9 of" in lines
    is_above = joined > limit
    assert (f"joined, {dollars(joined)} of {dollars(limit)} is spent" in lines) == is_above
    assert ("--carry" in lines) == (is_above and not carry)
    with opened(carry=carry) as gateway, httpx.Client(base_url=gateway.base_url) as http:
        admin = gateway.admin
        (budget,) = [each for each in admin.budgets() if each["scope_kind"] == "key"]
        assert (budget["scope_id"], budget["limit"]) == (FIRST, limit)
        (balance,) = [each for each in admin.ledger() if each["scope_kind"] == "key"]
        starts_anew = is_above and not carry
        assert balance["committed"] == (0 if starts_anew else joined)
        assert admin.verify_ledger()["problems"] == []
        assert ask(http, secret_of(third), "1") == (402 if is_above and carry else 200)
        assert ask(http, secret_of(second), "2") == (402 if is_above and carry else 200)


def test_the_plan_is_said_before_anything_is_done(old: OldFile) -> None:
    second = old.rotate(FIRST, NOW_MS - 3 * DAY_MS)
    content = old.path.read_bytes()
    words = ["migrate", "up", "--database", str(old.path)]
    result = CliRunner().invoke(command, [*words, "--preview"])
    assert result.exit_code == 0
    assert f"key worker: {FIRST} stays, also found by {second}" in result.output
    assert old.rows("PRAGMA user_version") == [(release_0_7.SCHEMA,)]
    assert old.path.read_bytes() == content
    assert f"found by {second}" in CliRunner().invoke(command, words).output
    assert CliRunner().invoke(command, [*words, "--preview"]).output == "no keys are joined\n"


def test_links_that_the_audit_log_no_longer_has_are_named(old: OldFile) -> None:
    second = old.rotate(FIRST, NOW_MS - 3 * DAY_MS)
    old.rows("DELETE FROM audit WHERE action = 'key.rotate' OR seq < 5")
    old.rows("UPDATE audit SET at_ms = ?", NOW_MS)
    (line,) = SqliteMigrator(old.path).preview()
    assert f"{second} may be the successor of {FIRST}" in line
    convert_0_7(old.path, now_ms=NOW_MS)
    with contextlib.closing(sqlite3.connect(old.path)) as connection:
        assert len(connection.execute("SELECT * FROM keys").fetchall()) == 4


def test_a_revoked_successor_ends_alone_or_with_the_last(old: OldFile) -> None:
    second = old.rotate(FIRST, NOW_MS - DAY_MS, overlap_ms=9 * DAY_MS)
    old.rows("UPDATE keys SET revoked_at_ms = ? WHERE key_id = ?", NOW_MS - 1, second)
    convert_0_7(old.path, now_ms=NOW_MS)
    with (
        run_gateway(old.path, clock_ms=lambda: NOW_MS) as gateway,
        httpx.Client(base_url=gateway.base_url) as http,
    ):
        assert ask(http, release_0_7.API_KEY, "1") == 200
        assert ask(http, secret_of(second), "2") == 401
