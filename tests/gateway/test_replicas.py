"""Replicas on one PostgreSQL database: what one has granted, stopped or counted binds all."""

from __future__ import annotations

import asyncio
import collections
import functools
import http.server
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from guard.core import wire
from guard.gateway.admin import AdminClient
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.records import Webhook
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.ledger import control, directory, webhooks
from guard.gateway.services import webhooks as sender
from guard.gateway.storage.postgres import listener, money
from guard.gateway.storage.postgres.parts import CLAIM_MS
from guard.gateway.storage.postgres.unit_of_work import PostgresUnitOfWork
from guard.gateway.unit import kept_rows
from guard.gateway.unit.state import NO_ORGANISATION, ChainState, within
from tests.gateway.conftest import Tenant, new_tenant
from tests.gateway.test_metrics import scraped
from tests.support import postgres
from tests.support.asker import ask, asker, call
from tests.support.private_server import Server, private_postgres  # noqa: F401  # a fixture
from tests.support.prometheus import METRICS_KEY
from tests.support.store import ACTOR, Clock, Store
from tests.support.waiting import until, until_async

_numbers = itertools.count(1)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


@pytest.fixture
def replicas(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Gateway]]:
    """Two gateways in this process on one database, which hear of each other by notices alone."""
    monkeypatch.setattr(listener, "ASK_S", 3600.0)
    options: dict[str, Any] = {
        "control_ping_interval_ms": 200, "sweep_interval_ms": 50, "metrics_key": METRICS_KEY,
    }  # fmt: skip
    with run_gateway(database, **options) as one, run_gateway(database, **options) as other:
        yield [one, other]


@pytest.fixture
def tenants(replicas: list[Gateway]) -> Iterator[list[Tenant]]:
    """One tenant as each replica sees it; the ledger has to be right in the end."""
    first = replicas[0]
    organisation = first.admin.create_organisation(f"o-{next(_numbers)}")["organisation_id"]
    found: list[Tenant] = []
    for gateway in replicas:
        admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=organisation)
        api_key = found[0].api_key if found else admin.create_key("test")
        headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3"}
        http = httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False)
        found.append(Tenant(gateway, organisation, admin, api_key, http))
    yield found
    assert first.admin.verify_ledger()["problems"] == []
    for tenant in found:
        tenant.http.close()
        tenant.admin.close()


def declared(tokens: int) -> dict[str, Any]:
    return {"kind": "llm", "model": "m", "max_input_tokens": 0, "max_output_tokens": tokens}


def test_what_one_grants_the_other_cannot(tenants: list[Tenant]) -> None:
    a, b = tenants
    a.admin.set_price("m", input_per_mtok=0, output_per_mtok=1_000_000)
    a.admin.set_budget(limit_nanousd=100)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(tenant.gate, **declared(7)) for _ in range(20) for tenant in (a, b)]
        statuses = [each.result().status_code for each in asked]
    assert sorted(set(statuses)) == [200, 402]
    assert statuses.count(200) == 14
    assert a.balance()["reserved"] == b.balance()["reserved"] == 98


def test_a_call_is_charged_where_it_was_not_asked(tenants: list[Tenant]) -> None:
    a, b = tenants
    a.admin.set_budget(limit_nanousd=1_000_000)
    reply = a.allowed()
    event = a.llm(500, event_id="once", reservation_id=reply["reservation_id"])
    answers = [tenant.send(event).json() for tenant in (b, a, b)]
    assert [each["accepted"] for each in answers] == [1, 0, 0]
    assert b.send(b.final(reply["reservation_id"])).json()["accepted"] == 1
    balance = a.balance()
    assert (balance["committed"], balance["reserved"]) == (500, 0)


def test_a_repeat_is_answered_by_another_replica(tenants: list[Tenant]) -> None:
    a, b = tenants
    a.admin.set_budget(limit_nanousd=1_000_000)
    headers = {"Idempotency-Key": "same"}
    first = a.allowed(call_id="c", headers=headers)
    assert b.allowed(call_id="c", headers=headers) == first
    assert a.balance()["reserved"] == first["reserved_nanousd"]


