"""A night of a team: a budget runs out, the operator raises it from a phone, the run goes on.

Thirty people who sign in at an OpenID provider, Slack, mail, Prometheus, and two replicas of the
gateway on PostgreSQL, each a program of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import httpx
import pytest

from guard.gateway.admin import AdminClient
from tests.deploy.test_monitoring import queries
from tests.support.browser import chromium
from tests.support.llm_vendor import vendor_process
from tests.support.openid_provider import openid_provider
from tests.support.ports import free_port
from tests.support.postgres import own_database
from tests.support.programs import environment, killed_at_last
from tests.support.prometheus import METRICS_KEY, metrics_of, prometheus
from tests.support.receivers import Mailbox, Receiver, http_receiver, mail_server
from tests.support.slack import pressed, signed
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PHONE: Final = {"viewport": {"width": 390, "height": 844}}
SIGNING: Final = "8f742231b10e8888abcd99yyyzzz85a5"
ADMIN_KEY: Final = "gda_" + "0" * 64
REQUESTS: Final = 8
COST: Final = 10_012_500
"""Of one request, in nano-dollars; too small to be cut to what is left, so each is made whole."""
AGENT: Final = """
import sys, httpx, guard

guard.init()
with guard.workflow("nightly"), guard.context.tags(team="search"):
    for number in range(int(sys.argv[2])):
        body = {"model": "gpt-4o", "max_tokens": 1000,
                "messages": [{"role": "user", "content": "hi"}]}
        reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
        print(number, reply.status_code, flush=True)
guard.shutdown()
"""

OWNER, OPERATOR, VIEWER = "olga@example.com", "otto1@example.com", "vera1@example.com"
TEAM: Final = {
    OWNER: "owner",
    **{f"otto{number}@example.com": "operator" for number in range(1, 6)},
    **{f"vera{number}@example.com": "viewer" for number in range(1, 25)},
}


@attrs.frozen
class Office:
    """What runs, and where.

    Attributes:
        url: of the first replica, which people use.
        other: of the second one, which the run uses.
        issuer: where people sign in.
        admin: of the gateway.
        slack: what the channel of Slack has got.
        mail: what the operators' mailbox has got.
        vendor: of the language model.
        monitor: Prometheus' API.
        key: of the team's programs.
    """

    url: str
    other: str
    issuer: str
    admin: AdminClient
    slack: Receiver
    mail: Mailbox
    vendor: str
    monitor: httpx.Client
    key: str = attrs.field(repr=False)

    def __call__(self, *words: str, **variables: str) -> str:
        """Run a command as the owner does, at a terminal."""
        done = subprocess.run(
            [sys.executable, "-m", "guard", *words], capture_output=True, text=True, check=False,
            env=environment({"GUARD_API_URL": self.url, "GUARD_ADMIN_KEY": ADMIN_KEY, **variables}),
            timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def signed_in(self, person: str) -> httpx.Client:
        """Return a client whose session a person has begun at the provider."""
        http = httpx.Client(base_url=self.url, follow_redirects=True)
        form = http.get("/sign-in/openid")
        assert str(form.url).startswith(self.issuer), form.text
        assert http.post(form.url, data={"sub": person}).status_code == 200
        return http


@contextlib.contextmanager
def replica(port: int, **settings: str) -> Iterator[str]:
    """Run ``guard gateway serve``; gives its address."""
    given = {f"GUARD_GATEWAY_{name.upper()}": value for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "guard", "gateway", "serve", "--port", str(port)],
        env=environment(given), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with killed_at_last(process):
        assert process.stdout is not None
        found = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert found is not None
        until(lambda: httpx.get(f"{found[0]}/readyz").status_code == 200)
        yield found[0]
        process.terminate()
        assert process.wait(WAIT_S) == 0


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    secrets = {"first_admin_key": ADMIN_KEY, "openid_client_secret": "a secret",
               "metrics_key": METRICS_KEY}  # fmt: skip
    for name, secret in secrets.items():
        (folder / name).write_text(secret)
    people = [{"sub": name, "email": name, "email_verified": True} for name in TEAM]
    with contextlib.ExitStack() as stack:
        issuer = stack.enter_context(openid_provider(people))
        port = free_port()
        settings = {
            "database": own_database(),
            **{f"{name}_file": str(folder / name) for name in secrets},
            "public_url": f"http://127.0.0.1:{port}", "openid_issuer": issuer,
            "openid_client_id": "guard", "private_webhooks": "true",
        }  # fmt: skip
        url = stack.enter_context(replica(port, **settings))
        other = stack.enter_context(replica(0, **settings))
        admin = stack.enter_context(contextlib.closing(AdminClient(url, ADMIN_KEY)))
        made = Office(
            url, other, issuer, admin, stack.enter_context(http_receiver()),
            stack.enter_context(mail_server()), stack.enter_context(vendor_process()),
            stack.enter_context(prometheus(folder, [url, other])), admin.create_key("search"),
        )  # fmt: skip
        yield made


@pytest.fixture(scope="module")
def phone(office: Office) -> Iterator[Callable[[], Any]]:
    """Open pages of the gateway on a phone."""
    with chromium() as browser, contextlib.ExitStack() as stack:

        def page() -> Any:
            context = browser.new_context(base_url=office.url, **PHONE)
            stack.callback(context.close)
            context.set_default_timeout(30_000)
            return context.new_page()

        yield page


def fits(page: Any) -> bool:
    """Tell whether a page needs no scrolling to the side."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return bool(page.evaluate(wide) <= 0)


