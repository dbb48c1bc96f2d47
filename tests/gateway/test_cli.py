"""The command line over a real gateway."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from guard.breaker.exceptions import InsecureTransportError
from guard.gateway.cli.main import gateway as command
from guard.gateway.embedded import run_gateway
from guard.settings import Settings

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tenant: Any) -> Invoke:
    env = {
        "GUARD_API_URL": tenant.gateway.base_url,
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


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Any:
    yield path
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from _commands(sub, (*path, name))


@pytest.mark.parametrize("path", list(_commands(command)), ids=lambda path: " ".join(path) or "-")
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(command, [*path, "--help"])
    assert result.exit_code == 0
    summary, _, rest = result.output.partition("Example")
    examples, _, _ = rest.partition("Options:")
    assert summary.count("\n") > 2
    lines = [line.split() for line in examples.splitlines()]
    shown = [words for words in lines if words[:2] == ["guard", "gateway"]]
    assert shown, "an example on a line of its own"
    for line in shown:
        words = line[2:]
        assert tuple(words[: len(path)]) == path
        assert _names_a_command(words), line


def _names_a_command(words: list[str]) -> bool:
    """Tell whether an example's words lead to a command, and its options are that command's."""
    found: click.Command = command
    rest = list(words)
    while isinstance(found, click.Group):
        if not rest or rest[0] not in found.commands:
            return False
        found = found.commands[rest.pop(0)]
    known = {name for each in found.params for name in each.opts}
    return {word for word in rest if word.startswith("--")} <= known


def test_control(invoke: Invoke, tenant: Any) -> None:
    assert "no such workflow" in invoke("kill", "w", expect=1).output
    invoke("kill", "w", "--reason", "enough", "--anyway")
    tenant.refused(403, "GD-W002", workflow_id="w")
    assert "killed" in invoke("workflows").output
    invoke("revive", "w")
    message = json.loads(invoke("pause", "w", "--for-seconds", "60", "--json").output)
    assert message["resume_after_ms"] == 60_000
    invoke("resume", "w")
    tenant.allowed(workflow_id="w", run_id="r")
    assert "no such run" in invoke("kill", "w", "--run", "s", expect=1).output
    assert "killed run r of w on http" in invoke("kill", "w", "--run", "r").output
    tenant.refused(403, "GD-W002", workflow_id="w", run_id="r")
    tenant.allowed(workflow_id="w", run_id="other")


def test_keys(invoke: Invoke, tenant: Any) -> None:
    made = json.loads(invoke("keys", "create", "worker", "--signed", "--json").output)
    assert made["api_key"].startswith("gdk_")
    assert made["hmac_secret"]
    listed = invoke("keys", "list").output
    assert made["key"]["prefix"] in listed
    assert made["api_key"] not in listed
    key_id = made["key"]["key_id"]
    invoke("keys", "set", key_id, "--name", "laptop", "--person", "alice", "--purpose", "coding")
    invoke("keys", "set", key_id, "--purpose", "")
    listed_key = next(e for e in list(tenant.admin.keys()) if e["key_id"] == key_id)
    assert [listed_key[name] for name in ("name", "person", "purpose")] == ["laptop", "alice", ""]
    invoke("keys", "set", key_id, expect=2)
    invoke("keys", "set", "nothing", "--name", "x", expect=1)
    assert "shown once" in invoke("keys", "rotate", key_id).output
    for overlap in (["--overlap", "1h"], ["--overlap-seconds", "3600"]):
        made = json.loads(invoke("keys", "rotate", key_id, *overlap, "--json").output)
    own = next(each for each in list(tenant.admin.keys()) if each["key_id"] == key_id)
    assert len(own["secrets"]) == 3
    listed = invoke("keys", "list").output
    newest = made["key"]["prefix"]
    assert f"{newest}… (unused), {own['secrets'][1]['prefix']}… until" in listed
    revoked = invoke("keys", "revoke", key_id, "--secret", f"{newest}…").output
    assert "revoked the secret gdk_" in revoked
    own = next(each for each in list(tenant.admin.keys()) if each["key_id"] == key_id)
    assert (own["revoked_at_ms"], len(own["secrets"])) == (None, 2)
    assert own["prefix"] == own["secrets"][0]["prefix"] != newest
    assert "no such secret" in invoke("keys", "revoke", key_id, "--secret", "gdk_", expect=1).output
    assert (
        "is no length of time"
        in invoke("keys", "rotate", key_id, "--overlap", "3600", expect=2).output
    )
    now_ms = time.time() * 1000
    invoke("keys", "set", key_id, "--expires", "90d", "--may-name", "user, run", "--shows-cost")
    changed = next(e for e in list(tenant.admin.keys()) if e["key_id"] == key_id)
    assert now_ms + 89 * 86_400_000 < changed["expires_at_ms"] < now_ms + 91 * 86_400_000
    assert (changed["may_name"], changed["shows_cost"]) == (["user", "run"], True)
    assert "user, run" in invoke("keys", "list").output
    invoke("keys", "set", key_id, "--expires", "never", "--may-name", "", "--hides-cost")
    changed = next(e for e in list(tenant.admin.keys()) if e["key_id"] == key_id)
    assert (changed["expires_at_ms"], changed["may_name"], changed["shows_cost"]) == (
        None, [], False,
    )  # fmt: skip
    for wrong in (("--expires", "soon"), ("--expires", "0"), ("--may-name", "user,team")):
        invoke("keys", "set", key_id, *wrong, expect=2)
        invoke("keys", "create", "x", *wrong, expect=2)
    short = json.loads(invoke("keys", "create", "x", "--expires", "1s", "--json").output)["key"]
    assert short["expires_at_ms"] < now_ms + 3_600_000
    invoke("keys", "revoke", made["key"]["key_id"])
    invoke("keys", "revoke", "nothing", expect=1)


def test_budgets_of_tokens_and_calls(invoke: Invoke, tenant: Any) -> None:
    invoke("budgets", "set", "--limit-tokens", "2M", "--scope", "user", "--id", "*")
    invoke("budgets", "set", "--limit-calls", "20", "--of", "search", "--of", "web_*")
    for wrong in (
        ["--limit-calls", "20", "--limit-tokens", "5"], [], ["--limit-tokens", "5", "--of", "a"],
        ["--limit-tokens", "2.5"], ["--limit-calls", "many"],
    ):  # fmt: skip
        invoke("budgets", "set", *wrong, expect=2)
    found = {each["unit"]: each for each in tenant.admin.budgets()}
    assert found["tokens"]["limit"] == 2_000_000
    assert found["calls"]["counts"] == ["search", "web_*"]
    tenant.allowed(tool_name="search")
    head, *rows = invoke("budgets", "list").output.splitlines()
    assert head.split()[3:9] == ["counted", "limit", "used", "uncertain", "set", "aside"]
    calls = next(row.split() for row in rows if "search" in row)
    assert calls[:10] == [
        "organisation", "total", "hard", "calls", "of", "search,", "web_*", "20", "1", "0",
    ]  # fmt: skip
    invoke("budgets", "set", "--limit-cents", "5")
    output = invoke("budgets", "list").output
    assert "$0.05" in output
    assert "calls of search, web_*" in output
    rows = json.loads(invoke("budgets", "list", "--json").output)
    (shown,) = [row for row in rows if row["unit"] == "calls"]
    assert (shown["used"], shown["left"]) == (1, 19)
    assert "limit_cents" not in shown or not shown["limit_cents"]


def test_a_budget_is_raised_in_its_unit(invoke: Invoke, tenant: Any) -> None:
    own = ["--scope", "workflow", "--id", "nightly"]
    for limit in (["--limit-tokens", "500k"], ["--limit-calls", "20"]):
        invoke("budgets", "set", *limit, *own)
    assert "raised by 500,000 tokens to 1,000,000 tokens: workflow nightly" in (
        invoke("budgets", "raise", "nightly", "--by", "500k tokens").output
    )
    for text, why in (
        ("10", "several budgets are for nightly"), ("500k", "several budgets"),
        ("$2", "limited in calls and tokens"),
    ):  # fmt: skip
        assert why in invoke("budgets", "raise", "nightly", "--by", text, expect=1).output
    assert "by 10 calls to 30 calls" in (
        invoke("budgets", "raise", "nightly", "--by", "10 calls").output
    )
    for wrong in ("", "0", "many", "-5", "5 dollars", "0 calls"):
        output = invoke("budgets", "raise", "nightly", "--by", wrong, expect=2).output
        assert "write '$2' or 0.50" in " ".join(output.split())
    invoke("budgets", "set", "--limit-tokens", "1k")
    assert "by 10 tokens to 1,010 tokens" in (
        invoke("budgets", "raise", "organisation", "--by", "10").output
    )
    invoke("budgets", "set", "--limit-cents", "5")
    output = invoke("budgets", "raise", "organisation", "--by", "10", expect=1).output
    assert "several budgets" in output, "no ten dollars for ten tokens"
    invoke("budgets", "raise", "organisation", "--by", "$0.10")
    listed = invoke("budgets", "raises", "nightly", expect=1).output
    assert "several budgets" in listed
    listed = invoke("budgets", "raises").output
    assert all(text in listed for text in ("$0.1", "10 calls", "500,000 tokens", "10 tokens"))
    for option in ("--limit-calls", "--limit-tokens"):
        share = ["--wind-down-percent", "5", "--scope", "user", "--id", "u"]
        code = 2 if option == "--limit-calls" else 0
        invoke("budgets", "set", option, "100", *share, expect=code)
    assert "kept" in invoke("budgets", "list").output


def test_a_file_of_rules_has_all_units(invoke: Invoke, tenant: Any, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        "[[budgets]]\nlimit_tokens = 5\n[[budgets]]\nlimit_calls = 6\n[[budgets]]\n"
        'limit_calls = 7\ncounts = ["b", "a"]\n[[budgets]]\nlimit_cents = 8\n'
    )
    invoke("apply", str(path))
    assert len(tenant.admin.budgets()) == 4
    output = invoke("apply", str(path)).output
    assert "organisation total calls of a, b" in output
    assert "create" not in output
    path.write_text('[[budgets]]\nlimit_calls = 9\ncounts = ["a", "b"]\n')
    invoke("apply", str(path), "--prune")
    (left,) = tenant.admin.budgets()
    assert (left["unit"], left["counts"], left["limit"]) == ("calls", ["a", "b"], 9)


def test_the_example_of_a_file_of_rules(invoke: Invoke, tenant: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gateway" / "operating.md").read_text("utf-8")
    path = tmp_path / "rules.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    invoke("apply", str(path))
    assert "0 changed" in invoke("apply", str(path)).output
    found = tenant.admin.budgets()
    assert {(each["window"], each["limit"]) for each in found if each["unit"] == "usd"} == {
        ("month", 500 * 10**9), ("day", 5 * 10**9),
    }  # fmt: skip
    assert {each["ask_ms"] for each in found} == {300_000}
    (price,) = tenant.admin.prices()
    assert price["rates"]["input_per_mtok"] == 500_000_000
    (policy,) = tenant.admin.policies()
    assert policy["document"]["approval_timeout_ms"] == 300_000
    assert policy["document"]["rate_caps"][0]["per_ms"] == 60_000
    assert policy["document"]["repeat_caps"][0]["on_repeat"] == "pause"
    for wrong, said in (
        ('[[budgets]]\nlimit = "two"', "budgets, number 1, limit: 'two' is no amount"),
        ("[[budgets]]\nlimit = true", 'budgets, number 1, limit takes a text such as "$0.50"'),
        ('[[budgets]]\nlimit = "$1"\nlimit_nanousd = 5', "limit_nanousd is given twice"),
        ('[settings]\nlease_ttl = "soon"', "lease_ttl: 'soon' is no length of time"),
        ('[settings]\nlease_ttl = "1ms"', "lease_ttl takes from 1s to 1h, not 1ms"),
    ):
        path.write_text(wrong)
        assert said in invoke("apply", str(path), expect=1).output


def test_all_rows_of_usage(invoke: Invoke, tenant: Any) -> None:
    tagged = {"tags": {"project": "=cmd"}, "workflow_id": "w"}
    tenant.send(tenant.llm(20_000_000, **tagged), tenant.llm(5_000_000, workflow_id="w"))
    output = invoke("usage", "--by", "tag:project", "--csv", "--since", "24h").output
    rows = list(csv.DictReader(io.StringIO(output)))
    assert [(row["by"], row["group"], row["cost_usd"]) for row in rows] == [
        ("tag:project", "", "0.005"),
        ("tag:project", "'=cmd", "0.02"),
    ]
    by_model = invoke("usage", "--by", "tag:project", "--by-model", "--limit", "1").output
    assert "model" in by_model.split()
    assert "$0.02" in by_model
    assert "$0.005" not in by_model, "the dearest first"
    keys = invoke("usage", "--by", "key", "--csv").output
    assert keys.splitlines()[1].split(",", 2)[2].startswith("test,,0.025,")
    assert invoke("usage", "--by", "team", "--csv", "--until", "2000-01-01").output == (
        "by,group,key_name,model,cost_usd,uncertain_usd,llm_calls,tool_calls,input_tokens,"
        "output_tokens,unpriced\n"
    )
    refused = {
        ("--by", "agent", "--by-model"): "usage by agent is not kept by model",
        ("--by", "hour", "--csv"): "usage by hour has no list of all rows: leave out --csv",
        ("--by", "team", "--csv", "--json"): "give one of --csv and --json",
        ("--by", "tag:"): "'tag:' is not one of",
    }
    for given, said in refused.items():
        expect = 1 if "--by-model" in given else 2
        assert said in invoke("usage", *given, expect=expect).output, given


def test_budgets_usage_audit(invoke: Invoke, tenant: Any) -> None:
    invoke("budgets", "set", "--limit-cents", "10", "--window", "day")
    invoke("budgets", "set", "--limit", "$0.10", "--limit-cents", "10", expect=2)
    for amount in ("$0.10", "0.1", ".1 usd"):
        invoke("budgets", "set", "--limit", amount, "--window", "day")
        assert [each["limit"] for each in tenant.admin.budgets()] == [10**8]
    invoke("budgets", "set", "--scope", "workflow", expect=2)
    no_id = ["budgets", "set", "--scope", "workflow", "--limit-cents", "1"]
    assert "--scope workflow needs --id" in invoke(*no_id, expect=2).output
    tenant.send(tenant.llm(20_000_000, workflow_id="w\x1b[31m"))
    rows = json.loads(invoke("budgets", "list", "--json").output)
    assert rows[0]["committed_cents"] == 2
    output = invoke("usage", "--by", "workflow").output
    assert "$0.02" in output.split()
    for since, shown in (("24h", True), ("2000-01-01", True), ("0", False), ("2999-01-01", False)):
        assert ("$0.02" in invoke("usage", "--since", since).output) == shown, since
    assert "$0.02" in invoke("usage", "--since-ms", "0").output, "as older releases"
    assert "no time" in invoke("usage", "--since", "soon", expect=2).output
    invoke("usage", "--since", "24h", "--since-ms", "0", expect=2)
    assert "$0.02" in invoke("usage", "--until", "2999-01-01").output
    past = invoke("usage", "--since", "2000-01-01", "--until", "24h").output
    assert "since 2000-01-01 00:00:00Z until" in past, "what is empty says what it was asked for"
    team_key = tenant.admin.create_key("of a team", team="search & ads")
    tenant.send(tenant.llm(30_000_000), headers={"X-API-Key": team_key})
    by_team = json.loads(invoke("usage", "--by", "team", "--json").output)
    assert [(row["group"], row["cost_cents"]) for row in by_team] == [
        ("search & ads", 3),
        (None, 2),
    ]
    by_key = invoke("usage", "--by", "key").output
    assert "of a team (" in by_key, "a name, and not the id alone"
    invoke("budgets", "set", "--scope", "key", "--id", "of a team", "--limit", "$1")
    assert "key of a team (" in invoke("budgets", "list").output
    assert "of a team (" in invoke("audit", "list").output
    assert "\x1b[31m" not in output
    invoke("budgets", "delete", rows[0]["budget_id"])
    assert "budget.delete" in invoke("audit", "list").output
    assert "ledger: 0 balances" not in invoke("audit", "verify").output
    head = invoke("audit", "head").output.strip()
    invoke("budgets", "list")
    assert "broken" not in invoke("audit", "verify", "--expect", head).output
    altered = head[:-1] + ("0" if head[-1] != "0" else "1")
    failed = invoke("audit", "verify", "--expect", altered, expect=1)
    assert f"broken at {head.split(':')[0]}" in failed.output


def test_policies_from_files(invoke: Invoke, tenant: Any, tmp_path: Path) -> None:
    tenant.allowed(tool_name="rm_all")
    path = tmp_path / "tools.toml"
    path.write_text('[document]\ntools_block = ["rm_*"]\n')
    assert "1 of 1 recent calls" in invoke("policies", "set", "p", str(path), "--preview").output
    assert "version 1" in invoke("policies", "set", "p", str(path)).output
    tenant.refused(403, "GD-T001", tool_name="rm_all")
    assert "tools_block: rm_*\n" in invoke("policies", "list").output.replace(" \n", "\n")
    invoke("policies", "delete", "p")
    tenant.allowed(tool_name="rm_all")


def test_prices(invoke: Invoke, tenant: Any) -> None:
    assert invoke("prices", "list").output.startswith("none on http://")
    words = ("--input", "0.5", "--output", "1.500000001", "--cache-read", "0")
    assert "*/own-* version 1" in invoke("prices", "set", "own-*", *words).output
    assert "version 2" in invoke("prices", "set", "own-*", "--input", "1", "--output", "2").output
    made = json.loads(
        invoke("prices", "set", "own-*", "--provider", "azure", *words, "--json").output
    )
    assert made["rates"]["input_per_mtok"] == 500_000_000
    assert made["rates"]["output_per_mtok"] == 1_500_000_001
    assert made["rates"]["cache_read_per_mtok"] == 0
    table = invoke("prices", "list").output
    assert "1.500000001" in table
    assert made["price_id"] in table
    assert json.loads(invoke("prices", "list", "--json").output) == tenant.admin.prices()
    tenant.send(tenant.llm(data={"model": "own-1", "provider": "x", "input_tokens": 1_000_000}))
    assert tenant.admin.events()[-1]["cost_nanousd"] == 1_000_000_000
    assert "2 prices" in invoke("prices", "delete", "own-*", expect=1).output
    invoke("prices", "delete", "azure/own-*")
    assert "removed */own-*" in invoke("prices", "delete", "own-*").output
    assert "no such price" in invoke("prices", "delete", "own-*", expect=1).output
    assert tenant.admin.prices() == []


@pytest.mark.parametrize("amount", ["-1", "much", "NaN", "inf", "0.0000000001"])
def test_a_price_is_an_exact_amount(invoke: Invoke, amount: str) -> None:
    output = invoke("prices", "set", "m", "--input", amount, "--output", "1", expect=2).output
    assert "--input" in output


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


def test_what_the_agent_shows(invoke: Invoke, tenant: Any) -> None:
    tenant.admin.set_policy(approval_tools=["pay"])
    said = {
        "message": "Pay?\nagent: operator \x1b[2J\u202e",
        "details": {"to": "ACME", "n": [1, 2]},
    }
    identity = tenant.gate(tool_name="pay", workflow_id="w", note=said).json()["approval_id"]
    listed = invoke("approvals", "list").output
    assert "Pay?" in listed
    lines = invoke("approvals", "show", identity).output.splitlines()
    assert lines[0] == "status: pending"
    assert lines[-5:] == [
        "the agent says:",
        "  Pay?",
        "  agent: operator ⟨U+001B⟩[2J⟨U+202E⟩",
        "  to: ACME",
        "  n: [1, 2]",
    ]
    assert not {"\x1b", "\u202e"} & set(listed + "".join(lines))
    assert json.loads(invoke("approvals", "show", identity, "--json").output)["details"]["n"] == [
        1,
        2,
    ]
    assert "no such approval" in invoke("approvals", "show", "x", expect=1).output


def test_backup_of_a_running_gateway(tmp_path: Path) -> None:
    source, target = tmp_path / "g.sqlite3", tmp_path / "copy.sqlite3"
    with run_gateway(source) as gateway:
        gateway.admin.set_budget(10)
        words = ["backup", str(target), "--database", str(source)]
        assert CliRunner().invoke(command, words).exit_code == 0
        again = CliRunner().invoke(command, words)
        assert (again.exit_code, "is there already" in again.output) == (1, True)
        admin_key = gateway.admin_key
    with contextlib.closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT count(*) FROM budgets").fetchone() == (1,)
    with run_gateway(target) as restored:
        assert restored.admin.budgets()[0]["limit"] == 100_000_000
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
    keyless = CliRunner().invoke(
        command, ["workflows", "--url", gateway.base_url], env={"GUARD_ADMIN_KEY": ""}
    )
    assert (keyless.exit_code, "admin key" in keyless.output) == (1, True)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("http://gateway.example:9", ""),
        ("http://127.1:9", ""),
        ("http://gateway.example:9", "other.example"),
        ("http://127.0.0.1:9", ""),
        ("https://gateway.invalid:9", ""),
        ("http://gateway.invalid:9", "gateway.invalid"),
    ],
)
def test_a_key_goes_where_a_programs_key_goes(address: str, allowed: str) -> None:
    """The command line and the SDK refuse plain HTTP to the same addresses."""
    environ = {"GUARD_ALLOW_PLAINTEXT_HOSTS": allowed, "GUARD_API_KEY": "gdk_x"}
    try:
        Settings.load({**environ, "GUARD_API_URL": address})
        is_refused = False
    except InsecureTransportError as exc:
        is_refused, said = True, str(exc)
    for words in (["budgets", "list"], ["kill", "w", "--anyway"]):
        env = {**environ, "GUARD_ADMIN_KEY": "gda_secret"}
        result = CliRunner().invoke(command, [*words, "--url", address], env=env)
        assert result.exit_code == 1, result.output
        assert ("is allowed to a loopback address only" in result.output) is is_refused
        if is_refused:
            assert said in " ".join(result.output.split())
        assert "gda_secret" not in result.output


def test_a_budget_that_refuses_shows_what_is_left(invoke: Invoke, tenant: Any) -> None:
    """A call is refused by what it needs: more than is left, not more than nothing."""
    tenant.admin.set_budget(300)
    tenant.send(tenant.llm(2_997_400_000))
    tenant.refused(402, "GD-B004", model="gpt-4o", max_input_tokens=0, max_output_tokens=1000)
    head, row = invoke("budgets", "list").output.splitlines()
    assert "left" in head.split()
    assert "exhausted" in head
    assert "$0.0026" in row.split()
    assert "yes" in row.split()
    (shown,) = json.loads(invoke("budgets", "list", "--json").output)
    assert (shown["left_cents"], shown["exhausted"]) == (0.26, True)


@pytest.mark.parametrize(
    "words",
    [
        ["kill", "a\udcff", "--anyway"],
        ["budgets", "set", "--limit-cents", "1", "--scope", "workflow", "--id", "a\udcff"],
        ["policies", "delete", "a\udcff"],
    ],
)
def test_an_argument_that_is_no_text_is_one_line(invoke: Invoke, words: list[str]) -> None:
    said = invoke(*words, expect=1).output
    assert said == "Error: an argument is not text in UTF-8\n"
