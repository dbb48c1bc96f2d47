"""A local server that speaks the Bot API over HTTP, for the real python-telegram-bot."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.waiting import WAIT_S

TOKEN: Final = "123456:canary-bot-token-ABCDEF"


class BotApi:
    """A Bot API server: long polling, sending, and the errors that Telegram gives."""

    def __init__(self) -> None:
        self.base_url = ""
        self.sent: list[dict[str, Any]] = []
        self.called: list[str] = []
        self.webhook: dict[str, Any] = {}
        # Groups: who administers them, what of them was deleted or edited, and how they answer.
        self.administrators: set[int] = set()
        self.deleted: list[int] = []
        self.edited: list[dict[str, Any]] = []
        self.answers: list[str] = []
        self.failing: set[str] = set()
        # Methods that answer 429 so many times, and then what they were asked.
        self.busy: dict[str, int] = {}
        self.retry_after_s = 1
        # Cleared: what bots want of this chat waits.
        self.open = asyncio.Event()
        self.open.set()
        self.stalled_chat: int | None = None
        self.acknowledged = 0
        self.done: list[tuple[str, dict[str, Any]]] = []
        self._updates: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._answered = asyncio.Condition()
        self._ids = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/bot{token}/{method}", self._call, methods=["GET", "POST"])]
        )

    def update(self, text: str, user: int, chat: str = "private", **extra: Any) -> dict[str, Any]:
        self._ids += 1
        chat_id = user if chat == "private" else -1000 - user
        command = text.split()[0] if text else ""
        message: dict[str, Any] = {
            "message_id": self._ids,
            "date": 1_790_000_000,
            "text": text,
            "from": {"id": user, "is_bot": False, "first_name": f"User {user}", **extra},
            "chat": {"id": chat_id, "type": chat},
        }
        if command.startswith("/"):
            entity = {"type": "bot_command", "offset": 0, "length": len(command)}
            message["entities"] = [entity]
        return {"update_id": self._ids, "message": message}

    async def say(self, text: str, user: int = 1, chat: str = "private", **extra: Any) -> None:
        async with self._news:
            self._updates.append(self.update(text, user, chat, **extra))
            self._news.notify_all()

    async def give(self, update: dict[str, Any]) -> None:
        """Let the bot receive an update of one's own making."""
        async with self._news:
            self._updates.append(update)
            self._news.notify_all()

    async def press(self, data: str, user: int, chat_id: int, message_id: int = 1) -> str:
        """Press a button and wait for what the bot answers to it."""
        before = len(self.answers)
        self._ids += 1
        query = {
            "id": str(self._ids),
            "from": {"id": user, "is_bot": False, "first_name": f"User {user}"},
            "chat_instance": "1",
            "data": data,
            "message": {
                "message_id": message_id,
                "date": 1_790_000_000,
                "text": "notice",
                "chat": {"id": chat_id, "type": "supergroup", "title": "Group"},
                "from": {"id": 1, "is_bot": True, "first_name": "Keys"},
            },
        }
        await self.give({"update_id": self._ids, "callback_query": query})
        async with asyncio.timeout(WAIT_S), self._answered:
            await self._answered.wait_for(lambda: len(self.answers) > before)
        return self.answers[-1]

    async def ask(self, text: str, user: int = 1, chat: str = "private") -> str:
        """Say something and wait for the bot's next answer."""
        before = len(self.sent)
        await self.say(text, user, chat)
        return (await self.wait_for(before + 1))[-1]["text"]

    async def wait_for(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(WAIT_S), self._answered:
            await self._answered.wait_for(lambda: len(self.sent) >= count)
        return self.sent

    async def _call(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN:
            return _failed(401, "Unauthorized")
        body = await request.body()
        if request.headers.get("content-type", "").startswith("application/json"):
            given = json.loads(body)
        else:
            given = dict(parse_qsl(body.decode()))
        method = request.path_params["method"]
        given = {**request.query_params, **given}
        self.called.append(method)
        if self.busy.get(method):
            self.busy[method] -= 1
            after = {"parameters": {"retry_after": self.retry_after_s}}
            return _failed(429, "Too Many Requests", after)
        if int(given.get("chat_id", 0)) == self.stalled_chat:
            await self.open.wait()
        if method == "getMe":
            me = {"id": 1, "is_bot": True, "first_name": "Keys", "username": "key_bot"}
            return _ok(me)
        if method == "getUpdates":
            self.acknowledged = int(given.get("offset", 0))
            return _ok(await self._poll(self.acknowledged))
        self.done.append((method, given))
        if method == "sendMessage":
            async with self._answered:
                self.sent.append(given)
                self._answered.notify_all()
            chat = {"id": int(given["chat_id"]), "type": "private"}
            return _ok({"message_id": 1, "date": 1_790_000_000, "chat": chat, "text": "x"})
        if method in self.failing:
            return _failed(400, "Bad Request: not enough rights")
        if method == "getChatMember":
            user = {"id": int(given["user_id"]), "is_bot": False, "first_name": "U"}
            if user["id"] not in self.administrators:
                return _ok({"status": "member", "user": user})
            return _ok({"status": "creator", "user": user, "is_anonymous": False})
        if method == "deleteMessage":
            self.deleted.append(int(given["message_id"]))
        if method == "editMessageText":
            self.edited.append(given)
            chat = {"id": int(given["chat_id"]), "type": "supergroup"}
            return _ok({"message_id": 1, "date": 1_790_000_000, "chat": chat, "text": "x"})
        if method == "answerCallbackQuery":
            async with self._answered:
                self.answers.append(given["text"])
                self._answered.notify_all()
        if method == "setWebhook":
            self.webhook = given
        return _ok(True)

    async def _poll(self, offset: int) -> list[dict[str, Any]]:
        # What an offset has passed is confirmed, and never given again.
        self._updates = [each for each in self._updates if each["update_id"] >= offset]

        def fresh() -> list[dict[str, Any]]:
            return [update for update in self._updates if update["update_id"] >= offset]

        async with self._news:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._news.wait_for(fresh)
            return fresh()[:100]


def _ok(result: Any) -> Response:
    return JSONResponse({"ok": True, "result": result})


def _failed(status: int, description: str, more: dict[str, Any] | None = None) -> Response:
    error = {"ok": False, "error_code": status, "description": description, **(more or {})}
    return JSONResponse(error, status_code=status)
