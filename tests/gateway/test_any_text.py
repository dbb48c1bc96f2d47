"""Any text in any field: both engines answer alike, and a bystander is never touched."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from guard.core import wire
from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres

NASTY = [
    "", " ", "\n", "w", "W", "\0", "a\0b", "a", "\ufdd0", "a\ufdd0b", "a\ufffdb", "\ufdd1",
    "\uffff", "\U0010ffff", "\ud800", "\udfff", "\x01", "\x7f\x85", "\u2028", "\ufeff",
    "\u202eabc", "e\u0301", "\u00e9", "\u0130", "\u00df", "\u05d0\u05d1", "%", "_", "*", "?",
    "[a-z]", "\\", "\\0", "\\u0000", "'", '"', "';--", '{"a": 1}', '["", "f"]', "null", "NaN",
    "../..", "%00", "$1", "{0}", "?1", "\U0001f600" * 192, "\U0001f600" * 193, "\u4e2d" * 256,
    "\u4e2d" * 257, "x" * 256, "x" * 257, "x" * 512, "\x01" * 256, "x" * 10_000,
]  # fmt: skip
"""Texts that a store, a pattern, a parser or a person may take for something else."""


@attrs.define
class Engine:
    """One engine's gateway, with a tenant that sends any text and one that does not.

    Attributes:
        held: reservations that are open, in the order in which they were made.
    """

    hostile: Tenant
    bystander: Tenant
    held: list[str] = attrs.field(factory=list)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Engine]]:
    with (
        run_gateway(tmp_path / "g.sqlite3") as embedded,
        run_gateway(postgres.url_of(tmp_path)) as scaled,
    ):
        made = [Engine(new_tenant(each), new_tenant(each)) for each in (embedded, scaled)]
        for engine in made:
            admin = engine.hostile.admin
            admin.set_price("*", input_per_mtok=1000, output_per_mtok=1000)
            for kind in ("workflow", "agent", "chain", "user", "model"):
                admin.set_budget(100_000, scope_kind=kind, scope_id="*")
        yield made
        for engine in made:
            for tenant in (engine.hostile, engine.bystander):
                tenant.http.close()
                tenant.admin.close()


class Author:
    """Writes commands; the same seed writes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0

    def text(self) -> str:
        """Return any text; mostly one that is taken, so that commands get as far as the store."""
        text = self._any_text()
        while self._random.random() < 0.9 and not _is_taken(text):
            text = self._any_text()
        return text

    def _any_text(self) -> str:
        """Return a nasty text, two of them, or characters from anywhere."""
        chance = self._random.random()
        if chance < 0.6:
            return self._random.choice(NASTY)
        if chance < 0.8:
            return self._random.choice(NASTY) + self._random.choice(NASTY)
        length = self._random.choice((1, 2, 190, 256))
        most = self._random.choice((0x80, 0x800, 0x10000, 0x110000))
        return "".join(chr(self._random.randrange(1, most)) for _ in range(length))

    def some(self, *names: str) -> dict[str, Any]:
        """Return any text for some fields."""
        return {name: self.text() for name in names if self._random.random() < 0.3}

    def command(self) -> tuple[str, dict[str, Any]]:
        """Return the name of a method of ``Commands``, and what it takes."""
        name = self._random.choice(
            ("gate", "gate", "gate", "events", "events", "events", "release", "lease", "spend",
             "budget", "pause", "policy", "reports")
        )  # fmt: skip
        return name, getattr(self, name)()

    def gate(self) -> dict[str, Any]:
        self._number += 1
        body = {
            "call_id": f"c-{self._number}", "kind": "call", "function": "f",
            **self.some("call_id", "function", "model", "tool_name", "workflow_id", "run_id",
                        "agent", "user", "trace_id", "span_id", "tier", "within", "held",
                        "key_limit", "unnumbered"),
        }  # fmt: skip
        if self._random.random() < 0.1:
            body["tags"] = {self.text(): self.text()}
        if self._random.random() < 0.1:
            body["tools"] = [self.text(), "t"]
        if self._random.random() < 0.1:
            body["chain"] = {"id": self.text(), "op": "start"}
        if self._random.random() < 0.1:
            body["note"] = {"message": self.text(), "details": {self.text(): self.text()}}
        if self._random.random() < 0.3:
            body["events"] = [self._event()]
        return {"body": body, "key": f"k-{self._number}"}

    def _event(self) -> dict[str, Any]:
        self._number += 1
        data: dict[str, Any] = {"model": "m", "cost_nanousd": 7}
        data |= self.some("model", "provider", "response_id", "request_id", "service_tier")
        if self._random.random() < 0.3:
            data["metadata"] = {self.text(): [self.text()]}
        event = {"event_id": f"e-{self._number}", "type": "llm", "at_ms": 1, "data": data,
                 **self.some("event_id", "type", "workflow_id", "run_id", "chain_id", "agent",
                             "user", "trace_id", "call_id", "reservation_id")}  # fmt: skip
        if self._random.random() < 0.1:
            event["tags"] = {self.text()[:64]: self.text()}
        return event

    def events(self) -> dict[str, Any]:
        self._number += 1
        good = {"event_id": f"good-{self._number}", "type": "llm", "at_ms": 1,
                "data": {"model": "m", "cost_nanousd": 5}}  # fmt: skip
        return {"events": [self._event(), good, self._event()]}

    def release(self) -> dict[str, Any]:
        return {"number": self._random.randrange(8), **self.some("reservation_id", "reason")}

    def lease(self) -> dict[str, Any]:
        return {"lease_id": self.text(), "also": [self.text()]}

    def spend(self) -> dict[str, Any]:
        return {"workflow": "w", **self.some("workflow", "run", "agent", "chain", "user")}

    def budget(self) -> dict[str, Any]:
        kind = self._random.choice(("workflow", "agent", "user", "model", "chain"))
        return {"scope_kind": kind, "scope_id": self.text(), "limit_cents": 100_000}

    def pause(self) -> dict[str, Any]:
        # Not all of them: what is paused is not asked any more.
        return {"workflow_id": f"paused {self.text()}", "reason": self.text()}

    def policy(self) -> dict[str, Any]:
        return {"document": {"tools_block": [f"blocked {self.text()}"]}}

    def reports(self) -> dict[str, Any]:
        return {name: self.text() for name in ("after", "workflow_id", "group_by")}


