"""Alerts: each kind of rule and channel against a local receiver, on both engines."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.gateway.admin import AdminError
from guard.gateway.domain.errors import StoreError
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger import webhooks as notices
from guard.gateway.services import alert_watch
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres
from tests.support.certificates import Authority, new_authority
from tests.support.receivers import Mailbox, Receiver, mail_server
from tests.support.waiting import until

CANARY = "s3cret-canary"


@pytest.fixture(params=["sqlite", "postgres"])
def team(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tenant]:
    """A tenant of a gateway that looks often, and may send to loopback addresses."""
    monkeypatch.setattr(alert_watch, "LOOK_S", 0.05)
    database = postgres.url_of(tmp_path) if request.param == "postgres" else None
    with run_gateway(
        database, sweep_interval_ms=50, private_webhooks=True, public_url="https://guard.example"
    ) as gateway:
        tenant = new_tenant(gateway)
        yield tenant
        tenant.http.close()
        tenant.admin.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"))


def slack(team: Tenant, receiver: Receiver, name: str = "ops") -> None:
    team.admin.set_channel(name, "slack", secret=f"{receiver.url}/{CANARY}")


def texts(receiver: Receiver) -> list[str]:
    """Return the first lines of what Slack was sent."""
    return [got.json["blocks"][0]["text"]["text"] for got in list(receiver.got)]


def spend_over(team: Tenant, cents: float, **budget: Any) -> None:
    team.admin.set_budget(cents, **budget)
    team.send(team.llm(round(cents * 1.2 * 10**7)))


def test_slack_is_told_of_an_exhausted_budget_once(team: Tenant, receiver: Receiver) -> None:
    slack(team, receiver)
    team.admin.set_alert("exhausted", "exhausted")
    spend_over(team, 10)
    until(lambda: receiver.got)
    got = receiver.got[0]
    assert got.path == f"/{CANARY}"
    text = got.json["blocks"][0]["text"]
    assert text["type"] == "plain_text"
    assert text["text"] == "Budget exhausted, calls are refused: organisation (total)"
    assert "$0.12 of $0.10" in got.json["blocks"][1]["text"]["text"]
    assert "https://guard.example/budgets" in got.body.decode()
    for _ in range(3):  # more of the same is no news
        team.send(team.llm(10**7))
        team.refused(402, "GD-B004")
    team.admin.set_alert("kill", "kill")
    team.admin.kill("w", reason="enough")
    until(lambda: len(receiver.got) == 2)
    assert texts(receiver)[1] == "Killed: w"
    until(lambda: all(d["delivered_at_ms"] for d in team.admin.deliveries()))
    assert {d["channel"] for d in team.admin.deliveries()} == {"ops"}


def test_a_refusal_for_want_of_a_budget_is_told_before_all_is_spent(
    team: Tenant, receiver: Receiver
) -> None:
    slack(team, receiver)
    team.admin.set_alert("exhausted", "exhausted")
    team.admin.set_budget(1)
    team.refused(402, "GD-B004", kind="llm", model="gpt-4o", bound_nanousd=10**12)
    until(lambda: receiver.got)
    assert texts(receiver)[0].startswith("Budget exhausted")


def test_a_storm_becomes_a_digest(
    team: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PACE_MS", 3_600_000)  # no minute of the storm ends meanwhile
    slack(team, receiver)
    team.admin.set_alert("kill", "kill")
    for number in range(30):
        team.admin.kill(f"w{number}")
    until(lambda: len(receiver.got) == 5)

    def waiting() -> list[str]:
        return [d["type"] for d in team.admin.deliveries() if not d["delivered_at_ms"]]

    until(lambda: len(waiting()) == 1)  # an arrival is recorded after it
    assert waiting() == ["digest"]
    assert len(team.admin.deliveries()) == 6


def test_a_digest_is_sent_after_a_minute(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_700_000_000_000]
    with run_gateway(private_webhooks=True, clock_ms=lambda: now[0]) as gateway:
        tenant = new_tenant(gateway)
        slack(tenant, receiver)
        tenant.admin.set_alert("kill", "kill")
        for number in range(65):
            tenant.admin.kill(f"w{number}")
        until(lambda: len(receiver.got) == 5)
        now[0] += 61_000
        tenant.admin.kill("later")  # by itself: another minute
        until(lambda: len(receiver.got) == 7)
        assert "Killed: later" in texts(receiver)
        digest = next(got.json for got in receiver.got if "more alerts" in got.body.decode())
        assert digest["blocks"][0]["text"]["text"] == "60 more alerts"
        lines = digest["blocks"][1]["text"]["text"].splitlines()
        assert (lines[0], lines[-1]) == ("Killed: w5", "and 50 more")
        for number in range(30):  # the storm goes on: the next digest is in ten minutes
            tenant.admin.kill(f"x{number}")
        until(lambda: len(receiver.got) == 11)
        now[0] += 61_000
        tenant.admin.kill("calm")
        until(lambda: len(receiver.got) == 12)
        assert sum("more alerts" in got.body.decode() for got in receiver.got) == 1
        tenant.http.close()
        tenant.admin.close()


def test_pagerduty_gets_events_that_it_can_join(team: Tenant, receiver: Receiver) -> None:
    team.admin.set_channel("duty", "pagerduty", url=f"{receiver.url}/v2/enqueue", secret=CANARY)
    team.admin.set_alert("budgets", "threshold", at_percent=80)
    receiver.status = 202
    team.admin.set_budget(10, thresholds=[0.5, 0.8, 1.0])
    team.send(team.llm(60_000_000))  # 60%: below what is told
    team.send(team.llm(30_000_000))
    until(lambda: receiver.got)
    event = receiver.got[0].json
    assert (event["routing_key"], event["event_action"]) == (CANARY, "trigger")
    assert event["payload"]["summary"] == "Budget at 80%: organisation (total)"
    assert event["payload"]["severity"] == "warning"
    assert event["links"][0]["href"] == "https://guard.example/budgets"
    team.send(team.llm(30_000_000))
    until(lambda: len(receiver.got) == 2)
    later = receiver.got[1].json
    assert later["dedup_key"] == event["dedup_key"], "it is the same budget"
    assert later["payload"]["severity"] == "error"


def test_a_webhook_is_signed_and_gets_the_documented_fields(
    team: Tenant, receiver: Receiver
) -> None:
    from guard.gateway.services.channels.message import signature

    made = team.admin.set_channel("hook", "webhook", url=f"{receiver.url}/hook")
    assert made["secret"].startswith("whsec_")
    assert team.admin.set_channel("hook", "webhook", url=f"{receiver.url}/hook")["secret"] is None
    team.admin.set_alert("kill", "kill", channels=["hook"])
    team.admin.kill("w", reason="enough")
    until(lambda: receiver.got)
    got = receiver.got[0]
    assert got.json["type"] == "workflow.kill"
    assert got.json["data"]["target"] == "w"
    assert got.json["data"]["reason"] == "enough"
    stamp = int(got.headers["webhook-timestamp"])
    assert got.headers["webhook-signature"] == signature(
        made["secret"], got.headers["webhook-id"], stamp, got.body
    )


def mail(team: Tenant, mailbox: Mailbox, **more: Any) -> None:
    fields = {"to": ["ops@example.com"], "sender": "guard@example.com", "host": "127.0.0.1",
              "port": mailbox.port, "security": "none"}  # fmt: skip
    team.admin.set_channel("mail", "email", **(fields | more))


def test_mail_arrives_by_smtp(team: Tenant, mailbox: Mailbox) -> None:
    mail(team, mailbox, to=["ops@example.com", "two@example.com"])
    team.admin.set_alert("kill", "kill")
    team.admin.kill("w", reason="line one\nBcc: x@example.com")
    until(lambda: mailbox.got)
    recipients, got = mailbox.got[0]
    assert recipients == ["ops@example.com", "two@example.com"]
    assert got["Subject"] == "[guard] Something was killed"
    assert got["From"] == "guard@example.com"
    assert got["Auto-Submitted"] == "auto-generated"
    assert got["Bcc"] is None
    assert got.get_content_type() == "text/plain"
    assert "Reason: line one Bcc: x@example.com" in got.get_content()


def test_mail_with_a_password_goes_over_tls_only(
    team: Tenant, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = authority.issue("IP:127.0.0.1,DNS:localhost", "mail")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with mail_server(certificate) as box:
        with pytest.raises(AdminError, match="over TLS only"):
            mail(team, box, username="guard", secret="right")
        mail(team, box, username="guard", secret="right", security="starttls", host="localhost")
        team.admin.test_channel("mail")
        until(lambda: box.got)
        assert box.logins == [("guard", "right")]
        mail(team, box, username="guard", secret=CANARY, security="starttls", host="localhost")
        team.admin.test_channel("mail")
        until(lambda: team.admin.deliveries()[0]["failed"])
        failed = team.admin.deliveries()[0]
        assert (failed["attempts"], failed["last_status"]) == (1, 535), "for good"
        assert CANARY not in json.dumps(failed)
        # Another server's certificate: nothing is said to it.
        monkeypatch.delenv("SSL_CERT_FILE")
        tried = len(box.logins)
        team.admin.test_channel("mail")
        until(lambda: team.admin.deliveries()[0]["attempts"])
        assert team.admin.deliveries()[0]["error"].startswith("TLS failed")
        assert len(box.logins) == tried


def test_a_refused_recipient_is_final_and_said(team: Tenant, mailbox: Mailbox) -> None:
    mailbox.refuses = {"ops@example.com"}
    mail(team, mailbox)
    team.admin.test_channel("mail")
    until(lambda: team.admin.deliveries()[0]["failed"])
    assert team.admin.deliveries()[0]["last_status"] == 550
    assert "no such mailbox" in team.admin.deliveries()[0]["error"]


def test_a_failed_delivery_is_retried_and_its_outcome_shown(
    team: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from guard.gateway.services import webhooks

    monkeypatch.setattr(webhooks, "RETRY_AFTER_MS", (1, 1, 600_000))
    monkeypatch.setattr(webhooks, "_IDLE_S", 0.05)
    receiver.answers = [500, 503]
    slack(team, receiver)
    team.admin.test_channel("ops")
    until(lambda: team.admin.deliveries()[0]["delivered_at_ms"])
    assert [team.admin.deliveries()[0][name] for name in ("attempts", "last_status", "error")] == [
        3, 200, "",
    ]  # fmt: skip
    receiver.answers = [404]
    team.admin.test_channel("ops")
    until(lambda: team.admin.deliveries()[0]["failed"])
    assert team.admin.deliveries()[0]["error"] == "the receiver answers 404"


def test_many_refusals_are_told_once(team: Tenant, receiver: Receiver) -> None:
    slack(team, receiver)
    team.admin.set_alert("refusals", "refusals", count=5, within_ms=60_000)
    team.admin.set_policy("no", tools_block=["rm"])
    for _ in range(4):
        team.refused(403, "GD-T001", kind="tool", tool_name="rm")
    team.admin.test_channel("ops")
    until(lambda: receiver.got)
    for _ in range(8):
        team.refused(403, "GD-T001", kind="tool", tool_name="rm")
    until(lambda: len(receiver.got) == 2)
    assert texts(receiver)[1] == "5 or more calls refused within 1 min"
    assert "GD-T001 (5)" in receiver.got[1].json["blocks"][1]["text"]["text"]
    team.admin.test_channel("ops")
    until(lambda: len(receiver.got) == 3)
    assert len([t for t in texts(receiver) if "refused" in t]) == 1


def test_a_model_at_fallback_prices_is_told(team: Tenant, receiver: Receiver) -> None:
    slack(team, receiver)
    team.admin.set_alert("fallback", "fallback_price")
    team.send(team.llm(data={"model": "nobody-knows-1", "input_tokens": 10, "output_tokens": 1}))
    until(lambda: receiver.got)
    assert texts(receiver) == ["Charged at fallback prices: nobody-knows-1"]


def test_traffic_that_cannot_be_metered_is_told_once_for_each_host(
    team: Tenant, receiver: Receiver
) -> None:
    slack(team, receiver)
    team.admin.set_alert("unseen", "unseen")
    for number in range(3):
        data = {"host": "api.other.example", "why": "its answer holds no usage"}
        event = {"event_id": f"u{number}", "type": "sdk.unseen", "at_ms": 1, "data": data}
        team.send(event)
    until(lambda: receiver.got)
    team.admin.test_channel("ops")
    until(lambda: len(receiver.got) >= 2)
    assert texts(receiver)[0] == "LLM requests that guard cannot meter: api.other.example"
    assert len(receiver.got) == 2


def test_a_forecast_is_told_before_the_limit(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_watch, "LOOK_S", 0.05)
    hour = 3_600_000
    now = [480_000 * hour]  # the beginning of an hour
    with run_gateway(private_webhooks=True, clock_ms=lambda: now[0]) as gateway:
        tenant = new_tenant(gateway)
        slack(tenant, receiver)
        tenant.admin.set_alert("forecast", "forecast")
        tenant.admin.set_alert("double", "forecast", at_percent=200)
        tenant.admin.set_budget(100, window="hour", thresholds=[])
        tenant.send(tenant.llm(300_000_000))  # 30 of 100 cents
        now[0] += 60_000  # a minute: too early to tell
        tenant.admin.test_channel("ops")
        until(lambda: receiver.got)
        now[0] += 10 * 60_000  # 30 cents in 11 minutes
        until(lambda: len(receiver.got) == 2)
        said = texts(receiver)[1]
        assert re.fullmatch(
            r"Budget heads for 163%, used up about .* UTC: organisation \(hour\)", said
        ), said
        tenant.send(tenant.llm(200_000_000))  # 50 in 11
        until(lambda: len(receiver.got) == 3)
        assert "272%" in texts(receiver)[2], "the other rule's"
        tenant.admin.set_alert("double", "forecast", at_percent=1000)
        made = tenant.admin.create_key_full("laptop of alice")
        key_id = made["key"]["key_id"]
        tenant.admin.set_budget(100, scope_kind="key", scope_id=key_id, window="hour")
        tenant.send(tenant.llm(400_000_000), headers={"X-API-Key": made["api_key"]})
        until(lambda: any("key laptop of alice (hour)" in text for text in texts(receiver)))
        assert not any(key_id in text for text in texts(receiver))
        tenant.http.close()
        tenant.admin.close()


def test_a_gateway_whose_store_fails_says_so_and_when_it_works_again(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_watch, "LOOK_S", 0.05)
    monkeypatch.setattr(alert_watch, "FAILED_S", 0.2)
    with run_gateway(
        tmp_path / "gateway.sqlite3", private_webhooks=True, sweep_interval_ms=50
    ) as gateway:
        tenant = new_tenant(gateway)
        team_url = f"{receiver.url}/v2"
        tenant.admin.set_channel("duty", "pagerduty", url=team_url, secret=CANARY)
        slack(tenant, receiver)
        tenant.admin.set_alert("down", "unhealthy", channels=["duty"])
        assert gateway._server is not None
        app = gateway._server.app
        until(lambda: app._alert_watch._failure_recipients)
        writer = app.storage._writer
        monkeypatch.setattr(type(writer), "healthy", property(lambda _: False, lambda *_: None),
                            raising=False)  # fmt: skip
        until(lambda: receiver.got)
        assert receiver.got[0].json["payload"]["severity"] == "critical"
        # The first looks after that fail: the store is there, and gone again.
        broken: list[str] = []
        read = type(app.storage).all_alert_rules

        async def fails(storage: Any) -> Any:
            if len(broken) < 2:
                broken.append("once more")
                raise StoreError("gone again")
            return await read(storage)

        monkeypatch.setattr(type(app.storage), "all_alert_rules", fails)
        monkeypatch.delattr(type(writer), "healthy")
        writer.healthy = True
        until(lambda: len(receiver.got) == 2)
        assert len(broken) == 2
        event = receiver.got[1].json
        assert event["event_action"] == "resolve"
        assert event["dedup_key"] == receiver.got[0].json["dedup_key"]
        tenant.http.close()
        tenant.admin.close()


def test_secrets_are_in_no_list_log_audit_or_error(
    team: Tenant, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.status = 500
    slack(team, receiver)
    team.admin.set_channel("duty", "pagerduty", url=receiver.url, secret=CANARY)
    team.admin.set_channel("gone", "slack", secret=f"https://127.0.0.1:1/{CANARY}",
                           signing_secret=CANARY)  # fmt: skip
    team.admin.set_channel("mail", "email", to=["a@b.de"], sender="c@d.de", host="127.0.0.1",
                           port=1, username="u", secret=CANARY)  # fmt: skip
    for name in ("ops", "duty", "gone", "mail"):
        team.admin.test_channel(name)
    until(lambda: all(d["attempts"] for d in team.admin.deliveries()))
    shown = [
        team.admin.channels(), team.admin.deliveries(), team.admin.audit(),
        team.admin.request("GET", "/webhooks"), [d["error"] for d in team.admin.deliveries()],
    ]  # fmt: skip
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("guard")]
    assert CANARY not in json.dumps(shown) + "\n".join(ours)
    assert {d["error"] for d in team.admin.deliveries()} == {
        "the receiver answers 500", "cannot connect",
    }  # fmt: skip
    with pytest.raises(AdminError) as refused:
        team.admin.set_channel("bad", "slack", secret=f"ftp://{CANARY}.example/")
    assert CANARY not in str(refused.value)


def test_another_organisation_sees_and_reaches_nothing(team: Tenant, receiver: Receiver) -> None:
    slack(team, receiver)
    team.admin.set_alert("kill", "kill")
    other = new_tenant(team.gateway)
    assert (other.admin.channels(), other.admin.alert_rules(), other.admin.deliveries()) == (
        [], [], [],
    )  # fmt: skip
    for attempt in (
        lambda: other.admin.test_channel("ops"),
        lambda: other.admin.delete_channel("ops"),
        lambda: other.admin.delete_alert("kill"),
    ):
        with pytest.raises(AdminError) as refused:
            attempt()
        assert refused.value.status == 404
    with pytest.raises(AdminError, match="no channel ops"):
        other.admin.set_alert("kill", "kill", channels=["ops"])
    other.admin.kill("w")
    team.admin.kill("own")
    until(lambda: receiver.got)
    assert texts(receiver) == ["Killed: own"]
    other.http.close()
    other.admin.close()


def test_a_channel_that_a_rule_is_for_is_not_removed_before_it(
    team: Tenant, receiver: Receiver
) -> None:
    slack(team, receiver)
    slack(team, receiver, "two")
    team.admin.set_alert("kill", "kill", channels=["ops"])
    team.admin.set_alert("both", "kill", channels=["ops", "two"])
    with pytest.raises(AdminError, match="for this channel only"):
        team.admin.delete_channel("ops")
    team.admin.delete_alert("kill")
    team.admin.delete_channel("ops")
    assert [rule["channels"] for rule in team.admin.alert_rules()] == [["two"]]


def test_alerts_as_code(team: Tenant, receiver: Receiver) -> None:
    body = {
        "channels": [{"name": "ops", "kind": "slack", "secret": f"{receiver.url}/a"}],
        "alerts": [{"on": "kill", "channels": ["ops"]}, {"name": "soon", "on": "forecast"}],
    }

    def apply(**more: Any) -> dict[str, str]:
        plan = team.admin.request("POST", "/apply", {**body, **more})
        return {f"{c['kind']} {c['name']}": c["change"] for c in plan["changes"]}

    everything = {"channel ops": "create", "alert kill": "create", "alert soon": "create"}
    assert apply(dry_run=True) == everything
    assert team.admin.channels() == []
    assert apply() == everything
    assert set(apply().values()) == {"unchanged"}
    body["channels"][0]["secret"] = f"{receiver.url}/b"
    assert apply()["channel ops"] == "update"
    del body["channels"][0]["secret"]
    assert apply()["channel ops"] == "unchanged"
    team.admin.kill("w")
    until(lambda: receiver.got)
    assert receiver.got[0].path == "/b"
    # A file without channels and alerts leaves them alone, also with prune.
    plan = team.admin.request("POST", "/apply", {"budgets": [], "prune": True})
    assert plan["changes"] == []
    body["alerts"] = [{"name": "soon", "on": "forecast"}]
    assert apply(prune=True) == {
        "channel ops": "unchanged", "alert soon": "unchanged", "alert kill": "delete",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("webhook", {}, "needs its url"),
        ("webhook", {"url": "https://10.0.0.1/"}, "not public"),
        ("slack", {}, "incoming webhook"),
        ("slack", {"secret": "https://192.168.1.1/x"}, "not public"),
        ("slack", {"secret": "https://1.1.1.1/x", "answers": True}, "signing secret"),
        ("pagerduty", {}, "routing key"),
        ("pagerduty", {"secret": "k", "url": "http://1.1.1.1/"}, "https"),
        ("email", {"to": ["a@b.de"]}, "sender and host"),
        ("email", {"to": ["a@b.de"], "sender": "a@b.de", "host": "127.0.0.1"}, "not public"),
        ("email", {"to": ["a@b.de"], "sender": "a@b.de", "host": "1.1.1.1", "answers": True},
         "public-url"),
        ("email", {"to": ["a b@b.de"]}, "to"),
        ("webhook", {"url": "https://1.1.1.1/", "answers": True}, "let people answer"),
        ("webhook", {"url": "https://1.1.1.1/", "secret": "no base64!"}, "whsec_"),
    ],
)  # fmt: skip
def test_channels_that_are_refused(
    tenant: Tenant, kind: str, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(AdminError, match=says):
        tenant.admin.set_channel("x", kind, **fields)
    assert tenant.admin.channels() == []


def test_a_stored_secret_goes_to_no_other_server_and_under_no_other_name(
    team: Tenant, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may change a channel must not learn its secret by sending a test message elsewhere."""
    certificate = authority.issue("IP:127.0.0.1,DNS:localhost", "mail")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    wanted = {"username": "guard", "security": "starttls", "host": "localhost"}
    with mail_server(certificate) as box, mail_server(certificate) as other:
        mail(team, box, secret="right", **wanted)
        changes: list[dict[str, Any]] = [
            {"port": other.port}, {"host": "127.0.0.1"}, {"security": "tls"}, {"username": "root"},
        ]  # fmt: skip
        for change in changes:
            with pytest.raises(AdminError, match="the stored one is for another"):
                mail(team, box, **(wanted | change))
            body = {"channels": [_as_applied(box, **(wanted | change))]}
            with pytest.raises(AdminError, match="the stored one is for another"):
                team.admin.request("POST", "/apply", body)
        mail(team, box, **wanted, to=["another@example.com"], enabled=True)
        team.admin.test_channel("mail")
        until(lambda: box.got)
        assert box.logins == [("guard", "right")], "what is no address of it leaves the secret"
        assert other.logins == []
        # Without a user name nothing is sent that could be kept.
        mail(team, other)
        with pytest.raises(AdminError, match="needs a password"):
            mail(team, box, **wanted)


