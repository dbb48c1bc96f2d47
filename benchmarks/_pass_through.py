"""A bare pass-through in Starlette and httpx: what a proxy costs that does nothing else.

Run as ``python _pass_through.py UPSTREAM``; prints where it listens, ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_DROPPED = {"host", "connection", "transfer-encoding"}


def application(upstream: str) -> Starlette:
    """Return the pass-through."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    client = httpx.AsyncClient(timeout=None, limits=limits)  # as long as it takes

    async def forward(request: Request) -> StreamingResponse:
        body = await request.body()
        headers = [(k, v) for k, v in request.headers.items() if k not in _DROPPED]
        path = request.url.path.partition("/openai")[2]
        sent = httpx.Request(request.method, upstream + path, headers=headers, content=body)
        answer = await client.send(sent, stream=True)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()

        back = {k: v for k, v in answer.headers.items() if k not in _DROPPED}
        return StreamingResponse(chunks(), answer.status_code, back)

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])


async def _main() -> None:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    config = uvicorn.Config(application(sys.argv[1]), log_level="critical", lifespan="off")
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(_main())
