"""A day of the bot: floods, crashes, 429s, unreadable updates; against a server of the Bot API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from spamdetect.service.keys import StoreError
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
from tests.support.waiting import until_async

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def _process(api: BotApi, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spamdetect", "bot", "--api-url", api.base_url),
        *("--database-url", f"sqlite:///{folder / 'bot.sqlite3'}"),
        env={**os.environ, "SPAMDETECT_BOT_TOKEN": TOKEN},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_kill_loses_nothing(api: BotApi, tmp_path: Path) -> None:
    async with _process(api, tmp_path):
        room = Room(api)
        await room.ask("/moderate delete")
        api.open.clear()
        api.stalled_chat = GROUP
        said = [await room.say(SPAM) for _ in range(40)]
        last = await room.say(HAM)
        # Telegram believes that the bot has had all of them, and it has done none.
        await until_async(lambda: api.acknowledged > last)
    assert api.deleted == []
    api.stalled_chat = None
    api.open.set()
    async with _process(api, tmp_path):
        await until_async(lambda: len(set(api.deleted)) == 40)
        assert sorted(set(api.deleted)) == said
        # Each counts once.
        await room.say("/moderate", ADMIN)
        await until_async(lambda: any("40 like spam, deleted 40" in s["text"] for s in api.sent))


async def test_a_flooded_group_makes_no_other_wait(api: BotApi, running: Running) -> None:
    async with running() as room:
        other = Room(api, OTHER_GROUP)
        await room.ask("/moderate delete")
        await other.ask("/moderate delete")
        api.open.clear()
        api.stalled_chat = GROUP
        said = [await room.say(SPAM) for _ in range(250)]
        spam = await other.say(SPAM)
        await until_async(lambda: api.deleted)
        assert api.deleted == [spam]
        api.open.set()
        await until_async(lambda: len(api.deleted) == 251)
        assert api.deleted[1:] == said


async def test_429_is_waited_for_in_every_call(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        await room.ask("/moderate ban 1")
        methods = ("sendMessage", "deleteMessage", "getChatMember", "banChatMember", "getUpdates")
        api.busy = dict.fromkeys(methods, 1)
        spam = await room.say(SPAM)
        notice = (await api.wait_for(3))[-1]
        assert api.deleted == [spam]
        assert "was deleted" in notice["text"]
        assert "banned" in notice["text"]
        api.busy = dict.fromkeys(("answerCallbackQuery", "editMessageText", "unbanChatMember"), 1)
        assert "pass from now on" in await api.press(f"ham:{spam}", ADMIN, GROUP)
        await until_async(lambda: api.edited)
        assert "unbanChatMember" in [method for method, _ in api.done]


async def test_a_notice_that_waits_lets_the_chats_spam_go(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        api.busy = {"sendMessage": 1}
        api.retry_after_s = 3600
        said = [await room.say(SPAM) for _ in range(20)]
        await until_async(lambda: len(api.deleted) == 20)
        assert api.deleted == said


def _old_poll(room: Room) -> dict[str, Any]:
    """A poll as a server of an earlier version sends it, without what is required since."""
    update = room.api.update("", BOB, "supergroup")
    update["message"]["chat"]["id"] = room.chat_id
    update["message"]["poll"] = {"id": "1", "question": "Claim-canary?", "options": []}
    return update


async def test_an_unreadable_update_is_left_out_alone_and_nothing_of_it_is_logged(
    api: BotApi, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running() as room:
        await room.ask("/moderate delete")
        broken = [
            _old_poll(room),
            {"update_id": 10_000, "message": "canary"},
            {"update_id": 10_001, "message": {"canary": 1}},
            {"update_id": 10_002, "message": {"chat": {"id": GROUP}, "text": "canary", "date": ""}},
            {"update_id": 10_003, "callback_query": {"message": ["canary"]}},
        ]
        for each in broken:
            await api.give(each)
        api._ids = 20_000
        spam = await room.say(SPAM)
        await until_async(lambda: api.deleted)
        assert api.deleted == [spam]
        await until_async(lambda: api.acknowledged > 20_000)
        await until_async(lambda: "(5 so far)" in caplog.text)
    assert "canary" not in caplog.text
    assert "prize" not in caplog.text


async def test_an_update_waits_for_the_store(
    api: BotApi, running: Running, store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        put_rules, failures = store.put_rules, iter([True, False])

        async def failing(*args: Any, **options: Any) -> bool:
            if next(failures, False):
                raise StoreError("away")
            return await put_rules(*args, **options)

        monkeypatch.setattr(store, "put_rules", failing)
        spam = await room.say(SPAM)
        notice = (await api.wait_for(2))[-1]["text"]
        assert "Warning 1" in notice
        assert set(api.deleted) == {spam}


async def test_a_notice_is_in_the_topic(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        notice = await room.ask(SPAM, EVE, message_thread_id=77, is_topic_message=True)
        assert notice["message_thread_id"] == "77"
        # A thread of answers in a group without topics is none.
        notice = await room.ask(SPAM, EVE, message_thread_id=78)
        assert "message_thread_id" not in notice


async def test_commands_of_others_silence_no_notice(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        for user in range(100, 140):
            await room.say("/moderate off", user)
        spam = await room.say(f"/moderate {SPAM}", EVE)
        await until_async(lambda: any("was deleted" in sent["text"] for sent in api.sent))
        assert api.deleted == [spam]


async def test_the_author_is_muted_or_banned_after_so_many_warnings(
    api: BotApi, running: Running
) -> None:
    def stopped() -> list[tuple[str, str]]:
        names = {"restrictChatMember", "banChatMember", "banChatSenderChat"}
        return [(method, given["chat_id"]) for method, given in api.done if method in names]

    async with running() as room:
        await room.ask("/moderate delete")
        assert "After 2 warnings" in (await room.ask("/moderate mute 2"))["text"]
        await room.ask(SPAM, EVE)
        assert stopped() == []
        assert "muted for a day" in (await room.ask(SPAM, EVE))["text"]
        assert stopped() == [("restrictChatMember", str(GROUP))]
        await room.ask("/moderate ban 1")
        assert "banned" in (await room.ask(SPAM, BOB))["text"]
        channel = {"id": -100_999, "type": "channel", "title": "Prizes"}
        assert "banned" in (await room.ask(SPAM, 136817688, sender_chat=channel))["text"]
        assert [method for method, _ in stopped()[1:]] == ["banChatMember", "banChatSenderChat"]
        api.failing.add("banChatMember")
        assert "may not ban" in (await room.ask(SPAM, 99))["text"]
        assert "commands" not in (await room.ask("/moderate forgive"))["text"]
        assert "banned" not in (await room.ask(SPAM, 98))["text"]
        for wrong in ("mute", "mute 0", "mute x", "ban 3 4", "newcomers", "log x"):
            assert "how I moderate" in (await room.ask(f"/moderate {wrong}"))["text"]


def _joined(room: Room, user: int) -> dict[str, Any]:
    update = room.api.update("", user, "supergroup")
    message = update.pop("message")
    who = {**message["from"]}
    update["chat_member"] = {
        "chat": {"id": room.chat_id, "type": "supergroup", "title": "Group"},
        "from": who,
        "date": message["date"],
        "old_chat_member": {"user": who, "status": "left"},
        "new_chat_member": {"user": who, "status": "member"},
    }
    return update


async def test_newcomers_post_no_links_where_the_administrators_say_so(
    api: BotApi, running: Running
) -> None:
    linked = "The minutes of our meeting: https://wiki.example.org/minutes"
    async with running() as room:
        await room.ask("/moderate delete")
        await api.give(_joined(room, EVE))
        first = await room.say(linked, EVE)
        await room.ask("/moderate newcomers nolinks")
        second = await room.say(linked, EVE)
        await room.say(linked, BOB)
        await room.say(HAM, EVE)
        # A service message says the same where the bot hears of no members.
        await room.say("", new_chat_members=[{"id": 98, "is_bot": False, "first_name": "N"}])
        third = await room.say(linked, 98)
        await room.settle()
        await until_async(lambda: len(api.deleted) == 2)
        assert api.deleted == [second, third]
        assert first not in api.deleted


async def test_an_administrator_calls_a_message_spam(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate flag")
        ordinary = "Does anybody have the notes of the lecture on Monday about graphs?"
        spam = await room.say(ordinary)
        target = api.update(ordinary, EVE, "supergroup")["message"]
        target |= {"message_id": spam, "chat": {"id": GROUP, "type": "supergroup", "title": "G"}}
        await room.say("/spam", BOB, reply_to_message=target)
        notice = await room.ask("/spam", ADMIN, reply_to_message=target)
        assert "was deleted" in notice["text"]
        assert api.deleted[0] == spam
        assert len(api.deleted) == 2  # and the command
        # Its like is spam from now on.
        assert "looks like spam" in (await room.ask(ordinary, 98))["text"]
        assert "pass from now on" in await api.press(f"ham:{spam}", ADMIN, GROUP)
        assert "Answer the message" in (await room.ask("/spam"))["text"]
        target["from"]["id"] = ADMIN
        assert "no administrator" in (await room.ask("/spam", reply_to_message=target))["text"]


async def test_a_log_chat_is_told_of_everything(api: BotApi, running: Running) -> None:
    async with running() as room:
        await room.ask("/moderate delete")
        before = len(api.sent)
        await room.say("/moderate log -100777", ADMIN)
        first, answer = (await api.wait_for(before + 2))[before:]
        assert first["chat_id"] == "-100777"
        assert "-100777 is told" in answer["text"]
        await room.say(SPAM)
        logged, notice = (await api.wait_for(before + 4))[before + 2 :]
        assert logged["chat_id"] == "-100777"
        assert SPAM in logged["text"]
        assert notice["chat_id"] == str(GROUP)
        # Nobody has another chat written to that is not theirs.
        api.failing.add("getChatMember")
        as_group = {"sender_chat": {"id": GROUP, "type": "supergroup", "title": "Group"}}
        answer = await room.ask("/moderate log -100778", **as_group)
        assert "cannot write there" in answer["text"]