def test_rules_of_one_are_the_others_at_once(tenants: list[Tenant]) -> None:
    a, b = tenants
    b.allowed(kind="tool", tool_name="rm")
    a.admin.set_policy(tools_block=["rm"])
    until(lambda: b.gate(kind="tool", tool_name="rm").status_code == 403)


def test_a_revoked_key_is_refused_everywhere(tenants: list[Tenant]) -> None:
    a, b = tenants
    b.allowed()
    (key,) = [k for k in a.admin.request("GET", "/keys") if k["name"] == "test"]
    a.admin.request("DELETE", f"/keys/{key['key_id']}")
    until(lambda: b.gate().status_code == 401)


def test_a_cap_counts_the_calls_of_all(tenants: list[Tenant]) -> None:
    a, b = tenants
    a.admin.set_policy(rate_caps=[{"calls": 10, "per_ms": 3_600_000}], tools_block=["rm"])
    # A call that the new rule does not reach yet would not count.
    until(lambda: b.gate(kind="tool", tool_name="rm").status_code == 403)
    statuses = [tenant.gate().status_code for _ in range(8) for tenant in (a, b)]
    assert statuses.count(200) == 10
    assert statuses.count(429) == 6


_AGENT = """
import sys, time
import guard
guard.init()
@guard.protect
def step():
    time.sleep(0.02)
with guard.workflow("w"):
    step()
    print("running", flush=True)
    try:
        while True:
            step()
    except guard.WorkflowKilledInterrupt:
        print("killed", flush=True)
        raise SystemExit(0)
"""


