"""The bot's webhook as an ASGI application, for operators who prefer it to polling."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spamdetect.service.bot import BotApp, TokenBot

_MAX_BYTES = 1 << 20


def webhook_app(bot: TokenBot, running: BotApp, webhook_url: str) -> Starlette:
    """Create the application that Telegram calls.

    Args:
        bot: The bot.
        running: What :meth:`TokenBot.running` yielded.
        webhook_url: The public address; its path is the route.
    """

    async def take(request: Request) -> Response:
        size, chunks = 0, []
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MAX_BYTES:
                return Response(status_code=413)
            chunks.append(chunk)
        secret = request.headers.get("x-telegram-bot-api-secret-token", "")
        try:
            body = json.loads(b"".join(chunks))
        except (ValueError, RecursionError):
            return Response(status_code=400)
        if not isinstance(body, dict):
            return Response(status_code=400)
        taken = await bot.take_webhook(running, secret, body)
        return Response(status_code=200 if taken else 403)

    path = urlsplit(webhook_url).path or "/"
    return Starlette(routes=[Route(path, take, methods=["POST"])])
