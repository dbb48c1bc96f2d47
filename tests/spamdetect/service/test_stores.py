"""One suite for every key store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spamdetect.errors import SpamConfigError
from spamdetect.service.app import open_store
from spamdetect.service.keys import KeySpec, StoredRule, StoreError, parse_key, secret_matches
from spamdetect.service.sqlite_store import SqliteKeyStore
from spamdetect.service.store import KeyStore
from tests.support import postgres
from tests.support.private_server import schema_in

pytestmark = pytest.mark.asyncio


async def test_a_key_is_made_found_and_revoked(store: KeyStore) -> None:
    assert not await store.list_keys()
    before_s = time.time()
    new = await store.create(KeySpec("label", rate_per_minute=3, quota_per_day=0))
    assert await store.list_keys()
    parts = parse_key(new.api_key)
    assert parts is not None
    assert parts[0] == new.key_id
    record = await store.find(new.key_id)
    assert record is not None
    assert secret_matches(parts[1], record)
    assert not secret_matches(parts[1][:-1] + ("a" if parts[1][-1] != "a" else "b"), record)
    assert (record.label, record.owner, record.rate_per_minute, record.quota_per_day) == (
        "label",
        "",
        3,
        0,
    )
    assert before_s <= record.created_s <= time.time()
    assert record.revoked_s is None
    assert await store.revoke(new.key_id)
    assert not await store.revoke(new.key_id)
    assert not await store.revoke("nosuchkey234")
    record = await store.find(new.key_id)
    assert record is not None
    assert record.revoked_s is not None
    assert await store.find("nosuchkey234") is None


async def test_a_database_without_an_encoding() -> None:
    opened = await open_store(postgres.database_without_encoding())
    new = await opened.create(KeySpec("ключ 🎉", owner="é"))
    record = await opened.find(new.key_id)
    await opened.close()
    assert record is not None
    assert (record.key_id, record.label, record.owner) == (new.key_id, "ключ 🎉", "é")


async def test_a_key_that_was_found_is_found_as_it_is_now(store: KeyStore) -> None:
    new = await store.create(KeySpec("label", owner="me"))
    first = await store.find(new.key_id)
    assert await store.find(new.key_id) == first
    assert await store.find("absent") is None
    await store.revoke(new.key_id)
    revoked = await store.find(new.key_id)
    assert revoked is not None
    assert revoked.revoked_s is not None
    other = await store.create(KeySpec("label", owner="me"))
    assert await store.find(other.key_id) is not None


async def test_keys_are_listed_oldest_first(store: KeyStore) -> None:
    made = [(await store.create(KeySpec(f"key {n}"))).key_id for n in range(5)]
    assert [record.key_id for record in await store.list_keys()] == made


async def test_an_owner_has_one_active_key(store: KeyStore) -> None:
    since_s = time.time()
    first = await store.create(KeySpec(owner="telegram:1"))
    other = await store.create(KeySpec(owner="telegram:2"))
    second = await store.create(KeySpec(owner="telegram:1"))
    active = await store.active_key_of("telegram:1")
    assert active is not None
    assert active.key_id == second.key_id
    revoked = await store.find(first.key_id)
    assert revoked is not None
    assert revoked.revoked_s is not None
    theirs = await store.active_key_of("telegram:2")
    assert theirs is not None
    assert theirs.key_id == other.key_id
    assert await store.issued_since("telegram:1", since_s) == 2
    assert await store.issued_since("telegram:1", time.time() + 10) == 0
    assert await store.active_key_of("telegram:3") is None


async def test_an_owner_asking_many_times_at_once_has_one_active_key(store: KeyStore) -> None:
    await asyncio.gather(*(store.create(KeySpec(owner="telegram:1")) for _ in range(20)))
    records = await store.list_keys()
    assert len(records) == 20
    assert sum(record.revoked_s is None for record in records) == 1


async def test_keys_without_owner_do_not_replace_one_another(store: KeyStore) -> None:
    for _ in range(3):
        await store.create(KeySpec())
    assert all(record.revoked_s is None for record in await store.list_keys())


async def test_usage_adds_up(store: KeyStore) -> None:
    await store.add_usage({("a", "2026-11-01"): 2, ("b", "2026-11-01"): 5})
    await store.add_usage({("a", "2026-11-01"): 3, ("a", "2026-11-02"): 1})
    assert await store.usage("a", "2026-11-01") == 5
    assert await store.usage("a", "2026-11-02") == 1
    assert await store.usage("b", "2026-11-01") == 5
    assert await store.usage("c", "2026-11-01") == 0


async def test_usage_is_added_in_one_round_trip(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process adds its counts every second: a transaction around them would be three."""
    trips = 0
    wait = psycopg.AsyncConnection.wait

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal trips
        trips += 1
        return await wait(self, *args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncConnection, "wait", counted)
    await store.usage("a", "2026-11-01")
    for_one_read, trips = trips, 0
    await store.add_usage({(key, "2026-11-01"): 2 for key in ("a", "b", "c")})
    assert trips == for_one_read
    assert await store.usage("c", "2026-11-01") == 2