@pytest.fixture(scope="module")
def set_up(office: Office) -> str:
    """What the owner does by day; returns the id of the channel of Slack."""
    office("gateway", "operators", "add", OWNER, "--no-password", "--role", TEAM[OWNER])
    for name, role in TEAM.items():
        office.admin.put_operator(name, role=role)
    office(
        "gateway", "budgets", "set", "--scope", "tag", "--id", "team=search",
        "--anyway", "--window", "week",
        "--limit", "$0.035", "--on-exhausted", "ask",
    )  # fmt: skip
    office(
        "alerts", "channels", "set", "ops", "--slack", "--answers", "--slack-user", "U-OTTO",
        GUARD_CHANNEL_SECRET=f"{office.slack.url}/hook", GUARD_CHANNEL_SIGNING_SECRET=SIGNING,
    )  # fmt: skip
    office(
        "alerts", "channels", "set", "mail", "--email", OPERATOR, "--from", "guard@example.com",
        "--smtp", f"127.0.0.1:{office.mail.port}", "--security", "none", "--answers",
    )  # fmt: skip
    office("alerts", "set", "approval")
    office("alerts", "set", "exhausted")
    [channel] = [each for each in office.admin.channels() if each["name"] == "ops"]
    return str(channel["channel_id"])


def asked_in_slack(office: Office, after: int) -> dict[str, Any]:
    """Wait for a question among the messages after so many; return its buttons."""

    def found() -> dict[str, Any] | None:
        for got in office.slack.got[after:]:
            for block in got.json.get("blocks", ()):
                if block["type"] == "actions":
                    return {each["action_id"]: each for each in block["elements"]}
        return None

    return until(found) or {}


def press(office: Office, channel: str, button: Any, user: str) -> int:
    body = pressed(button, f"{office.slack.url}/response", user)
    url = f"{office.url}/slack/interactions/{channel}"
    return httpx.post(url, content=body, headers=signed(body, SIGNING)).status_code


def limit(office: Office) -> int:
    [budget] = office.admin.budgets()
    return int(budget["limit"])


def links(office: Office) -> list[str]:
    """Return the links in mail that answer a question."""
    texts = [message.get_content() for _, message in office.mail.got]
    return [found for text in texts for found in re.findall(r"http://\S+/answer\S+", text)]


@pytest.fixture(scope="module")
def night(office: Office, set_up: str, phone: Callable[[], Any], tmp_path_factory: Any) -> str:
    """What happens at night; returns what the run has printed."""
    program = tmp_path_factory.mktemp("night") / "agent.py"
    program.write_text(AGENT)
    variables = {"GUARD_API_URL": office.other, "GUARD_API_KEY": office.key,
                 "GUARD_PRICE_LOCAL": "1"}  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(program), office.vendor, str(REQUESTS)], env=environment(variables),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with killed_at_last(process):
        buttons = asked_in_slack(office, 0)
        assert buttons["approve"]["text"]["text"] == "Raise by $0.02 and go on"
        waiting(office)
        assert press(office, set_up, buttons["approve"], "U-VERA") == 403
        a_viewer_may_not_raise(office)
        assert limit(office) == 35_000_000, "neither in Slack nor on the dashboard"
        first = set(until(lambda: links(office)))
        assert press(office, set_up, buttons["approve"], "U-OTTO") == 200
        until(lambda: limit(office) == 55_000_000)

        [link] = until(lambda: set(links(office)) - first)
        page = phone()
        page.goto(link)
        page.get_by_text("team=search").first.wait_for()
        assert fits(page)
        assert limit(office) == 55_000_000, "opening a link decides nothing"
        page.get_by_role("button", name="Raise by").click()
        page.get_by_text(f"by mail to {OPERATOR}").first.wait_for()
        assert limit(office) == 85_000_000
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
        page.goto(link)
        page.get_by_text("This question is over").wait_for()
        assert page.get_by_role("button").count() == 0
        return out


