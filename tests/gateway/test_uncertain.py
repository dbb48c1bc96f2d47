"""What was charged in doubt stands apart wherever spend is shown, on each engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from guard.core.wire import SPEND_PATH
from guard.gateway.cli.main import gateway as cli

CENT = 10_000_000
LOST = {"estimated": True, "estimate": "bound", "provider": "openai"}


def lost(tenant: Any, cents: int, **fields: Any) -> dict[str, Any]:
    """An event of a request whose answer was lost."""
    found: dict[str, Any] = tenant.llm(cents * CENT, data=LOST, **fields)
    return found


@pytest.fixture
def spent(tenant: Any) -> Any:
    """Twelve cents, of them seven in doubt."""
    tenant.admin.set_budget(50, window="day")
    tenant.admin.set_budget(50, scope_kind="workflow", scope_id="*")
    tenant.send(
        tenant.llm(5 * CENT, workflow_id="w", run_id="r1", user="u", data={"provider": "openai"}),
        lost(tenant, 3, workflow_id="w", run_id="r1", user="u"),
        lost(tenant, 3, workflow_id="w", run_id="r2", agent="a"),
        lost(tenant, 1, workflow_id="other"),
    )
    return tenant


def test_of_a_workflow_a_run_and_its_budgets(spent: Any) -> None:
    reply = spent.http.get(SPEND_PATH, params={"workflow": "w", "run": "r2"}).json()
    assert (reply["spent_nanousd"], reply["uncertain_nanousd"]) == (11 * CENT, 6 * CENT)
    assert (reply["run_spent_nanousd"], reply["run_uncertain_nanousd"]) == (3 * CENT, 3 * CENT)
    budgets = {each["scope"]: each["uncertain_nanousd"] for each in reply["budgets"]}
    assert budgets == {"organisation (day)": 7 * CENT, "workflow w (total)": 6 * CENT}


def test_nothing_is_said_where_nothing_is(tenant: Any) -> None:
    tenant.send(tenant.llm(5 * CENT, workflow_id="w"))
    reply = tenant.http.get(SPEND_PATH, params={"workflow": "w"}).json()
    assert "uncertain_nanousd" not in reply
    assert [row["uncertain_nanousd"] for row in tenant.admin.usage("workflow")] == [0]


GROUPS = {
    "workflow": {"w": 6, "other": 1},
    "run": {"r1": 3, "r2": 3, None: 1},
    "agent": {"a": 3, None: 4},
    "user": {"u": 3, None: 4},
    "model": {"gpt-4o": 7},
    "provider": {"openai": 7},
    "type": {"llm": 7},
    "total": {None: 7},
}


@pytest.mark.parametrize("group_by", GROUPS)
@pytest.mark.parametrize("since_ms", [None, 3_600_000], ids=["in all", "since"])
def test_of_each_group_of_usage(spent: Any, group_by: str, since_ms: int | None) -> None:
    rows = spent.admin.usage(group_by, since_ms=since_ms)
    found = {row["group"]: row["uncertain_nanousd"] // CENT for row in rows}
    assert found == GROUPS[group_by]
    assert all(row["uncertain_cents"] == row["uncertain_nanousd"] / CENT for row in rows)


@pytest.mark.parametrize("group_by", ["hour", "day"])
def test_of_hours_and_days(spent: Any, group_by: str) -> None:
    rows = spent.admin.usage(group_by)
    assert sum(row["uncertain_nanousd"] for row in rows) == 7 * CENT
    assert spent.admin.usage(group_by, since_ms=2**53 - 1) == []


def test_of_workflows_runs_and_balances(spent: Any) -> None:
    workflows = {w["workflow_id"]: w["uncertain_cents"] for w in spent.admin.workflows()}
    assert workflows == {"w": 6, "other": 1}
    assert spent.admin.workflow("w")["uncertain_nanousd"] == 6 * CENT
    runs = spent.admin.request("GET", "/runs", workflow_id="w")
    assert {run["run_id"]: run["uncertain_nanousd"] // CENT for run in runs} == {"r1": 3, "r2": 3}
    ledger = {(b["scope_kind"], b["scope_id"]): b["uncertain_cents"] for b in spent.admin.ledger()}
    assert ledger == {("organisation", ""): 7, ("workflow", "w"): 6, ("workflow", "other"): 1}


def test_a_key_counts_those_below_it_in_its_budget_only(tenant: Any) -> None:
    owner = tenant.admin.create_key_full("owner", role="sdk")["key"]["key_id"]
    below = tenant.admin.create_key_full("below", role="sdk", owner_id=owner)
    tenant.admin.set_budget(50, scope_kind="key", scope_id=owner)
    tenant.http.headers["X-API-Key"] = below["api_key"]
    tenant.send(lost(tenant, 3, workflow_id="w"))
    assert tenant.balance(scope_kind="key")["uncertain"] == 3 * CENT
    rows = tenant.admin.usage("key")
    assert [(r["group"], r["uncertain_cents"]) for r in rows] == [(below["key"]["key_id"], 3)]


def test_what_such_requests_usually_cost_is_uncertain_too(tenant: Any) -> None:
    """Each is charged once, so that a repeat adds nothing."""
    event = lost(tenant, 3, workflow_id="w")
    tenant.send(event)
    tenant.send(event)
    assert tenant.admin.workflow("w")["uncertain_nanousd"] == 3 * CENT


def test_the_command_line(spent: Any) -> None:
    def said(*command: str) -> str:
        env = {"GUARD_API_URL": spent.gateway.base_url, "GUARD_ADMIN_KEY": spent.gateway.admin_key,
               "COLUMNS": "200"}  # fmt: skip
        words = [*command, "--organisation", spent.organisation_id]
        result = CliRunner().invoke(cli, words, env=env)
        assert result.exit_code == 0, result.output
        return result.output

    for command in (["usage", "--by", "model"], ["workflows"], ["budgets", "list"]):
        assert "uncertain" in said(*command)
        assert "$0.07" in said(*command) or "$0.06" in said(*command)
    assert json.loads(said("usage", "--by", "total", "--json"))[0]["uncertain_nanousd"] == 7 * CENT


def test_an_operator_ends_what_stays_in_doubt(tenant: Any) -> None:
    """In the sums, in each budget, and in the audit log; once."""
    tenant.admin.set_budget(50, window="day")
    tenant.admin.set_budget(50, scope_kind="workflow", scope_id="*")
    fields = {"workflow_id": "w", "run_id": "r", "user": "u", "tags": {"team": "red"}}
    tenant.send(*(lost(tenant, cents, **fields) for cents in (1, 2, 4)))
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
           "COLUMNS": "200"}  # fmt: skip

    def said(*command: str, code: int = 0) -> str:
        words = ["doubt", *command, "--organisation", tenant.organisation_id]
        result = CliRunner().invoke(cli, words, env=env)
        assert result.exit_code == code, result.output
        return result.output

    four, two, one = json.loads(said("list", "--json"))
    assert [each["doubt_nanousd"] // CENT for each in (four, two, one)] == [4, 2, 1]
    assert "its answer was lost" in said("list")
    said("free", four["event_id"])
    said("settle", two["event_id"])
    said("settle", one["event_id"], "--cost", "$0.03")
    assert "no such charge in doubt" in said("free", four["event_id"], code=1)
    assert json.loads(said("list", "--json")) == []
    for balance in tenant.admin.ledger():
        assert (balance["committed"], balance["uncertain"]) == (5 * CENT, 0)
    for group in ("workflow", "run", "user", "model", "provider", "total"):
        (row,) = tenant.admin.usage(group)
        assert (row["cost_nanousd"], row["uncertain_nanousd"]) == (5 * CENT, 0), group
    assert tenant.admin.workflow("w")["spent_nanousd"] == 5 * CENT
    settled = [each for each in tenant.admin.audit() if each["action"] == "doubt.settle"]
    assert {each["details"]["cost_nanousd"] for each in settled} == {0, 2 * CENT, 3 * CENT}
    assert tenant.admin.verify_ledger()["problems"] == []
