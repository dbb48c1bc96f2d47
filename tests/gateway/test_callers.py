"""A proxy's key names its callers: who may, who may be named, and who is charged."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from websockets.exceptions import InvalidStatus

from guard.core import signing, wire
from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.storage.postgres import listener
from tests.support import postgres
from tests.support.asker import ask, asker, call, close_code
from tests.support.two_organisations import naming
from tests.support.waiting import until, until_async

SECRET = "a shared secret, long enough"
_numbers = itertools.count(1)


@attrs.frozen
class Organisation:
    """One organisation of the gateway, with a caller's key."""

    admin: AdminClient
    key_id: str
    key: str


@attrs.frozen
class Two:
    """Two organisations, and a proxy for both."""

    gateways: list[Gateway]
    own: Organisation
    other: Organisation
    proxy: str
    proxy_id: str

    def post(self, path: str, body: Any, credential: str, at: int = 0, **headers: str) -> Any:
        """Send a body as somebody; return the reply."""
        sent = {"X-API-Key": credential, "X-Guard-Protocol": "3", **headers}
        url = self.gateways[at].base_url + path
        return httpx.post(url, json=body, headers=sent, trust_env=False)

    def gate(self, credential: str, at: int = 0, **fields: Any) -> Any:
        """Ask for a call."""
        headers = fields.pop("headers", {})
        return self.post("/gate", call(next(_numbers), **fields), credential, at, **headers)


def _organisation(gateway: Gateway) -> Organisation:
    own = gateway.admin.create_organisation(f"o-{next(_numbers)}")["organisation_id"]
    admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=own)
    made = admin.create_key_full("caller")
    return Organisation(admin, made["key"]["key_id"], made["api_key"])


