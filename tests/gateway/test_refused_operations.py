"""The administration changes nothing for who may not, nor where there is nothing left to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.api.admin.app import ADMIN_PATH
from guard.gateway.api.admin.operations import Operation
from guard.gateway.api.admin.table import OPERATIONS
from tests.support.asker import ask, asker, call
from tests.support.two_organisations import World

PASSWORD = "a password of an operator"


@attrs.frozen
class Owned:
    """One of everything that operators own, by the parameters of paths."""

    budget_id: str
    price_id: str
    webhook_id: str
    key_id: str
    prefix: str
    approval_id: str
    organisation_id: str
    session_id: str = "0" * 16
    name: str = "extra"  # of a policy, and of an operator
    workflow_id: str = "b"
    event_id: str = "lost"  # of a charge in doubt
    group: str = "dev"


def _owned(world: World) -> Owned:
    admin = world.admin
    admin.set_policy("extra", tools_block=["nothing"])
    admin.set_password("extra", PASSWORD)
    admin.set_channel("extra", "webhook", url="http://127.0.0.1:9/")
    admin.set_alert("extra", "kill")
    admin.put_sign_on_group("dev")
    price = admin.set_price("own", input_per_mtok=1, output_per_mtok=1)
    budget = admin.set_budget(limit_nanousd=5, scope_kind="user", scope_id="u")
    webhook = admin.request("PUT", "/webhooks", {"url": "http://127.0.0.1:9/",
                                                "types": ["budget.threshold"]})  # fmt: skip
    key = admin.create_key_full("spare")
    with httpx.Client(base_url=world.gateway.base_url, trust_env=False) as http:
        headers = {"X-API-Key": world.owner, "X-Guard-Protocol": "3"}
        body = call("p", workflow_id="b", tool_name="pay", run_id="r")
        approval_id = http.post("/gate", json=body, headers=headers).json()["approval_id"]
        lost = {"model": "m", "cost_nanousd": 3, "estimated": True, "estimate": "bound"}
        event = {"event_id": "lost", "type": "llm", "at_ms": 1, "workflow_id": "b", "data": lost}
        batch = {"batch_id": "lost", "sent_at_ms": 1, "events": [event]}
        http.post("/api/v1/events", json=batch, headers=headers).raise_for_status()
    return Owned(budget["budget_id"], price["price_id"], webhook["webhook"]["webhook_id"],
                 key["key"]["key_id"], key["key"]["prefix"], approval_id,
                 world.organisation_id)  # fmt: skip


def _body(operation: Operation[..., Any], owned: Owned) -> Any:
    """Return a body that the operation takes."""
    rates = {"input_per_mtok": 2, "output_per_mtok": 2}
    bodies: dict[tuple[str, str], Any] = {
        ("POST", "/organisations"): {"name": "third"},
        ("PUT", "/organisations/settings"): {"strict": True},
        ("PATCH", "/organisations/settings"): {"strict": True},
        ("POST", "/keys"): {"name": "below", "owner_id": owned.key_id},
        ("POST", "/keys/{key_id}/rotate"): {},
        ("PATCH", "/keys/{key_id}"): {"purpose": "another"},
        ("PUT", "/budgets"): {"limit_nanousd": 6, "scope_kind": "user", "scope_id": "u"},
        ("POST", "/budgets/{budget_id}/raise"): {"by_nanousd": 1},
        ("POST", "/budgets/{budget_id}/refuse"): {"reason": "no"},
        ("PUT", "/policies/{name}"): {"document": {"tools_block": ["everything"]}},
        ("POST", "/policies/preview"): {"name": "extra", "policy": {"document": {}}},
        ("POST", "/apply"): {"prune": True},
        ("PUT", "/prices"): {"model": "own", "rates": rates},
        ("PUT", "/facts"): {"facts": [{"name": "tool:x"}]},
        ("POST", "/reconcile"): {
            "source": "s",
            "rows": [{"start_ms": 0, "width_ms": 3_600_000, "model": "m", "cost_nanousd": 1}],
        },
        ("POST", "/doubts/{event_id:path}"): {"cost_nanousd": 0},
        ("POST", "/control"): {"action": "kill", "workflow_id": "b"},
        ("POST", "/approvals/{approval_id}"): {"approved": True},
        ("PUT", "/webhooks"): {"url": "http://127.0.0.1:9/", "enabled": False},
        ("PUT", "/operators/{name}"): {"password": PASSWORD},
        ("PUT", "/sign-on/groups/{group:path}"): {"team": "theirs"},
        ("PUT", "/alerts/rules/{name}"): {"on": "kill"},
        ("PUT", "/alerts/channels/{name}"): {"kind": "webhook", "url": "http://127.0.0.1:9/x"},
    }
    return bodies[operation.method, operation.path] if operation.body is not None else None


_NAMES_ONE: dict[tuple[str, str], int] = {
    ("POST", "/organisations"): 409,
    ("POST", "/keys"): 404,
    ("POST", "/keys/{key_id}/rotate"): 404,
    ("PATCH", "/keys/{key_id}"): 404,
    ("DELETE", "/keys/{key_id}"): 404,
    ("DELETE", "/keys/{key_id}/secrets/{prefix:path}"): 404,
    ("DELETE", "/budgets/{budget_id}"): 404,
    ("POST", "/budgets/{budget_id}/raise"): 404,
    ("POST", "/budgets/{budget_id}/refuse"): 404,
    ("DELETE", "/policies/{name}"): 404,
    ("DELETE", "/prices/{price_id}"): 404,
    ("GET", "/workflows/{workflow_id:path}"): 404,
    ("POST", "/approvals/{approval_id}"): 404,
    ("POST", "/doubts/{event_id:path}"): 404,
    ("DELETE", "/webhooks/{webhook_id}"): 404,
    ("DELETE", "/organisations/{organisation_id}"): 409,
    ("PUT", "/operators/{name}"): 409,
    ("DELETE", "/operators/{name}"): 404,
    ("POST", "/operators/{name}/sign-in-link"): 404,
    ("DELETE", "/operators/{name}/sessions"): 404,
    ("DELETE", "/sessions/{session_id}"): 404,
    ("PUT", "/sign-on/groups/{group:path}"): 409,
    ("DELETE", "/sign-on/groups/{group:path}"): 409,
    ("DELETE", "/sign-on/accounts/{key_id}"): 404,
    ("DELETE", "/alerts/rules/{name}"): 404,
    ("DELETE", "/alerts/channels/{name}"): 404,
    ("POST", "/alerts/channels/{name}/test"): 404,
}
"""What a key of another organisation is told that names the thing, but not the organisation.

