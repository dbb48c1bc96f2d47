"""``exhausted`` says whether calls are refused for want of a budget, on each engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import Tenant

TOKEN = 10_000
"""Nano-dollars of an output token of gpt-4o."""


def gate(tenant: Tenant, tokens: int, **fields: Any) -> httpx.Response:
    return tenant.gate(model="gpt-4o", max_input_tokens=0, max_output_tokens=tokens, **fields)


def balance(tenant: Tenant) -> dict[str, Any]:
    (found,) = tenant.admin.ledger()
    return dict(found)


def release(tenant: Tenant, granted: httpx.Response) -> None:
    body = {"reservation_id": granted.json()["reservation_id"]}
    assert tenant.http.post("/gate/release", json=body).status_code == 200


def test_a_budget_that_refuses_is_exhausted_until_something_is_freed(tenant: Tenant) -> None:
    tenant.admin.set_budget(300)
    held = gate(tenant, 26_000)
    tenant.send(tenant.llm(2_700_000_000))
    assert not balance(tenant)["exhausted"], "nothing was refused"
    assert gate(tenant, 5000).status_code == 402
    assert balance(tenant)["exhausted"], "4 cents are left, and 5 are needed"
    assert gate(tenant, 6000).status_code == 402
    release(tenant, held)
    assert not balance(tenant)["exhausted"], "money has come back"
    tenant.send(tenant.llm(270_000_000))
    assert not balance(tenant)["exhausted"], "what was refused before has fitted since"
    assert gate(tenant, 5000).status_code == 402
    assert gate(tenant, 1).status_code == 200
    assert not balance(tenant)["exhausted"], "a smaller call was let through"
    assert gate(tenant, 5000).status_code == 402
    tenant.admin.set_budget(305)
    assert not balance(tenant)["exhausted"], "the limit was raised"
    tenant.send(tenant.llm(500_000_000))
    assert balance(tenant)["exhausted"], "all is spent"


def test_a_soft_budget_is_never_exhausted(tenant: Tenant) -> None:
    tenant.admin.set_budget(1, mode="soft")
    tenant.send(tenant.llm(20_000_000))
    assert gate(tenant, 5000).status_code == 200
    assert not balance(tenant)["exhausted"]


@pytest.mark.generator("exhausted budgets")
@pytest.mark.parametrize("seed", range(6))
def test_what_it_says_is_so(tenant: Tenant, seed: int, count_cases: Callable[[int], None]) -> None:
    """If a budget says it is exhausted, the least that it refused is refused again."""
    chance = random.Random(seed)
    limit = 100
    tenant.admin.set_budget(limit)
    held = [gate(tenant, 10)]
    refused: list[int] = []  # since a call was let through
    for _ in range(40):
        kind = chance.choice(["gate", "gate", "gate", "release", "event", "limit"])
        if kind == "gate":
            tokens = chance.choice([10, 5000, 20_000, 60_000])
            answer = gate(tenant, tokens)
            if answer.status_code == 200:
                held.append(answer)
                refused.clear()
            else:
                refused.append(tokens)
                assert balance(tenant)["exhausted"], "right after a refusal"
        elif kind == "release" and held:
            release(tenant, held.pop(chance.randrange(len(held))))
        elif kind == "event":
            tenant.send(tenant.llm(chance.choice([100_000, 50_000_000])))
        elif kind == "limit":
            limit = chance.choice([limit, limit + 10, max(1, limit - 5)])
            tenant.admin.set_budget(limit)
        now = balance(tenant)
        if now["committed"] >= now["limit"]:
            assert now["exhausted"]
        elif now["exhausted"]:
            assert refused, "something was refused, and nothing let through since"
            assert now["remaining"] < max(refused) * TOKEN
            assert gate(tenant, max(refused)).status_code == 402
    count_cases(40)


def test_it_is_kept(tmp_path: Any) -> None:
    """A gateway that is started again says the same."""
    path = tmp_path / "g.sqlite3"
    with run_gateway(path) as gateway:
        gateway.admin.set_budget(1)
        headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"}
        body = {"call_id": "c", "kind": "call", "function": "f", "model": "gpt-4o",
                "max_input_tokens": 0, "max_output_tokens": 5000}  # fmt: skip
        answer = httpx.post(f"{gateway.base_url}/gate", json=body, headers=headers)
        assert answer.status_code == 402
        key = gateway.admin_key
    with run_gateway(path) as gateway:
        url = f"{gateway.base_url}/api/v1/admin/ledger"
        answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"})
        assert [each["exhausted"] for each in answer.json()] == [True]
