"""A process that works for several callers: its gateway, and a vendor that bills each of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import attrs
import httpx

import guard
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardError,
    WorkflowKilledInterrupt,
)
from guard.contexts.caller import Caller, caller, introduce
from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway
from guard.runtime.runtime import GuardRuntime
from tests.support.closing import close_server, turns

MODEL: Final = "many-callers"
TOKEN: Final = 1_000
"""Nano-dollars for each token."""
PROMPT: Final = 10
_numbers = itertools.count(1)


class Vendor:
    """Speaks OpenAI's chat completions; bills each of its own keys.

    Attributes:
        billed: nano-dollars by key.
        held: how many requests wait for :attr:`goes_on`.
        goes_on: ends the wait of those that are ``slow``.
        url: of the vendor.
    """

    def __init__(self) -> None:
        self.billed: Counter[str] = Counter()
        self.held = 0
        self.goes_on = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(
            asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError
        ):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length:")[2].partition("\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                answer = await self._answer(head, body)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(answer), answer)
                )
                await writer.drain()
        writer.close()

    async def _answer(self, head: str, body: dict[str, Any]) -> bytes:
        who = head.partition("bearer ")[2].partition("\r\n")[0]
        word = body["messages"][0]["content"]
        if word == "slow":
            self.held += 1
            await self.goes_on.wait()
        usage = {"prompt_tokens": PROMPT, "completion_tokens": body["max_tokens"]}
        self.billed[who] += sum(usage.values()) * TOKEN
        message: dict[str, Any] = {"role": "assistant", "content": "ok"}
        if word.startswith("use "):
            function = {"name": word[4:], "arguments": "{}"}
            message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": f"r{next(_numbers)}", "object": "chat.completion", "model": MODEL}
        return json.dumps({**answer, "choices": [choice], "usage": usage}).encode()


@attrs.frozen
class Organisation:
    """One organisation, and what its operator can do."""

    name: str
    admin: AdminClient

    @classmethod
    def of(cls, gateway: Gateway) -> Organisation:
        """Make one, with the model's price."""
        name = f"many-{next(_numbers)}"
        gateway.admin.create_organisation(name)
        admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=name)
        admin.set_price(MODEL, input_per_mtok=TOKEN * 10**6, output_per_mtok=TOKEN * 10**6)
        return cls(name, admin)

    def committed(self) -> int:
        """Return what its one budget was charged; nothing if no request has come through yet."""
        balances = self.admin.ledger()
        assert len(balances) <= 1
        return sum(int(balance["committed"]) for balance in balances)

    def in_doubt(self) -> int:
        """Return what of it was charged without an answer that shows it."""
        found = self.admin.events(type="llm")
        return sum(each["cost_nanousd"] for each in found if "in_doubt" in each["flags"])


