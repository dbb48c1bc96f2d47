"""A command that is refused changes nothing: on what is another's, and on what is over.

Each command that names something is sent by everybody to whom it does not belong; the whole store
is compared before and after, and the shares of rate caps and the recalls under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from guard.core import wire
from guard.gateway.domain.commands import (
    ApprovalNeed,
    EncodedAnswer,
    GateCommand,
    LeaseCommand,
)
from guard.gateway.domain.errors import ConflictError
from guard.gateway.ledger import approvals, directory
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support import postgres
from tests.support.asker import Asker, ask, asker, call
from tests.support.store import ACTOR, Clock, Store, decide, update_lease
from tests.support.store_dump import difference, dump
from tests.support.two_organisations import World

ASKED_S = 600.0
"""How long the recall stays under way of which the tests look after nobody answers it."""
COSTS = {"kind": "llm", "function": "openai", "model": "gpt-4o", "max_input_tokens": 0,
         "max_output_tokens": 1}  # fmt: skip
_COUNTED = ("events", "usage", "estimates")
"""Tables in which an event counts for whoever has sent it."""
_REFUSED_AS = {
    "a proxy of another organisation": "GD-A004",
    "a proxy for nobody": "GD-A005",
    "no proxy": "GD-A005",
}
_numbers = itertools.count(1)


@attrs.frozen
class Subjects:
    """What belongs to the owner."""

    hold: str
    renewed: str
    request: str
    lease: str
    approval: str
    call_id: str
    chain: str


async def _subjects(holder: Asker) -> Subjects:
    """Make one of everything, in workflow ``b``."""
    number = next(_numbers)
    lease = {"demand_nanousd": 10**6, "demand_calls": 4}
    bodies = [
        call(f"{number}-h", workflow_id="b", chain={"id": f"n{number}", "op": "start"}),
        call(f"{number}-r", workflow_id="b", renewed=True),
        call(f"{number}-q", workflow_id="b", **COSTS),
        call(f"{number}-l", workflow_id="b", agent=f"a{number}", lease=lease),
        call(f"{number}-p", workflow_id="b", tool_name="pay"),
    ]
    answers = await holder.ask(*(ask(f"s{number}-{n}", each) for n, each in enumerate(bodies)))
    assert [status for status, _ in answers] == [200] * 5
    replies = [reply for _, reply in answers]
    assert replies[3]["lease"]["calls"] == 4
    ids = [reply["reservation_id"] for reply in replies[:4]]
    return Subjects(*ids, replies[4]["approval_id"], f"call-{number}-p", f"n{number}")


# -- on the wire -----------------------------------------------------------------------------------


@attrs.frozen
class Command:
    """One command that names a subject.

    Attributes:
        path: of the operation.
        body: without what is new with each sending.
        status: of the answer to whom the subject does not belong, and who has a valid key.
        counts: whether it is the sender's own in all but the subject, and is counted.
        does: whether its owner changes something with it.
    """

    name: str
    path: str
    body: dict[str, Any]
    status: int
    counts: bool = False
    does: bool = True


def _commands(subjects: Subjects) -> list[Command]:
    s = subjects
    holds = {"hold": s.hold, "renewed": s.renewed, "request": s.request, "lease": s.lease}
    found = [
        Command(
            f"release {name}", "/gate/release", {"reservation_id": each}, 404, does=name != "call"
        )
        for name, each in {**holds, "approval": s.approval, "call": s.call_id}.items()
    ]
    updates: dict[str, dict[str, Any]] = {
        "renew": {}, "give back": {"unused_nanousd": 5}, "calls": {"calls_left": 3},
        "close": {"close": True}, "under way": {"under_way_nanousd": 7},
    }  # fmt: skip
    for name, each in {**holds, "approval": s.approval}.items():
        for how, fields in updates.items():
            body = {"lease_id": each, **fields}
            does = name not in ("hold", "request")  # which nobody renews
            found.append(Command(f"{how} {name}", "/gate/lease", body, 404, does=does))
        body = {"lease_id": each, "calls_left": 3, "also": list(holds.values())}
        found.append(Command(f"renew {name} and others", "/gate/lease", body, 200))
    asks: dict[str, dict[str, Any]] = {
        "with a lease": {"lease": {"lease_id": s.lease, "unused_nanousd": 5, "calls_left": 3}},
        "ahead": {"lease": {"lease_id": s.lease, "ahead": True, "demand_nanousd": 9}},
        "within": {**COSTS, "held": s.hold, "around": [s.hold, s.renewed]},
        "beside": {**COSTS, "reads": {s.request: 10**9}, "wait_ms": 0},
        "as approved": {"tool_name": "pay", "call_id": s.call_id},
        "continue a chain": {"chain": {"id": s.chain, "op": "continue"}},
        "end a chain": {"chain": {"id": s.chain, "op": "end"}},
    }
    for name, fields in asks.items():
        for why, more in {
            "blocked": {"model": "blocked"} if "kind" in fields else {"tool_name": "blocked"},
            "without money": COSTS,
        }.items():
            if "tool_name" in fields and why != "blocked":
                continue  # an approval of its own is asked for
            body = call("x", workflow_id="a", agent="a", **{**fields, **more})
            status = 403 if why == "blocked" else 402
            name_it = f"gate {name}, {why}"
            found.append(Command(name_it, "/gate", body, status, does=False))
        body = call("x", workflow_id="b", **fields)
        found.append(Command(f"gate {name}, in b", "/gate", body, 403, does=False))
    for kind, data in {
        "span": {"name": "w", "final": True}, "llm": {"model": "gpt-4o", "cost_nanousd": 0},
    }.items():  # fmt: skip
        for name, each in holds.items():
            event = {"type": kind, "at_ms": 1, "reservation_id": each, "workflow_id": "a"}
            body = {"sent_at_ms": 1, "events": [{**event, "data": data}]}
            does = name != "lease"  # events end no lease
            found.append(
                Command(f"{kind} of {name}", "/api/v1/events", body, 202, counts=True, does=does)
            )
    for op in ("start", "continue", "end"):
        event = {"type": "chain", "at_ms": 1, "workflow_id": "a", "data": {"id": s.chain, "op": op}}
        body = {"sent_at_ms": 1, "events": [event]}
        found.append(Command(f"{op} chain", "/api/v1/events", body, 202))
    return found


def _fresh(command: Command) -> dict[str, Any]:
    """Return the body with what is new each time, such as the ids of events."""
    if "events" not in command.body:
        return command.body
    number = next(_numbers)
    events = [{**each, "event_id": f"event-{number}"} for each in command.body["events"]]
    return {**command.body, "batch_id": f"batch-{number}", "events": events}


def _is_theirs(who: str, command: Command) -> bool:
    """Tell whether a command is no other's for this sender."""
    who = who.removesuffix(", by a proxy")
    if who == "another key":  # for every workflow: chains belong to no key, and b is not closed
        return "chain" in command.name or command.name.endswith("in b")
    return who == "another organisation" and command.name.endswith("in b")


