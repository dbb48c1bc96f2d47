"""A client of the control socket that asks for decisions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from guard.core import wire

WAIT_S = 60.0


def call(number: object, **fields: Any) -> dict[str, Any]:
    return {"call_id": f"call-{number}", "kind": "call", "function": "work", **fields}


def ask(ask_id: str, body: Any, op: str = "gate") -> dict[str, Any]:
    return {"id": ask_id, "op": op, "body": body}


def frame(asks: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"type": "asks", "asks": list(asks)})


class Asker:
    """A client of the control socket that sends asks and collects what it is told."""

    def __init__(self, channel: ClientConnection) -> None:
        self.channel = channel
        self.told: dict[str, tuple[int, Any]] = {}
        self.frames = 0
        self.pushed: list[dict[str, Any]] = []

    async def send(self, *asks: dict[str, Any]) -> None:
        await self.channel.send(frame(asks))

    async def read(self) -> None:
        """Take one frame."""
        async with asyncio.timeout(WAIT_S):
            message = json.loads(await self.channel.recv())
        if message["type"] != "answers":
            self.pushed.append(message)
            return
        self.frames += 1
        for answer in message["answers"]:
            assert answer["id"] not in self.told, "one answer to each request"
            self.told[answer["id"]] = answer["status"], answer["body"]

    async def ask(self, *asks: dict[str, Any]) -> list[tuple[int, Any]]:
        """Ask, and return the answers in the order of the questions."""
        await self.send(*asks)
        while any(each["id"] not in self.told for each in asks):
            await self.read()
        return [self.told[each["id"]] for each in asks]


@contextlib.asynccontextmanager
async def asker(base_url: str, api_key: str, **options: Any) -> AsyncIterator[Asker]:
    headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3"}
    url = base_url.replace("http", "ws", 1) + f"{wire.CONTROL_WS_PATH}?after=0"
    options.setdefault("open_timeout", WAIT_S)
    async with connect(url, additional_headers=headers, proxy=None, **options) as channel:
        yield Asker(channel)


async def close_code(channel: ClientConnection) -> int | None:
    """Read until the gateway closes the socket; return the code of its close frame."""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await channel.recv()
        await channel.wait_closed()
    return channel.close_code