async def test_usage_of_more_keys_than_a_statement_takes(store: KeyStore) -> None:
    keys = [f"key{n}" for n in range(2501)]
    for _ in range(2):
        await store.add_usage({(key, "2026-11-01"): n for n, key in enumerate(keys)})
    for n in (0, 999, 1000, 1999, 2000, 2500):
        assert await store.usage(keys[n], "2026-11-01") == 2 * n
    await store.add_usage({})


async def test_feedback_is_kept_once_and_whole(store: KeyStore) -> None:
    text = "null \x00, quotes '; DROP TABLE feedback; --, 😀"
    for _ in range(2):
        await store.add_feedback("id1", "key", text, True)
    await store.add_feedback("id2", "key", "ham", False)
    assert sorted(await store.feedback()) == sorted([(text, True), ("ham", False)])


async def test_rules_are_bounded_and_move_to_an_owners_next_key(store: KeyStore) -> None:
    first = await store.create(KeySpec(owner="telegram:1"))
    other = await store.create(KeySpec(owner="telegram:2"))
    assert await store.rules(first.key_id) == []
    rules = [StoredRule("list", f"r{n}", b"null \x00 %d" % n) for n in range(4)]
    stored = [await store.put_rules(first.key_id, [rule], 3) for rule in rules]
    assert stored == [True, True, True, False]
    changed = StoredRule("list", "r1", b"other")
    assert await store.put_rules(first.key_id, [changed], 3)
    assert await store.rules(first.key_id) == [rules[0], rules[2], changed]
    for n in range(4):
        rule = StoredRule("feedback", f"r{n}", b"")
        assert await store.put_rules(first.key_id, [rule], 2, drop_oldest=True)
    kept = [(rule.kind, rule.rule_id) for rule in await store.rules(first.key_id)]
    assert kept[3:] == [("feedback", "r2"), ("feedback", "r3")]
    assert not await store.delete_rule(other.key_id, "list", "r0")
    assert not await store.put_rules("nosuchkey234", [rules[0]], 3)
    assert await store.delete_rule(first.key_id, "list", "r0")
    second = await store.create(KeySpec(owner="telegram:1"))
    assert await store.rules(first.key_id) == []
    moved = [(rule.kind, rule.rule_id) for rule in await store.rules(second.key_id)]
    assert moved == kept[1:]
    record = await store.find(second.key_id)
    assert record is not None
    assert record.rules_version > 0
    assert await store.rules(other.key_id) == []
    await store.revoke(second.key_id)
    assert await store.rules(second.key_id) == []


async def test_of_rules_with_one_id_the_last_is_stored(store: KeyStore) -> None:
    new = await store.create(KeySpec())
    rules = [StoredRule("list", "a", b"%d" % n) for n in range(3)]
    assert await store.put_rules(new.key_id, rules, 1)
    assert await store.rules(new.key_id) == rules[2:]


async def test_an_earlier_schema_on_postgresql_gains_the_column(postgres_url: str) -> None:
    async with schema_in(postgres_url) as url:
        store: Any = await open_store(url)
        new = await store.create(KeySpec())
        await store._change("ALTER TABLE spamdetect_api_keys DROP COLUMN rules_version")
        await store.close()
        store = await open_store(url)
        assert await store.put_rules(new.key_id, [StoredRule("list", "a", b"")], 1)
        await store.close()