def _is_taken(text: str) -> bool:
    return 1 <= len(text) <= 256 and wire.flaw_in_text(text, wire.NAME_BYTES_MAX) is None


class Commands:
    """Sends commands to one engine, and returns what has to be the same on every engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        tenant = engine.hostile
        self._http = tenant.http
        self._root = f"{tenant.gateway.base_url}/api/v1/admin"
        self._own = {"organisation": tenant.organisation_id}
        self._admin = {"Authorization": f"Bearer {tenant.gateway.admin_key}"}

    def _asked(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Send JSON with escapes, which can say what UTF-8 cannot."""
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        content = None if body is None else json.dumps(body).encode()
        return self._http.request(method, path, content=content, headers=headers, **options)

    def _told(self, reply: httpx.Response) -> Any:
        document = reply.json() if reply.content else {}
        if not isinstance(document, dict):
            return reply.status_code, _lasting(document)
        same = ("error_code", "detail", "decision", "accepted", "duplicates", "rejected",
                "reserved_nanousd", "events", "call_id", "is_known", "spent_nanousd", "state",
                "scope_id", "workflow_id", "reason")  # fmt: skip
        return reply.status_code, {name: document[name] for name in same if name in document}

    def gate(self, body: Any, key: str) -> Any:
        reply = self._asked("POST", "/gate", body, headers={"Idempotency-Key": key})
        if reply.status_code == 200 and (held := reply.json().get("reservation_id")):
            self._engine.held.append(held)
        again = self._asked("POST", "/gate", body, headers={"Idempotency-Key": key})
        if reply.status_code == 200:
            assert again.json() == reply.json(), "the same question reserves once"
        return self._told(reply)

    def events(self, events: Any) -> Any:
        batch = {"batch_id": "b", "sent_at_ms": 1, "events": events}
        return self._told(self._asked("POST", wire.EVENTS_PATH, batch))

    def release(self, number: int, **body: str) -> Any:
        held = self._engine.held
        chosen = held.pop(number) if number < len(held) else "none"
        return self._told(
            self._asked("POST", wire.RELEASE_PATH, {"reservation_id": chosen, **body})
        )

    def lease(self, **body: Any) -> Any:
        return self._told(self._asked("POST", wire.LEASE_PATH, body))

    def spend(self, **query: str) -> Any:
        return self._told(self._asked("GET", wire.SPEND_PATH, params=_sendable(query)))

    def _administer(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        reply = self._asked(method, self._root + path, body, headers=self._admin,
                            params={**_sendable(query), **self._own})  # fmt: skip
        return self._told(reply)

    def budget(self, **body: Any) -> Any:
        return self._administer("PUT", "/budgets", body)

    def pause(self, **body: Any) -> Any:
        return self._administer("POST", "/control", {"action": "pause", **body})

    def policy(self, **body: Any) -> Any:
        return self._administer("PUT", "/policies/p", body)

    def reports(self, after: str, workflow_id: str, group_by: str) -> Any:
        ask = self._administer
        return [
            ask("GET", "/workflows", after=after),
            ask("GET", "/runs", after=after, workflow_id=workflow_id),
            ask("GET", "/events", workflow_id=workflow_id),
            ask("GET", "/control/named", workflow_id=workflow_id),
            ask("GET", "/usage", group_by=group_by),
        ]

    def everything(self) -> dict[str, Any]:
        """Return all that can be read in the end."""
        found = {
            path: self._administer("GET", path, limit="1000")
            for path in ("/workflows", "/runs", "/events", "/budgets", "/policies", "/ledger")
        }
        for group in ("workflow", "run", "agent", "chain", "user", "model", "provider", "type"):
            for since in ("0", "86400000"):
                query = {"group_by": group, "limit": "1000", "since_ms": since}
                found[f"{group} since {since}"] = self._administer("GET", "/usage", **query)
        return found


_CHANGING = ("_ms", "_at", "event_seq", "budget_id", "policy_id", "balance_id", "key_id", "seq",
             "organisation_id", "reservation_id")  # fmt: skip


def _lasting(value: Any) -> Any:
    """Return what does not change from one gateway to another."""
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if not k.endswith(_CHANGING)}
    return value


