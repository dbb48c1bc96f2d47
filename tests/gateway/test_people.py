"""Organisations, operators, roles and sessions, over the command line and the store."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.api.admin.operations import AdminCall, Operation, Services
from guard.gateway.api.admin.table import OPERATIONS
from guard.gateway.cli.main import gateway as command
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.operators import OperatorRole, RoleError, allows
from guard.gateway.domain.preview import RecentCalls
from guard.gateway.embedded import Gateway
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.operators import OperatorService, WrongPasswordError
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage
from guard.gateway.unit.rows import monotonic_clock_ms, wall_clock_ms

Invoke = Callable[..., Result]
PASSWORD = "a password of a person"


@pytest.fixture
def run(gateway: Gateway) -> Invoke:
    """Run a command against the gateway."""
    env = {"GUARD_API_URL": gateway.base_url, "GUARD_ADMIN_KEY": gateway.admin_key,
           "COLUMNS": "200"}  # fmt: skip

    def invoke(*words: str, expect: int = 0, given: str | None = None) -> Result:
        result = CliRunner().invoke(command, words, env=env, input=given)
        assert result.exit_code == expect, result.output
        return result

    return invoke


@pytest.fixture
def named(request: pytest.FixtureRequest) -> str:
    """A name of this test alone."""
    return re.sub(r"\W+", "-", request.node.name)[-60:]


@contextlib.contextmanager
def signed_in(gateway: Gateway, name: str, password: str = PASSWORD) -> Iterator[httpx.Client]:
    """Sign in to the dashboard."""
    with httpx.Client(base_url=gateway.base_url, trust_env=False) as http:
        page = http.get("/sign-in").text
        csrf = page.split('name="csrf" value="')[1][:64]
        body = {"name": name, "password": password, "csrf": csrf}
        reply = http.post("/sign-in", data=body, headers={"Origin": gateway.base_url})
        assert reply.status_code == 303, reply.text
        yield http


def test_an_organisation_from_the_first_key_to_its_end(
    gateway: Gateway, run: Invoke, named: str
) -> None:
    assert "no such organisation" in run("keys", "list", "--organisation", named, expect=1).output
    made = json.loads(run("organisations", "create", named, "--json").output)
    assert "of this name exists" in run("organisations", "create", named, expect=1).output
    key = json.loads(run("keys", "create", "k", "--organisation", named, "--json").output)
    run("password", named, "--organisation", named, "--password-stdin", given=PASSWORD)
    assert named in run("organisations", "list").output
    headers = {"X-API-Key": key["api_key"], "X-Guard-Protocol": "3"}
    with (
        httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False) as agent,
        signed_in(gateway, named) as person,
    ):
        body = {"call_id": "c", "kind": "call", "function": "f", "workflow_id": "w"}
        assert agent.post("/gate", json=body).status_code == 200
        assert person.get("/").status_code == 200

        declined = run("organisations", "remove", named, expect=1, given="n\n").output
        assert "nothing was removed" in declined
        assert person.get("/").status_code == 200
        run("organisations", "remove", named, "--yes")
        assert agent.post("/gate", json=body | {"call_id": "d"}).status_code == 401
        assert person.get("/").status_code == 303
    assert named not in run("organisations", "list").output
    assert named not in run("operators", "list").output
    run("keys", "list", "--organisation", made["organisation_id"], expect=1)
    run("organisations", "remove", named, "--yes", expect=1)

    again = json.loads(run("organisations", "create", named, "--json").output)
    assert again["organisation_id"] != made["organisation_id"], "the name is free, the rest is not"
    assert json.loads(run("keys", "list", "--organisation", named, "--json").output) == []
    assert gateway.admin.verify_audit()["ok"]
    run("organisations", "remove", named, "--yes")


def test_a_name_of_another_organisation_is_refused_without_saying_whose(
    gateway: Gateway, named: str
) -> None:
    made = [gateway.admin.create_organisation(f"{named}-{each}") for each in "ab"]
    body = {"password": PASSWORD, "role": "owner"}

    def put(organisation_id: str) -> None:
        url, key = gateway.base_url, gateway.admin_key
        with contextlib.closing(AdminClient(url, key, organisation=organisation_id)) as admin:
            admin.request("PUT", f"/operators/{named}", body)

    put(made[0]["organisation_id"])
    with pytest.raises(AdminError) as refused:
        put(made[1]["organisation_id"])
    assert refused.value.status == 409
    assert "organisation" not in str(refused.value)
    assert "exist" not in str(refused.value)


def test_operators_and_their_sessions(gateway: Gateway, run: Invoke, named: str) -> None:
    own = gateway.admin.create_organisation(named)["organisation_id"]
    add = ("operators", "add", named, "--organisation", named, "--password-stdin")
    run(*add, given=PASSWORD)
    [added] = [e for e in gateway.admin.operators() if e["name"] == named]
    assert (added["role"], added["has_password"]) == ("viewer", True)
    assert added["organisation_id"] == own
    assert "there is an operator" in run(*add, given=PASSWORD, expect=1).output
    with signed_in(gateway, named) as one, signed_in(gateway, named) as two:
        found = [each for each in gateway.admin.sessions() if each["name"] == named]
        ways = {(each["signed_in_by"], each["signed_in_from"]) for each in found}
        assert ways == {("password", "127.0.0.1")}
        run("sessions", "end", found[0]["session_id"])
        assert sorted([one.get("/").status_code, two.get("/").status_code]) == [200, 303]
        run("sessions", "end", found[0]["session_id"], expect=1)
        assert named in run("sessions", "list").output
        run("sessions", "end", "--operator", named)
        assert [one.get("/").status_code, two.get("/").status_code] == [303, 303]
        assert named not in run("sessions", "list").output
    with signed_in(gateway, named) as http:
        run("operators", "role", named, "owner")
        assert "New key" in http.get("/keys").text, "a role counts from the next request on"
        run("operators", "remove", named)
        assert http.get("/").status_code == 303
    assert named not in run("operators", "list").output
    for words in (["operators", "remove", named], ["operators", "role", named, "owner"],
                  ["sessions", "end", "--operator", named], ["sessions", "end"]):  # fmt: skip
        assert run(*words, expect=2 if words == ["sessions", "end"] else 1)
    with contextlib.closing(
        AdminClient(gateway.base_url, gateway.admin_key, organisation=named)
    ) as admin:
        done = [each["action"] for each in admin.audit() if each["organisation_id"]]
    assert done[:2] == ["organisation.create", "operator.create"]
    changes = ["session.end", "session.end_all", "operator.role", "operator.remove"]
    assert [each for each in done if each in changes] == changes


def test_a_new_password_leaves_the_role(gateway: Gateway, run: Invoke, named: str) -> None:
    run("operators", "add", named, "--no-password")
    assert not next(e for e in gateway.admin.operators() if e["name"] == named)["has_password"]
    run("sign-in-link", named, expect=1)
    gateway.admin.set_password(named, PASSWORD)
    [known] = [e for e in gateway.admin.operators() if e["name"] == named]
    assert (known["role"], known["has_password"]) == ("viewer", True)
    run("operators", "remove", named)


def test_the_only_organisation_stays(tmp_path: Path) -> None:
    from guard.gateway.embedded import run_gateway

    with run_gateway(tmp_path / "one.sqlite3") as gateway:
        [only] = gateway.admin.organisations()
        with pytest.raises(AdminError) as caught:
            gateway.admin.remove_organisation(only["name"])
        assert caught.value.status == 409


@pytest.mark.asyncio
async def test_who_has_no_password_signs_in_with_none(
    storage_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    store = storage_factory(tmp_path)
    await store.open(lambda _: None)
    try:
        people = OperatorService(store, wall_clock_ms, monotonic_clock_ms)
        await people.put(Actor("t"), "eve", None, role="viewer")
        for password in ("", "anything at all"):
            with pytest.raises(WrongPasswordError):
                await people.sign_in("eve", password, "10.0.0.1")
        from guard.gateway.services import devices

        [eve] = await store.operators(None)
        forged = devices.issue(eve.operator_id, "", 2**50)
        assert not await people.knows("eve", forged), "a token over no password is nobody's"
    finally:
        await store.close()


# -- roles ---------------------------------------------------------------------------------------

OWNERS = {
    "/organisations", "/organisations/{organisation_id}", "/keys", "/keys/{key_id}",
    "/keys/{key_id}/rotate", "/keys/{key_id}/secrets/{prefix:path}",
    "/operators/{name}", "/operators/{name}/sessions",
    "/operators/{name}/sign-in-link", "/sessions/{session_id}",
    "/sign-on/groups/{group:path}", "/sign-on/accounts/{key_id}",
}  # fmt: skip
"""To change anything here takes an owner; to change anything else takes an operator."""

READS = {"/policies/preview"}
"""Posted, and yet it changes nothing."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda row: f"{row.method} {row.path}")
def test_the_table_says_who_may_do_what(operation: Operation[..., Any]) -> None:
    reads = operation.method == "GET" or operation.path in READS
    changes = "owner" if operation.path in OWNERS else "operator"
    assert operation.role == ("viewer" if reads else changes)


