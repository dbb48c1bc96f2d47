"""A group chat that the bot moderates, and the people in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tests.support.bot_api import BotApi

SPAM = "Congratulations! You won a free prize. Claim now: http://bit.ly/x1 or call 0800 123 456"
HAM = "Hi Anna, the meeting is moved to Thursday at ten. See you there, Tom"
ADMIN, EVE, BOB = 10, 66, 77
GROUP, OTHER_GROUP = -100_500, -100_600


class Room:
    """A group chat with the bot in it."""

    def __init__(self, api: BotApi, chat_id: int = GROUP) -> None:
        self.api = api
        self.chat_id = chat_id

    async def say(self, text: str, user: int = EVE, *, edited: bool = False, **fields: Any) -> int:
        """Say something; returns the message's id."""
        update = self.api.update(text, user, "supergroup")
        message = update.pop("message")
        message["chat"] = {"id": self.chat_id, "type": "supergroup", "title": "Group"}
        message.update(fields)
        update["edited_message" if edited else "message"] = message
        await self.api.give(update)
        return int(message["message_id"])

    async def ask(self, text: str, user: int = ADMIN, **fields: Any) -> dict[str, Any]:
        """Say something and wait for what the bot sends next."""
        before = len(self.api.sent)
        await self.say(text, user, **fields)
        return (await self.api.wait_for(before + 1))[before]

    async def settle(self) -> None:
        """Wait until the bot has read everything that was said."""
        await self.ask("/help", user=BOB)


Running = Callable[[], contextlib.AbstractAsyncContextManager[Room]]
