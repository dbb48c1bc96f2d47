"""The bot's webhook as an ASGI application, for operators who prefer it to polling."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spamdetect.service.bot import TokenBot
from spamdetect.service.inbox import Inbox
from spamdetect.service.keys import StoreError

_MAX_BYTES = 1 << 20


def webhook_app(bot: TokenBot, inbox: Inbox, webhook_url: str) -> Starlette:
    """Create the application that Telegram calls.

    Args:
        bot: The bot.
        inbox: Where its updates go; Telegram is told that one has arrived when it is stored.
        webhook_url: The public address; its path is the route.
    """

    async def take(request: Request) -> Response:
        if not bot.is_telegram(request.headers.get("x-telegram-bot-api-secret-token", "")):
            return Response(status_code=403)
        size, chunks = 0, []
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MAX_BYTES:
                return Response(status_code=413)
            chunks.append(chunk)
        try:
            body = json.loads(b"".join(chunks))
        except (ValueError, RecursionError):
            return Response(status_code=400)
        if not isinstance(body, dict):
            return Response(status_code=400)
        try:
            await inbox.take([body])
        except StoreError:
            return Response(status_code=503)
        return Response(status_code=200)

    path = urlsplit(webhook_url).path or "/"
    return Starlette(routes=[Route(path, take, methods=["POST"])])