def _answers(who: str, command: Command, status: int, reply: Any) -> None:
    """Check that an answer is the documented one."""
    named = (who, command.name, status, reply)
    if not who.startswith("another "):
        code = _REFUSED_AS.get(who, "GD-A003")
        assert (status, reply["error_code"]) == (401, code), named
        return
    if command.name.startswith("gate ahead") and status == 404:
        assert reply["error_code"] == "GD-N001", named
        return
    assert status == command.status, named
    if status == 404:
        assert reply["error_code"] == "GD-N001", named
    elif command.path == "/gate/lease":
        assert (reply["state"], reply["held_nanousd"]) == ("expired", 0), named
        assert {command.body["lease_id"], *command.body["also"]} == set(reply["over"]), named
    elif command.name.endswith("in b"):
        assert reply["error_code"] == "GD-W004", named
    elif who == "another workflow" and command.name.endswith(" chain"):
        assert [each["error_code"] for each in reply["rejected"]] == ["GD-W004"], named


@contextlib.asynccontextmanager
async def _recalled(world: World) -> AsyncIterator[tuple[Asker, Subjects]]:
    """Yield the owner's channel and what it holds, while another waits for its lease."""
    world.gateway._server.app._recalls._wait_s = ASKED_S  # type: ignore[union-attr]
    url = world.gateway.base_url
    async with asker(url, world.owner) as holder, asker(url, world.owner) as other:
        subjects = await _subjects(holder)
        large = {**COSTS, "max_output_tokens": 99_999}
        await other.send(ask("waits", call("waits", workflow_id="b", agent="o", **large)))
        while not any(each["type"] == "recall" for each in holder.pushed):
            await holder.read()
        yield holder, subjects
        update = {"lease_id": subjects.lease, "unused_nanousd": 10**6, "close": True}
        [(status, _)] = await holder.ask(ask("ends", update, "gate/lease"))
        assert status == 200
        while "waits" not in other.told:
            await other.read()


@pytest.mark.asyncio
@pytest.mark.generator("commands on what is another's: the whole store stays as it is")
async def test_nobody_changes_with_a_command_what_is_anothers(
    world: World, count_cases: Callable[[int], None]
) -> None:
    cases = 0
    async with _recalled(world) as (_, subjects), contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=world.gateway.base_url, trust_env=False)
        )
        for who, key in world.keys.items():
            channel = None
            if who.startswith("another"):
                channel = await stack.enter_async_context(asker(world.gateway.base_url, key))
            headers = {"X-API-Key": key, "X-Guard-Protocol": "3"}
            # The first call that a budget is over makes the balance.
            first = {"json": call("first", workflow_id="a", **COSTS), "headers": headers}
            await http.post("/gate", **first)
            foreign = [each for each in _commands(subjects) if not _is_theirs(who, each)]
            for counts, but in ((False, ()), (True, _COUNTED)):
                commands = [each for each in foreign if each.counts is counts]
                before = await asyncio.to_thread(world.state, *but)
                for command in commands:
                    reply = await http.post(command.path, json=_fresh(command), headers=headers)
                    _answers(who, command, reply.status_code, reply.json())
                    cases += 1
                    if channel is not None and command.path.startswith("/gate"):
                        asked = ask(f"c-{next(_numbers)}", command.body, command.path[1:])
                        [(status, told)] = await channel.ask(asked)
                        _answers(who, command, status, told)
                        cases += 1
                # Once for all of them: to read the whole store takes longer than they do.
                after = await asyncio.to_thread(world.state, *but)
                assert difference(before, after) == {}, (who, [each.name for each in commands])
    count_cases(cases)


