"""The bot in a group: a server of the Bot API, a store on each engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from spamdetect.engine import Engine
from spamdetect.service.app import open_limits, open_store
from spamdetect.service.bot import BotSettings, TokenBot
from spamdetect.service.metrics import Metrics
from spamdetect.service.moderation import GroupModerator
from spamdetect.service.server import serving_app
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.store import KeyStore
from tests.support.bot_api import TOKEN, BotApi
from tests.support.moderated_group import ADMIN, Room, Running
from tests.support.private_server import schema_in


@pytest_asyncio.fixture
async def api() -> AsyncIterator[BotApi]:
    bot_api = BotApi()
    bot_api.administrators = {ADMIN}
    async with serving_app(bot_api.app(), ServiceSettings(port=0)) as listening:
        bot_api.base_url = listening.base_url
        yield bot_api
        bot_api.open.set()


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyStore]:
    async with contextlib.AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'folder' / 'keys.sqlite3'}"
        if request.param == "postgres":
            server_url = request.getfixturevalue("postgres_url")
            url = await stack.enter_async_context(schema_in(server_url))
        opened = await open_store(url)
        yield opened
        await opened.close()


@pytest.fixture
def running(api: BotApi, store: KeyStore) -> Running:
    @contextlib.asynccontextmanager
    async def run() -> AsyncIterator[Room]:
        limits = await open_limits(ServiceSettings(), store, Metrics())
        settings = BotSettings(TOKEN, api_url=api.base_url, commands_per_minute=10_000)
        bot = TokenBot(settings, store, limits, GroupModerator(store, Engine.load))
        async with bot.running():
            yield Room(api)
        await limits.close()

    return run
