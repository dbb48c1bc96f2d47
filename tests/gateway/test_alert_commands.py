"""``guard alerts``: channels, rules, tests, deliveries, and a file of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from guard.cli import cli
from guard.gateway.embedded import Gateway, run_gateway
from tests.gateway.conftest import Tenant, new_tenant
from tests.support.receivers import Receiver, mail_server
from tests.support.waiting import until

CANARY = "s3cret-canary"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with run_gateway(sweep_interval_ms=50, private_webhooks=True) as running:
        yield running


@pytest.fixture
def team(gateway: Gateway) -> Iterator[Tenant]:
    tenant = new_tenant(gateway)
    yield tenant
    tenant.http.close()
    tenant.admin.close()


@pytest.fixture
def run(team: Tenant) -> Callable[..., Result]:
    """Run ``guard`` with what is typed, and variables; it has to end with a code."""

    def command(*arguments: str, code: int = 0, typed: str = "", **variables: str) -> Result:
        env = {"GUARD_ADMIN_KEY": team.gateway.admin_key, **variables}
        where = ["--url", team.gateway.base_url, "--organisation", team.organisation_id]
        found = CliRunner().invoke(cli, [*arguments, *where], input=typed, env=env)
        assert found.exit_code == code, found.output
        return found

    return command


def test_a_channel_is_set_tested_and_removed(
    run: Callable[..., Result], team: Tenant, receiver: Receiver
) -> None:
    url = f"{receiver.url}/{CANARY}"
    made = run("alerts", "channels", "set", "ops", "--slack", typed=f"{url}\n")
    assert CANARY not in made.output
    assert "guard gateway alerts test ops" in made.output
    assert "delivered to ops" in run("alerts", "test", "ops").output
    run("alerts", "set", "refusals", "--count", "5", "--minutes", "2", "--to", "ops")
    assert "5 within 2 min" in run("alerts", "list").output
    run("alerts", "set", "threshold", "--at-percent", "90", "--off")
    found = json.loads(run("alerts", "list", "--json").output)
    assert [(r["name"], r["enabled"]) for r in found] == [("refusals", True), ("threshold", False)]
    receiver.status = 403
    refused = run("alerts", "test", "ops", code=1)
    assert "not delivered to ops: the receiver answers 403 (403)" in refused.output
    listed = run("alerts", "deliveries").output + run("alerts", "channels", "list").output
    assert "failed" in listed
    assert CANARY not in listed
    run("alerts", "channels", "set", "ops", "--slack", "--keep-secret", "--off")
    assert team.admin.channels()[0]["enabled"] is False
    assert "only" in run("alerts", "channels", "delete", "ops", code=1).output
    for name in ("refusals", "threshold"):
        run("alerts", "delete", name)
    run("alerts", "channels", "delete", "ops")
    assert team.admin.channels() == []


def test_each_kind_of_channel(run: Callable[..., Result], team: Tenant, receiver: Receiver) -> None:
    hook = run("alerts", "channels", "set", "hook", "--webhook", f"{receiver.url}/h")
    assert "whsec_" in hook.output
    run("alerts", "channels", "set", "duty", "--pagerduty", "--pagerduty-url", receiver.url,
        GUARD_CHANNEL_SECRET=CANARY)  # fmt: skip
    with mail_server() as box:
        run("alerts", "channels", "set", "mail", "--email", "a@b.de", "--from", "g@b.de",
            "--smtp", f"127.0.0.1:{box.port}", "--security", "none")  # fmt: skip
        for name in ("hook", "duty", "mail"):
            run("alerts", "test", name)
        assert len(box.got) == 1
    shown = run("alerts", "channels", "list").output
    assert "a@b.de by 127.0.0.1" in shown.replace("\n", " ")
    for name in ("hook", "duty", "mail"):
        run("alerts", "channels", "delete", name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x"], "one of --slack"),
        (["x", "--slack", "--webhook", "https://a.example"], "one of --slack"),
        (["x", "--email", "a@b.de"], "--smtp and --from"),
        (["x", "--slack", "--smtp", "h"], "belong to --email"),
        (["x", "--webhook", "https://1.1.1.1", "--pagerduty-url", "https://1.1.1.1"], "belongs to"),
        (["x", "--email", "a@b.de", "--from", "a@b.de", "--smtp", "h:p"], "HOST:PORT"),
    ],
)
def test_what_does_not_fit_is_said(
    run: Callable[..., Result], arguments: list[str], says: str
) -> None:
    assert says in run("alerts", "channels", "set", *arguments, code=2).output


def test_a_file_names_variables_and_not_secrets(
    run: Callable[..., Result], team: Tenant, receiver: Receiver, tmp_path: Path
) -> None:
    file = tmp_path / "guard.toml"
    file.write_text(
        '[[channels]]\nname = "ops"\nkind = "slack"\nsecret_env = "OPS_URL"\n\n'
        '[[alerts]]\non = "kill"\nchannels = ["ops"]\n'
    )
    missing = run("gateway", "apply", str(file), code=1)
    assert "the variable OPS_URL is not set" in missing.output
    made = run("gateway", "apply", str(file), OPS_URL=f"{receiver.url}/{CANARY}")
    assert "create    channel ops" in made.output
    assert CANARY not in made.output
    team.admin.kill("w")
    until(lambda: receiver.got)
    assert receiver.got[0].path == f"/{CANARY}"
    assert (
        "0 changed" in run("gateway", "apply", str(file), OPS_URL=f"{receiver.url}/{CANARY}").output
    )


def test_kinds_are_listed() -> None:
    found: Any = CliRunner().invoke(cli, ["alerts", "kinds"])
    assert "fallback_price" in found.output
