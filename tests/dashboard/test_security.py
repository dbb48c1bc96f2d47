"""Sessions, forms, origins, headers, throttling and tenants, over plain HTTP."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from guard.gateway.dashboard.security import local_path
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.services.operators import IDLE_MS, SESSION_MS
from guard.gateway.settings import GatewaySettings
from guard.gateway.tls import fingerprint
from guard.tls import client_context

PAGES: Final = ["/", "/workflows", "/users", "/workflow?id=x", "/events", "/approvals", "/budgets",
                "/budgets/edit", "/policies", "/policies/edit", "/alerts",
                "/alerts/channel", "/alerts/delete?what=rule&name=x", "/keys", "/people",
                "/settings", "/settings/prices", "/settings/prices/remove?id=x",
                "/settings/gateway", "/events/event?id=1", "/events/refusal?id=1", "/audit",
                "/live", "/control?action=kill&workflow=x"]  # fmt: skip
FORMS: Final = ["/control", "/approvals", "/settings", "/settings/prices",
                "/settings/prices/remove", "/budgets", "/budgets/raise", "/budgets/refuse",
                "/budgets/delete", "/policies",
                "/policies/delete", "/alerts/rules", "/alerts/channels", "/alerts/test",
                "/alerts/delete", "/keys", "/keys/change", "/people", "/people/change",
                "/people/sessions", "/organisations", "/organisations/remove", "/audit/verify",
                "/sign-out"]  # fmt: skip
PASSWORD: Final = "a password for tests"


def origin(http: httpx.Client) -> dict[str, str]:
    return {"Origin": str(http.base_url).rstrip("/")}


@pytest.fixture
def stranger(gateway: Gateway) -> Any:
    with httpx.Client(base_url=gateway.base_url, trust_env=False) as http:
        yield http


def csrf_in(text: str) -> str:
    return text.split('name="csrf" value="')[1][:64]


# -- who is not signed in ----------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_pages_lead_a_stranger_to_the_sign_in(stranger: httpx.Client, path: str) -> None:
    reply = stranger.get(path)
    assert reply.status_code == 303
    assert reply.headers["location"].startswith("/sign-in")
    assert stranger.get(path, headers={"Cookie": "guard_session=forged"}).status_code == 303


@pytest.mark.parametrize("path", FORMS)
def test_forms_do_nothing_for_a_stranger(stranger: httpx.Client, path: str) -> None:
    reply = stranger.post(path, data={"csrf": "0" * 64}, headers=origin(stranger))
    assert reply.status_code == 401
    forged = {**origin(stranger), "Cookie": "guard_session=forged"}
    assert stranger.post(path, data={"csrf": "0" * 64}, headers=forged).status_code == 403


# -- forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FORMS)
def test_a_form_needs_its_token(visitor: Any, path: str) -> None:
    for csrf in ("0" * 64, "", None, "é"):
        assert visitor.post(path, csrf=csrf).status_code == 403
    assert visitor.get("/").status_code == 200, "still signed in"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_cross_origin_kill_is_refused(visitor: Any, tenant: Any, headers: dict[str, str]) -> None:
    tenant.spend("target", 1)
    reply = visitor.post("/control", action="kill", workflow="target", headers=headers)
    assert reply.status_code == 403
    assert tenant.admin.request("GET", "/workflows/target")["state"] == "active"
    reply = visitor.post("/control", action="kill", workflow="target")
    assert reply.status_code == 303
    assert tenant.admin.request("GET", "/workflows/target")["state"] == "killed"


def test_a_form_without_an_origin_is_refused(visitor: Any) -> None:
    body = {"csrf": visitor.csrf, "action": "kill", "workflow": "x"}
    assert visitor.http.post("/control", data=body).status_code == 403


def test_only_forms_are_read(visitor: Any) -> None:
    body = {"csrf": visitor.csrf, "action": "kill", "workflow": "x"}
    headers = origin(visitor.http)
    assert visitor.http.post("/control", json=body, headers=headers).status_code == 400
    huge = {"csrf": visitor.csrf, "reason": "x" * 200_000}
    assert visitor.http.post("/control", data=huge, headers=headers).status_code == 413
    many = {f"f{number}": "" for number in range(500)}
    assert visitor.http.post("/control", data=many, headers=headers).status_code == 400
    twice = f"csrf={visitor.csrf}&action=kill&action=pause&workflow=x"
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    assert visitor.http.post("/control", content=twice, headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/control", {"action": "explode", "workflow": "x"}),
        ("/control", {"action": "kill"}),
        ("/control", {"action": "kill", "workflow": "*"}),
        ("/control", {"action": "kill", "workflow": "*", "word": "all"}),
        ("/settings/prices", {"model": "", "input": "1", "output": "1"}),
        ("/settings/prices", {"model": "m", "input": "NaN", "output": "1"}),
        ("/settings/prices", {"model": "m", "input": "1"}),
        ("/settings/prices", {"model": "a\0b", "input": "1", "output": "1"}),
        ("/budgets/refuse", {"budget_id": "x", "reason": "r" * 513}),
        ("/control", {"action": "kill", "workflow": "x" * 300}),
        ("/control", {"action": "pause", "workflow": "x", "minutes": "-1"}),
        ("/budgets", {"limit": "NaN"}),
        ("/budgets", {"limit": "-1"}),
        ("/budgets", {"limit": "1e99"}),
        ("/budgets", {"limit": "0.0000000001"}),
        ("/budgets", {"limit": "1", "scope_kind": "workflow", "scope_id": ""}),
        ("/budgets", {"limit": "1", "thresholds": "NaN"}),
        ("/budgets", {"limit": "1", "thresholds": "eighty"}),
        ("/budgets", {"limit": "1", "on_exhausted": "beg"}),
        ("/budgets", {"limit": "1", "on_exhausted": "ask", "ask_s": "0"}),
        ("/policies", {"name": "", "is_new": "1"}),
        ("/policies", {"name": "p", "is_new": "1", "approval_timeout_s": "0"}),
        ("/keys", {"name": "k", "role": "root"}),
        ("/alerts/rules", {"on": "rain"}),
        ("/alerts/rules", {"on": "kill", "name": "a b"}),
        ("/alerts/rules", {"on": "refusals", "count": "0"}),
        ("/alerts/channels", {"kind": "slack", "name": "ops"}),
        ("/alerts/channels", {"kind": "webhook", "name": "hook", "url": "https://10.0.0.1/"}),
        ("/alerts/channels", {"kind": "email", "name": "m", "to": "a\nb@c.de", "sender": "x@y.z"}),
        ("/settings", {"chain_ttl_ms": "soon"}),
        ("/approvals", {"approval": "x", "answer": "maybe"}),
        ("/control", {"action": "kill", "workflow": "a\0b"}),
        ("/control", {"action": "kill", "workflow": "x", "reason": "a\ufdd0b"}),
        ("/budgets", {"limit": "1", "scope_kind": "workflow", "scope_id": "a\0b"}),
        ("/policies", {"name": "p", "is_new": "1", "tools_block": "a\ufdd0b"}),
    ],
)
def test_nonsense_changes_nothing_and_is_explained(
    visitor: Any, tenant: Any, path: str, fields: dict[str, str]
) -> None:
    before = len(tenant.admin.audit())
    reply = visitor.post(path, **fields)
    assert reply.status_code == 400, reply.text
    assert "Nothing was" in reply.text
    assert len(tenant.admin.audit()) == before


# -- headers and cookies -----------------------------------------------------------------------


def test_every_page_forbids_framing_scripts_and_storing(visitor: Any) -> None:
    for path in [*PAGES[:2], *PAGES[3:11], "/sign-in", "/workflow?id=nowhere"]:
        reply = visitor.http.get(path, params={"organisation": visitor.organisation_id})
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["referrer-policy"] == "same-origin"
        assert " style=" not in reply.text
        assert "<style" not in reply.text
        assert not [tag for tag in reply.text.split("<script")[1:] if not tag.startswith(" src=")]


def test_the_cookies_are_out_of_reach_of_scripts_and_sites(stranger: httpx.Client) -> None:
    page = stranger.get("/sign-in")
    body = {"name": "admin", "password": PASSWORD, "csrf": csrf_in(page.text)}
    reply = stranger.post("/sign-in", data=body, headers=origin(stranger))
    cookies = [*page.headers.get_list("set-cookie"), *reply.headers.get_list("set-cookie")]
    assert len(cookies) == 4
    for cookie in cookies:
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
    assert "Secure" not in cookies[0], "plain HTTP on loopback"


def test_behind_tls_the_cookies_are_bound_to_the_host(tmp_path: Path) -> None:
    with run_gateway(tmp_path / "g.sqlite3", public_url="https://guard.example") as gateway:
        headers = {"Host": "guard.example"}
        reply = httpx.get(f"{gateway.base_url}/sign-in", headers=headers, trust_env=False)
        cookie = reply.headers["set-cookie"]
        assert cookie.startswith("__Host-guard_visit=")
        assert "Secure" in cookie


def test_signing_in_over_the_gateways_own_tls(tmp_path: Path) -> None:
    with run_gateway(tmp_path / "g.sqlite3", tls_self_signed=True) as gateway:
        gateway.admin.set_password("admin", PASSWORD)
        context = client_context(fingerprint(tmp_path / "g.tls.pem"))
        with httpx.Client(base_url=gateway.base_url, trust_env=False, verify=context) as http:
            csrf = csrf_in(http.get("/sign-in").text)
            body = {"name": "admin", "password": PASSWORD, "csrf": csrf}
            plain = gateway.base_url.replace("https:", "http:")
            for origin_of_page, status in ((plain, 403), (gateway.base_url, 303)):
                reply = http.post("/sign-in", data=body, headers={"Origin": origin_of_page})
                assert reply.status_code == status, reply.text
            assert "Key" in http.get("/keys").text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", ""])
def test_a_strangers_name_for_this_host_is_refused(stranger: httpx.Client, host: str) -> None:
    """DNS rebinding: the browser believes that this gateway is the stranger's site."""
    for path in ("/", "/sign-in"):
        assert stranger.get(path, headers={"Host": host}).status_code == 403
    names = {"Host": host, "Origin": f"http://{host}"}
    assert stranger.post("/sign-in", data={}, headers=names).status_code == 403


