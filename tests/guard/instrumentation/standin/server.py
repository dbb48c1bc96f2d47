"""The stand-in as a server: one ASGI application on a thread and a free loopback port."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
import socket
import threading
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from guard.core.usage import Usage
from tests.guard.instrumentation.standin import anthropic, bedrock, cohere, google, ollama, openai
from tests.guard.instrumentation.standin.reply import Reply, encoded

_HOLD_S = 120.0


class StandIn:
    """Answers like every vendor. Set the attributes before a call.

    Attributes:
        url: where it listens.
        said: the usage of each answer, in the order of the requests.
        bodies: the requests' bodies.
        hold: a stream stops before its last third and waits for the client to go away.
        tear: a stream stops there and the connection breaks.
        encoding: ``gzip`` or ``deflate`` to compress every answer.
        instead: an answer to give instead of a vendor's, with its usage.
        status: of every answer.
        refuses: bodies that contain one of these are answered 400, which names it.
    """

    def __init__(self) -> None:
        self.said: list[Usage | None] = []
        self.bodies: list[bytes] = []
        self.hold = False
        self.tear = False
        self.encoding = ""
        self.instead: Reply | None = None
        self.status = 200
        self.refuses: tuple[bytes, ...] = ()
        self._numbers = itertools.count(1)
        # With the protocol named asyncio sends at once; else a head's body waits 40 ms for an ACK.
        self._listener = socket.socket(proto=socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=int(_HOLD_S),  # a client that is late finds its connection open
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True, name="vendor-stand-in")
        self._thread.start()

    def reset(self) -> None:
        """Forget what was said, and behave."""
        self.said.clear()
        self.bodies.clear()
        self.hold = self.tear = False
        self.encoding = ""
        self.instead = None
        self.status = 200
        self.refuses = ()

    def close(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join(120)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    async def _app(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # before its body was whole; the test that it was of may be over
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        reply = self.instead or self._reply(
            scope["method"], scope["path"], scope["query_string"], body
        )
        refused = next((name for name in self.refuses if name in body), None)
        if refused is not None:
            reply = Reply(None, b'{"error": {"message": "unknown option: %s"}}' % refused)
        self.said.append(reply.usage)
        headers = {"content-type": reply.content_type, **reply.headers}
        if self.encoding:
            headers["content-encoding"] = self.encoding
        await send(
            {
                "type": "http.response.start",
                "status": 400 if refused is not None else self.status,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        if not reply.events:
            whole = {"gzip": gzip.compress, "deflate": zlib.compress}.get(self.encoding, bytes)
            await send({"type": "http.response.body", "body": whole(reply.body)})
            return
        await self._stream(reply, receive, send)

    async def _stream(
        self,
        reply: Reply,
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        bits = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}.get(self.encoding)
        pack = None if bits is None else zlib.compressobj(wbits=bits)
        cut = len(reply.events) * 2 // 3 if self.hold or self.tear else len(reply.events)
        for event in reply.events[:cut]:
            if pack is not None:
                event = pack.compress(event) + pack.flush(zlib.Z_SYNC_FLUSH)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        if self.tear:
            raise ConnectionError("the stand-in breaks off, as asked")
        if self.hold:
            async with asyncio.timeout(_HOLD_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
            return
        end = b"" if pack is None else pack.flush()
        await send({"type": "http.response.body", "body": end})

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        number = next(self._numbers)
        if path.endswith(("/transcriptions", "/translations")):
            return openai.transcription(number, body)
        request = json.loads(body) if body[:1] == b"{" else {}
        if method == "GET":
            return openai.polled(number, path)
        if found := re.search(r"/models/([^/:]+):(\w+)$", path):
            model, verb = found.groups()
            if verb in ("embedContent", "batchEmbedContents"):
                return google.embed(number, model, request)
            return google.generate(
                number, model, stream=verb.startswith("stream"), as_sse=b"alt=sse" in query
            )
        if found := re.search(r"/model/([^/]+)/([a-z-]+)$", path):
            model, verb = found.groups()
            make = bedrock.converse if verb.startswith("converse") else bedrock.invoke
            return make(number, model, stream=verb.endswith("stream"))
        return self._by_path(number, path, request)

    def _by_path(self, number: int, path: str, request: dict[str, Any]) -> Reply:
        if path.endswith("/chat/completions"):
            return openai.chat(
                number, request, groq="/openai/v1/" in path, mistral="/mistral/" in path
            )
        if path.endswith("/embeddings"):
            return openai.embeddings(number, request, mistral="/mistral/" in path)
        for ending, make in (
            ("/completions", openai.completion),
            ("/responses", openai.responses),
            ("/images/generations", openai.images),
            ("/v1/messages", anthropic.messages),
            ("/v2/chat", cohere.chat),
            ("/v2/embed", cohere.embed),
            ("/v2/rerank", cohere.rerank),
            ("/api/embed", ollama.embed),
        ):
            if path.endswith(ending):
                return make(number, request)
        if path.endswith(("/api/chat", "/api/generate")):
            return ollama.answer(number, request, path.rsplit("/", 1)[-1])
        return Reply(None, encoded({"detail": "no such thing"}))
