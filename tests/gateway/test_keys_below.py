"""Keys that belong to other keys, on each engine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.gateway.admin import AdminError
from guard.gateway.domain.key_hierarchy import child_id, lineage, owner_of

CENT = 10_000_000
ids = st.text("0123456789abcdef-", min_size=1, max_size=36)


@given(parts=st.lists(ids, min_size=1, max_size=5))
def test_lineage(parts: list[str]) -> None:
    key_id = parts[0]
    expected = [key_id]
    for part in parts[1:]:
        assert owner_of(child_id(key_id, part)) == key_id
        key_id = child_id(key_id, part)
        expected.insert(0, key_id)
    assert lineage(key_id) == tuple(expected)
    assert owner_of(parts[0]) is None


def _ask(tenant: Any, api_key: str) -> httpx.Response:
    headers = {"x-api-key": api_key}
    reply: httpx.Response = tenant.gate(headers=headers)
    return reply


def _spend(tenant: Any, made: dict[str, Any], amount: int) -> None:
    headers = {"x-api-key": made["api_key"]}
    assert tenant.send(tenant.llm(amount), headers=headers).status_code in (202, 422)


def test_budgets_of_a_key_hold_for_those_below_it(tenant: Any) -> None:
    admin = tenant.admin
    outer = admin.create_key_full("outer")
    key_id = outer["key"]["key_id"]
    inner = admin.create_key_full("inner", owner_id=key_id)
    innermost = admin.create_key_full("innermost", owner_id=inner["key"]["key_id"])
    other = admin.create_key_full("other")
    assert lineage(innermost["key"]["key_id"])[-1] == key_id
    admin.set_budget(10, scope_kind="key", scope_id=key_id)
    admin.set_budget(4, scope_kind="key", scope_id=inner["key"]["key_id"])

    _spend(tenant, innermost, 3 * CENT)
    left = {row["scope_id"]: row["committed_cents"] for row in admin.ledger()}
    assert left == {key_id: 3.0, inner["key"]["key_id"]: 3.0}
    _spend(tenant, innermost, CENT)
    assert _ask(tenant, innermost["api_key"]).status_code == 402
    assert _ask(tenant, outer["api_key"]).status_code == 200
    _spend(tenant, outer, 6 * CENT)
    assert [_ask(tenant, made["api_key"]).status_code for made in (outer, inner, innermost)] == (
        [402] * 3
    )
    assert _ask(tenant, other["api_key"]).status_code == 200

    assert admin.verify_ledger()["problems"] == []


def test_policies_of_a_key_can_hold_for_those_below_it(tenant: Any) -> None:
    admin = tenant.admin
    outer, other = admin.create_key_full("outer"), admin.create_key_full("other")
    key_id = outer["key"]["key_id"]
    inner = admin.create_key_full("inner", owner_id=key_id)
    caps = [{"calls": 1, "per_ms": 3_600_000}]
    scope = {"scope_kind": "key", "scope_id": f"{key_id}*"}
    admin.set_policy("blocks", **scope, tools_block=["erase"], rate_caps=caps)
    replies = [_ask(tenant, made["api_key"]) for made in (inner, outer, other, other)]
    assert [reply.status_code for reply in replies] == [200, 429, 200, 200], "one cap for both"
    headers = {"x-api-key": inner["api_key"]}
    tenant.refused(403, "GD-T001", headers=headers, tool_name="erase")


def test_they_end_with_it(tenant: Any) -> None:
    admin = tenant.admin
    outer, other = admin.create_key_full("outer"), admin.create_key_full("outer too")
    key_id = outer["key"]["key_id"]
    inner = admin.create_key_full("inner", owner_id=key_id)
    rotated = admin.rotate_key(inner["key"]["key_id"])
    assert rotated["key"]["key_id"] == inner["key"]["key_id"]
    admin.revoke_key(key_id)
    made = (outer, inner, rotated, other)
    assert [_ask(tenant, each["api_key"]).status_code for each in made] == [401, 401, 401, 200]
    for owner_id, status in ((key_id, 409), ("absent", 404)):
        with pytest.raises(AdminError) as failed:
            admin.create_key_full("late", owner_id=owner_id)
        assert failed.value.status == status
