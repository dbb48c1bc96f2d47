"""The page of alerts, over HTTP and in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guard.gateway.embedded import Gateway, run_gateway
from tests.dashboard.conftest import PASSWORD, cookie_of
from tests.dashboard.test_accessibility import CHECKS
from tests.support.receivers import Receiver, http_receiver, mail_server
from tests.support.waiting import until

CANARY = "s3cret-canary"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway that may send to loopback addresses."""
    with run_gateway(
        control_ping_interval_ms=200,
        sweep_interval_ms=50,
        private_webhooks=True,
        public_url="http://127.0.0.1:1",
    ) as running:
        running.admin.set_password("admin", PASSWORD)
        yield running


@pytest.fixture(scope="module")
def session_cookie(gateway: Gateway) -> dict[str, Any]:
    """A session of this gateway's operator."""
    return cookie_of(gateway)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as running:
        yield running


def test_forms_set_channels_and_rules(visitor: Any, tenant: Any, receiver: Receiver) -> None:
    fields = {"kind": "slack", "name": "ops", "secret": f"{receiver.url}/{CANARY}"}
    assert visitor.post("/alerts/channels", **fields).status_code == 303
    changed = visitor.post("/alerts/channels", kind="slack", name="ops", secret="", off="1")
    assert changed.status_code == 303
    assert tenant.admin.channels()[0]["enabled"] is False
    visitor.post("/alerts/channels", kind="slack", name="ops", secret="")
    rule = {"on": "refusals", "count": "3", "minutes": "2", "channels": "ops"}
    assert visitor.post("/alerts/rules", **rule).status_code == 303
    found = tenant.admin.alert_rules()[0]
    assert (found["name"], found["count"], found["within_ms"], found["channels"]) == (
        "refusals", 3, 120_000, ["ops"],
    )  # fmt: skip
    hook = visitor.post("/alerts/channels", kind="webhook", name="hook", url=f"{receiver.url}/h")
    assert "whsec_" in hook.text
    page = visitor.get("/alerts").text
    for text in (CANARY, "whsec_"):
        assert text not in page + visitor.get("/alerts/channel", name="ops").text
    assert "3 within 2 min" in page
    refused = visitor.post("/alerts/channels", kind="slack", name="x", secret="http://10.0.0.1/")
    assert (refused.status_code, "must be https" in refused.text) == (400, True)
    assert visitor.post("/alerts/delete", what="rule", name="refusals").status_code == 303
    assert visitor.post("/alerts/delete", what="channel", name="hook").status_code == 303
    assert [each["name"] for each in tenant.admin.channels()] == ["ops"]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_channel_is_added_tested_and_removed_in_a_browser(
    signed_in: Callable[..., Any], tenant: Any, receiver: Receiver, width: int
) -> None:
    page = signed_in("/alerts", viewport={"width": width, "height": 900})
    page.get_by_role("link", name="Add Slack").click()
    page.get_by_label("Name").fill("ops")
    page.get_by_label("URL of an incoming webhook").fill(f"{receiver.url}/{CANARY}")
    page.get_by_role("button", name="Save channel").click()
    page.get_by_text("The channel is active").wait_for()
    page.get_by_role("button", name="Send test").click()
    page.get_by_text("The test has arrived").wait_for()
    page.locator("main").get_by_text("delivered").wait_for()
    receiver.status = 404
    page.get_by_role("button", name="Send test").click()
    page.get_by_text("The test has not arrived").wait_for()
    page.get_by_text("the receiver answers 404").wait_for()
    page.get_by_label("Tell me when").select_option("kill")
    page.get_by_label("ops", exact=True).check()
    page.get_by_role("button", name="Save rule").click()
    page.get_by_text("The rule is active").wait_for()
    assert receiver.got[0].path == f"/{CANARY}"
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    page.get_by_role("link", name="Remove kill").click()
    page.get_by_role("button", name="Remove").click()
    page.get_by_text("The rule was removed").wait_for()
    assert tenant.admin.alert_rules() == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_question_is_answered_from_a_link_without_signing_in(
    new_page: Callable[..., Any], tenant: Any, width: int, scheme: str
) -> None:
    tenant.admin.set_policy("careful", approval_tools=["pay"])
    tenant.admin.set_alert("approval", "approval")
    with mail_server() as box:
        tenant.admin.set_channel(
            "mail", "email", to=["ops@example.com"], sender="g@example.com", host="127.0.0.1",
            port=box.port, security="none", answers=True,
        )  # fmt: skip
        note = {"message": "Pay <b>ACME</b>?", "details": {"amount": "12.50 EUR"}}
        tenant.gate("w", kind="tool", tool_name="pay", function="pay_invoice", note=note)
        until(lambda: box.got)
    found = re.search(r"http://127.0.0.1:1(/answer\S+)", box.got[0][1].get_content())
    assert found is not None
    page = new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(found[1])
    page.get_by_text("Pay <b>ACME</b>?").wait_for()
    assert page.evaluate(CHECKS) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    assert tenant.admin.approvals()[0]["status"] == "pending"
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("pay was approved by mail to ops@example.com").wait_for()
    assert tenant.admin.approvals(None)[0]["status"] == "approved"
    page.goto(found[1])
    page.get_by_text("Answered by").wait_for()
    assert page.get_by_role("button").count() == 0