Everything else acts on the key's own organisation then.
"""


@pytest.mark.asyncio
@pytest.mark.generator("operations by who may not: the whole store stays as it is")
async def test_no_operation_is_done_for_who_may_not(
    world: World, count_cases: Callable[[int], None]
) -> None:
    owned = await asyncio.to_thread(_owned, world)
    revoked = await asyncio.to_thread(world.admin.create_key_full, "r", role="admin")
    await asyncio.to_thread(world.admin.revoke_key, revoked["key"]["key_id"])
    bound = world.keys["too small a role"]  # to be an agent's: it is the stranger's admin key
    senders = {
        "an agent's key": world.owner,
        "none": "",
        "unknown": "gda_unknown",
        "revoked": revoked["api_key"],
        "expired": await asyncio.to_thread(
            world.admin.create_key, "e", role="admin", expires_at_ms=1
        ),
    }
    paths = attrs.asdict(owned)
    cases = 0
    async with httpx.AsyncClient(
        base_url=world.gateway.base_url + ADMIN_PATH, trust_env=False
    ) as http:

        async def send(
            operation: Operation[..., Any], key: str, organisation: str | None
        ) -> httpx.Response:
            path = operation.path.replace(":path", "").format(**paths)
            query = {} if organisation is None else {"organisation": organisation}
            headers = {"Authorization": f"Bearer {key}".strip()}
            return await http.request(
                operation.method, path, json=_body(operation, owned), headers=headers, params=query
            )

        before = await asyncio.to_thread(world.state)
        sent: list[str] = []
        for operation in OPERATIONS:
            named = f"{operation.method} {operation.path}"
            sent.append(named)
            for who, key in senders.items():
                reply = await send(operation, key, world.organisation_id)
                refusal = reply.status_code, reply.json()["error_code"]
                assert refusal == (401, "GD-A003"), (who, named)
                cases += 1
            reply = await send(operation, bound, world.organisation_id)
            assert (reply.status_code, reply.json()["error_code"]) == (403, "GD-W004"), named
            status = _NAMES_ONE.get((operation.method, operation.path))
            if status is not None:
                reply = await send(operation, bound, None)
                assert reply.status_code == status, (named, reply.text)
                cases += 1
            cases += 1
            if len(sent) == 16:  # to read the whole store takes longer than they do
                assert await asyncio.to_thread(world.state) == before, sent
                sent.clear()
        assert await asyncio.to_thread(world.state) == before, sent
    count_cases(cases)


# -- what is over ----------------------------------------------------------------------------------


Step = Callable[[World, httpx.Client, Owned], Any]


def _refused(status: int, act: Callable[[], Any]) -> None:
    with pytest.raises(AdminError) as caught:
        act()
    assert caught.value.status == status


def _twice(status: int | None, act: Callable[[AdminClient, Owned], Any]) -> tuple[Step, Step]:
    """Return an operation, and the same once more: refused, or without an effect."""

    def first(world: World, _: httpx.Client, owned: Owned) -> Any:
        act(world.admin, owned)

    def again(world: World, _: httpx.Client, owned: Owned) -> Any:
        if status is None:
            act(world.admin, owned)
        else:
            _refused(status, lambda: act(world.admin, owned))

    return first, again


_OVER: dict[str, tuple[Step, Step]] = {
    "a group of the provider": _twice(404, lambda a, o: a.delete_sign_on_group(o.group)),
    "budget": _twice(404, lambda a, o: a.delete_budget(o.budget_id)),
    "policy": _twice(404, lambda a, o: a.delete_policy("extra")),
    "price": _twice(404, lambda a, o: a.delete_price(o.price_id)),
    "webhook": _twice(404, lambda a, o: a.request("DELETE", f"/webhooks/{o.webhook_id}")),
    "doubt": _twice(404, lambda a, o: a.settle_doubt("lost", 0)),
    "revoked key": _twice(None, lambda a, o: a.revoke_key(o.key_id)),
    "rotated key": (
        lambda w, _, o: w.admin.revoke_key(o.key_id),
        lambda w, _, o: _refused(409, lambda: w.admin.rotate_key(o.key_id)),
    ),
    "owner of keys": (
        lambda w, _, o: w.admin.revoke_key(o.key_id),
        lambda w, _, o: _refused(409, lambda: w.admin.create_key("k", owner_id=o.key_id)),
    ),
    "same budget": _twice(
        None, lambda a, o: a.set_budget(limit_nanousd=5, scope_kind="user", scope_id="u")
    ),
    "approved": _twice(409, lambda a, o: a.answer_approval(o.approval_id, approved=True)),
    "refused": (
        lambda w, _, o: w.admin.answer_approval(o.approval_id, approved=False),
        lambda w, _, o: _refused(
            409, lambda: w.admin.answer_approval(o.approval_id, approved=True)
        ),
    ),
    "withdrawn": (
        lambda _, http, o: http.post("/gate/release", json={"reservation_id": o.approval_id}),
        lambda w, _, o: _refused(
            409, lambda: w.admin.answer_approval(o.approval_id, approved=True)
        ),
    ),
    "organisation": (
        lambda w, _, o: None,
        lambda w, _, o: _refused(409, lambda: w.gateway.admin.create_organisation("owner")),
    ),
    "operator": (
        lambda w, _, o: None,
        lambda w, _, o: _refused(409, lambda: w.stranger.set_password("extra", PASSWORD)),
    ),
}


@pytest.mark.generator("operations on what is over: the whole store stays as it is")
@pytest.mark.parametrize("what", _OVER)
def test_no_operation_changes_what_is_over(world: World, what: str) -> None:
    owned = _owned(world)
    end, again = _OVER[what]
    headers = {"X-API-Key": world.owner, "X-Guard-Protocol": "3"}
    with httpx.Client(base_url=world.gateway.base_url, headers=headers) as http:
        end(world, http, owned)
        before = world.state()
        again(world, http, owned)
        assert world.state() == before


# -- what is over, on the wire ---------------------------------------------------------------------


async def _hold(world: World, **fields: Any) -> dict[str, Any]:
    async with asker(world.gateway.base_url, world.owner) as holder:
        [(status, reply)] = await holder.ask(ask("h", call("h", workflow_id="b", **fields)))
    assert status == 200
    return dict(reply)


_ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "closed": ("/gate/lease", {"close": True}),
    "closed and empty": ("/gate/lease", {"close": True, "unused_nanousd": 10**12}),
    "released": ("/gate/release", {}),
    "settled": ("/api/v1/events", {"type": "span", "data": {"name": "w", "final": True}}),
    "charged": ("/api/v1/events", {"type": "llm", "data": {"model": "m", "cost_nanousd": 3}}),
}
_KINDS: dict[str, dict[str, Any]] = {
    "call": {},
    "renewed": {"renewed": True},
    "request": {"kind": "llm", "function": "openai", "model": "gpt-4o", "max_input_tokens": 0,
                "max_output_tokens": 1},
    "lease": {"lease": {"demand_nanousd": 10**6, "demand_calls": 4}},
}  # fmt: skip
_POSSIBLE = {
    "call": ("released", "settled"),
    "renewed": ("released", "settled"),
    "request": ("released", "settled", "charged"),
    "lease": ("closed", "closed and empty", "released"),
}


def _sent(path: str, fields: dict[str, Any], subject: str, number: int) -> dict[str, Any]:
    if path == "/gate/release":
        return {"reservation_id": subject, **fields}
    if path == "/gate/lease":
        return {"lease_id": subject, **fields}
    event = {"event_id": f"e-{number}", "at_ms": 1, "reservation_id": subject, **fields}
    return {"batch_id": f"b-{number}", "sent_at_ms": 1, "events": [event]}


@pytest.mark.asyncio
@pytest.mark.generator("commands on what is over: the whole store stays as it is")
@pytest.mark.parametrize(
    ("kind", "how"), [(kind, how) for kind, possible in _POSSIBLE.items() for how in possible]
)
async def test_no_command_changes_what_is_over(
    world: World, kind: str, how: str, count_cases: Callable[[int], None]
) -> None:
    subject = (await _hold(world, **_KINDS[kind]))["reservation_id"]
    headers = {"X-API-Key": world.owner, "X-Guard-Protocol": "3"}
    commands: list[tuple[str, dict[str, Any]]] = [
        ("/gate/lease", fields)
        for fields in (
            {}, {"unused_nanousd": 5}, {"calls_left": 3}, {"under_way_nanousd": 7},
            {"also": [subject]},
        )
    ]  # fmt: skip
    if how != "closed":  # which is still open, for what is on its way: more of it can go back
        commands += [("/gate/release", {}), ("/gate/lease", {"close": True})]
    async with httpx.AsyncClient(
        base_url=world.gateway.base_url, headers=headers, trust_env=False
    ) as http:
        path, fields = _ENDS[how]
        ended = await http.post(path, json=_sent(path, fields, subject, 0))
        assert ended.status_code in (200, 202)
        before = await asyncio.to_thread(world.state)
        for path, fields in commands:
            reply = await http.post(path, json=_sent(path, fields, subject, 1))
            done = reply.json()
            assert reply.status_code in (200, 404), reply.text
            if reply.status_code == 200:
                assert done.get("released_nanousd", 0) == done.get("held_nanousd", 0) == 0
                assert done["state"] != "open"
            assert await asyncio.to_thread(world.state) == before, (path, fields)
    count_cases(len(commands))
