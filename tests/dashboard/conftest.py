"""A gateway with operators, tenants of their own for each test, and headless Chromium."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway, run_gateway
from tests.support.browser import chromium
from tests.support.programs import environment
from tests.support.waiting import WAIT_S

PASSWORD = "a password for tests"
PAGE_WAIT_MS = WAIT_S * 1000
"""The end of a wait for something on a page; by itself Playwright expects it within 5 s."""

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)  # before markers select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that opens Chromium."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """A gateway with an operator of the whole of it."""
    with run_gateway(control_ping_interval_ms=200, sweep_interval_ms=250) as running:
        running.admin.set_password("admin", PASSWORD)
        yield running


@attrs.define
class Visitor:
    """An HTTP client with a session of the dashboard."""

    http: httpx.Client
    csrf: str
    organisation_id: str

    def get(self, path: str, **query: Any) -> httpx.Response:
        """Open a page."""
        return self.http.get(path, params={"organisation": self.organisation_id, **query})

    def post(self, path: str, *, headers: Any = None, **fields: Any) -> httpx.Response:
        """Send a form as the page would."""
        body = {"csrf": self.csrf, "organisation": self.organisation_id, **fields}
        body = {name: value for name, value in body.items() if value is not None}
        origin = {"Origin": str(self.http.base_url).rstrip("/")}
        return self.http.post(path, data=body, headers={**origin, **(headers or {})})


def csrf_in(text: str) -> str:
    """Return the token in a page's form."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', text)
    assert found is not None
    return found[1]


@pytest.fixture
def visit(gateway: Gateway) -> Iterator[Callable[..., Visitor]]:
    """Sign in over HTTP."""
    opened: list[httpx.Client] = []

    def sign_in(organisation_id: str, name: str = "admin", password: str = PASSWORD) -> Visitor:
        http = httpx.Client(base_url=gateway.base_url, trust_env=False)
        opened.append(http)
        csrf = csrf_in(http.get("/sign-in").text)
        body = {"name": name, "password": password, "csrf": csrf, "return_to": "/keys"}
        reply = http.post("/sign-in", data=body, headers={"Origin": gateway.base_url})
        assert (reply.status_code, reply.headers["location"]) == (303, "/keys"), reply.text
        page = http.get("/keys", params={"organisation": organisation_id})
        return Visitor(http, csrf_in(page.text), organisation_id)

    yield sign_in
    for http in opened:
        http.close()


def cookie_of(gateway: Gateway) -> dict[str, Any]:
    """Sign a gateway's operator in; return the session as a browser's cookie."""
    with httpx.Client(base_url=gateway.base_url, trust_env=False) as http:
        body = {"name": "admin", "password": PASSWORD, "csrf": csrf_in(http.get("/sign-in").text)}
        http.post("/sign-in", data=body, headers={"Origin": gateway.base_url})
        value = http.cookies["guard_session"]
    return {"name": "guard_session", "value": value, "url": gateway.base_url, "httpOnly": True,
            "sameSite": "Strict"}  # fmt: skip


@pytest.fixture(scope="session")
def session_cookie(gateway: Gateway) -> dict[str, Any]:
    """A session of the operator: checking a password takes its time."""
    return cookie_of(gateway)


@attrs.define
class Tenant:
    """One organisation with a key, and the SDK's calls as plain HTTP."""

    gateway: Gateway
    organisation_id: str
    admin: AdminClient
    api_key: str
    http: httpx.Client

    def gate(self, workflow: str, **fields: Any) -> httpx.Response:
        """Ask for a call."""
        body = {"call_id": f"call-{next(_numbers)}", "kind": "call", "function": "work",
                "workflow_id": workflow, **fields}  # fmt: skip
        return self.http.post("/gate", json=body)

    def send(self, workflow: str, *events: dict[str, Any]) -> None:
        """Report events."""
        full = [{"event_id": f"event-{next(_numbers)}", "at_ms": time.time_ns() // 10**6,
                 "workflow_id": workflow, **event} for event in events]  # fmt: skip
        body = {"batch_id": f"batch-{next(_numbers)}", "sent_at_ms": 1, "events": full}
        reply = self.http.post("/api/v1/events", json=body)
        # 422: recorded in full, and over the budget.
        assert reply.status_code in (202, 422), reply.text
        assert reply.json()["accepted"] == len(events), reply.text

    def spend(self, workflow: str, nanousd: int, **fields: Any) -> None:
        """Report one LLM call with its cost."""
        data = {"model": "gpt-4o", "cost_nanousd": nanousd, "input_tokens": 100}
        self.send(workflow, {"type": "llm", "data": {**data, **fields}})


@pytest.fixture
def make_tenant(gateway: Gateway) -> Iterator[Callable[[], Tenant]]:
    """Make organisations."""
    made: list[Tenant] = []

    def make() -> Tenant:
        name = f"tenant-{next(_numbers)}"
        organisation = gateway.admin.create_organisation(name)["organisation_id"]
        admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=organisation)
        api_key = admin.create_key("test")
        http = httpx.Client(
            base_url=gateway.base_url,
            headers={"X-API-Key": api_key, "X-Guard-Protocol": "3"},
            trust_env=False,
        )
        made.append(Tenant(gateway, organisation, admin, api_key, http))
        return made[-1]

    yield make
    for tenant in made:
        tenant.http.close()
        tenant.admin.close()


@pytest.fixture
def tenant(make_tenant: Callable[[], Tenant]) -> Tenant:
    """One organisation."""
    return make_tenant()


@pytest.fixture
def visitor(tenant: Tenant, visit: Callable[..., Visitor]) -> Visitor:
    """A signed-in client that looks at the tenant."""
    return visit(tenant.organisation_id)


# -- a real process under guard ----------------------------------------------------------------


@pytest.fixture
def agent(tenant: Tenant, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a program that uses the SDK, with the tenant's key."""
    started: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        program = tmp_path / f"agent_{len(started)}.py"
        program.write_text(source)
        named = {"GUARD_API_KEY": tenant.api_key, "GUARD_API_URL": tenant.gateway.base_url}
        process = subprocess.Popen(
            [sys.executable, str(program)],
            env=environment(named),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


# -- the browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    # For the module only: while it is open, Playwright's loop counts as running in this thread.
    with chromium() as opened:
        from playwright.sync_api import expect

        expect.set_options(timeout=PAGE_WAIT_MS)
        yield opened


@pytest.fixture
def new_page(browser: Any, gateway: Gateway) -> Iterator[Callable[..., Any]]:
    """Open pages; a script error or a breach of the content policy fails the test."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def heard(message: Any) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            complaints.append(message.text)

    def open_page(**options: Any) -> Any:
        context = browser.new_context(base_url=gateway.base_url, **options)
        contexts.append(context)
        context.set_default_timeout(PAGE_WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", heard)
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def signed_in(
    new_page: Callable[..., Any], tenant: Tenant, session_cookie: Any
) -> Callable[..., Any]:
    """Open a page at a path of the tenant, with a session."""

    def open_at(path: str = "/", **options: Any) -> Any:
        page = new_page(**options)
        page.context.add_cookies([session_cookie])
        separator = "&" if "?" in path else "?"
        page.goto(f"{path}{separator}organisation={tenant.organisation_id}")
        page.get_by_text("Live", exact=True).wait_for()
        return page

    return open_at