async def test_a_store_of_an_earlier_version_learns_about_rules(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite3"
    store = await open_store(f"sqlite:///{path}")
    new = await store.create(KeySpec("label"))
    await store.close()
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE api_keys DROP COLUMN rules_version")
    db.execute("DROP TABLE key_rules")
    db.close()
    store = await open_store(f"sqlite:///{path}")
    assert await store.put_rules(new.key_id, [StoredRule("list", "a", b"")], 1)
    record = await store.find(new.key_id)
    assert record is not None
    assert (record.label, record.rules_version) == ("label", 1)
    await store.close()


async def test_values_are_never_sql(store: KeyStore) -> None:
    evil = "'; DELETE FROM api_keys; DELETE FROM spamdetect_api_keys; --"
    await store.create(KeySpec(evil, owner=evil))
    assert await store.find(evil) is None
    assert not await store.revoke(evil)
    [record] = await store.list_keys()
    assert (record.label, record.owner) == (evil, evil)


async def test_no_secret_is_stored_or_shown(store: KeyStore, tmp_path: Path) -> None:
    new = await store.create(KeySpec("label"))
    secret = new.api_key.rpartition("_")[2]
    parts = parse_key(new.api_key)
    assert parts is not None
    secret = parts[1]
    record = await store.find(new.key_id)
    assert secret not in repr(new) + repr(record) + repr(store)
    assert "secret_hash" not in repr(record)
    await store.close()
    files = await asyncio.to_thread(lambda: [f for f in tmp_path.rglob("*") if f.is_file()])
    for file in files:
        assert secret.encode() not in file.read_bytes()


async def test_a_closed_store_says_so(store: KeyStore) -> None:
    await store.close()
    for use in (store.ping(), store.find("x"), store.create(KeySpec())):
        with pytest.raises(StoreError):
            await use


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "keys.sqlite3"
    store = await open_store(f"sqlite:///{path}")
    await store.create(KeySpec())
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    await store.close()


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "keys.sqlite3"
    os.symlink(target, link)
    with pytest.raises(SpamConfigError, match="Cannot open the key store"):
        await open_store(f"sqlite:///{link}")
    assert not target.exists()


async def test_a_revocation_by_another_process_is_seen_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
    one, other = await open_store(url), await open_store(url)
    new = await one.create(KeySpec())
    for store in (one, other):
        record = await store.find(new.key_id)
        assert record is not None
        assert record.revoked_s is None
    await other.revoke(new.key_id)
    record = await one.find(new.key_id)
    assert record is not None
    assert record.revoked_s is not None
    await one.close()
    await other.close()


async def test_requests_of_one_turn_share_the_look_at_the_file(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'keys.sqlite3'}")
    assert isinstance(store, SqliteKeyStore)
    new = await store.create(KeySpec())
    await store.find(new.key_id)
    asked: list[str] = []
    store._reader.set_trace_callback(asked.append)
    await asyncio.sleep(0)
    await asyncio.gather(*(store.find(new.key_id) for _ in range(5)))
    assert len(asked) == 1
    await asyncio.sleep(0)
    await store.find(new.key_id)
    assert len(asked) == 2
    await store.close()


async def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite3"
    store = await open_store(f"sqlite:///{path}")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    making = asyncio.create_task(store.create(KeySpec()))
    # Reading goes on meanwhile: no request waits for the writer.
    assert await store.find("nosuchkey234") is None
    blocker.execute("COMMIT")
    blocker.close()
    assert (await asyncio.wait_for(making, 60)).api_key
    await store.close()


@pytest.mark.parametrize("url", ["mysql://x", "", "keys.sqlite3", "sqlite://x"])
async def test_an_unknown_url_is_refused(url: str) -> None:
    with pytest.raises(SpamConfigError, match="must be sqlite:///path or postgresql://"):
        await open_store(url)


async def test_an_unreachable_database_names_no_password() -> None:
    with pytest.raises(SpamConfigError) as caught:
        await open_store("postgresql://user:hunter2@127.0.0.1:1/name")
    assert "hunter2" not in str(caught.value)


async def test_replicas_may_start_together(postgres_url: str) -> None:
    async with schema_in(postgres_url) as url:
        stores: list[Any] = await asyncio.gather(*(open_store(url) for _ in range(6)))
        assert not await stores[0].list_keys()
        await asyncio.gather(*(store.close() for store in stores))
