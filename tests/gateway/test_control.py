"""Kill, pause, resume, revive: at the gate, over the WebSocket, by long poll."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from guard.gateway.admin import AdminError
from guard.gateway.api.auth import Authenticator
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger import directory
from guard.gateway.unit.state import within
from tests.support.store import ACTOR
from tests.support.waiting import WAIT_S, until

CENT = 10_000_000


def open_channel(tenant: Any, after: int = 0, **headers: str) -> ClientConnection:
    url = tenant.gateway.base_url.replace("http", "ws") + f"/api/v1/control/ws?after={after}"
    merged = {"X-API-Key": tenant.api_key, "X-Guard-Protocol": "3", **headers}
    named: Any = ["guard.v3"]
    return connect(url, subprotocols=named, additional_headers=merged, open_timeout=WAIT_S)


def next_message(channel: ClientConnection, kind: str | None = None) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while True:
        message: dict[str, Any] = json.loads(channel.recv(timeout=deadline - time.monotonic()))
        if message["type"] == kind or (kind is None and message["type"] != "ping"):
            return message


def test_kill_persists_for_a_workflow_never_seen(tenant: Any) -> None:
    tenant.admin.kill("later", reason="stop it")
    problem = tenant.refused(403, "GD-W002", workflow_id="later")
    assert (problem["action"], problem["reason"]) == ("kill", "stop it")
    assert tenant.admin.workflow("later")["state"] == "killed"
    tenant.allowed(workflow_id="other")


def test_resume_never_lifts_a_kill(tenant: Any) -> None:
    tenant.admin.pause("w")
    tenant.admin.kill("w")
    tenant.admin.resume("w")
    tenant.refused(403, "GD-W002", workflow_id="w")
    tenant.admin.revive("w")
    tenant.allowed(workflow_id="w")


def test_pause_tells_when_it_ends_and_lifts_itself(tenant: Any) -> None:
    tenant.admin.pause("w", resume_after_ms=600_000)
    problem = tenant.refused(403, "GD-W003", workflow_id="w")
    assert 0 < problem["resume_after_ms"] <= 600_000
    tenant.admin.pause("w", resume_after_ms=1)
    until(lambda: tenant.gate(workflow_id="w").status_code == 200)


def test_patterns_everything_and_newest_wins(tenant: Any) -> None:
    tenant.admin.kill("bill-*")
    tenant.refused(403, "GD-W002", workflow_id="bill-eu")
    tenant.admin.revive("bill-eu")
    tenant.allowed(workflow_id="bill-eu")
    tenant.refused(403, "GD-W002", workflow_id="bill-us")
    tenant.admin.pause()
    tenant.refused(403, "GD-W003", workflow_id="anything")
    tenant.refused(403, "GD-W003")
    tenant.admin.resume()
    tenant.allowed(workflow_id="anything")


def test_killing_a_run_ends_that_run_alone(tenant: Any) -> None:
    tenant.admin.kill("w", run_id="r1")
    tenant.refused(403, "GD-W002", workflow_id="w", run_id="r1")
    tenant.allowed(workflow_id="w", run_id="r2")
    runs = tenant.admin.request("GET", "/runs", workflow_id="w")
    assert {r["run_id"]: r["state"] for r in runs} == {"r1": "killed", "r2": "active"}


TARGETS = ["*", "a*", "a_b", "a_*", "a%b", "a%*", "a!*", "A*", "?_b", "*b", "a[b]*", "zz", "z*"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_names_is_what_it_stops(tenant: Any, target: str) -> None:
    names = ["a_b", "aXb", "A_B", "a%b", "a!b", "a[b]c", "b"]
    for number, name in enumerate(names):
        tenant.allowed(workflow_id=name, run_id=f"r{number}")
    named, known = tenant.admin.named(target), tenant.admin.is_known(target)
    reached = [tenant.admin.is_known(target, f"r{number}") for number in range(len(names))]
    tenant.admin.kill(target)
    stopped = [tenant.admin.workflow(name)["state"] == "killed" for name in names]
    assert (named["workflows"], named["runs"]) == (sum(stopped), sum(stopped))
    assert reached == stopped
    assert known is (any(stopped) or target == "*")
    assert tenant.admin.is_known(target), "what is stopped can be lifted"
    tenant.admin.revive(target)
    assert tenant.admin.is_known(target) is known


def test_a_workflow_that_operators_have_named_is_known_before_its_first_call(tenant: Any) -> None:
    tenant.admin.set_budget(10, scope_kind="workflow", scope_id="paid")
    tenant.admin.set_budget(10, scope_kind="workflow", scope_id="paid-*")
    tenant.admin.set_budget(10, scope_kind="user", scope_id="ann")
    tenant.admin.create_key("k", workflow_id="bound")
    known = {name: tenant.admin.is_known(name) for name in ("paid", "bound", "ann", "paid-*")}
    assert known == {"paid": True, "bound": True, "ann": False, "paid-*": True}


def test_a_workflow_that_was_only_stopped_and_lifted_is_none(tenant: Any) -> None:
    with pytest.raises(AdminError, match="no such workflow"):
        tenant.admin.workflow("later")
    tenant.admin.kill("lat*", reason="all of them")
    found = tenant.admin.workflow("later")
    assert (found["state"], found["stopped_by"], found["reason"]) == (
        "killed", "lat*", "all of them",
    )  # fmt: skip
    tenant.admin.revive("later")
    tenant.admin.pause("soon", resume_after_ms=1)
    tenant.admin.revive("lat*")
    until(lambda: tenant.admin.workflows() == [])
    for name in ("later", "soon"):
        with pytest.raises(AdminError, match="no such workflow"):
            tenant.admin.workflow(name)
    tenant.admin.announce_workflow("later")
    assert tenant.admin.workflow("later")["state"] == "active"
    with pytest.raises(AdminError, match="1 to 256 characters"):
        tenant.admin.announce_workflow("x" * 257)


def test_names_with_slashes_and_unicode(tenant: Any) -> None:
    name = "équipe/агент ?x=1%20 <script>"
    tenant.allowed(workflow_id=name)
    assert tenant.admin.workflow(name)["state"] == "active"


def test_socket_begins_with_a_snapshot_then_pushes(tenant: Any) -> None:
    tenant.admin.kill("a")
    tenant.admin.revive("a")
    with open_channel(tenant) as channel:
        assert channel.subprotocol == "guard.v3"
        hello = next_message(channel)
        assert (hello["type"], hello["seq"]) == ("hello", 2)
        assert next_message(channel)["seq"] == 2  # the kill is over
        tenant.admin.pause("b", reason="lunch", resume_after_ms=60_000)
        pushed = next_message(channel)
        assert pushed["seq"] == 3
        assert pushed["resume_after_ms"] == 60_000
        assert next_message(channel, "ping")["seq"] == 3
        channel.send(json.dumps({"type": "ack", "seq": 3}))
        tenant.admin.resume("b")
        assert next_message(channel)["type"] == "resume"
    with open_channel(tenant, after=3) as channel:
        next_message(channel)
        assert next_message(channel)["seq"] == 4


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [({"X-API-Key": "gdk_wrong"}, "0", 401), ({"X-Guard-Protocol": "1"}, "0", 400), ({}, "x", 400)],
)
def test_a_refused_socket_is_no_error_of_the_gateways(
    tenant: Any, caplog: pytest.LogCaptureFixture, headers: dict[str, str], query: Any, status: int
) -> None:
    for _ in range(3):
        with pytest.raises(InvalidStatus) as refused:
            open_channel(tenant, after=query, **headers)
        response = refused.value.response
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"
        assert json.loads(response.body)["error_code"]
    tenant.http.get("/healthz")  # what is logged as the sockets end is logged by now
    ours = ("guard.gateway", "uvicorn", "asyncio")  # and not of what other tests have left
    said = [each for each in caplog.records if each.levelno > 20 and each.name.startswith(ours)]
    assert [record.getMessage() for record in said] == []


def test_a_message_is_named_by_its_number_and_its_epoch(tenant: Any) -> None:
    """The client tells by them whether this is the record that it has followed."""
    tenant.admin.kill("a")
    tenant.admin.kill("b")
    messages = tenant.http.get("/api/v1/control").json()["messages"]
    epoch = messages[0]["epoch"]
    assert messages[1]["epoch"] == epoch
    assert len(epoch) == 16
    for after, expected in ((0, ""), (1, epoch), (2, epoch), (3, "")):
        with open_channel(tenant, after=after) as channel:
            assert next_message(channel).get("epoch", "") == expected
        polled = tenant.http.get(f"/api/v1/control?after={after}").json()
        assert polled.get("epoch", "") == expected


def test_another_process_gives_another_epoch(tmp_path: Path) -> None:
    epochs = []
    for name in ("a", "b"):
        with run_gateway(tmp_path / "g.sqlite3") as gateway:
            gateway.admin.kill(name)
            headers = {"X-API-Key": gateway.admin.create_key(name), "X-Guard-Protocol": "3"}
            found = httpx.get(f"{gateway.base_url}/api/v1/control", headers=headers).json()
            epochs.append([message["epoch"] for message in found["messages"]])
    assert epochs[1][0] == epochs[0][0]
    assert epochs[1][1] != epochs[0][0]


def test_socket_refuses_and_ends_with_its_key(tenant: Any) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_channel(tenant, **{"X-API-Key": "gdk_wrong"})
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error_code"] == "GD-A003"
    with open_channel(tenant) as channel:
        next_message(channel)
        tenant.admin.revoke_key(tenant.admin.keys()[0]["key_id"])
        with pytest.raises(ConnectionClosed) as closed:
            next_message(channel, "never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401


@pytest.mark.parametrize("moment", ["while it is looked up", "once it was found"])
def test_a_key_that_is_revoked_during_the_handshake_opens_no_socket(
    tenant: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A gateway that starts ends the runs that were left, while their programs come back."""
    app, organisation_id = tenant.gateway._server.app, tenant.organisation_id
    made = tenant.admin.create_key_full("run")
    key_id, revoked = made["key"]["key_id"], list[str]()

    def revoking(step: Any) -> Any:
        async def then(*args: Any) -> Any:
            result = await step(*args)
            if not revoked:
                revoked.append(key_id)
                own = within(organisation_id)
                await app.storage.write(own, directory.revoke_key, ACTOR, organisation_id, key_id)
            return result

        return then

    if moment == "while it is looked up":
        monkeypatch.setattr(app.storage, "find_key", revoking(app.storage.find_key))
    else:
        identify = Authenticator.authenticate
        monkeypatch.setattr(Authenticator, "authenticate", revoking(identify))
    with pytest.raises(InvalidStatus) as refused:
        open_channel(tenant, **{"X-API-Key": made["api_key"]})
    assert revoked
    assert json.loads(refused.value.response.body)["error_code"] == "GD-A003"


