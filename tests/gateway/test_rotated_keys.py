"""A rotated key is the same key with another secret: what holds for it goes on to hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard.core.ids import IdFactory
from guard.gateway.admin import AdminError
from guard.gateway.bootstrap import begin_with
from guard.gateway.first_secrets import FirstSecrets
from guard.gateway.ledger import directory
from guard.gateway.services.keys import USES_EVERY_MS, KeyRing, hash_key, make_key
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.gateway.conftest import Tenant
from tests.support.store import ACTOR, opened_store
from tests.support.waiting import until

HOUR_MS = 3_600_000
CENT = 10**7


def _key_id(tenant: Tenant) -> str:
    (key,) = tenant.admin.keys()
    return str(key["key_id"])


def _as(api_key: str) -> dict[str, str]:
    return {"X-API-Key": api_key}


def test_its_budgets_and_their_balances_hold_for_old_and_new(tenant: Any) -> None:
    key_id = _key_id(tenant)
    tenant.admin.set_budget(100, scope_kind="key", scope_id=key_id)
    tenant.admin.set_budget(1_000, scope_kind="key", scope_id="*", window="day")
    tenant.send(tenant.llm(60 * CENT))
    first = tenant.admin.rotate_key(key_id, overlap_ms=HOUR_MS)
    assert first["key"]["key_id"] == key_id
    tenant.send(tenant.llm(30 * CENT), headers=_as(first["api_key"]))
    second = tenant.admin.rotate_key(key_id, overlap_ms=HOUR_MS)
    secrets = (tenant.api_key, first["api_key"], second["api_key"])
    assert [tenant.gate(headers=_as(each)).status_code for each in secrets] == [200] * 3
    assert tenant.balance(window="total")["committed"] == 90 * CENT
    tenant.send(tenant.llm(20 * CENT), headers=_as(second["api_key"]))
    for each in secrets:
        tenant.refused(402, "GD-B004", headers=_as(each))
    assert tenant.balance(window="day")["committed"] == 110 * CENT
    (usage,) = tenant.admin.usage("key")
    assert (usage["group"], usage["cost_nanousd"]) == (key_id, 110 * CENT)


def test_its_team_is_its_own_for_good(tenant: Any) -> None:
    made = tenant.admin.create_key_full("worker", team="search & ads")
    key_id = made["key"]["key_id"]
    assert tenant.admin.rotate_key(key_id)["key"]["team"] == "search & ads"
    listed = tenant.admin.keys()
    teams = {key["key_id"]: key["team"] for key in listed}
    assert teams == {listed[0]["key_id"]: "", key_id: "search & ads"}
    entry = next(each for each in tenant.admin.audit() if each["target"] == key_id
                 and each["action"] == "key.create")  # fmt: skip
    assert entry["details"]["team"] == "search & ads"


def test_its_policies_caps_and_open_calls_hold_for_old_and_new(tenant: Any) -> None:
    key_id = _key_id(tenant)
    tenant.admin.set_policy("blocks", scope_kind="key", scope_id=key_id, tools_block=["erase"])
    caps = [{"calls": 2, "per_ms": HOUR_MS, "by": "key", "tools": ["search"]}]
    tenant.admin.set_policy("caps", rate_caps=caps)
    tenant.allowed(kind="tool", tool_name="search")
    once = {"Idempotency-Key": "a-retry"}
    allowed = tenant.allowed(call_id="open", headers=once)
    headers = _as(tenant.admin.rotate_key(key_id, overlap_ms=HOUR_MS)["api_key"])
    tenant.refused(403, "GD-T001", headers=headers, kind="tool", tool_name="erase")
    tenant.allowed(headers=headers, kind="tool", tool_name="search")
    for used in (headers, None):
        tenant.refused(429, "GD-R001", headers=used or {}, kind="tool", tool_name="search")
    again = tenant.allowed(call_id="open", headers=headers | once)
    assert again == allowed, "it was asked again, with the new secret"


def test_the_old_secret_ends_when_it_was_told_to(tenant: Any) -> None:
    key_id = _key_id(tenant)
    first = tenant.admin.rotate_key(key_id, overlap_ms=300)
    until(lambda: tenant.gate().status_code == 401)
    assert tenant.gate(headers=_as(first["api_key"])).status_code == 200
    # The next rotation without an overlap ends all secrets before it.
    second = tenant.admin.rotate_key(key_id, overlap_ms=HOUR_MS)
    (key,) = tenant.admin.keys()
    assert key["prefix"] == second["api_key"][:12]
    assert [each["prefix"] for each in key["secrets"]] == [
        second["api_key"][:12],
        first["api_key"][:12],
    ]
    assert key["secrets"][0]["ends_at_ms"] is None
    assert key["secrets"][1]["ends_at_ms"] > key["created_at_ms"]
    assert tenant.gate(headers=_as(first["api_key"])).status_code == 200
    third = tenant.admin.rotate_key(key_id)
    statuses = [tenant.gate(headers=_as(each["api_key"])).status_code for each in (first, second)]
    assert statuses == [401, 401]
    assert tenant.gate(headers=_as(third["api_key"])).status_code == 200
    (key,) = tenant.admin.keys()
    assert [each["prefix"] for each in key["secrets"]] == [third["api_key"][:12]]
    # A revocation ends all.
    fourth = tenant.admin.rotate_key(key_id, overlap_ms=HOUR_MS)
    tenant.admin.revoke_key(key_id)
    statuses = [tenant.gate(headers=_as(each["api_key"])).status_code for each in (third, fourth)]
    assert statuses == [401, 401]
    with pytest.raises(AdminError, match="409"):
        tenant.admin.rotate_key(key_id)


def test_a_key_keeps_its_own_end_and_those_below_it(tenant: Any) -> None:
    now_ms = tenant.admin.keys()[0]["created_at_ms"]
    ends_ms = now_ms + HOUR_MS
    outer = tenant.admin.create_key_full("outer", expires_at_ms=ends_ms)
    key_id = outer["key"]["key_id"]
    inner = tenant.admin.create_key_full("inner", owner_id=key_id)
    rotated = tenant.admin.rotate_key(key_id, overlap_ms=10 * HOUR_MS)
    assert rotated["key"]["expires_at_ms"] == ends_ms
    seen = tenant.admin.keys()[1]
    assert seen["secrets"][1]["ends_at_ms"] == ends_ms, "an old secret does not outlive its key"
    tenant.admin.set_budget(1, scope_kind="key", scope_id=key_id)
    tenant.send(tenant.llm(2 * CENT), headers=_as(rotated["api_key"]))
    tenant.refused(402, "GD-B004", headers=_as(inner["api_key"]))
    past = tenant.admin.create_key_full("past", expires_at_ms=now_ms)
    with pytest.raises(AdminError, match="has ended"):
        tenant.admin.rotate_key(past["key"]["key_id"])


@pytest.mark.asyncio
async def test_lists_say_when_each_secret_was_used_last(
    storage_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    async with opened_store(storage_factory, tmp_path) as store:
        storage, own = store.storage, store.org
        begun_ms = store.clock()
        ring = KeyRing(storage, store.clock)
        made = make_key(IdFactory(), begun_ms, role="sdk", organisation_id=own, name="used")
        await storage.write(within(own), directory.create_key, ACTOR, made.key, made.key_hash, None)
        replaced = (ACTOR, own, made.key.key_id, "gdk_new", b"new", None, USES_EVERY_MS)
        await storage.write(within(own), directory.rotate_key, *replaced)
        store.clock.now += USES_EVERY_MS - 1
        assert await ring.find(made.api_key, "sdk")
        await ring.write_uses()

        async def used() -> list[int | None]:
            (key,) = [k for k in await storage.keys(own) if k.key_id == made.key.key_id]
            return [each.used_at_ms for each in key.secrets]

        assert await used() == [None, None], "at most once a minute"
        store.clock.now += 1
        await ring.write_uses()
        assert await ring.find(made.api_key, "sdk") is None, "it has ended"
        assert await ring.find_hashed(b"new", "sdk")
        assert await used() == [None]
        store.clock.now += USES_EVERY_MS
        await ring.write_uses()
        assert await used() == [begun_ms + USES_EVERY_MS]


@pytest.mark.asyncio
async def test_a_start_with_a_secret_that_was_replaced_makes_no_key(
    storage_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    given = FirstSecrets(admin_key="gda_" + "a" * 40, api_key="gdk_" + "b" * 40)
    async with opened_store(storage_factory, tmp_path) as store:
        storage = store.storage
        await begin_with(storage, store.clock(), given)
        hashed = hash_key(given.api_key or "")
        found = await storage.find_key(hashed)
        assert found is not None
        own, key_id = found.key.organisation_id, found.key.key_id
        for secret in (b"1", b"2"):
            await storage.write(
                within(own or ""), directory.rotate_key, ACTOR, own, key_id, "gdk_", secret, None, 0
            )
        await begin_with(storage, store.clock(), given)
        found = await storage.find_key(hashed)
        assert found is not None
        assert found.key.key_id == key_id
        assert found.key.expires_at_ms is not None
        assert found.key.expires_at_ms <= store.clock()
        assert [key.key_id for key in await storage.keys(own)] == [key_id]