@pytest.mark.asyncio
@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_every_operation_asks_for_its_role(
    sqlite_factory: Callable[..., Storage], tmp_path: Path, role: OperatorRole
) -> None:
    store = sqlite_factory(tmp_path)
    services = Services(
        store, RecentCalls(), CatalogueCache(store, "refuse", wall_clock_ms),
        OperatorService(store, wall_clock_ms, monotonic_clock_ms),
        GatewaySettings(database=tmp_path / "g", private_webhooks=True), wall_clock_ms,
    )  # fmt: skip
    tried = 0
    for operation in OPERATIONS:
        if allows(role, operation.role):
            continue
        body = [] if operation.body is None else [_body(operation)]
        names = dict.fromkeys(re.findall(r"\{(\w+)", operation.path), "x")
        # The store is not open: nothing but the role can have been looked at.
        with pytest.raises(RoleError, match="this takes the role"):
            await operation(AdminCall(services, Actor("t", None, role), "o"), *body, **names)
        tried += 1
    assert tried >= len(OWNERS)


def _body(operation: Operation[..., Any]) -> Any:
    """Return the smallest body that the operation takes."""
    from guard.core import wire

    fields: dict[str, Any] = {
        "BudgetBody": {"limit_cents": 1},
        "RaiseBody": {"by_nanousd": 1},
        "PriceBody": {"model": "m", "rates": {"input_per_mtok": 1, "output_per_mtok": 1}},
        "ReconcileBody": {"rows": [{"start_ms": 0, "width_ms": 3_600_000, "model": "m",
                                    "cost_nanousd": 1}], "source": "s"},
        "ControlBody": {"action": "kill"},
        "ApprovalBody": {"approved": True},
        "WebhookBody": {"url": "http://127.0.0.1:9/"},
        "ChannelBody": {"kind": "webhook", "url": "http://127.0.0.1:9/"},
        "AlertBody": {"on": "kill"},
        "NewOrganisation": {"name": "n"},
    }  # fmt: skip
    name = getattr(operation.body, "__name__", "")
    if operation.path == "/organisations/settings":
        return {"strict": True}
    return wire.convert(fields.get(name, {}), operation.body)