def test_exhausted_budget_is_pushed_and_lifted(tenant: Any) -> None:
    tenant.admin.set_budget(10, scope_kind="workflow", scope_id="w")
    with open_channel(tenant) as channel:
        assert [next_message(channel)["type"] for _ in range(2)] == ["hello", "policy"]
        tenant.send(tenant.llm(10 * CENT, workflow_id="w"))
        message = next_message(channel)
        assert (message["type"], message["exhausted"], message["workflow_id"]) == (
            "budget", True, "w",
        )  # fmt: skip
        tenant.admin.set_budget(20, scope_kind="workflow", scope_id="w")
        lifted = next_message(channel)
        assert (lifted["type"], lifted.get("exhausted", False)) == ("budget", False)
        assert next_message(channel)["type"] == "policy"


def test_every_change_of_the_rules_is_pushed(tenant: Any) -> None:
    admin = tenant.admin
    with open_channel(tenant) as channel:
        next_message(channel)
        for change, reason in (
            (lambda: admin.set_budget(10), "budget changed"),
            (lambda: admin.set_policy(tools_block=["x"]), "policy default version 1"),
            (lambda: admin.update_settings(strict=True), "settings changed"),
            (lambda: admin.set_price("own", input_per_mtok=1, output_per_mtok=1), "price changed"),
        ):
            change()
            message = next_message(channel)
            assert (message["type"], message["workflow_id"]) == ("policy", "*")
            assert message["reason"] == reason