def test_static_files_cannot_lead_out_of_their_folder(stranger: httpx.Client) -> None:
    for name in ("..%2f..%2fapp.py", "%2e%2e/site.py", "nothing.css", "..\\site.py"):
        assert stranger.get(f"/static/{name}").status_code == 404
    reply = stranger.get("/static/guard.css")
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "",
     "/ok\r\nSet-Cookie: x", "\t//evil.example", "/\t/evil.example"],
)  # fmt: skip
def test_nothing_redirects_to_another_site(path: str) -> None:
    assert local_path(path) == "/"
    assert local_path("/workflow?id=a%2Fb") == "/workflow?id=a%2Fb"


# -- sessions ----------------------------------------------------------------------------------


def test_signing_out_ends_the_session_itself(visitor: Any) -> None:
    cookie = visitor.http.cookies["guard_session"]
    assert visitor.post("/sign-out").status_code == 303
    again = {"Cookie": f"guard_session={cookie}"}
    assert visitor.http.get("/", headers=again).headers["location"].startswith("/sign-in")


def test_a_new_password_ends_every_session(
    gateway: Gateway, tenant: Any, visit: Callable[..., Any]
) -> None:
    tenant.admin.request(
        "PUT", "/operators/carol", {"password": PASSWORD}, organisation=tenant.organisation_id
    )
    session = visit(tenant.organisation_id, "carol")
    assert session.get("/").status_code == 200
    tenant.admin.request("PUT", "/operators/carol", {"password": "another password"})
    assert session.get("/").status_code == 303


