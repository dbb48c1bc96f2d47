"""Operators refuse what waits for a raise: the run ends at once and says why; all is audited."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from click.testing import CliRunner, Result

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.cli.main import gateway as command
from guard.gateway.embedded import Gateway
from tests.gateway.conftest import Tenant
from tests.gateway.test_raises import (
    actions,
    asking,
    patient_tenant,  # noqa: F401  # a fixture
)
from tests.gateway.test_waiting_line import ask
from tests.support.waiting import PATIENT, WAIT_S, until

PROGRAM: Final = """
import guard

guard.init()

@guard.protect
def work():
    print("it ran")

with guard.workflow("nightly"):
    try:
        work()
    except guard.GuardError as exc:
        print("refused", exc.error_code, exc)
"""


def run(tenant: Tenant, *words: str, expect: int = 0) -> Result:
    """Run a command on the tenant's organisation."""
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
           "COLUMNS": "250"}  # fmt: skip
    words = (*words, "--organisation", tenant.organisation_id)
    result = CliRunner().invoke(command, words, env=env)
    assert result.exit_code == expect, result.output
    return result


def test_a_run_of_the_sdk_that_waits_is_refused_and_says_why(
    tenant: Tenant, tmp_path: Path
) -> None:
    tenant.admin.set_budget(
        limit_cents=10,
        scope_kind="workflow",
        scope_id="nightly",
        on_exhausted="ask",
        ask_ms=3_600_000,
    )
    tenant.send({**tenant.llm(100_000_000), "workflow_id": "nightly"})
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)
    environment = os.environ | PATIENT | {
        "GUARD_API_KEY": tenant.api_key,
        "GUARD_API_URL": tenant.gateway.base_url,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(program)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        until(lambda: tenant.admin.budget_asks() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        done = run(tenant, "budgets", "refuse", "nightly", "--reason", "enough for today")
        assert "refused 1 call: workflow nightly" in done.output
        said, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    assert "GD-B004" in said, said
    assert "an operator refused to raise it: enough for today" in said, said
    assert "it ran" not in said
    assert tenant.admin.budget_asks() == []
    assert "budget.refuse" in actions(tenant)
    assert "budget.unanswered" not in actions(tenant)


def test_one_of_the_calls_that_wait_is_refused_and_the_other_waits_on(tenant: Tenant) -> None:
    budget_id = asking(tenant)
    for call in ("a", "b"):
        assert ask(tenant, call)["asks"]
    [refused] = tenant.admin.refuse_raise(budget_id, "a")
    assert refused["call_id"] == "a"
    assert [each["call_id"] for each in tenant.admin.budget_asks()] == ["b"]
    reply = ask(tenant, "a", 1)
    assert reply["error_code"] == "GD-B004"
    assert reply["reason"].endswith("; an operator refused to raise it")
    assert ask(tenant, "b", 1)["asks"]
    listed = json.loads(run(tenant, "budgets", "waiting", "--json").output)
    assert [each["call_id"] for each in listed] == ["b"]
    with pytest.raises(AdminError, match="no such call waits"):
        tenant.admin.refuse_raise(budget_id, "a")
    with pytest.raises(AdminError, match="no such budget"):
        tenant.admin.refuse_raise("another budget")


def test_all_that_wait_are_refused_for_tokens_and_calls_too(tenant: Tenant) -> None:
    for unit in ("tokens", "calls"):
        fields: dict[str, Any] = {f"limit_{unit}": 0, "on_exhausted": "ask"}
        tenant.admin.set_budget(scope_kind="workflow", scope_id=unit, **fields)
        assert ask(tenant, unit, workflow_id=unit)["asks"]
        assert "refused 1 call" in run(tenant, "budgets", "refuse", unit).output
        reply = ask(tenant, unit, 1, workflow_id=unit)
        assert reply["error_code"] == "GD-B004"
        assert "an operator refused to raise it" in reply["reason"]
    said = run(tenant, "budgets", "refuse", "tokens", expect=1).output
    assert "no such call waits for a raise for tokens" in said


def test_who_may_not_refuse(tenant: Tenant, gateway: Gateway) -> None:
    budget_id = asking(tenant)
    assert ask(tenant, "a")["asks"]
    path = f"{gateway.base_url}/api/v1/admin/budgets/{budget_id}/refuse"
    with httpx.Client(trust_env=False) as http:
        theirs = {"Authorization": f"Bearer {tenant.api_key}"}
        assert http.post(path, json={}, headers=theirs).status_code == 401
    other = gateway.admin.create_organisation(f"other-than-{tenant.organisation_id}")
    key = gateway.admin.create_key("theirs", role="admin", organisation=other["organisation_id"])
    with (
        contextlib.closing(AdminClient(gateway.base_url, key)) as foreign,
        pytest.raises(AdminError, match="no such budget"),
    ):
        foreign.refuse_raise(budget_id)
    assert len(tenant.admin.budget_asks()) == 1


def test_entries_of_the_whole_gateway_are_for_its_admins_alone(
    tenant: Tenant, gateway: Gateway
) -> None:
    name = f"wide-{tenant.organisation_id}"[:60]
    gateway.admin.set_password(name, "a password of a person")
    own_key = tenant.admin.create_key("own", role="admin")
    mine = [each for each in tenant.admin.audit() if each["target"] == name]
    assert [each["organisation_id"] for each in mine] == [None]
    assert name in run(tenant, "audit", "list", "--limit", "1000").output
    with contextlib.closing(AdminClient(gateway.base_url, own_key)) as own:
        seen = own.audit()
        assert {each["organisation_id"] for each in seen} == {tenant.organisation_id}
        assert name not in str(seen)
    numbers = [each["seq"] for each in tenant.admin.audit()]
    assert numbers == sorted(numbers)
    first, second = (tenant.admin.audit(after=after, limit=1) for after in (0, numbers[0]))
    assert [first[0]["seq"], second[0]["seq"]] == numbers[:2]