def _two(gateways: list[Gateway]) -> Iterator[Two]:
    own, other = _organisation(gateways[0]), _organisation(gateways[0])
    made = own.admin.create_key_full("proxy", role="proxy", every_organisation=True)
    yield Two(gateways, own, other, made["api_key"], made["key"]["key_id"])
    assert gateways[0].admin.verify_ledger()["problems"] == []
    own.admin.close()
    other.admin.close()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway of this file's own: a proxy for all organisations is among everybody's keys."""
    database = None
    if request.param == "postgres":
        database = postgres.url_of(tmp_path_factory.mktemp("postgres"))
    with run_gateway(database, control_ping_interval_ms=200) as gateway:
        yield gateway


@pytest.fixture
def two(running: Gateway) -> Iterator[Two]:
    yield from _two([running])


# -- who may name, and be named --------------------------------------------------------------------


def _credentials(two: Two) -> dict[str, tuple[str, str | None]]:
    """Return every kind of credential, with the code that it is refused with."""
    own, other, admin = two.own, two.other, two.own.admin
    bound = admin.create_key("bound", role="proxy")
    revoked = admin.create_key_full("revoked")
    admin.revoke_key(revoked["key"]["key_id"])
    ended = admin.create_key_full("ended", role="proxy")
    admin.revoke_key(ended["key"]["key_id"])
    proxy = two.proxy
    return {
        "a caller": (own.key, None),
        "a proxy with a caller": (naming(proxy, own.key), None),
        "a proxy with another's caller": (naming(proxy, other.key), None),
        "a bound proxy with a caller": (naming(bound, own.key), None),
        "a bound proxy with another's caller": (naming(bound, other.key), "GD-A004"),
        "a proxy alone": (proxy, "GD-A005"),
        "a caller with another": (naming(own.key, admin.create_key("o")), "GD-A005"),
        "a caller with itself": (naming(own.key, own.key), "GD-A005"),
        "an admin key with a caller": (
            naming(admin.create_key("a", role="admin"), own.key), "GD-A003",
        ),
        "nobody with a caller": (naming("", own.key), "GD-A003"),
        "unknown with a caller": (naming("gdp_unknown", own.key), "GD-A003"),
        "a revoked proxy": (naming(ended["api_key"], own.key), "GD-A003"),
        "an expired proxy": (
            naming(admin.create_key("x", role="proxy", expires_at_ms=1), own.key), "GD-A003",
        ),
        "a revoked caller": (naming(proxy, revoked["api_key"]), "GD-A004"),
        "an expired caller": (naming(proxy, admin.create_key("e", expires_at_ms=1)), "GD-A004"),
        "an unknown caller": (naming(proxy, "gdk_unknown"), "GD-A004"),
        "an admin key as caller": (naming(proxy, admin.create_key("b", role="admin")), "GD-A004"),
        "a proxy as caller": (naming(proxy, proxy), "GD-A004"),
        "a caller who has to sign": (
            naming(proxy, admin.create_key("s", hmac_secret=SECRET)), "GD-A004",
        ),
        "a caller by its key": (f"{proxy}:{own.key}", "GD-A004"),
        "a caller by no hash": (f"{proxy}:", "GD-A004"),
        "a caller in capitals": (naming(proxy, own.key)[:-64] + "AB" * 32, "GD-A004"),
        "two callers": (naming(naming(proxy, own.key), other.key), "GD-A004"),
    }  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.generator("credentials by operations: who may name a caller")
async def test_only_a_proxy_names_and_only_valid_keys_are_named(
    two: Two, count_cases: Callable[[int], None]
) -> None:
    event = {"event_id": "e", "type": "span", "at_ms": 1, "data": {"name": "n"}}
    batch = {"batch_id": "b", "sent_at_ms": 1, "events": [event]}
    requests: list[tuple[str, str, Any, int]] = [
        ("GET", wire.CAPABILITIES_PATH, None, 200),
        ("POST", wire.GATE_PATH, call("c"), 200),
        ("POST", wire.RELEASE_PATH, {"reservation_id": "nothing"}, 404),
        ("POST", wire.LEASE_PATH, {"lease_id": "nothing"}, 404),
        ("POST", wire.EVENTS_PATH, batch, 202),
        ("GET", f"{wire.CONTROL_PATH}?after=0&wait_ms=0", None, 200),
        ("GET", f"{wire.SPEND_PATH}?workflow=w", None, 200),
    ]
    base_url = two.gateways[0].base_url
    cases = 0
    credentials = await asyncio.to_thread(_credentials, two)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        for who, (credential, code) in credentials.items():
            headers = {"X-API-Key": credential, "X-Guard-Protocol": "3"}
            for method, path, body, status in requests:
                reply = await http.request(method, path, json=body, headers=headers)
                cases += 1
                if who == "a proxy alone" and path == wire.CAPABILITIES_PATH:
                    assert (reply.status_code, reply.json()["role"]) == (200, "proxy")
                elif code is None:
                    assert reply.status_code == status, (who, path, reply.text)
                else:
                    found = reply.status_code, reply.json().get("error_code")
                    assert found == (401, code), (who, path, reply.text)
            cases += 1
            if code is None:
                async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                    group.create_task(_asks_once(base_url, credential))
            else:
                with pytest.raises(Exception, match="HTTP 401"):
                    await _asks_once(base_url, credential)
    count_cases(cases)


async def _asks_once(base_url: str, credential: str) -> None:
    async with asker(base_url, credential) as client:
        [(status, _)] = await client.ask(ask("a", call("socket")))
        assert status == 200


def test_a_proxys_capabilities_are_its_callers(two: Two) -> None:
    confined = two.own.admin.create_key("w", workflow_id="only")
    url = two.gateways[0].base_url + wire.CAPABILITIES_PATH
    headers = {"X-API-Key": naming(two.proxy, confined), "X-Guard-Protocol": "3"}
    found = httpx.get(url, headers=headers, trust_env=False).json()
    assert (found["workflow_id"], found["role"]) == ("only", "sdk")
    assert wire.FEATURE_CALLERS in found["features"]


# -- who is charged --------------------------------------------------------------------------------


def _balances(each: Organisation) -> list[tuple[int, int]]:
    return [(b["committed"], b["reserved"]) for b in each.admin.ledger()]


def test_the_caller_is_charged_and_nobody_else(two: Two) -> None:
    own, other = two.own, two.other
    for each in (own, other):
        each.admin.set_budget(limit_nanousd=1_000_000)
    credential = naming(two.proxy, own.key)
    held = two.gate(credential, workflow_id="w").json()
    assert [reserved for _, reserved in _balances(own)] == [held["reserved_nanousd"]]
    event = {"event_id": "e", "type": "llm", "at_ms": 1, "workflow_id": "w",
             "reservation_id": held["reservation_id"],
             "data": {"model": "m", "cost_nanousd": 500}}  # fmt: skip
    batch = {"batch_id": "b", "sent_at_ms": 1, "events": [event]}
    assert two.post(wire.EVENTS_PATH, batch, credential).json()["accepted"] == 1
    (stored,) = own.admin.events()
    assert stored["key_id"] == own.key_id
    assert [committed for committed, _ in _balances(own)] == [500]
    assert _balances(other) in ([], [(0, 0)])
    assert other.admin.events() == []


@pytest.mark.parametrize("path", [wire.GATE_PATH, wire.RELEASE_PATH, wire.LEASE_PATH])
def test_a_repeat_is_the_same_by_a_proxy_and_without(two: Two, path: str) -> None:
    """A caller's request is the caller's, whichever way it came: it is never decided twice."""
    own = two.own
    own.admin.set_budget(limit_nanousd=1_000_000)
    held = two.gate(own.key, renewed=True).json()
    body = {
        wire.GATE_PATH: call("repeated"),
        wire.RELEASE_PATH: {"reservation_id": held["reservation_id"]},
        wire.LEASE_PATH: {"lease_id": held["reservation_id"], "also": []},
    }[path]
    headers = {"Idempotency-Key": "the same"}
    by_proxy, by_itself = naming(two.proxy, own.key), own.key
    first = two.post(path, body, by_proxy, **headers)
    again = two.post(path, body, by_itself, **headers)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    elsewhere = two.post(path, body, naming(two.proxy, two.other.key), **headers)
    assert elsewhere.content != first.content, "another caller's request is another one"


def test_budgets_policies_and_kills_of_a_key_are_the_callers(two: Two) -> None:
    own, admin = two.own, two.own.admin
    second = admin.create_key("second")
    by_first, by_second = naming(two.proxy, own.key), naming(two.proxy, second)
    admin.set_budget(limit_nanousd=1, scope_kind="key", scope_id=own.key_id)
    costs = {"kind": "llm", "function": "openai", "model": "gpt-4o", "max_output_tokens": 10}
    assert two.gate(by_first, **costs).status_code == 402
    assert two.gate(by_second, **costs).status_code == 200
    admin.set_policy("key", tools_block=["rm"], scope_kind="key", scope_id=own.key_id)
    tool = {"kind": "tool", "tool_name": "rm"}
    assert [two.gate(each, **tool).status_code for each in (by_first, by_second)] == [403, 200]
    admin.kill("w")
    statuses = [
        two.gate(each, workflow_id="w").status_code
        for each in (by_second, naming(two.proxy, two.other.key))
    ]
    assert statuses == [403, 200]


# -- ends ------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "replicas"])
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Two]:
    """One gateway, or two replicas that hear of each other by notices alone."""
    if request.param == "sqlite":
        with run_gateway() as gateway:
            yield from _two([gateway])
        return
    database = postgres.url_of(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "ASK_S", 3600.0)
        with run_gateway(database) as one, run_gateway(database) as other:
            yield from _two([one, other])


@pytest.mark.parametrize("whose", ["caller", "proxy"])
@pytest.mark.asyncio
async def test_a_revoked_key_ends_its_callers_everywhere_at_once(
    everywhere: Two, whose: str
) -> None:
    """And nobody else: the other caller goes on, unless it is the proxy that ends."""
    two = everywhere
    far = len(two.gateways) - 1
    named = naming(two.proxy, two.own.key)
    beside = naming(two.proxy, two.other.key)
    url = two.gateways[far].base_url
    async with asker(url, named) as ends, asker(url, beside) as stays:
        await ends.ask(ask("a", call("before")))
        key_id = two.own.key_id if whose == "caller" else two.proxy_id
        await asyncio.to_thread(two.own.admin.revoke_key, key_id)
        assert await close_code(ends.channel) == 4401
        if whose == "caller":
            [(status, _)] = await stays.ask(ask("b", call("beside")))
            assert status == 200
        else:
            assert await close_code(stays.channel) == 4401
    refused = await asyncio.to_thread(two.gate, named, far)
    code = {"caller": "GD-A004", "proxy": "GD-A003"}[whose]
    assert (refused.status_code, refused.json()["error_code"]) == (401, code)
    others = (await asyncio.to_thread(two.gate, beside, far)).status_code
    assert others == (200 if whose == "caller" else 401)


@pytest.mark.asyncio
@pytest.mark.parametrize("whose", ["caller", "proxy"])
async def test_a_socket_ends_with_the_key_that_ends_first(two: Two, whose: str) -> None:
    admin = two.own.admin
    for life_ms in (1500, 10_000, 40_000):
        soon = {"expires_at_ms": int(time.time() * 1000) + life_ms}
        key = await asyncio.to_thread(admin.create_key, "k", **(soon if whose == "caller" else {}))
        fields = {"role": "proxy", **(soon if whose == "proxy" else {})}
        proxy = await asyncio.to_thread(admin.create_key, "p", **fields)
        try:
            async with asker(two.gateways[0].base_url, naming(proxy, key)) as client:
                assert await close_code(client.channel) == 4401
        except InvalidStatus as refused:  # a busy machine was slower than the key lives
            if refused.response.status_code != 401:
                raise
        else:
            return
    pytest.fail("no socket was opened within the life of its key")


@pytest.mark.asyncio
async def test_a_poll_ends_when_the_caller_is_revoked(two: Two) -> None:
    url = two.gateways[0].base_url
    credential = naming(two.proxy, two.own.key)
    headers = {"X-API-Key": credential, "X-Guard-Protocol": "3"}
    app = two.gateways[0]._server.app  # type: ignore[union-attr]
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        path = f"{wire.CONTROL_PATH}?after=0&wait_ms=20000"
        await until_async(lambda: not app.hub.count())  # what earlier tests have closed
        poll = asyncio.create_task(http.get(path, timeout=60))
        await until_async(app.hub.count)
        await asyncio.to_thread(two.own.admin.revoke_key, two.own.key_id)
        assert (await poll).status_code == 401


def test_a_proxys_key_is_listed_rotated_and_revoked_by_whose_it_is(two: Two) -> None:
    own, other = two.own, two.other
    bound_admin = AdminClient(two.gateways[0].base_url, own.admin.create_key("a", role="admin"))
    seen, not_seen = other.admin.keys(), bound_admin.keys()
    assert two.proxy_id in [key["key_id"] for key in seen]
    assert two.proxy_id not in [key["key_id"] for key in not_seen]
    for act in (bound_admin.revoke_key, bound_admin.rotate_key):
        with pytest.raises(AdminError, match="404"):
            act(two.proxy_id)
    with pytest.raises(AdminError, match="409"):
        bound_admin.create_key("p", role="proxy", every_organisation=True)
    with pytest.raises(AdminError, match="is for keys of role proxy"):
        own.admin.create_key("k", every_organisation=True)
    made = other.admin.rotate_key(two.proxy_id)
    assert (made["key"]["role"], made["key"]["organisation_id"]) == ("proxy", None)
    assert made["api_key"].startswith("gdp_")
    assert two.gate(naming(made["api_key"], own.key)).status_code == 200
    until(lambda: two.gate(naming(two.proxy, own.key)).status_code == 401)
    bound_admin.close()


# -- signatures ------------------------------------------------------------------------------------


def test_a_signature_covers_the_caller(two: Two) -> None:
    own = two.own
    proxy = own.admin.create_key("signed", role="proxy", hmac_secret=SECRET)
    base_url = two.gateways[0].base_url
    body = json.dumps(call("signed")).encode()

    def gate(signed_for: str, sent_for: str) -> httpx.Response:
        headers = signing.sign(
            method="POST", target_uri=f"{base_url}/gate", body=body,
            api_key=naming(proxy, signed_for), secret=SECRET,
            parameters=signing.SignatureParameters(
                int(time.time()), f"nonce-{next(_numbers):08}", "key"
            ),
        )  # fmt: skip
        headers |= {"X-API-Key": naming(proxy, sent_for), "X-Guard-Protocol": "3"}
        headers["Content-Type"] = "application/json"
        return httpx.post(f"{base_url}/gate", content=body, headers=headers, trust_env=False)

    second = own.admin.create_key("second")
    assert gate(own.key, own.key).status_code == 200
    assert gate(second, second).status_code == 200
    forged = gate(own.key, second)
    assert (forged.status_code, forged.json()["error_code"]) == (401, "GD-A001")
    unsigned = two.gate(naming(proxy, own.key))
    assert (unsigned.status_code, unsigned.json()["error_code"]) == (401, "GD-A001")