def test_sessions_end_by_themselves(tmp_path: Path) -> None:
    now = [1_800_000_000_000]
    with run_gateway(tmp_path / "g.sqlite3", clock_ms=lambda: now[0]) as gateway:
        gateway.admin.set_password("admin", PASSWORD)
        with httpx.Client(base_url=gateway.base_url, trust_env=False) as http:

            def sign_in() -> None:
                csrf = csrf_in(http.get("/sign-in").text)
                body = {"name": "admin", "password": PASSWORD, "csrf": csrf}
                http.post("/sign-in", data=body, headers=origin(http))

            sign_in()
            now[0] += IDLE_MS
            assert http.get("/").status_code == 303, "idle for too long"
            sign_in()
            for _ in range(SESSION_MS // (IDLE_MS // 2) - 1):
                now[0] += IDLE_MS // 2
                assert http.get("/").status_code == 200, "in use"
            now[0] += IDLE_MS // 2
            assert http.get("/").status_code == 303, "open for too long"


def test_the_store_holds_neither_password_nor_session(tmp_path: Path) -> None:
    database = tmp_path / "g.sqlite3"
    with run_gateway(database) as gateway:
        gateway.admin.set_password("admin", PASSWORD)
        with httpx.Client(base_url=gateway.base_url, trust_env=False) as http:
            csrf = csrf_in(http.get("/sign-in").text)
            body = {"name": "admin", "password": PASSWORD, "csrf": csrf}
            http.post("/sign-in", data=body, headers=origin(http))
            token = http.cookies["guard_session"]
            pages = "".join(http.get(path).text for path in ("/", "/keys", "/audit"))
    connection = sqlite3.connect(database)
    stored = connection.execute("SELECT token_hash FROM sessions").fetchall()
    hashes = connection.execute("SELECT password_hash FROM operators").fetchall()
    dump = "\n".join(connection.iterdump())
    connection.close()
    assert stored == [(hashlib.sha256(token.encode()).digest(),)]
    assert hashes[0][0].startswith("$argon2id$")
    for secret in (PASSWORD, token, gateway.api_key, gateway.admin_key):
        assert secret not in dump
        assert secret not in pages


# -- tenants -----------------------------------------------------------------------------------


def test_an_operator_of_one_organisation_sees_and_stops_nothing_else(
    make_tenant: Callable[[], Any], visit: Callable[..., Any], gateway: Gateway
) -> None:
    own, other = make_tenant(), make_tenant()
    own.admin.request(
        "PUT", "/operators/bob", {"password": PASSWORD}, organisation=own.organisation_id
    )
    for tenant, name in ((own, "own-flow"), (other, "other-flow")):
        tenant.spend(name, 10**9)
        document = {"approval_tools": ["*"]}
        tenant.admin.request("PUT", f"/policies/policy-{name}", {"document": document})
        tenant.gate(name, tool_name=f"tool-{name}")
        tenant.admin.request(
            "PUT",
            "/budgets",
            {"scope_kind": "workflow", "scope_id": name, "window": "day", "limit_cents": 900},
        )
    bob = visit(own.organisation_id, "bob")
    for path in ("/", "/workflows", "/events", "/approvals", "/budgets", "/policies", "/audit"):
        text = bob.get(path).text
        assert "own-flow" in text, path
        assert "other-flow" not in text, path
        assert other.organisation_id not in text, path
    for path in PAGES:
        assert bob.http.get(path, params={"organisation": other.organisation_id}).status_code == 404
    assert bob.get("/workflow", id="other-flow").status_code == 404

    visit(other.organisation_id)
    admins = next(each for each in gateway.admin.sessions() if each["name"] == "admin")
    key = next(k for k in other.admin.request("GET", "/keys") if k["role"] == "sdk")
    approval = other.admin.request("GET", "/approvals")[0]["approval_id"]
    budget = other.admin.request("GET", "/budgets")[0]["budget_id"]
    attempts: list[tuple[str, dict[str, str]]] = [
        ("/control", {"action": "kill", "workflow": "other-flow"}),
        ("/approvals", {"approval": approval, "answer": "approve"}),
        ("/budgets/raise", {"budget_id": budget, "by": "1"}),
        ("/budgets/delete", {"budget_id": budget}),
        ("/policies/delete", {"name": "policy-other-flow"}),
        ("/keys/change", {"action": "revoke", "key": key["key_id"]}),
        ("/keys/change", {"action": "rotate", "key": key["key_id"]}),
        ("/keys/change", {"action": "revoke", "key": key["key_id"], "secret": key["prefix"]}),
        ("/people/change", {"name": "admin", "change": "remove"}),
        ("/people/sessions", {"session": admins["session_id"]}),
        ("/alerts/test", {"name": "other-flow"}),
        ("/alerts/delete", {"what": "channel", "name": "other-flow"}),
        ("/alerts/delete", {"what": "rule", "name": "other-flow"}),
    ]
    for path, fields in attempts:
        for organisation in (own.organisation_id, other.organisation_id):
            status = bob.post(path, organisation=organisation, **fields).status_code
            # An order may name a workflow that nobody has seen, in the operator's own organisation.
            expected = 303 if (path, organisation) == ("/control", own.organisation_id) else 404
            assert status == expected, (path, organisation)
    assert bob.post("/audit/verify").status_code == 404
    assert other.gate("other-flow", tool_name="tool").json()["decision"] == "pending"
    assert other.admin.request("GET", "/approvals")[-1]["status"] == "pending"
    assert len(other.admin.request("GET", "/budgets")) == 1
    keys = {each["key_id"]: each for each in other.admin.request("GET", "/keys")}
    assert keys[key["key_id"]]["revoked_at_ms"] is None
    assert [each["prefix"] for each in keys[key["key_id"]]["secrets"]] == [key["prefix"]]


def test_an_operator_of_all_has_to_say_which_organisation_a_form_is_about(visitor: Any) -> None:
    reply = visitor.post("/control", organisation=None, action="kill", workflow="*")
    assert reply.status_code == 400
    assert "which organisation" in reply.text


def test_an_admin_key_of_one_organisation_cannot_take_over_an_operator(
    make_tenant: Callable[[], Any], gateway: Gateway
) -> None:
    tenant = make_tenant()
    key = tenant.admin.create_key("bound", role="admin")
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{gateway.base_url}/api/v1/admin/operators"
    body = {"password": "the attacker's own"}
    with httpx.Client(headers=headers, trust_env=False) as http:
        assert http.put(f"{url}/admin", json=body).status_code == 409
        made = http.put(f"{url}/dora", json=body).json()
        assert made["organisation_id"] == tenant.organisation_id
        assert body["password"] not in str(made)
        assert http.put(f"{url}/dora", json={"password": "short"}).status_code == 400


@pytest.mark.parametrize(("trusted", "throttled"), [(("127.0.0.0/8",), False), ((), True)])
def test_people_behind_a_trusted_proxy_have_throttles_of_their_own(
    tmp_path: Path, trusted: tuple[str, ...], throttled: bool
) -> None:
    # The clock stands still: nobody has waited long enough in the meantime.
    with run_gateway(
        tmp_path / "g.sqlite3", trusted_proxies=trusted, clock_ms=lambda: 1_800_000_000_000
    ) as gateway:
        gateway.admin.set_password("admin", PASSWORD)
        with httpx.Client(base_url=gateway.base_url, trust_env=False) as http:
            csrf = csrf_in(http.get("/sign-in").text)

            def attempt(address: str, name: str) -> int:
                headers = {**origin(http), "X-Forwarded-For": f"203.0.113.9, {address}"}
                body = {"name": name, "password": "a wrong password", "csrf": csrf}
                return http.post("/sign-in", data=body, headers=headers).status_code

            statuses = [attempt("198.51.100.1", f"name-{number}") for number in range(60)]
            assert 429 in statuses, "one address, many names"
            assert (attempt("198.51.100.2", "somebody") == 429) is throttled


def test_a_proxys_network_is_checked() -> None:
    with pytest.raises(ValueError, match=r"trusted_proxies.*'proxy'"):
        GatewaySettings(database=Path("g"), trusted_proxies=("proxy",))
