"""The bot in groups: the real python-telegram-bot against a server that speaks the Bot API."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from spamdetect.service.store import KeyStore
from tests.support.bot_api import TOKEN, BotApi
from tests.support.moderated_group import (
    ADMIN,
    BOB,
    EVE,
    GROUP,
    HAM,
    OTHER_GROUP,
    SPAM,
    Room,
    Running,
)

pytestmark = pytest.mark.asyncio


async def test_nothing_happens_where_nobody_asked_for_it(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.say(SPAM)
        assert "I moderate groups" not in (await room.ask("/moderate"))["text"]
        assert "/moderate delete" in api.sent[0]["text"]
        await room.settle()
        assert len(api.sent) == 2
        assert api.deleted == []


async def test_only_administrators_turn_it_on(api: BotApi, running: Running) -> None:
    async with running() as room:
        for user in (EVE, BOB):
            assert "Only administrators" in (await room.ask("/moderate delete", user))["text"]
        api.failing.add("getChatMember")
        assert "Only administrators" in (await room.ask("/moderate delete"))["text"]
        api.failing.clear()
        await room.say(SPAM)
        await room.settle()
        assert api.deleted == []
        # One who writes as the group is an administrator.
        as_group = {"sender_chat": {"id": GROUP, "type": "supergroup", "title": "Group"}}
        answer = await room.ask("/moderate flag", 1087968824, **as_group)
        assert "answered with a flag" in answer["text"]


async def test_flag_answers_and_deletes_nothing(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate flag")
        await room.say(HAM)
        notice = await room.ask(SPAM, EVE)
        assert "looks like spam" in notice["text"]
        assert "reply" in str(notice)
        assert "User" not in notice["text"]
        await room.settle()
        assert api.deleted == []


async def test_delete_deletes_warns_and_counts(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        await room.say(HAM)
        first = await room.say(SPAM)
        second = await room.say(HAM, edited=False)
        third = await room.say(SPAM.replace("123", "987"), edited=True)
        fourth = await room.say("", caption=SPAM)
        sent = await api.wait_for(4)
        assert api.deleted == [first, third, fourth]
        assert second not in api.deleted
        warned = [each["text"] for each in sent[1:]]
        assert all("was deleted" in text for text in warned)
        assert [text[-2] for text in warned] == ["1", "2", "3"]
        status = (await room.ask("/moderate"))["text"]
        assert "delete, balanced" in status
        assert "Seen 6 messages, 3 like spam, deleted 3" in status


async def test_administrators_are_never_acted_on(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        await room.say(SPAM, ADMIN)
        group = {"id": GROUP, "type": "supergroup", "title": "Group"}
        await room.say(SPAM, 1087968824, sender_chat=group)
        await room.say(SPAM, 777000, is_automatic_forward=True)
        # Nor is anybody while nobody can say who is one.
        api.failing.add("getChatMember")
        await room.say(SPAM, EVE)
        await room.settle()
        api.failing.clear()
        assert api.deleted == []
        assert len(api.sent) == 2
        # Another channel's name is no administrator's.
        channel = {"id": -100_999, "type": "channel", "title": "Prizes"}
        spam = await room.say(SPAM, 136817688, sender_chat=channel)
        await api.wait_for(3)
        assert api.deleted == [spam]


async def test_without_the_right_to_delete_it_flags_and_says_so(
    api: BotApi, running: Running
) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        api.failing.add("deleteMessage")
        notice = (await room.ask(SPAM, EVE))["text"]
        assert "looks like spam" in notice
        assert "may not delete" in notice


async def test_an_appeal_goes_to_the_administrators_and_their_word_counts(
    api: BotApi, running: Running
) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        spam = await room.say(SPAM)
        await api.wait_for(2)
        assert f"appeal:{spam}" in str(api.sent[-1])
        assert "Only its author" in await api.press(f"appeal:{spam}", BOB, GROUP)
        assert "Only its author" in await api.press(f"ham:{spam}", EVE, GROUP)
        assert "are asked" in await api.press(f"appeal:{spam}", EVE, GROUP)
        async with asyncio.timeout(60):
            while not api.edited:
                await asyncio.sleep(0.01)
        assert "was it spam?" in api.edited[-1]["text"]
    # The bot may be started anew in between.
    async with running() as room:
        assert "pass from now on" in await api.press(f"ham:{spam}", ADMIN, GROUP)
        async with asyncio.timeout(60):
            while len(api.edited) < 2:
                await asyncio.sleep(0.01)
        assert SPAM in api.edited[-1]["text"]
        assert "decided already" in await api.press(f"spam:{spam}", ADMIN, GROUP)
        await room.say(SPAM)
        status = (await room.ask("/moderate"))["text"]
        assert "1 appeals, 1 overturned" in status
        assert api.deleted == [spam]
        # In this group alone.
        other = Room(api, OTHER_GROUP)
        await other.ask("/moderate delete")
        before = len(api.sent)
        elsewhere = await other.say(SPAM)
        await api.wait_for(before + 1)
        assert api.deleted == [spam, elsewhere]
        assert "decided already" in await api.press(f"ham:{elsewhere}", ADMIN, GROUP)


async def test_an_administrator_decides_with_the_first_button(
    api: BotApi, running: Running
) -> None:
    async with running() as room:
        await room.ask("/moderate flag")
        flagged = await room.say(SPAM)
        await api.wait_for(2)
        assert "It stays so" in await api.press(f"spam:{flagged}", ADMIN, GROUP)
        assert api.deleted == [flagged]
        # What was called spam is spam at once, in other digits too.
        meeting = await room.say(HAM)
        await room.settle()
        assert len(api.sent) == 3
        assert meeting not in api.deleted


async def test_off_forgets_the_group(api: BotApi, running: Running, store: KeyStore) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        await room.ask(SPAM, EVE)
        key = await store.active_key_of(f"telegram-group:{GROUP}")
        assert key is not None
        assert await store.rules(key.key_id) != []
        assert "no longer" in (await room.ask("/moderate off"))["text"]
        assert await store.rules(key.key_id) == []
        await room.say(SPAM)
        assert "do not moderate" in (await room.ask("/moderate off"))["text"]
        assert len(api.deleted) == 1


async def test_a_group_that_becomes_a_supergroup_stays_moderated(
    api: BotApi, running: Running
) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        await room.say("", migrate_to_chat_id=OTHER_GROUP)
        await Room(api, OTHER_GROUP).ask(SPAM, EVE)
        assert len(api.deleted) == 1


async def test_a_flood_is_deleted_with_few_notices(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        said = [await room.say(SPAM) for _ in range(40)]
        async with asyncio.timeout(60):
            while len(api.deleted) < 40:
                await asyncio.sleep(0.01)
        assert api.deleted == said
        assert len(api.sent) < 20


async def test_the_command_moderates(api: BotApi, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spamdetect", "bot", "--api-url", api.base_url),
        *("--database-url", f"sqlite:///{tmp_path / 'bot.sqlite3'}"),
        env={**os.environ, "SPAMDETECT_BOT_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    room = Room(api)
    assert "is deleted" in (await room.ask("/moderate delete"))["text"]
    await room.ask(SPAM, EVE)
    process.terminate()
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.startswith(b"@key_bot answers on Telegram")
    assert len(api.deleted) == 1


async def test_a_flood_of_commands_is_not_passed_on(api: BotApi, running: Running) -> None:
    async with running() as room:
        for _ in range(40):
            await room.say("/moderate delete", BOB)
        await room.say("/moderate flag", ADMIN)
        async with asyncio.timeout(60):
            while not any("answered with a flag" in sent["text"] for sent in api.sent):
                await asyncio.sleep(0.01)
        assert api.called.count("getChatMember") < 25
        assert len(api.sent) < 25


async def test_no_text_and_no_name_is_logged(
    api: BotApi, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running() as room:
        await room.ask("/moderate delete")
        api.failing.add("deleteMessage")
        await room.ask(SPAM, EVE)
        api.failing.add("getChatMember")
        await room.say(SPAM, EVE)
        await room.settle()
    assert "cannot be deleted" in caplog.text
    assert "prize" not in caplog.text
    assert "User 66" not in caplog.text
    assert TOKEN not in caplog.text