def test_key_budget_reaches_only_that_key(tenant: Any) -> None:
    own = tenant.admin.keys()[0]["key_id"]
    tenant.admin.set_budget(1, scope_kind="key", scope_id=own)
    other = tenant.admin.create_key("other")
    tenant.send(tenant.llm(CENT))
    assert tenant.http.get("/api/v1/control").json()["messages"][0]["workflow_id"] == "*"
    elsewhere = tenant.http.get("/api/v1/control", headers={"X-API-Key": other}).json()
    assert ([m["type"] for m in elsewhere["messages"]], elsewhere["seq"]) == (["policy"], 1)


def test_window_reset_lifts_exhaustion() -> None:
    now = [1_800_000_000_000]
    with run_gateway(clock_ms=lambda: now[0], sweep_interval_ms=20) as gateway:
        headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"}
        with httpx.Client(base_url=gateway.base_url, headers=headers) as http:
            gateway.admin.set_budget(1, window="hour")
            event = {"event_id": "e", "type": "llm", "at_ms": 1, "data": {"cost_nanousd": CENT}}
            http.post("/api/v1/events", json={"batch_id": "b", "sent_at_ms": 1, "events": [event]})
            call = {"call_id": "c", "kind": "call", "function": "f"}
            refused = http.post("/gate", json=call)
            assert refused.status_code == 402
            assert refused.json()["budget"]["resets_at_ms"] == 1_800_000_000_000 + 3_600_000

            def exhausted() -> list[bool]:
                found: list[dict[str, Any]] = http.get("/api/v1/control").json()["messages"]
                return [message.get("exhausted", False) for message in found]

            assert exhausted() == [True]
            now[0] += 3_600_000
            until(lambda: exhausted() == [False])
            assert http.post("/gate", json=call).status_code == 200