def waiting(office: Office) -> None:
    """See that the metrics tell of the call that waits, on every replica."""
    for url in (office.url, office.other):
        until(lambda url=url: re.search(  # type: ignore[misc]
            r"^guard_gateway_budget_asks\S* 1\.0$", metrics_of(url), re.MULTILINE
        ))  # fmt: skip
    assert json.loads(office("gateway", "budgets", "waiting", "--json"))[0]["workflow_id"] == (
        "nightly"
    )


def a_viewer_may_not_raise(office: Office) -> None:
    [budget] = office.admin.budgets()
    with contextlib.closing(office.signed_in(VIEWER)) as http:
        page = http.get("/budgets/edit", params={"id": budget["budget_id"]}).text
        assert 'data-role="viewer"' in page
        body = {
            "csrf": page.split('name="csrf" value="')[1][:64], "budget_id": budget["budget_id"],
            "by": "5", "key": "k",
        }  # fmt: skip
        reply = http.post("/budgets/raise", data=body, headers={"Origin": office.url})
        assert reply.status_code == 403, reply.text


# -- the morning after -----------------------------------------------------------------------------


def test_the_run_went_on_where_it_was(office: Office, night: str) -> None:
    assert night.split("\n") == [*(f"{number} 200" for number in range(REQUESTS)), ""]
    answered = httpx.get(f"{office.vendor}/stats").json()["answered"]
    assert answered == REQUESTS, "no request was lost or sent twice"
    [row] = office.admin.ledger()
    assert row["committed"] == REQUESTS * COST


def test_each_was_told_where_people_are(office: Office, night: str) -> None:
    slack = json.dumps([got.json for got in office.slack.got])
    assert "nightly" in slack
    assert "team=search" in slack
    told = [message["Subject"] for _, message in office.mail.got]
    assert len(links(office)) == 2, told
    assert {each for to, _ in office.mail.got for each in to} == {OPERATOR}
    until(lambda: all(each["delivered_at_ms"] for each in office.admin.deliveries()))
    types = [each["type"] for each in office.admin.deliveries()]
    assert types.count("budget.asks") == 4, "each question once to each channel, of two replicas"


def test_the_audit_says_who_did_it(office: Office, night: str) -> None:
    entries = json.loads(office("gateway", "audit", "list", "--limit", "1000", "--json"))
    raises = [each for each in entries if each["action"] == "budget.raise"]
    assert [each["actor"] for each in raises] == [
        "slack alice (U-OTTO)", f"mail to {OPERATOR}",
    ]  # fmt: skip
    office("gateway", "audit", "verify")


def test_prometheus_shows_it(office: Office, night: str) -> None:
    def value(expression: str) -> float | None:
        reply = office.monitor.get("/query", params={"query": expression})
        result = reply.json().get("data", {}).get("result")
        return float(result[0]["value"][1]) if result else None

    until(lambda: value('max(guard_gateway_budget_limit{window="week"})') == 0.085)
    until(lambda: value("max(guard_gateway_budget_asks)") == 0)
    spent = value('max(guard_gateway_budget_spent{scope="tag"})')
    assert spent == pytest.approx(REQUESTS * COST / 1e9)
    for what, (expression, _) in queries().items():
        if "guard_gateway_budget" in expression:
            text = expression.replace("$__rate_interval", "5m").replace("$organisation", ".*")
            until(lambda text=text: value(text) is not None)  # type: ignore[misc]
            assert value(text) is not None, what


def test_the_operator_sees_the_raises_on_a_phone(
    office: Office, night: str, phone: Callable[[], Any]
) -> None:
    page = phone()
    page.goto("/budgets")
    page.get_by_role("link", name="Sign in by single sign-on").click()
    page.locator('input[name="sub"]').first.fill(OPERATOR)
    page.locator('button[type="submit"], input[type="submit"]').first.click()
    page.get_by_role("heading", name="Budgets").wait_for()
    assert fits(page)
    page.get_by_role("link", name="Edit tag team=search week").click()
    raises = page.get_by_role("region", name="Raises")
    raises.get_by_text("slack alice (U-OTTO)").wait_for()
    raises.get_by_text(f"mail to {OPERATOR}").wait_for()
    assert fits(page)
    assert page.locator('[data-role="operator"]').count() == 1


def test_thirty_people_have_their_roles(office: Office, set_up: str) -> None:
    found = {each["name"]: each["role"] for each in office.admin.operators()}
    assert found == TEAM
    assert len(TEAM) == 30
    for person in (OWNER, OPERATOR, VIEWER):
        with contextlib.closing(office.signed_in(person)) as http:
            assert f'data-role="{TEAM[person]}"' in http.get("/").text
    with contextlib.closing(httpx.Client(base_url=office.url, follow_redirects=True)) as http:
        form = http.get("/sign-in/openid")
        stranger = http.post(form.url, data={"sub": "mallory@example.com"})
        assert stranger.status_code == 403