@pytest.mark.asyncio
async def test_the_owner_changes_something_with_each_of_them(world: World) -> None:
    """So that the commands above are refused for nothing else than whose they are."""
    async with asker(world.gateway.base_url, world.owner) as holder:
        number = len(_commands(await _subjects(holder)))
        for index in range(number):
            command = _commands(await _subjects(holder))[index]
            if not command.does:
                continue
            before = await asyncio.to_thread(world.state, *_COUNTED)
            await asyncio.sleep(0.002)  # what is renewed ends later
            body = _fresh(command)
            for event in body.get("events", ()):
                event["workflow_id"] = "b"
            async with httpx.AsyncClient(base_url=world.gateway.base_url, trust_env=False) as http:
                headers = {"X-API-Key": world.owner, "X-Guard-Protocol": "3"}
                reply = await http.post(command.path, json=body, headers=headers)
            assert reply.status_code in (200, 202), reply.text
            after = await asyncio.to_thread(world.state, *_COUNTED)
            assert difference(before, after), command.name


@pytest.mark.asyncio
@pytest.mark.generator("places in line that are another's")
async def test_nobody_gives_up_anothers_place_in_line(
    world: World, count_cases: Callable[[int], None], lasting_places: None
) -> None:
    app = world.gateway._server.app  # type: ignore[union-attr]
    large = {**COSTS, "max_output_tokens": 60_000, "wait_ms": 600_000}
    async with asker(world.gateway.base_url, world.owner) as holder:
        await holder.ask(ask("held", call("held", workflow_id="b", **large)))
        for number, (who, key) in enumerate(world.keys.items()):
            asked = ask(f"w{number}", call("waits", workflow_id="b", **large))
            [(_, reply)] = await holder.ask(asked)
            assert (reply["decision"], app._line.count()) == ("waiting", 1)
            async with httpx.AsyncClient(base_url=world.gateway.base_url, trust_env=False) as http:
                headers = {"X-API-Key": key, "X-Guard-Protocol": "3"}
                body = {"reservation_id": "call-waits"}
                left = await http.post("/gate/release", json=body, headers=headers)
            assert left.status_code == (404 if who.startswith("another") else 401)
            assert app._line.count() == 1
    count_cases(len(world.keys))


# -- what has expired ------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("what", ["renew", "give back", "close", "ahead", "approval", "answer"])
async def test_no_command_changes_what_has_expired(engine: str, what: str, tmp_path: Path) -> None:
    """No sweep has seen it yet, and the command must not be one."""
    clock, is_sqlite = Clock(), engine == "sqlite"
    database = str(tmp_path / "g.sqlite3") if is_sqlite else postgres.url_of(tmp_path)
    storage: Storage
    storage = (SqliteStorage(Path(database), clock_ms=clock) if is_sqlite
               else postgres.store(tmp_path, clock_ms=clock))  # fmt: skip
    await storage.open(lambda _: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    await store.budget(1000)

    async def question(lease: wire.LeaseAsk, approval: ApprovalNeed | None = None) -> EncodedAnswer:
        asked = wire.GateRequest(
            call_id="c", kind="call", function="f", lease=lease, renews=approval is not None
        )
        command = GateCommand(request=store.request(), call=asked, declared_nanousd=10,
                              grants_lease=True, approval=approval)  # fmt: skip
        return await decide(storage, command)

    need = ApprovalNeed(tool_name=None, timeout_ms=20_000)
    given = await question(wire.LeaseAsk(demand_nanousd=100))
    lease_id = str(wire.decode(given.body, wire.GateReply).reservation_id)
    pending = await question(wire.LeaseAsk(), need)
    approval_id = str(wire.decode(pending.body, wire.GateReply).approval_id)
    clock.now += 40_000  # with the grace of what a holder renews
    await store.charge("a later command", 0)  # whatever the store does at the beginning of any
    before = dump(database)
    change = wire.LeaseUpdate(approval_id if what == "approval" else lease_id)
    change.unused_nanousd = 5 if what == "give back" else 0
    change.close = what == "close"
    if what == "answer":
        with pytest.raises(ConflictError):
            await storage.write(within(org), approvals.answer, ACTOR, org, approval_id,
                                approved=True, reason="")  # fmt: skip
    elif what == "ahead":
        lease = wire.LeaseAsk(lease_id, unused_nanousd=5, demand_nanousd=9, ahead=True)
        assert (await question(lease)).status == 404
    else:
        answer = await update_lease(storage, LeaseCommand(request=store.request(), update=change))
        assert answer.status == (200 if what == "approval" else 404)
    assert difference(before, dump(database)) == {}
    assert (await storage.verify_ledger()).problems == []
    await storage.close()