def test_long_poll_waits_for_messages(tenant: Any) -> None:
    assert tenant.http.get("/api/v1/control?after=7").json() == {"messages": [], "seq": 0}
    timer = threading.Timer(0.2, tenant.admin.kill, ["w"])
    timer.start()
    reply = tenant.http.get("/api/v1/control?after=0&wait_ms=30000", timeout=120).json()
    timer.join()
    assert [m["type"] for m in reply["messages"]] == ["kill"]
    assert reply["seq"] == 1


@pytest.mark.parametrize("query", ["after=-1", "after=x", "wait_ms=9" * 30, "after=²"])
def test_bad_positions_are_400(tenant: Any, query: str) -> None:
    assert tenant.http.get(f"/api/v1/control?{query}").status_code == 400


def test_state_survives_a_restart(tmp_path: Any) -> None:
    database = tmp_path / "g.sqlite3"
    with run_gateway(database) as gateway:
        api_key = gateway.api_key
        gateway.admin.kill("w")
        gateway.admin.set_budget(10)
    with run_gateway(database) as gateway:
        headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3"}
        call = {"call_id": "c", "kind": "call", "function": "f", "workflow_id": "w"}
        reply = httpx.post(f"{gateway.base_url}/gate", json=call, headers=headers)
        assert reply.json()["error_code"] == "GD-W002"
