"""The key bot against a local server that speaks the Bot API over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from spamdetect import AsyncSpamClient, SpamAuthError, SpamRateLimitError
from spamdetect.engine import Engine
from spamdetect.errors import SpamConfigError
from spamdetect.service.app import open_limits, open_store
from spamdetect.service.bot import BotSettings, TokenBot, read_bot_settings
from spamdetect.service.metrics import Metrics
from spamdetect.service.moderation import GroupModerator
from spamdetect.service.server import serving_app
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.store import KeyStore
from spamdetect.service.webhook import webhook_app
from spamdetect.testing import run_service_async
from tests.support.bot_api import TOKEN, BotApi

pytestmark = pytest.mark.asyncio

_SECRET = "webhook-secret-0123456789"
_KEY = re.compile(r"spam_[a-z0-9]{12}_[\w-]{43}")


@pytest_asyncio.fixture
async def api() -> AsyncIterator[BotApi]:
    bot_api = BotApi()
    async with serving_app(bot_api.app(), ServiceSettings(port=0)) as listening:
        bot_api.base_url = listening.base_url
        yield bot_api


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.sqlite3'}"


@pytest_asyncio.fixture
async def store(database_url: str) -> AsyncIterator[KeyStore]:
    opened = await open_store(database_url)
    yield opened
    await opened.close()


def _moderator(store: KeyStore) -> GroupModerator:
    return GroupModerator(store, Engine.load)


Running = Callable[..., contextlib.AbstractAsyncContextManager[Any]]


@pytest.fixture
def running(api: BotApi, store: KeyStore) -> Running:
    @contextlib.asynccontextmanager
    async def run(**settings: Any) -> AsyncIterator[Any]:
        limits = await open_limits(ServiceSettings(), store, Metrics())
        bot = TokenBot(
            BotSettings(TOKEN, api_url=api.base_url, **settings), store, limits, _moderator(store)
        )
        async with bot.running() as (_, inbox):
            yield bot, inbox
        await limits.close()

    return run


async def test_a_token_opens_the_service_at_once_and_a_revoked_one_is_refused_at_once(
    api: BotApi, running: Running, database_url: str
) -> None:
    async with running(), run_service_async(database_url=database_url) as service:
        answer = await api.ask("/token")
        found = _KEY.search(answer)
        assert found is not None
        async with AsyncSpamClient(service.base_url, found[0]) as spam:
            assert (await spam.predict("hello")).text_length == 5
            assert "revoked" in await api.ask("/revoke")
            with pytest.raises(SpamAuthError) as caught:
                await spam.predict("hello")
            assert caught.value.error_code == "INVALID_API_KEY"
        assert "no key" in await api.ask("/revoke")


async def test_a_second_token_replaces_the_first(
    api: BotApi, running: Running, database_url: str
) -> None:
    async with running(), run_service_async(database_url=database_url) as service:
        first = _KEY.search(await api.ask("/token"))
        second_answer = await api.ask("/token")
        second = _KEY.search(second_answer)
        assert first is not None
        assert second is not None
        assert first[0] != second[0]
        assert "earlier key no longer works" in second_answer
        async with (
            AsyncSpamClient(service.base_url, first[0]) as old,
            AsyncSpamClient(service.base_url, second[0]) as new,
        ):
            with pytest.raises(SpamAuthError):
                await old.predict("hello")
            await new.predict("hello")


async def test_two_users_never_share(api: BotApi, running: Running, store: KeyStore) -> None:
    async with running():
        keys = {}
        for user in (1, 2, 3):
            before = len(api.sent)
            await api.say("/token", user)
            sent = (await api.wait_for(before + 1))[-1]
            assert int(sent["chat_id"]) == user
            found = _KEY.search(sent["text"])
            assert found is not None
            keys[user] = found[0]
        assert len(set(keys.values())) == 3
        await api.ask("/revoke", 2)
        for user, expected in ((1, True), (2, False), (3, True)):
            assert (await store.active_key_of(f"telegram:{user}") is not None) is expected


async def test_usage_and_limits_of_a_key(api: BotApi, running: Running, database_url: str) -> None:
    async with (
        running(rate_per_minute=0, quota_per_day=3),
        run_service_async(database_url=database_url) as service,
    ):
        assert "no key" in await api.ask("/usage")
        found = _KEY.search(await api.ask("/token"))
        assert found is not None
        assert "0 requests today" in await api.ask("/usage")
        async with AsyncSpamClient(service.base_url, found[0], timeout=30) as spam:
            for _ in range(3):
                await spam.predict("hello")
            with pytest.raises(SpamRateLimitError) as caught:
                await spam.predict("hello")
            assert caught.value.error_code == "QUOTA_EXCEEDED"
        store = await open_store(database_url)
        async with asyncio.timeout(60):
            while "3 requests today" not in await _usage_of(store, found[0]):
                await asyncio.sleep(0.05)
        await store.close()
        assert "3 requests today (UTC). It allows any rate and 3 a day" in await api.ask("/usage")


async def _usage_of(store: KeyStore, api_key: str) -> str:
    import time

    from spamdetect.service.limits import utc_day

    return f"{await store.usage(api_key.split('_')[1], utc_day(time.time()))} requests today"


async def test_help_lists_the_commands(api: BotApi, running: Running) -> None:
    async with running(service_url="https://spam.example"):
        for command in ("/start", "/help"):
            answer = await api.ask(command)
            assert "https://spam.example" in answer
            for name in ("/token", "/usage", "/revoke", "x-api-key"):
                assert name in answer
        assert "setMyCommands" in api.called


async def test_anything_else_in_private_is_answered_with_help(
    api: BotApi, running: Running
) -> None:
    async with running():
        for said in ("hello, how do I get a key?", "/nonsense", ""):
            assert "/token" in await api.ask(said)
        before = len(api.sent)
        await api.say("hello everybody", chat="group")
        assert "/token" in await api.ask("hello again", user=2)
        assert len(api.sent) == before + 1


async def test_a_key_can_be_revoked_in_the_middle_of_a_flood(
    api: BotApi, running: Running, store: KeyStore
) -> None:
    async with running(commands_per_minute=2):
        await api.ask("/token")
        while "Slow down" not in await api.ask("/usage"):
            pass
        assert "is revoked" in await api.ask("/revoke")
        assert await store.active_key_of("telegram:1") is None


async def test_a_group_gets_no_key(api: BotApi, running: Running, store: KeyStore) -> None:
    async with running():
        for kind in ("group", "supergroup"):
            answer = await api.ask("/token", chat=kind)
            assert "private chat" in answer
            assert _KEY.search(answer) is None
        assert not await store.list_keys()


async def test_another_bot_gets_no_answer(api: BotApi, running: Running, store: KeyStore) -> None:
    async with running():
        await api.say("/token", 5, is_bot=True)
        await api.ask("/help", 6)
        assert len(api.sent) == 1
        assert not await store.list_keys()


async def test_a_flood_is_throttled_and_told_once(
    api: BotApi, running: Running, store: KeyStore
) -> None:
    async with running(commands_per_minute=6, keys_per_day=100):
        began_s = time.monotonic()
        for _ in range(50):
            await api.say("/token", 1)
        await api.say("/revoke", 1)
        # Another user is answered meanwhile: the flood is one user's alone.
        await api.say("/help", 2)
        async with asyncio.timeout(60):
            while not any(int(sent["chat_id"]) == 2 for sent in api.sent):
                await asyncio.sleep(0.01)
            while not any("is revoked" in sent["text"] for sent in api.sent):
                await asyncio.sleep(0.01)
        flooded = [sent["text"] for sent in api.sent if int(sent["chat_id"]) == 1]
        given = [text for text in flooded if _KEY.search(text)]
        told = [text for text in flooded if "Slow down" in text]
        # Half a minute's at once and then the rate; told once, and again after each further key.
        later = int((time.monotonic() - began_s) * 6 / 60)
        assert 1 <= len(given) <= 4 + later
        assert 1 <= len(told) <= 1 + later
        assert len(flooded) == len(given) + len(told) + 1
        assert len(await store.list_keys()) == len(given)


async def test_keys_of_a_day_are_limited(api: BotApi, running: Running) -> None:
    async with running(keys_per_day=2, commands_per_minute=1000):
        answers = [await api.ask("/token") for _ in range(3)]
        assert [_KEY.search(text) is not None for text in answers] == [True, True, False]
        assert "last 24 hours" in answers[2]
        assert _KEY.search(await api.ask("/token", user=2)) is not None


async def test_nothing_secret_is_logged(
    api: BotApi, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    # What `spamdetect bot` sets up: warnings and worse.
    caplog.set_level(logging.WARNING)
    async with running() as (bot, _):
        found = _KEY.search(await api.ask("/token"))
        assert found is not None
        assert TOKEN not in repr(bot) + repr(vars(bot))
        assert found[0] not in caplog.text
        assert TOKEN not in caplog.text


async def test_a_refused_token_is_one_line_without_it(api: BotApi, store: KeyStore) -> None:
    limits = await open_limits(ServiceSettings(), store, Metrics())
    bot = TokenBot(
        BotSettings("999:wrong-canary", api_url=api.base_url), store, limits, _moderator(store)
    )
    with pytest.raises(SpamConfigError) as caught:
        async with bot.running():
            pass
    assert "canary" not in str(caught.value)
    assert "refuses the bot token" in str(caught.value)
    await limits.close()


async def test_an_unreachable_api_is_one_line_without_the_token(store: KeyStore) -> None:
    limits = await open_limits(ServiceSettings(), store, Metrics())
    bot = TokenBot(
        BotSettings(TOKEN, api_url="http://127.0.0.1:1"), store, limits, _moderator(store)
    )
    with pytest.raises(SpamConfigError) as caught:
        async with bot.running():
            pass
    assert TOKEN not in str(caught.value)
    assert "cannot be used" in str(caught.value)
    await limits.close()


async def test_the_webhook_takes_updates_of_telegram_alone_and_each_once(
    api: BotApi, running: Running, store: KeyStore
) -> None:
    url = "https://bot.example/hook"
    async with (
        running(webhook_url=url, webhook_secret=_SECRET) as (bot, inbox),
        serving_app(webhook_app(bot, inbox, url), ServiceSettings(port=0)) as listening,
        httpx.AsyncClient(base_url=listening.base_url) as telegram,
    ):
        assert api.webhook["url"] == url
        assert api.webhook["secret_token"] == _SECRET
        assert "getUpdates" not in api.called
        name = "X-Telegram-Bot-Api-Secret-Token"
        update = api.update("/token", 7)
        for headers in ({}, {name: "wrong"}):
            assert (await telegram.post("/hook", json=update, headers=headers)).status_code == 403
        good = {name: _SECRET}
        assert (await telegram.post("/hook", content=b"{", headers=good)).status_code == 400
        assert (await telegram.post("/hook", json=[], headers=good)).status_code == 400
        # An answer that got lost has Telegram deliver an update again: it is one key.
        for _ in range(3):
            assert (await telegram.post("/hook", json=update, headers=good)).status_code == 200
        assert _KEY.search((await api.wait_for(1))[0]["text"])
        again = api.update("/help", 7)
        assert (await telegram.post("/hook", json=again, headers=good)).status_code == 200
        assert "/token" in (await api.wait_for(2))[1]["text"]
        assert len(api.sent) == 2
        assert len(await store.list_keys()) == 1


async def test_settings_are_read_and_checked(tmp_path: Path) -> None:
    with pytest.raises(SpamConfigError, match="BotFather"):
        read_bot_settings(environ={})
    with pytest.raises(SpamConfigError, match="Cannot read"):
        read_bot_settings(token_file=tmp_path / "none", environ={})
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    environment = {"SPAMDETECT_BOT_KEYS_PER_DAY": "9", "SPAMDETECT_BOT_API_URL": "http://x"}
    settings = read_bot_settings(token_file=tmp_path / "token", environ=environment)
    assert (settings.token, settings.keys_per_day, settings.api_url) == (TOKEN, 9, "http://x")
    assert TOKEN not in repr(settings)
    with pytest.raises(SpamConfigError, match="SPAMDETECT_BOT_KEYS_PER_DAY"):
        read_bot_settings(
            environ={"SPAMDETECT_BOT_TOKEN": "t", "SPAMDETECT_BOT_KEYS_PER_DAY": "many"}
        )
    with pytest.raises(SpamConfigError, match="WEBHOOK_SECRET"):
        read_bot_settings(environ={"SPAMDETECT_BOT_TOKEN": "t"}, webhook_url="https://x/y")