def _sendable(query: dict[str, str]) -> dict[str, str]:
    """Return a query that a client can send at all."""
    return {name: text.encode("utf-8", "replace").decode() for name, text in query.items()}


@pytest.mark.generator("commands with any text, on both engines")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.timeout(1200)
def test_both_engines_answer_any_text_alike(
    engines: list[Engine],
    seed: int,
    count_cases: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
    proof_scale: float,
) -> None:
    author, commands = Author(seed), [Commands(each) for each in engines]
    count = 250 if seed == 1 else round(3000 * proof_scale)
    with caplog.at_level(logging.ERROR, "guard.gateway"):
        for number in range(count):
            name, arguments = author.command()
            told = [getattr(each, name)(**arguments) for each in commands]
            assert told[0] == told[1], (number, name, arguments)
            statuses = [each[0] for each in (told[0] if name == "reports" else [told[0]])]
            assert all(status < 500 for status in statuses), (number, name, arguments)
            for engine in engines:
                engine.bystander.allowed(call_id=f"b-{number}")
        found = [each.everything() for each in commands]
        assert found[0] == found[1]
    assert all(status == 200 for status, _ in found[0].values())
    ours = ("guard.gateway", "uvicorn", "asyncio")  # and not of what other tests have left
    assert not [record for record in caplog.records if record.name.startswith(ours)]
    for engine in engines:
        assert engine.hostile.gateway.admin.verify_ledger()["problems"] == []
    count_cases(count)
