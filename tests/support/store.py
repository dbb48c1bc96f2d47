"""A gateway's store with one organisation, for tests that talk to the storage port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

from guard.core import wire
from guard.gateway.domain.commands import (
    Actor,
    EncodedAnswer,
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.records import BudgetRule
from guard.gateway.ledger import catalogue, charge, directory, expiry, gate, leases
from guard.gateway.storage.port import Storage, Writer
from guard.gateway.unit.state import NO_ORGANISATION, touches_of, within

ACTOR = Actor("test")
DAY = 86_400_000


def decide(storage: Writer, command: GateCommand) -> Awaitable[EncodedAnswer]:
    return storage.write(touches_of(command), gate.gate, command)


def ingest(storage: Writer, command: IngestCommand) -> Awaitable[EncodedAnswer]:
    return storage.write(touches_of(command), charge.ingest, command)


def release(storage: Writer, command: ReleaseCommand) -> Awaitable[EncodedAnswer]:
    return storage.write(touches_of(command), expiry.release, command)


def update_lease(storage: Writer, command: LeaseCommand) -> Awaitable[EncodedAnswer]:
    return storage.write(touches_of(command), leases.update, command)


@attrs.define
class Clock:
    now: int = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@attrs.define
class Store:
    storage: Storage
    clock: Clock
    org: str
    reopen: Callable[[], Any]
    post_commit_events: list[Any]

    def request(
        self, key: str | None = None, fingerprint: bytes = b"", key_id: str = "k"
    ) -> RequestOrigin:
        return RequestOrigin(organisation_id=self.org, key_id=key_id, idempotency_key=key,
                             fingerprint=fingerprint)  # fmt: skip

    async def gate(self, amount: int = 10, key: str | None = None, **fields: Any) -> Any:
        call = wire.GateRequest(call_id="c", kind="call", function="f", **fields)
        command = GateCommand(request=self.request(key), call=call, declared_nanousd=amount)
        return await decide(self.storage, command)

    async def charge(
        self, event_id: str, cost: int, key: str | None = None, flags: str = "", **fields: Any
    ) -> Any:
        event = wire.Event(event_id=event_id, type="llm", at_ms=1, **fields)
        command = IngestCommand(
            request=self.request(key), events=[PricedEvent(event, b"{}", cost=cost, flags=flags)]
        )
        return await ingest(self.storage, command)

    async def budget(self, limit: int, **fields: Any) -> BudgetRule:
        wanted = {"scope_kind": "organisation", "scope_id": "", "window": "total", **fields}
        return await self.storage.write(
            within(self.org),
            catalogue.put_budget,
            ACTOR,
            BudgetRule(budget_id="", organisation_id=self.org, limit=limit, **wanted),
        )


@contextlib.asynccontextmanager
async def opened_store(
    factory: Callable[..., Storage], folder: Path, clock: Clock | None = None
) -> AsyncIterator[Store]:
    """Open a store with one organisation; its ledger must add up at the end."""
    clock = clock or Clock()
    events: list[Any] = []

    async def opened() -> Storage:
        made = factory(folder, clock_ms=clock)
        await made.open(events.extend)
        return made

    async def reopen() -> None:
        await store.storage.close()
        store.storage = await opened()

    made = await opened()
    org = (
        await made.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(made, clock, org, reopen, events)
    yield store
    assert (await store.storage.verify_ledger()).problems == []
    await store.storage.close()
