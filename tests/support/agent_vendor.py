"""A stand-in of the vendors that coding agents talk to: it follows a script, and keeps its bills.

It speaks Anthropic's messages, OpenAI's responses and chat completions and Gemini's
``generateContent``, whole and streamed, over HTTP. It bills a request as vendors do: its prompt,
and what it has said of the answer until it was done or nobody listened any more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import attrs
import uvicorn

from guard.proxy.refusals import Dialect, ErrorAnswer
from tests.support import agent_answers
from tests.support.agent_answers import Counts, Turn
from tests.support.waiting import WAIT_S

WORD_S: Final = 0.03
"""Between two words of an answer that goes on."""

_SECRET: Final = frozenset({"authorization", "x-api-key", "x-goog-api-key", "cookie"})
_SHAPES: Final = (
    (re.compile(r"/v1/messages$"), "anthropic"),
    (re.compile(r"/responses$"), "responses"),
    (re.compile(r"/chat/completions$"), "chat"),
    (re.compile(r":(?:stream)?[gG]enerateContent$"), "gemini"),
)
_DIALECTS: Final = {"anthropic": Dialect.ANTHROPIC, "responses": Dialect.RESPONSES,
                    "chat": Dialect.CHAT, "gemini": Dialect.GEMINI}  # fmt: skip


@attrs.frozen
class Asked:
    """A request to a model.

    Attributes:
        shape: its format, as in ``agent_answers.SHAPES``.
        model: that is to answer.
        tools: the names of the tools that it offers.
        turns: how many answers its conversation has.
        results: how many results of tools.
        most: output tokens that it allows; None without a limit.
        body: all of it.
    """

    shape: str
    model: str
    tools: frozenset[str]
    turns: int
    results: int
    most: int | None
    body: dict[str, Any]

    def says(self, text: str) -> bool:
        """Tell whether a text is anywhere in it."""
        return text in json.dumps(self.body, ensure_ascii=False)


@attrs.frozen
class Seen:
    """A request of any kind, without what is secret in it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keys: tuple[str, ...]


@attrs.define
class Bill:
    """What a request cost; ``is_whole`` once its answer was sent to its end."""

    model: str
    fresh: int
    cached: int
    asked: Asked
    output: int = 0
    is_whole: bool = False


@attrs.frozen
class Refusing:
    """Answers requests with an error: with a status, or in a stream after its first words.

    Attributes:
        status: of the error.
        in_stream: whether it comes in a stream.
        once: whether the next request is answered again.
        resets: whether the connection is closed instead, in mid-stream.
    """

    status: int
    in_stream: bool = False
    once: bool = False
    resets: bool = False


Script = Callable[[Asked], Turn]