def test_a_kill_at_one_stops_an_agent_at_the_other(tenants: list[Tenant]) -> None:
    a, b = tenants
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT],
        env={
            "GUARD_API_KEY": b.api_key,
            "GUARD_API_URL": b.gateway.base_url,
            "PATH": "",
            "GUARD_TIMEOUT_MS": "60000",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    try:
        assert agent.stdout.readline() == "running\n"
        a.admin.kill("w")
        assert agent.stdout.readline() == "killed\n"
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait(60)
        agent.stdout.close()


@pytest.mark.asyncio
async def test_a_kill_at_one_is_pushed_over_the_sockets_of_the_other(tenants: list[Tenant]) -> None:
    a, b = tenants
    async with asker(b.gateway.base_url, b.api_key) as client:
        await asyncio.to_thread(a.admin.kill, "w")
        while not any(message["type"] == "kill" for message in client.pushed):
            await client.read()


@pytest.mark.asyncio
async def test_a_notification_that_no_replica_sends_is_passed_over(tmp_path: Path) -> None:
    heard: list[PostCommitEvent] = []
    one, other = postgres.store(tmp_path), postgres.store(tmp_path)
    await one.open(lambda _: None)
    await other.open(heard.extend)
    owner = (
        await one.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    texts = ("", "x", "x recall", "x recall o", "x recall o {", "x recall o [1]", "x answered o 7",
             "x nothing o", "x control", "x room o", "x waits o {", 'x room o ["1"]')  # fmt: skip
    with psycopg.connect(postgres.dsn_of(tmp_path), autocommit=True) as stranger:
        for text in texts:
            stranger.execute("SELECT pg_notify(%s, %s)", (other._channel, text))
    kill = wire.ControlMessage(seq=0, type="kill", workflow_id="w")
    await one.write(within(owner), control.issue_directive, ACTOR, owner, kill)
    await until_async(lambda: any(event.kind == "control" for event in heard))
    assert other._listener is not None
    assert other._listener.healthy
    for each in (one, other):
        await each.close()


def _chain(unit: PostgresUnitOfWork, own: str, chain_id: str) -> ChainState | None:
    return unit.chains.find(own, chain_id)


def _save_chain(unit: PostgresUnitOfWork, own: str, chain_id: str, chain: ChainState) -> None:
    unit.chains.save(own, chain_id, chain)


@pytest.mark.asyncio
async def test_what_stays_cached_when_caches_are_full_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another organisation has emptied the cache of chains before it was this one's turn."""
    for module in (money, kept_rows):
        monkeypatch.setattr(module, "CACHE_MAX", 4)
    one, other = postgres.store(tmp_path), postgres.store(tmp_path)
    for each in (one, other):
        await each.open(lambda _: None)
    neighbour, own = [
        (
            await one.write(NO_ORGANISATION, directory.create_organisation, ACTOR, name)
        ).organisation_id
        for name in ("neighbour", "own")
    ]
    for owner, count in ((neighbour, 2), (own, 9)):
        for number in range(count):
            await one.write(within(owner), _chain, owner, f"c{number}")
    opened = ChainState(1, 2, False, None)
    await other.write(within(own), _save_chain, own, "c7", opened)
    assert await one.write(within(own), _chain, own, "c7") == opened
    for each in (one, other):
        await each.close()


@pytest.mark.asyncio
async def test_a_message_that_cannot_be_read_does_not_end_the_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[PostCommitEvent] = []
    one, other = postgres.store(tmp_path), postgres.store(tmp_path)
    await one.open(lambda _: None)
    await other.open(heard.extend)
    owner = (
        await one.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    read, failed = listener.notices_of, set[int]()

    def reading(*arguments: Any) -> list[PostCommitEvent]:
        # Each listener fails once: if any one of them could take the only failure, the other's
        # might deliver before the first had logged it.
        if (thread := threading.get_ident()) not in failed:
            failed.add(thread)
            raise wire.WireError("not a message")
        return read(*arguments)

    monkeypatch.setattr(listener, "notices_of", reading)
    kill = wire.ControlMessage(seq=0, type="kill", workflow_id="w")
    await one.write(within(owner), control.issue_directive, ACTOR, owner, kill)
    await until_async(lambda: any(event.kind == "control" for event in heard))
    assert "other replicas are not heard: WireError" in caplog.text
    hearing = other._listener
    assert hearing is not None
    await until_async(lambda: hearing.healthy)  # a moment after it has delivered
    for each in (one, other):
        await each.close()


def test_messages_of_two_replicas_reach_a_channel_in_order(tenants: list[Tenant]) -> None:
    _, b = tenants
    for number in range(10):
        tenants[number % 2].admin.pause(f"w{number}")
    seen: list[int] = []
    while len(seen) < 10:
        reply = b.http.get(
            "/api/v1/control", params={"after": seen[-1] if seen else 0, "wait_ms": 2000}
        ).json()
        assert reply["messages"]
        seen += [message["seq"] for message in reply["messages"]]
    assert seen == sorted(set(seen))


@pytest.mark.asyncio
async def test_what_is_leased_at_one_comes_back_for_a_call_at_the_other(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tenants
    for tenant in tenants:  # a refusal waits for the holder as long as a busy machine needs
        monkeypatch.setattr(tenant.gateway._server.app._recalls, "_wait_s", 60.0)  # type: ignore[union-attr]
    await asyncio.to_thread(a.admin.set_budget, limit_nanousd=1_000_000)

    def request(number: int, output: int, **fields: Any) -> dict[str, Any]:
        return call(number, kind="llm", function="openai", model="gpt-4o", max_input_tokens=0,
                    max_output_tokens=output, **fields)  # fmt: skip

    async with (
        asker(a.gateway.base_url, a.api_key) as holder,
        asker(b.gateway.base_url, b.api_key) as other,
    ):
        lease = {"demand_nanousd": 600_000}
        [(_, reply)] = await holder.ask(ask("h", request(1, 10, workflow_id="a", lease=lease)))
        lease_id = reply["lease"]["lease_id"]
        asking = asyncio.create_task(other.ask(ask("o", request(2, 90, workflow_id="b"))))
        while not any(lease_id in message.get("leases", ()) for message in holder.pushed):
            await holder.read()
        body = {"lease_id": lease_id, "unused_nanousd": 400_000}
        [(status, _)] = await holder.ask(ask("u", body, "gate/lease"))
        assert status == 200
        [(status, _)] = await asking
        assert status == 200


def test_what_a_killed_replica_held_expires_once(serve: Callable[..., Any], tmp_path: Path) -> None:
    dying, staying = serve(), serve()
    admin = AdminClient(staying.base_url, staying.admin_key)
    admin.set_budget(limit_nanousd=10_000_000_000)
    headers = {"X-API-Key": dying.api_key, "X-Guard-Protocol": "3"}
    with httpx.Client(base_url=dying.base_url, headers=headers, trust_env=False) as http:
        for number in range(20):
            body = {"call_id": f"c{number}", "kind": "call", "function": "work"}
            assert http.post("/gate", json=body).status_code == 200
    dying.process.send_signal(signal.SIGKILL)
    held = admin.ledger()[0]
    assert held["reserved_nanousd"] > 0
    with psycopg.connect(postgres.dsn_of(tmp_path), autocommit=True) as connection:
        connection.execute("UPDATE reservations SET expires_at_ms = 0")  # as if time had passed
    until(lambda: admin.ledger()[0]["reserved"] == 0)
    expired = "guard_gateway_expired_reservations_total"
    until(lambda: scraped(staying.base_url)[expired] == 20)
    report = admin.verify_ledger()
    assert (report["problems"], report["reservations_open"]) == ([], 0)
    admin.close()


@pytest.mark.fault
@pytest.mark.asyncio
async def test_replicas_that_expire_at_once_end_each_orphan_once(tmp_path: Path) -> None:
    clock = Clock()
    stores = [postgres.store(tmp_path, clock_ms=clock) for _ in range(2)]
    for each in stores:
        await each.open(lambda _: None)
    made = [
        await stores[0].write(NO_ORGANISATION, directory.create_organisation, ACTOR, f"o{n}")
        for n in range(4)
    ]
    owners = [Store(stores[0], clock, each.organisation_id, lambda: None, []) for each in made]
    for owner in owners:
        await owner.budget(1_000_000)
        replies = [await owner.gate(10, workflow_id=f"w{n}") for n in range(25)]
        assert {reply.status for reply in replies} == {200}
    clock.now += 3_600_000
    expired = [await asyncio.gather(*(each.sweep() for each in stores)) for _ in range(3)]
    assert sum(map(sum, expired)) == 100
    for owner in owners:
        (balance,) = await stores[1].balances(owner.org, current_only=True)
        assert (balance.reserved, balance.committed) == (0, 0)
    assert (await stores[1].verify_ledger()).problems == []
    for each in stores:
        await each.close()


def _queue(organisation_id: str, unit: PostgresUnitOfWork) -> None:
    for number in range(4):
        webhooks.enqueue(unit, organisation_id, "budget.threshold", {"number": number})


@pytest.mark.asyncio
async def test_replicas_that_send_at_once_share_the_messages(tmp_path: Path) -> None:
    """Nobody waits for what another replica is just claiming; nothing is claimed twice."""
    clock = Clock()
    a, b = (postgres.store(tmp_path, clock_ms=clock) for _ in range(2))
    owners = []
    for each in (a, b):
        await each.open(lambda _: None)
    for number in range(6):
        owner = (
            await a.write(NO_ORGANISATION, directory.create_organisation, ACTOR, f"o{number}")
        ).organisation_id
        owners.append(owner)
        hook = Webhook(webhook_id="", organisation_id=owner, url="https://example.com/",
                       types=[], created_at_ms=0)  # fmt: skip
        await a.write(within(hook.organisation_id), webhooks.put, ACTOR, hook, "whsec_AAAA")
        await a.write(within(owner), functools.partial(_queue, owner))
    sent: list[str] = []
    async with asyncio.timeout(60):
        while len(sent) < 24:
            pages = await asyncio.gather(
                *(each.write(NO_ORGANISATION, webhooks.due, 7, {}) for each in (a, b))
            )
            sent += [due.delivery_id for page in pages for due in page]
    assert len(sent) == len(set(sent)) == 24
    assert (
        await a.write(NO_ORGANISATION, webhooks.due, 100, {})
        == await b.write(NO_ORGANISATION, webhooks.due, 100, {})
        == []
    )
    clock.now += CLAIM_MS  # as if both had died
    with psycopg.connect(postgres.dsn_of(tmp_path)) as other:
        held = other.execute("SELECT delivery_id FROM deliveries LIMIT 5 FOR UPDATE").fetchall()
        async with asyncio.timeout(60):  # it would wait for ever
            again = {
                due.delivery_id for due in await b.write(NO_ORGANISATION, webhooks.due, 100, {})
            }
        assert not again & {row[0] for row in held}
        other.rollback()
    clock.now += CLAIM_MS
    page = await a.write(NO_ORGANISATION, webhooks.due, 100, {owners[0]: 3})
    found = collections.Counter(due.organisation_id for due in page)
    assert found == {owners[0]: 1, **dict.fromkeys(owners[1:], 4)}, "three of the first are sent"
    for each in (a, b):
        await each.close()


class _Slow(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(self.headers["webhook-id"])  # type: ignore[attr-defined]
        time.sleep(0.2)  # for so long the other replica looks, ten times
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_webhook_is_sent_once_by_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_IDLE_S", 0.02)
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    receiver.received = []  # type: ignore[attr-defined]
    serving = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    database = postgres.url_of(tmp_path)
    options = {"sweep_interval_ms": 50, "private_webhooks": True}
    with run_gateway(database, **options) as one, run_gateway(database, **options):
        tenant = new_tenant(one)
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        tenant.admin.request("PUT", "/webhooks", {"url": url, "types": ["budget.threshold"]})
        for number in range(12):
            name = f"w{number}"
            tenant.admin.set_budget(10, scope_kind="workflow", scope_id=name, thresholds=[0.5])
            tenant.send(tenant.llm(60_000_000, workflow_id=name))

        def delivered() -> bool:
            found = tenant.admin.request("GET", "/webhooks/deliveries")
            return len(found) >= 12 and all(each["delivered_at_ms"] for each in found)

        until(delivered)
        sent = tenant.admin.request("GET", "/webhooks/deliveries")
        tenant.http.close()
        tenant.admin.close()
    receiver.shutdown()
    serving.join(60)
    receiver.server_close()
    assert sorted(receiver.received) == sorted(  # type: ignore[attr-defined]
        each["delivery_id"] for each in sent
    )


def test_while_postgresql_is_away_calls_are_refused(private_postgres: Server) -> None:  # noqa: F811
    with run_gateway(private_postgres.url, sweep_interval_ms=50) as gateway:
        tenant = new_tenant(gateway)
        tenant.admin.set_budget(limit_nanousd=10**12)
        headers = {"Idempotency-Key": "asked before"}
        before = tenant.allowed(call_id="c", headers=headers)
        event = tenant.llm(500, event_id="once", reservation_id=before["reservation_id"])
        assert tenant.send(event).status_code == 202
        private_postgres.stop()
        until(lambda: tenant.gate().status_code == 503)  # its processes notice one by one
        tenant.refused(503, "GD-R002")
        assert tenant.send(event).status_code == 503
        assert httpx.get(f"{gateway.base_url}/readyz").status_code == 503
        private_postgres.start()
        until(lambda: tenant.gate(call_id="c", headers=headers).status_code == 200)
        assert tenant.allowed(call_id="c", headers=headers) == before
        assert tenant.send(event).json()["duplicates"] == 1
        until(lambda: httpx.get(f"{gateway.base_url}/readyz").status_code == 200)
        assert tenant.balance()["committed"] == 500
        assert gateway.admin.verify_ledger()["problems"] == []
        tenant.http.close()
        tenant.admin.close()
