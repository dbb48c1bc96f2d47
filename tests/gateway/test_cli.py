"""The command line over a real gateway."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from guard.gateway.cli import gateway as command
from guard.gateway.embedded import run_gateway

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tenant: Any) -> Invoke:
    env = {
        "GUARD_GATEWAY_URL": tenant.gateway.base_url,
        "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
        "COLUMNS": "200",
    }

    def run(*arguments: str, expect: int = 0) -> Result:
        words = [*arguments]
        if arguments[0] != "backup":
            words += ["--organisation", tenant.organisation_id]
        result = CliRunner().invoke(command, words, env=env)
        assert result.exit_code == expect, result.output
        return result

    return run


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Any:
    for name, sub in group.commands.items():
        yield (*path, name)
        if isinstance(sub, click.Group):
            yield from _commands(sub, (*path, name))


@pytest.mark.parametrize("path", list(_commands(command)), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(command, [*path, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4


def test_control(invoke: Invoke, tenant: Any) -> None:
    invoke("kill", "w", "--reason", "enough")
    tenant.refused(403, "GD-W002", workflow_id="w")
    assert "killed" in invoke("workflows").output
    invoke("revive", "w")
    message = json.loads(invoke("pause", "w", "--for-seconds", "60", "--json").output)
    assert message["resume_after_ms"] == 60_000
    invoke("resume", "w")
    invoke("kill", "w", "--run", "r")
    tenant.refused(403, "GD-W002", workflow_id="w", run_id="r")
    tenant.allowed(workflow_id="w", run_id="other")


def test_keys(invoke: Invoke, tenant: Any) -> None:
    made = json.loads(invoke("keys", "create", "worker", "--signed", "--json").output)
    assert made["api_key"].startswith("gdk_")
    assert made["hmac_secret"]
    listed = invoke("keys", "list").output
    assert made["key"]["prefix"] in listed
    assert made["api_key"] not in listed
    assert "shown once" in invoke("keys", "rotate", made["key"]["key_id"]).output
    invoke("keys", "revoke", made["key"]["key_id"])
    invoke("keys", "revoke", "nothing", expect=1)


def test_budgets_usage_audit(invoke: Invoke, tenant: Any) -> None:
    invoke("budgets", "set", "--limit-cents", "10", "--window", "day")
    invoke("budgets", "set", "--scope", "workflow", expect=2)
    invoke("budgets", "set", "--scope", "workflow", "--limit-cents", "1", expect=1)
    tenant.send(tenant.llm(20_000_000, workflow_id="w\x1b[31m"))
    rows = json.loads(invoke("budgets", "list", "--json").output)
    assert rows[0]["committed_cents"] == 2
    output = invoke("usage", "--by", "workflow").output
    assert "2.0" in output
    assert "\x1b[31m" not in output
    invoke("budgets", "delete", rows[0]["budget_id"])
    assert "budget.delete" in invoke("audit", "list").output
    assert "0 balances" not in invoke("audit", "verify").output


def test_policies_from_files(invoke: Invoke, tenant: Any, tmp_path: Path) -> None:
    tenant.allowed(tool_name="rm_all")
    path = tmp_path / "tools.toml"
    path.write_text('[document]\ntools_block = ["rm_*"]\n')
    assert "1 of 1 recent calls" in invoke("policies", "set", "p", str(path), "--preview").output
    assert "version 1" in invoke("policies", "set", "p", str(path)).output
    tenant.refused(403, "GD-T001", tool_name="rm_all")
    assert "rm_*" in invoke("policies", "list").output
    invoke("policies", "delete", "p")
    tenant.allowed(tool_name="rm_all")


TOML = """
[[budgets]]
limit_cents = 5
[[policies]]
name = "p"
[policies.document]
tools_block = ["x"]
"""
YAML = """
budgets: [{limit_cents: 5}]
policies: [{name: p, document: {tools_block: [x]}}]
"""
JSON = """{
"budgets": [{"limit_cents": 5}],
"policies": [{"name": "p", "document": {"tools_block": ["x"]}}]
}"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.json", JSON)])
def test_apply(invoke: Invoke, tenant: Any, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert "2 would change" in invoke("apply", str(path), "--dry-run").output
    assert tenant.admin.budgets() == []
    assert "2 changed" in invoke("apply", str(path)).output
    assert "0 changed" in invoke("apply", str(path)).output
    path.write_text("]not a file[")
    assert name in invoke("apply", str(path), expect=1).output


def test_approvals(invoke: Invoke, tenant: Any) -> None:
    tenant.admin.set_policy(approval_tools=["pay"])
    first = tenant.gate(call_id="x1", tool_name="pay").json()["approval_id"]
    second = tenant.gate(call_id="x2", tool_name="pay").json()["approval_id"]
    assert first in invoke("approvals", "list").output
    invoke("approvals", "approve", first)
    invoke("approvals", "refuse", second, "--reason", "no")
    tenant.allowed(call_id="x1", tool_name="pay")
    tenant.refused(403, "GD-X001", call_id="x2", tool_name="pay")
    assert len(json.loads(invoke("approvals", "list", "--all", "--json").output)) == 2


def test_backup_of_a_running_gateway(tmp_path: Path) -> None:
    source, target = tmp_path / "g.sqlite3", tmp_path / "copy.sqlite3"
    with run_gateway(source) as gateway:
        gateway.admin.set_budget(10)
        words = ["backup", str(target), "--database", str(source)]
        assert CliRunner().invoke(command, words).exit_code == 0
        again = CliRunner().invoke(command, words)
        assert (again.exit_code, "is there already" in again.output) == (1, True)
        admin_key = gateway.admin_key
    assert sqlite3.connect(target).execute("SELECT count(*) FROM budgets").fetchone() == (1,)
    with run_gateway(target) as restored:
        assert restored.admin.budgets()[0]["limit_nanousd"] == 100_000_000
        assert admin_key


def test_errors_are_one_line(gateway: Any, tmp_path: Path) -> None:
    port = gateway.base_url.rsplit(":", 1)[1]
    database = str(tmp_path / "x")
    taken = CliRunner().invoke(command, ["serve", "--port", port, "--database", database])
    assert taken.exit_code == 1
    assert taken.output.strip() == f"Error: port {port} on 127.0.0.1 is in use"
    nobody = CliRunner().invoke(
        command, ["workflows", "--url", "http://127.0.0.1:1", "--admin-key", "x"]
    )
    assert (nobody.exit_code, len(nobody.output.splitlines())) == (1, 1)
    keyless = CliRunner().invoke(command, ["workflows"], env={"GUARD_ADMIN_KEY": ""})
    assert (keyless.exit_code, "admin key" in keyless.output) == (1, True)