class AgentVendor:
    """Answers by a script. Set the attributes before a program starts.

    Attributes:
        url: where it listens.
        script: says what a request with tools is answered.
        refusing: answers instead, if it is not None.
        cached: share of a prompt that is billed as read from the cache.
        accepts: the keys that pay; None: each does.
        paid_with: the keys of those to models, in their order.
        seen: every request that came.
        asked: those to models.
        bills: of those that were answered.
        speaks: set while an answer goes on.
        enough: ends the answers that go on.
    """

    def __init__(self) -> None:
        self.script: Script = lambda asked: Turn()
        self.refusing: Refusing | None = None
        self.cached = 0.0
        self.accepts: frozenset[str] | None = None
        self.paid_with: list[str] = []
        self.seen: list[Seen] = []
        self.asked: list[Asked] = []
        self.bills: list[Bill] = []
        self.speaks = threading.Event()
        self.enough = threading.Event()
        self._numbers = itertools.count(1)
        self._listener = socket.socket(proto=socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._app, interface="asgi3", log_level="critical", lifespan="off", ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True, name="agent-vendor")
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self.enough.set()
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        document = json.loads(body) if body[:1] == b"{" else {}
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["path"]
        self.seen.append(Seen(
            scope["method"], path, scope["query_string"].decode(),
            {name: "..." if name in _SECRET else value for name, value in headers.items()},
            tuple(document),
        ))  # fmt: skip
        shape = next((name for pattern, name in _SHAPES if pattern.search(path)), None)
        given = headers.get("authorization", "").removeprefix("Bearer ")
        key = headers.get("x-api-key") or given
        if "upgrade" in headers:
            await _answer(send, 426, b"a WebSocket is not served")
        elif shape is None or scope["method"] != "POST":
            await _answer(send, *_other(scope["method"], path))
        elif self.accepts is not None and key not in self.accepts:
            await _answer(send, 401, b'{"error": {"message": "no such key"}}')
        else:
            self.paid_with.append(key)
            await self._model(shape, path, scope["query_string"], document, receive, send)

    async def _model(
        self, shape: str, path: str, query: bytes, body: dict[str, Any], receive: Any, send: Any
    ) -> None:
        asked = _asked(shape, path, body)
        self.asked.append(asked)
        refusing = self.refusing
        if refusing is not None and refusing.once:
            self.refusing = None
        dialect = _DIALECTS[shape]
        told = ErrorAnswer(0 if refusing is None else refusing.status, "GD-B004",
                           "guard: the limit of $1.00 is reached")  # fmt: skip
        if refusing is not None and not (refusing.in_stream or refusing.resets):
            headers = [pair for pair in told.headers() if pair[0] != b"content-type"]
            await _answer(send, refusing.status, told.body(dialect), headers)
            return
        # Far below what a prompt of this size can have: four bytes are a token, or fewer.
        prompt = max(1, len(json.dumps(body, ensure_ascii=False)) // 8)
        cached = int(prompt * self.cached)
        is_work = bool(asked.tools) or asked.says("this is the last answer")
        turn = self.script(asked) if is_work else Turn("A title")
        if asked.most is not None:
            thought = max(0, min(turn.thought, asked.most - len(turn.text.split())))
            turn = attrs.evolve(turn, thought=thought)
        bill = Bill(asked.model, prompt - cached, cached, asked)
        self.bills.append(bill)
        number = next(self._numbers)
        if not (body.get("stream") or path.endswith(":streamGenerateContent")):
            bill.output = turn.thought + len(turn.text.split())
            bill.is_whole = True
            await _answer(send, 200, agent_answers.whole(
                shape, turn, number, asked.model, _counts(bill)
            ))  # fmt: skip
            return
        await asyncio.sleep(turn.first_s)
        await _start(send, 200, b"text/event-stream")
        await _part(send, agent_answers.begin(shape, number, asked.model, _counts(bill)))
        gone = asyncio.ensure_future(_gone(receive))
        said = ""
        try:
            async for text in self._words(turn, gone):
                if turn.between_s:
                    await asyncio.sleep(turn.between_s)
                    await _part(send, agent_answers.ping(shape))
                said += text
                bill.output += 1
                await _part(send, agent_answers.word(
                    shape, text, number, asked.model, _counts(bill)
                ))  # fmt: skip
                if refusing is not None and refusing.resets:
                    raise ConnectionResetError  # the server closes what has no end
                if refusing is not None:
                    await _part(send, told.event(dialect), more=False)
                    return
            if gone.done():
                return
            bill.output += turn.thought
            bill.is_whole = True
            await _part(send, agent_answers.end(
                shape, turn, said, number, asked.model, _counts(bill)
            ), more=False)  # fmt: skip
        finally:
            self.speaks.clear()
            gone.cancel()

    async def _words(self, turn: Turn, gone: asyncio.Future[None]) -> Any:
        words = re.findall(r"\S+\s*", turn.text)
        if not turn.goes_on:
            for each in words:
                yield each
            return
        for number, each in enumerate(itertools.cycle(words)):
            if self.enough.is_set() or gone.done():
                return
            yield each
            if number == 2:
                self.speaks.set()
            await asyncio.sleep(WORD_S)


def _asked(shape: str, path: str, body: dict[str, Any]) -> Asked:
    model = str(body.get("model") or path.rpartition("/")[2].partition(":")[0])
    declared = body.get("tools") or []
    if shape == "gemini":
        declared = [each for tool in declared for each in tool.get("functionDeclarations", ())]
    names = {str((tool.get("function") or tool).get("name")) for tool in declared}
    messages = body.get("messages") or body.get("contents") or body.get("input") or []
    if isinstance(messages, str):
        messages = []
    turns = sum(each.get("role") in ("assistant", "model") for each in messages)
    text = json.dumps(messages)
    kinds = '"tool_result"', '"function_call_output"', '"functionResponse"', '"role": "tool"'
    config = body.get("generationConfig") or {}
    limits = (body.get(f"max_{name}tokens") for name in ("", "completion_", "output_"))
    most = next(filter(None, limits), config.get("maxOutputTokens"))
    return Asked(shape, model, frozenset(names), turns, sum(map(text.count, kinds)), most, body)


def _counts(bill: Bill) -> Counts:
    return Counts(bill.fresh, bill.cached, bill.output)


def _other(method: str, path: str) -> tuple[int, bytes]:
    if path.endswith(("/count_tokens", ":countTokens")):
        return 200, b'{"input_tokens": 100, "totalTokens": 100}'
    if path == "/api/tags":  # of Ollama
        return 200, b'{"models": [{"name": "gpt-5", "model": "gpt-5"}]}'
    if path.endswith("/version"):
        return 200, b'{"version": "1.0.0"}'
    if path.endswith("/models"):
        return 200, b'{"object": "list", "data": [], "models": []}'
    return 404, b'{"error": {"message": "no such thing", "type": "not_found_error"}}'


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(
    send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", b"%d" % len(body))
    await _start(send, status, b"application/json", [length, *(headers or [])])
    await _part(send, body, more=False)


async def _start(
    send: Any, status: int, kind: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    pairs = [(b"content-type", kind), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _part(send: Any, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