@attrs.define
class Customer:
    """A caller of the process: its key, and what its programs do.

    Attributes:
        name: by which the vendor bills it.
        organisation: that its key is of.
        key, key_id: its own.
        inside_a_call: whether its requests are made in a protected call.
        who: as it was introduced last.
    """

    name: str
    organisation: Organisation
    key: str
    key_id: str
    vendor: Vendor
    http: httpx.AsyncClient
    inside_a_call: bool = False
    who: Caller = attrs.field(init=False)

    async def introduced(self) -> Customer:
        """Introduce it, or look whether it still may come."""
        self.who = await introduce(self.key)
        return self

    async def request(
        self,
        word: str = "hello",
        *,
        workflow: str = "w",
        run_id: str = "r",
        max_tokens: int = 10,
    ) -> BaseException | None:
        """Send one request; return what it was refused with."""
        body = {
            "model": MODEL, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": word}],
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {self.name}"}
        url = f"{self.vendor.url}/v1/chat/completions"
        try:
            with caller(self.who, run_id=run_id), named(workflow, run_id):
                send = protected_post if self.inside_a_call else httpx.AsyncClient.post
                answer = await send(self.http, url, json=body, headers=headers)
                assert answer.status_code == 200
        except (GuardError, WorkflowKilledInterrupt) as exc:
            return exc
        return None

    async def call(self, workflow: str = "w", run_id: str = "r") -> BaseException | None:
        """Make one protected call of a tool named ``act``; return what it was refused with."""
        try:
            with caller(self.who), named(workflow, run_id):
                await act()
        except (GuardError, WorkflowKilledInterrupt) as exc:
            return exc
        return None


@guard.protect
async def protected_post(http: httpx.AsyncClient, url: str, **options: Any) -> httpx.Response:
    """Send a request."""
    return await http.post(url, **options)


@guard.protect
async def act() -> None:
    """Do what a tool does."""


@contextlib.contextmanager
def named(workflow: str, run_id: str) -> Any:
    """Open a workflow under a run's id that somebody else has given."""
    scope = guard.scope.scope.current_scope
    token = scope.set(scope.get().evolve(workflow_id=workflow, run_id=run_id))
    try:
        yield
    finally:
        scope.reset(token)


@attrs.define
class Process:
    """A process with a proxy's key, and callers of two organisations: two of one, one of another.

    Attributes:
        a, a2: of the organisation ``own``.
        b: of the organisation ``other``.
        loses_events: whether some end with a key that is no longer valid.
    """

    gateway: Gateway
    url: str
    own: Organisation
    other: Organisation
    a: Customer
    a2: Customer
    b: Customer
    proxy: str
    proxy_id: str
    vendor: Vendor
    runtime: GuardRuntime
    loses_events: bool = False

    @property
    def customers(self) -> list[Customer]:
        """All of them."""
        return [self.a, self.a2, self.b]

    async def started(self, **settings: Any) -> None:
        """Start the runtime, and introduce everybody."""
        self.runtime = await GuardRuntime.start(self.proxy, self.url, **settings)
        for each in self.customers:
            await each.introduced()

    async def delivered(self) -> None:
        """Deliver what everybody's programs have used, once the gateway can be reached again."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await asyncio.to_thread(self.runtime.flush, 60)
                except BreakerTransportError:
                    await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def process_for(
    gateway: Gateway, url: str | None = None, **settings: Any
) -> AsyncIterator[Process]:
    """Start one: two organisations, three callers, a vendor; the ledger adds up in the end.

    Args:
        gateway: of the organisations.
        url: by which the process reaches it, if there is something in between.
        settings: of the runtime.
    """
    own, other = await asyncio.to_thread(
        lambda: (Organisation.of(gateway), Organisation.of(gateway))
    )
    with contextlib.closing(own.admin), contextlib.closing(other.admin):
        async with _process_for(gateway, url, own, other, settings) as process:
            yield process
        problems = await asyncio.to_thread(gateway.admin.verify_ledger)
        assert problems["problems"] == []


@contextlib.asynccontextmanager
async def _process_for(
    gateway: Gateway,
    url: str | None,
    own: Organisation,
    other: Organisation,
    settings: dict[str, Any],
) -> AsyncIterator[Process]:
    made = await asyncio.to_thread(
        lambda: own.admin.create_key_full("proxy", role="proxy", every_organisation=True)
    )
    vendor = Vendor()
    server = await asyncio.start_server(vendor.serve, "127.0.0.1", 0)
    vendor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
        customers = []
        for name, organisation in (("a", own), ("a2", own), ("b", other)):
            key = await asyncio.to_thread(organisation.admin.create_key_full, name)
            customers.append(
                Customer(name, organisation, key["api_key"], key["key"]["key_id"], vendor, http)
            )
        process = Process(
            gateway,
            url or gateway.base_url,
            own,
            other,
            *customers,
            made["api_key"],
            made["key"]["key_id"],
            vendor,
            None,
        )  # type: ignore[arg-type]
        await process.started(**settings)
        try:
            yield process
        finally:
            vendor.goes_on.set()
            with contextlib.ExitStack() as stack:
                if process.loses_events:
                    stack.enter_context(contextlib.suppress(BreakerTransportError))
                await asyncio.to_thread(process.runtime.shutdown, 60)
            await close_server(server)
    await turns()  # its connections end with those of the client
