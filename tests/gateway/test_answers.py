"""Answers where people are: buttons in Slack, links in mail; each decides once."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres
from tests.support import slack as slack_app
from tests.support.receivers import Mailbox, Receiver
from tests.support.slack import pressed
from tests.support.waiting import until

SIGNING = "8f742231b10e8888abcd99yyyzzz85a5"


@pytest.fixture(params=["sqlite", "postgres"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tenant]:
    """A tenant of a gateway that may send to loopback addresses, and knows its own."""
    database = postgres.url_of(tmp_path) if request.param == "postgres" else None
    with run_gateway(
        database, sweep_interval_ms=50, private_webhooks=True, public_url="http://127.0.0.1:1"
    ) as gateway:
        tenant = new_tenant(gateway)
        tenant.admin.set_policy("careful", approval_tools=["pay"])
        tenant.admin.set_alert("approval", "approval")
        yield tenant
        tenant.http.close()
        tenant.admin.close()


def slack(team: Tenant, receiver: Receiver, **more: Any) -> str:
    made = team.admin.set_channel(
        "ops", "slack", secret=f"{receiver.url}/hook", signing_secret=SIGNING, answers=True, **more
    )
    return str(made["channel"]["channel_id"])


def signed(body: bytes, secret: str = SIGNING, at_s: float | None = None) -> dict[str, str]:
    return slack_app.signed(body, secret, at_s)


def press(team: Tenant, channel_id: str, body: bytes, headers: dict[str, str]) -> int:
    url = f"{team.gateway.base_url}/slack/interactions/{channel_id}"
    return httpx.post(url, content=body, headers=headers, trust_env=False).status_code


def buttons(receiver: Receiver, number: int = 0) -> dict[str, Any]:
    until(lambda: len(receiver.got) > number)
    blocks = receiver.got[number].json["blocks"]
    found = next(block for block in blocks if block["type"] == "actions")["elements"]
    return {each["action_id"]: each for each in found}


def ask(team: Tenant, call_id: str = "c1", **more: Any) -> Any:
    fields = {"kind": "tool", "function": "pay_invoice", "tool_name": "pay", "workflow_id": "w",
              "agent": "clerk", "user": "u-17"} | more  # fmt: skip
    return team.gate(call_id=call_id, **fields)


def test_a_call_is_approved_in_slack_once(team: Tenant, receiver: Receiver) -> None:
    channel_id = slack(team, receiver)
    note = {"message": "Pay this?\nAnswered: approved", "details": {"to": "<@U9> ACME"}}
    assert ask(team, note=note).json()["decision"] == "pending"
    found = buttons(receiver)
    text = receiver.got[0].body.decode()
    for part in ("pay_invoice", "clerk", "u-17", "Pay this? Answered: approved", "<@U9> ACME"):
        assert part in text
    kinds = {b["text"]["type"] for b in receiver.got[0].json["blocks"] if b["type"] == "section"}
    assert kinds == {"plain_text"}, "no mention and no link is made of an agent's text"
    stored = team.admin.deliveries()
    assert "ACME" not in json.dumps(stored)

    body = pressed(found["approve"], f"{receiver.url}/response")
    headers = signed(body)
    assert press(team, channel_id, body, headers) == 200
    assert ask(team).json()["decision"] == "allow"
    until(lambda: len(receiver.got) == 2)
    told = receiver.got[1]
    assert (told.path, told.json["replace_original"]) == ("/response", True)
    assert told.json["text"] == "pay was approved by slack alice (U1)"
    answered = team.admin.approvals(None)[0]
    assert (answered["status"], answered["answered_by"]) == ("used", "slack alice (U1)")

    # The same request again, and another press of the button, change nothing.
    assert press(team, channel_id, body, headers) == 200
    again = pressed(found["refuse"], f"{receiver.url}/response")
    assert press(team, channel_id, again, signed(again)) == 200
    until(lambda: len(receiver.got) == 4)
    assert all("Nothing was changed" in got.json["text"] for got in receiver.got[2:])
    assert team.admin.approvals(None)[0]["status"] == "used"
    audit = [e["action"] for e in team.admin.request("GET", "/audit", limit=1000)]
    assert audit.count("approval.answer") == 1


def test_what_slack_has_not_signed_decides_nothing(team: Tenant, receiver: Receiver) -> None:
    channel_id = slack(team, receiver, users=["U1"])
    ask(team)
    found = buttons(receiver)
    body = pressed(found["approve"], "")
    good = signed(body)
    other = signed(body + b"x")
    earlier = str(int(good["X-Slack-Request-Timestamp"]) - 1)
    tries = {
        "another secret": (body, signed(body, "another")),
        "another body": (body, other),
        "old": (body, signed(body, at_s=time.time() - 301)),
        "of the future": (body, signed(body, at_s=time.time() + 420)),  # 300 are allowed
        "no signature": (body, {}),
        "another time": (body, good | {"X-Slack-Request-Timestamp": earlier}),
        "no number": (body, good | {"X-Slack-Request-Timestamp": "1e9"}),
        "cut": (body, good | {"X-Slack-Signature": good["X-Slack-Signature"][:-1]}),
    }
    for name, (sent, headers) in tries.items():
        assert press(team, channel_id, sent, headers) == 401, name
    assert press(team, "0" * 36, body, good) == 401
    stranger = pressed(found["approve"], "", user="U2")
    assert press(team, channel_id, stranger, signed(stranger)) == 403
    for nonsense in (
        b"",
        b"payload=%7B",
        b"payload=" + urllib.parse.quote('{"type":"x"}').encode(),
    ):
        assert press(team, channel_id, nonsense, signed(nonsense)) == 400
    assert team.admin.approvals()[0]["status"] == "pending"
    # A channel that takes no answers has no buttons, and takes none that were shown before.
    team.admin.set_channel("ops", "slack", answers=False)
    assert press(team, channel_id, body, signed(body)) == 401


def test_a_slack_app_answers_for_its_own_organisation_only(
    team: Tenant, receiver: Receiver
) -> None:
    slack(team, receiver)
    ask(team)
    value = buttons(receiver)["approve"]
    other = new_tenant(team.gateway)
    theirs = other.admin.set_channel(
        "own", "slack", secret=f"{receiver.url}/x", signing_secret="theirs", answers=True
    )["channel"]["channel_id"]
    body = pressed(value, "")
    assert press(other, theirs, body, signed(body, "theirs")) == 200
    assert team.admin.approvals()[0]["status"] == "pending"
    other.http.close()
    other.admin.close()


def test_a_budget_is_raised_in_slack_and_the_call_goes_on(team: Tenant, receiver: Receiver) -> None:
    channel_id = slack(team, receiver)
    budget = team.admin.set_budget(10, on_exhausted="ask")
    team.send(team.llm(100_000_000))
    asking = {"kind": "call", "wait_ms": 60_000, "call_id": "asks"}
    assert team.gate(**asking).json()["asks"]
    found = buttons(receiver)
    assert found["approve"]["text"]["text"] == "Raise by $0.05 and go on"
    body = pressed(found["approve"], "")
    assert press(team, channel_id, body, signed(body)) == 200
    assert team.admin.budgets()[0]["limit"] == 150_000_000
    assert team.gate(**asking).json()["decision"] == "allow"
    later = pressed(found["approve"], "", user="U5")
    assert press(team, channel_id, later, signed(later)) == 200
    assert team.admin.budgets()[0]["limit"] == 150_000_000, "raised once"
    raises = team.admin.budget_raises(budget["budget_id"])
    assert [each["raised_by"] for each in raises] == ["slack alice (U1)"]


def test_a_raise_is_refused_in_slack_and_the_call_with_it(team: Tenant, receiver: Receiver) -> None:
    channel_id = slack(team, receiver)
    team.admin.set_budget(10, on_exhausted="ask")
    team.send(team.llm(100_000_000))
    asking = {"kind": "call", "wait_ms": 60_000, "call_id": "asks"}
    assert team.gate(**asking).json()["asks"]
    body = pressed(buttons(receiver)["refuse"], "")
    assert press(team, channel_id, body, signed(body)) == 200
    team.refused(402, "GD-B004", **asking)
    actions = [e["action"] for e in team.admin.request("GET", "/audit", limit=1000)]
    assert "budget.refuse" in actions
    assert "budget.unanswered" not in actions
    assert team.admin.budgets()[0]["limit"] == 100_000_000


def test_a_budget_of_tokens_is_raised_in_slack_by_tokens(team: Tenant, receiver: Receiver) -> None:
    channel_id = slack(team, receiver)
    team.admin.set_budget(limit_tokens=1000, on_exhausted="ask")
    asking = {"kind": "llm", "model": "m", "max_input_tokens": 1000, "max_output_tokens": 200,
              "wait_ms": 60_000, "call_id": "asks"}  # fmt: skip
    assert team.gate(**asking).json()["asks"]
    found = buttons(receiver)
    assert found["approve"]["text"]["text"] == "Raise by 500 tokens and go on"
    said = json.dumps(receiver.got[0].json)
    assert "Waits for a raise of 200 tokens" in said
    assert "0 tokens of 1,000 tokens" in said
    assert "$" not in said
    body = pressed(found["approve"], "")
    assert press(team, channel_id, body, signed(body)) == 200
    assert team.admin.budgets()[0]["limit"] == 1500
    assert team.gate(**asking).json()["decision"] == "allow"


def mail(team: Tenant, mailbox: Mailbox) -> None:
    team.admin.set_channel(
        "mail", "email", to=["ops@example.com"], sender="guard@example.com", host="127.0.0.1",
        port=mailbox.port, security="none", answers=True,
    )  # fmt: skip


def link_in(mailbox: Mailbox, number: int = 0) -> str:
    until(lambda: len(mailbox.got) > number)
    found = re.search(
        r"http://127.0.0.1:1(/answer\?token=\S+)", mailbox.got[number][1].get_content()
    )
    assert found is not None
    return found[1]


def test_a_link_in_mail_decides_when_its_form_is_sent_and_once(
    team: Tenant, mailbox: Mailbox
) -> None:
    mail(team, mailbox)
    ask(team, note={"message": "Pay ACME?"})
    path = link_in(mailbox)
    assert "  | Message: Pay ACME?" in mailbox.got[0][1].get_content()
    base = team.gateway.base_url
    with httpx.Client(base_url=base, trust_env=False) as http:
        for _ in range(3):  # a scanner of links
            page = http.get(path)
            assert page.status_code == 200
            assert http.head(path).status_code in (200, 405)
        assert "pay_invoice" in page.text
        assert "Pay ACME?" in page.text
        assert team.admin.approvals()[0]["status"] == "pending"
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["token"][0]
        form = {"token": token, "answer": "refuse"}
        assert http.post("/answer", data=form).status_code == 403, "from no page of ours"
        for bad in (token[:-2], token[1:], token + "x", "", "a.b", token.replace(".", "")):
            reply = http.post("/answer", data=form | {"token": bad}, headers={"Origin": base})
            assert reply.status_code in (400, 404), bad
            assert http.get("/answer", params={"token": bad}).status_code == 404
        done = http.post("/answer", data=form, headers={"Origin": base})
        assert done.status_code == 200
        assert "refused by mail to ops@example.com" in done.text
        again = form | {"answer": "approve"}
        assert http.post("/answer", data=again, headers={"Origin": base}).status_code == 409
        assert "Answered by" in http.get(path).text
    assert team.admin.approvals(None)[0]["status"] == "refused"
    team.refused(403, "GD-X001", call_id="c1", kind="tool", function="pay_invoice",
                 tool_name="pay", workflow_id="w", agent="clerk", user="u-17")  # fmt: skip


def test_a_link_whose_call_has_gone_on_says_that_it_is_over(team: Tenant, mailbox: Mailbox) -> None:
    mail(team, mailbox)
    budget = team.admin.set_budget(10, on_exhausted="ask")
    team.send(team.llm(100_000_000))
    asking = {"kind": "call", "wait_ms": 60_000, "call_id": "asks"}
    assert team.gate(**asking).json()["asks"]
    path = link_in(mailbox)
    team.admin.raise_budget(budget["budget_id"], 50_000_000)
    assert team.gate(**asking).json()["decision"] == "allow"
    reply = httpx.get(team.gateway.base_url + path)
    assert reply.status_code == 200
    assert "This question is over" in reply.text
    assert "<button" not in reply.text


def test_a_link_ends_with_its_channel(team: Tenant, mailbox: Mailbox) -> None:
    mail(team, mailbox)
    ask(team)
    path = link_in(mailbox)
    team.admin.delete_channel("mail")
    assert httpx.get(team.gateway.base_url + path, trust_env=False).status_code == 404
    mail(team, mailbox)  # a new channel of the same name signs with another key
    assert httpx.get(team.gateway.base_url + path, trust_env=False).status_code == 404


def test_an_approval_is_for_the_arguments_that_it_was_asked_for(team: Tenant) -> None:
    assert ask(team, arguments="d1").json()["decision"] == "pending"
    asked = team.admin.approvals()[0]
    assert asked["arguments"] == "d1"
    team.admin.answer_approval(asked["approval_id"], approved=True)
    refused = ask(team, arguments="d2")
    assert (refused.status_code, refused.json()["reason"]) == (403, "approved for another call")
    assert ask(team, arguments="d1").json()["decision"] == "allow"


def test_what_is_cut_says_so(team: Tenant, receiver: Receiver) -> None:
    slack(team, receiver)
    note = {"message": "m", "details": {f"d{n}": "x" * 700 for n in range(8)}}
    ask(team, note=note)
    buttons(receiver)
    text = receiver.got[0].json["blocks"][2]["text"]["text"]
    assert len(text) <= 3000
    assert text.count("cut: the dashboard shows all of it") >= 4