def _as_applied(box: Mailbox, **fields: Any) -> dict[str, Any]:
    return {"name": "mail", "kind": "email", "to": ["ops@example.com"], "port": box.port,
            "sender": "guard@example.com", **fields}  # fmt: skip


def test_a_stored_key_goes_to_no_other_address(team: Tenant, receiver: Receiver) -> None:
    slack(team, receiver)
    team.admin.set_channel("duty", "pagerduty", url=f"{receiver.url}/v2", secret=CANARY)
    made = team.admin.set_channel("hook", "webhook", url=f"{receiver.url}/hook")
    with pytest.raises(AdminError, match="the stored one is for another"):
        team.admin.set_channel("duty", "pagerduty", url=f"{receiver.url}/elsewhere")
    with pytest.raises(AdminError, match="needs a routing key"):
        team.admin.set_channel("ops", "pagerduty", url=f"{receiver.url}/v2")
    moved = team.admin.set_channel("hook", "webhook", url=f"{receiver.url}/elsewhere")
    assert moved["secret"] not in (None, made["secret"]), "another receiver has another secret"
    team.admin.set_channel("duty", "pagerduty", url=f"{receiver.url}/v2", enabled=True)
    team.admin.set_channel("ops", "slack", enabled=True)
    for name in ("duty", "ops"):
        team.admin.test_channel(name)
    until(lambda: len(receiver.got) == 2)
    assert {got.path for got in receiver.got} == {"/v2", f"/{CANARY}"}
