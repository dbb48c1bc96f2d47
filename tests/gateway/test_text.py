"""Which text the gateway takes: one rule at its edge, whatever engine stores it."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.ledger import directory
from guard.gateway.ledger.estimates import subjects
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION
from tests.gateway.conftest import Tenant
from tests.support.asker import ask, asker, call
from tests.support.store import ACTOR, DAY, Clock, Store

_random = random.Random(1)
MANY_BYTES = "".join(map(chr, _random.sample(range(0x10000, 0x20000), 256)))
"""256 characters and 1,024 bytes, which do not compress."""

REFUSED = {
    "nul": "a\0b",
    "stands for nul": "a\ufdd0b",
    "bytes": MANY_BYTES,
}
TAKEN = {
    "empty": "",
    "blank": " \t\n",
    "longest": "x" * 256,
    "longest of three bytes": "".join(map(chr, _random.sample(range(0x4E00, 0x9FFF), 256))),
    "longest of four bytes": MANY_BYTES[:192],
    "controls": "\x01\x1f\x7f\x85" * 64,
    "noncharacter": "\uffff\ufffe\U0010ffff",
    "combining": "e\u0301\u0323 \u0338",
    "composed": "\u1eb9\u0301",
    "right to left": "\u202eabc\u2066\u05d0",
    "wildcards": "%_*?[a-z]\\",
    "quotes": "'; DROP TABLE events; --\"`",
    "json": '{"a": ["\\u0000", "\\ufdd0", null]}',
    "separators": "\u2028\u2029\u200b\ufeff",
    "path": "../../%00/\\..\\",
}

_GATE_FIELDS = [
    "call_id", "model", "workflow_id", "run_id", "agent", "user", "trace_id", "span_id",
    "parent_span_id", "tool_name", "function", "tier", "within", "held", "key_limit", "unnumbered",
]  # fmt: skip
_EVENT_FIELDS = [
    "event_id", "type", "workflow_id", "run_id", "chain_id", "agent", "user", "trace_id",
    "span_id", "parent_span_id", "call_id", "reservation_id",
]  # fmt: skip
_LLM_FIELDS = ["model", "provider", "response_id", "request_id", "service_tier", "estimate"]
INDEX_ROW_BYTES = 2704
"""What PostgreSQL takes."""

_ANY_BYTES = ("function", "unnumbered")
"""Fields of which no index has a row, so that only their characters are counted."""


def _gate_body(field: str, text: str) -> dict[str, Any]:
    if field == "tools":
        return {"tools": [text]}
    if field == "tags":
        return {"tags": {"a": text}}
    if field == "tag names":
        return {"tags": {text[:64]: "a"}}
    if field == "chain":
        return {"chain": {"id": text, "op": "start"}}
    if field == "around":
        return {"around": [text]}
    if field == "fees":
        return {"fees": {text: 1}}
    return {field: text}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize(
    "field", [*_GATE_FIELDS, "tools", "tags", "tag names", "chain", "around", "fees"]
)
def test_a_question_with_text_that_is_not_taken_is_refused_and_names_it(
    tenant: Tenant, field: str, kind: str
) -> None:
    if kind == "bytes" and field in (*_ANY_BYTES, "tag names"):
        pytest.skip("its bytes are not counted")
    problem = tenant.refused(400, "GD-P007", **_gate_body(field, REFUSED[kind]))
    assert field.split()[0].rstrip("s") in problem["detail"]
    assert REFUSED[kind] not in problem["detail"]
    tenant.allowed()


@pytest.mark.parametrize("kind", TAKEN)
def test_all_other_text_is_stored_and_read_as_it_came(tenant: Tenant, kind: str) -> None:
    text = TAKEN[kind] or None
    tenant.admin.set_price("*", input_per_mtok=1000, output_per_mtok=1000)
    tenant.admin.set_budget(10_000_000, scope_kind="workflow", scope_id="*")
    fields = {"workflow_id": text, "agent": text, "user": text, "run_id": text}
    reply = tenant.allowed(
        **fields, model=text or "m", function=text or "f", tags={"a": text or ""}
    )
    sent = tenant.llm(
        7, **fields, event_id=(text or "e"), reservation_id=reply["reservation_id"],
        data={"model": text or "m", "provider": text, "response_id": text, "request_id": text,
              "metadata": {text or "": [text, "a\0b", "a\ufdd0b"]}},
        chain_id=text, trace_id=text, span_id=text, call_id=text,
    )  # fmt: skip
    assert tenant.send(sent, tenant.final(reply["reservation_id"])).json()["accepted"] == 2
    (stored,) = [e for e in tenant.admin.events() if e["type"] == "llm"]
    assert stored["data"]["metadata"] == sent["data"]["metadata"]
    for name in ("workflow_id", "agent", "run_id", "chain_id"):
        assert stored[name] == text
    for group in ("workflow", "user", "run", "agent", "chain", "model", "provider"):
        wanted = text if group != "model" else text or "m"
        assert {row["group"]: row["cost_nanousd"] for row in tenant.admin.usage(group)}[wanted] == 7
    if text:
        assert tenant.balance(scope_id=text)["committed"] == 7


def test_an_event_with_text_that_is_not_taken_is_rejected_alone(tenant: Tenant) -> None:
    bad = [
        tenant.llm(5, **{field: text})
        for field in _EVENT_FIELDS
        for text in REFUSED.values()
        if field != "type"
    ]
    bad += [
        tenant.llm(5, data={field: text if field != "response_id" else text * 2})
        for field in _LLM_FIELDS
        for text in REFUSED.values()
    ]
    bad.append({**tenant.llm(), "type": "tool", "data": {"tool_name": "a\0b"}})
    bad.append({**tenant.llm(), "type": "span", "data": {"name": "a\0b"}})
    bad.append(tenant.llm(5, tags={"a": "b\0"}))
    bad.append(tenant.llm(5, tags={"a\0": "b"}))
    good = [tenant.llm(1), tenant.llm(1)]
    reply = tenant.send(good[0], *bad, good[1]).json()
    assert reply["accepted"] == 2
    assert {each["error_code"] for each in reply["rejected"]} == {"GD-P007"}
    assert len(reply["rejected"]) == len(bad)
    # Along with a question they are rejected alone as well.
    answer = tenant.allowed(events=[tenant.llm(1), bad[0]])
    assert answer["events"]["accepted"] == 1
    assert answer["events"]["rejected"][0]["error_code"] == "GD-P007"
    assert tenant.admin.usage("total")[0]["cost_nanousd"] == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", REFUSED)
async def test_ids_over_the_socket_are_checked_one_by_one(tenant: Tenant, kind: str) -> None:
    ids = [f"{number}{REFUSED[kind]}"[:256] for number in range(8)]
    async with asker(tenant.gateway.base_url, tenant.api_key) as client:
        answers = await client.ask(*(ask(each, call(1)) for each in [*ids, "good"]))
    assert [status for status, _ in answers] == [400] * 8 + [200]
    assert {problem["error_code"] for _, problem in answers[:8]} == {"GD-P007"}


def _admin_calls(tenant: Tenant, text: str) -> list[tuple[str, str, Any]]:
    return [
        ("POST", "/control", {"action": "pause", "workflow_id": text}),
        ("POST", "/control", {"action": "pause", "run_id": text}),
        ("POST", "/control", {"action": "pause", "workflow_id": "w", "reason": text}),
        ("PUT", "/budgets", {"scope_kind": "workflow", "scope_id": text, "limit_cents": 1}),
        ("PUT", "/policies/p", {"scope_kind": "workflow", "scope_id": text}),
        ("PUT", "/policies/p", {"document": {"tools_block": [text]}}),
        ("POST", "/keys", {"workflow_id": text}),
        ("PUT", "/prices", {"model": text, "rates": {"input_per_mtok": 1, "output_per_mtok": 1}}),
    ]


@pytest.mark.parametrize("kind", ["nul", "stands for nul"])
def test_operators_texts_are_checked_by_the_same_rule(tenant: Tenant, kind: str) -> None:
    admin, text = tenant.admin, REFUSED[kind]
    base = f"{tenant.gateway.base_url}/api/v1/admin"
    query = {"organisation": tenant.organisation_id}
    headers = {"Authorization": f"Bearer {tenant.gateway.admin_key}"}
    for method, path, body in _admin_calls(tenant, text):
        reply = tenant.http.request(method, base + path, json=body, params=query, headers=headers)
        assert (reply.status_code, reply.json()["error_code"]) == (400, "GD-P007"), path
    for path, name in (("/events", "workflow_id"), ("/runs", "workflow_id"), ("/runs", "after"),
                       ("/control/named", "workflow_id"), ("/workflows", "after")):  # fmt: skip
        reply = tenant.http.get(base + path, params={**query, name: text}, headers=headers)
        assert (reply.status_code, reply.json()["error_code"]) == (400, "GD-P007"), path
    for name in ("workflow", "run", "agent", "chain", "user"):
        params = {"workflow": "w", name: text}
        reply = tenant.http.get("/api/v1/spend", params=params)
        assert (reply.status_code, reply.json()["error_code"]) == (400, "GD-P007"), name
    assert admin.workflows() == []


_WIDEST = {
    "three bytes": (range(0x4E00, 0x9FFF), 256),
    "four bytes": (range(0x10000, 0x20000), 192),
    "controls": (range(1, 32), 256),
}


@pytest.mark.parametrize("kind", _WIDEST)
def test_names_of_any_length_leave_room_in_every_index(tenant: Tenant, kind: str) -> None:
    """The widest rows: names of a call that stand in one index, as long as each may be."""
    characters, length = _WIDEST[kind]

    def text(most: int = length) -> str:
        return "".join(map(chr, _random.choices(characters, k=most)))

    tenant.admin.set_price("*", input_per_mtok=1000, output_per_mtok=1000)
    call: dict[str, Any] = {"workflow_id": text(), "function": text(512), "model": text()}
    reply = tenant.allowed(
        **call, agent=text(), user=text(), chain={"id": text(), "op": "start"}, run_id=text(),
        call_id=text(),
    )  # fmt: skip
    data = {"model": call["model"], "provider": text(), "response_id": text(256),
            "request_id": text()}  # fmt: skip
    event = tenant.llm(9, data=data, workflow_id=call["workflow_id"], event_id=text(),
                       reservation_id=reply["reservation_id"])  # fmt: skip
    final = tenant.final(reply["reservation_id"])
    answer = tenant.send(event, {**event, "event_id": text(), "type": text()}, final)
    assert (answer.status_code, answer.json()["accepted"]) == (202, 3)
    tenant.allowed(**call)


def _long(length: int) -> st.SearchStrategy[str]:
    """Texts of any length, many of them the longest."""
    few = st.text(min_size=1, max_size=9)
    return st.builds(
        lambda text, times: wire.truncated(text * times, length), few, st.integers(0, length)
    )


@given(function=_long(512), workflow=_long(256), model=_long(256))
@settings(max_examples=200)
def test_the_names_of_estimates_fit_and_keep_their_workflow(
    function: str, workflow: str, model: str
) -> None:
    found = subjects(f"gated llm:{function}", workflow, model)
    assert all(len(each) <= INDEX_ROW_BYTES - 60 for each in found)  # beside the organisation's id
    assert json.loads(found[0])[0] == workflow


# -- what is stored already -----------------------------------------------------------------------


@pytest_asyncio.fixture
async def old(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    """A store with a workflow whose name has a NUL, from a time when names could have one."""
    clock = Clock()
    storage = storage_factory(tmp_path, clock_ms=clock, retention_days=40)
    await storage.open(lambda _: None)
    org = await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    store = Store(storage, clock, org.organisation_id, lambda: None, [])
    for name in ("a\0b", "a", "kept"):
        reservation = json.loads((await store.gate(workflow_id=name)).body)["reservation_id"]
        await store.charge(f"e-{name}", 5, workflow_id=name, reservation_id=reservation,
                           flags="in_doubt")  # fmt: skip
    yield store
    assert (await storage.verify_ledger()).problems == []
    await storage.close()


@pytest.mark.asyncio
async def test_what_is_stored_already_stops_no_retention(old: Store) -> None:
    for _ in range(4):
        old.clock.now += 50 * DAY
        for _ in range(30):
            await old.storage.sweep()
    assert await old.storage.workflows(old.org, "", 10) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("since_ms", [0, 1_800_000_000_000 - 10 * DAY])
async def test_what_is_stored_already_stops_no_report(old: Store, since_ms: int) -> None:
    rows = await old.storage.usage(old.org, "workflow", since_ms, 2**53, 10)
    assert {row.group: (row.cost_nanousd, row.uncertain_nanousd) for row in rows} == {
        "a\0b": (5, 5), "a": (5, 5), "kept": (5, 5),
    }  # fmt: skip
