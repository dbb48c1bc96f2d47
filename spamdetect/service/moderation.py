"""The bot in groups: it deletes or flags what the engine takes for spam, where it was asked to.

Administrators turn it on with /moderate. It never acts on an administrator, and acts on nobody when
it cannot find out who is one. What it does can be appealed against with one button; an
administrator decides, and the decision counts for the group's next messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec
from telegram import (
    CallbackQuery,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    Message,
    MessageEntity,
    Update,
    User,
)
from telegram.constants import ChatMemberStatus
from telegram.error import TelegramError
from telegram.ext import (
    Application,
    CallbackQueryHandler,
    CommandHandler,
    ContextTypes,
    MessageHandler,
    filters,
)

from spamdetect.service.analysis import Item, TextEngine, analyse
from spamdetect.service.groups import Case, Group, Groups, GroupSettings
from spamdetect.service.keys import KeyStore, StoreError
from spamdetect.service.limits import next_cell
from spamdetect.service.rules import Found
from spamdetect.service.wire import Context
from spamdetect.thresholds import PROFILE_NAMES

_log = logging.getLogger("spamdetect.bot")

UPDATES: Final = ("message", "edited_message", "callback_query")
# Telegram lets a bot write about 20 messages a minute to a group.
_TIMES_PER_MINUTE: Final = 10
_BURST_S: Final = 60.0
_MAX_RATES: Final = 100_000
_AUTHOR: Final = "the author"
_USAGE: Final = (
    "Administrators of this group set how I moderate:\n"
    "/moderate flag - answer what looks like spam\n"
    "/moderate delete - delete it (I need that right)\n"
    "/moderate strict | balanced | quiet - how easily something is spam\n"
    "/moderate off - stop, and forget this group\n"
    "/moderate - how it is set, and what has happened"
)


class GroupModerator:
    """Answers what happens in groups.

    Args:
        store: The key store, where the groups are.
        load_engine: Loads the engine; called in a thread when a group needs it first.
    """

    def __init__(self, store: KeyStore, load_engine: Callable[[], TextEngine]) -> None:
        self._groups = Groups(store)
        self._load_engine = load_engine
        self._engine: TextEngine | None = None
        # By chat for notices, and by chat and user for commands: the rate limit's number.
        self._rates: OrderedDict[tuple[int, ...], float] = OrderedDict()

    def add_handlers(self, app: Application[Any, Any, Any, Any, Any, Any]) -> None:
        """Let an application pass on what concerns groups."""
        groups = filters.ChatType.GROUPS
        app.add_handler(CommandHandler("moderate", self._moderate, filters.UpdateType.MESSAGE))
        app.add_handler(MessageHandler(filters.StatusUpdate.MIGRATE, self._migrate))
        app.add_handler(CallbackQueryHandler(self._pressed, r"^(appeal|ham|spam):\d+$"))
        # In a group of handlers of its own: a command may be spam too.
        texts = groups & filters.UpdateType.MESSAGES & (filters.TEXT | filters.CAPTION)
        app.add_handler(MessageHandler(texts, self._read), group=1)

    async def _moderate(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message = update.message
        if message is None or message.from_user is None:
            return
        if message.chat.type == message.chat.PRIVATE:
            await message.reply_text(f"Add me to a group and write there.\n\n{_USAGE}")
            return
        if not self._may(message.chat_id, message.from_user.id):
            return  # before Telegram is asked about the user
        if not await _is_administrator(message):
            if self._may(message.chat_id):
                await message.reply_text("Only administrators of this group can set that.")
            return
        try:
            await message.reply_text(await self._set(message.chat_id, context.args or []))
        except StoreError as error:
            _log.error("the key store failed: %s", error)
            await message.reply_text("Sorry, that cannot be stored at the moment; try later.")

    async def _set(self, chat_id: int, arguments: Sequence[str]) -> str:
        group = await self._groups.of(chat_id)
        word = arguments[0].lower() if len(arguments) == 1 else ""
        if word == "off":
            was_on = await self._groups.turn_off(chat_id)
            return "I moderate this group no longer." if was_on else "I do not moderate this group."
        settings = group.settings if group is not None else GroupSettings()
        if word in {"flag", "delete"}:
            settings = msgspec.structs.replace(settings, policy=word)
        elif word in PROFILE_NAMES and group is not None:
            settings = msgspec.structs.replace(settings, profile=word)
        elif arguments or group is None:
            return _USAGE
        else:
            return _status(group)
        await self._groups.turn_on(chat_id, settings)
        done = "deleted" if settings.policy == "delete" else "answered with a flag"
        return f"What looks like spam ({settings.profile}) is {done} from now on."

    async def _migrate(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message = update.effective_message
        if message is not None and message.migrate_to_chat_id is not None:
            await self._groups.move(message.chat_id, message.migrate_to_chat_id)

    async def _read(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message = update.effective_message
        if message is None or message.from_user is None or message.is_automatic_forward:
            return
        group = await self._groups.of(message.chat_id)
        if group is None or message.from_user.id == context.bot.id:
            return
        group.counts.seen += 1
        text = message.text or message.caption or ""
        found = await self._judge(group, text, message.from_user)
        if not found.analysis.prediction.is_spam:
            return
        if await group.case(message.message_id) is not None:
            return  # flagged before, and edited since
        if await _is_administrator(message) is not False:
            return
        group.counts.spam += 1
        await self._act(group, message, text, found)
        await group.save_counts()

    async def _judge(self, group: Group, text: str, author: User) -> Found:
        if self._engine is None:
            self._engine = await asyncio.to_thread(self._load_engine)
        engine = self._engine
        limit = engine.threshold_of(group.settings.profile)
        [found] = await asyncio.to_thread(analyse, engine, [Item(text, True, limit, traces=True)])
        if isinstance(found, Exception):
            raise found
        rules = await group.rules()
        said_by = Context(kind="chat", author=author.full_name[:320])
        return rules.judge(cast("Found", found), said_by, limit)

    async def _act(self, group: Group, message: Message, text: str, found: Found) -> None:
        assert message.from_user is not None
        deleted = group.settings.policy == "delete"
        deleted = deleted and await _delete(message, message.message_id)
        group.counts.deleted += deleted
        warnings = await group.warn(message.from_user.id)
        author = message.from_user.id
        await group.open_case(
            Case(message.message_id, author, time.time(), deleted, text, found.sketch)
        )
        if not self._may(message.chat_id):
            return  # a flood: messages go, notices are few
        score = f"{found.analysis.prediction.spam_score:.0%}"
        said = "was deleted" if deleted else "looks like spam"
        body = f"A message of {_AUTHOR} {said} ({score}). Warning {warnings}."
        if group.settings.policy == "delete" and not deleted:
            body += " I may not delete messages here; an administrator can allow me to."
        await message.chat.send_message(
            body,
            entities=_mention(body, message.from_user),
            reply_markup=_buttons(("Appeal: not spam", f"appeal:{message.message_id}")),
            reply_to_message_id=None if deleted else message.message_id,
        )

    async def _pressed(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        query = update.callback_query
        if query is None or query.data is None or not isinstance(query.message, Message):
            return
        what, _, number = query.data.partition(":")
        group = await self._groups.of(query.message.chat_id)
        case = None if group is None else await group.case(int(number))
        if group is None or case is None:
            await query.answer("This was decided already, or is too old.")
        elif await _is_member_administrator(query.message, query.from_user):
            await self._decide(group, case, query, query.message, is_spam=what == "spam")
        elif what == "appeal" and query.from_user.id == case.user_id:
            await self._appeal(group, case, query, query.message)
        else:
            await query.answer("Only its author can appeal, and only administrators decide.")

    async def _appeal(
        self, group: Group, case: Case, query: CallbackQuery, notice: Message
    ) -> None:
        if not case.appealed:
            group.counts.appeals += 1
            await group.open_case(msgspec.structs.replace(case, appealed=True))
            await group.save_counts()
        await query.answer("The administrators are asked.")
        body = f"{_AUTHOR.capitalize()} of a message appeals. Administrators: was it spam?"
        await notice.edit_text(
            body,
            entities=_mention(body, query.from_user),
            reply_markup=_buttons(
                ("Not spam", f"ham:{case.message_id}"), ("Spam", f"spam:{case.message_id}")
            ),
        )

    async def _decide(
        self, group: Group, case: Case, query: CallbackQuery, notice: Message, *, is_spam: bool
    ) -> None:
        # First of all: two administrators may press at once, and one of them decides.
        if not await group.close_case(case):
            await query.answer("This was decided already.")
            return
        await group.report(case, is_spam=is_spam)
        if is_spam:
            if not case.deleted:
                await _delete(notice, case.message_id)
            await query.answer("It stays so.")
            await notice.edit_text("An administrator decided: it was spam.")
            return
        group.counts.overturned += 1
        await group.warn(case.user_id, -1)
        await group.save_counts()
        await query.answer("Messages like it pass from now on.")
        body = "An administrator decided: it was not spam."
        if case.deleted:
            body += f" The message was:\n\n{case.text[:3500]}"
        await notice.edit_text(body)

    def _may(self, *who: int) -> bool:
        """Count a notice to a chat, or a command of a user in it; false beyond ten a minute."""
        cell_s, wait_s = next_cell(
            self._rates.pop(who, 0.0), time.monotonic(), _TIMES_PER_MINUTE, _BURST_S
        )
        self._rates[who] = cell_s
        if len(self._rates) > _MAX_RATES:
            self._rates.popitem(last=False)
        return wait_s == 0


async def _is_administrator(message: Message) -> bool | None:
    """Whether a message is from an administrator; None where that cannot be found out."""
    if message.sender_chat is not None:
        # An administrator who writes as the group; another channel is nobody here.
        return message.sender_chat.id == message.chat_id
    assert message.from_user is not None
    return await _is_member_administrator(message, message.from_user)


async def _is_member_administrator(message: Message, user: User) -> bool | None:
    try:
        member = await message.chat.get_member(user.id)
    except TelegramError as error:
        _log.warning("an administrator cannot be told: %s", type(error).__name__)
        return None
    return member.status in {ChatMemberStatus.OWNER, ChatMemberStatus.ADMINISTRATOR}


async def _delete(message: Message, message_id: int) -> bool:
    try:
        return await message.get_bot().delete_message(message.chat_id, message_id)
    except TelegramError as error:
        _log.warning("a message cannot be deleted: %s", type(error).__name__)
        return False


def _mention(body: str, user: User) -> list[MessageEntity]:
    # Not by name: a name can be an advertisement.
    at = body.lower().index(_AUTHOR)
    return [MessageEntity(MessageEntity.TEXT_MENTION, at, len(_AUTHOR), user=user)]


def _buttons(*buttons: tuple[str, str]) -> InlineKeyboardMarkup:
    row = [InlineKeyboardButton(label, callback_data=data) for label, data in buttons]
    return InlineKeyboardMarkup([row])


def _status(group: Group) -> str:
    counts, settings = group.counts, group.settings
    return (
        f"I moderate this group: {settings.policy}, {settings.profile}.\n"
        f"Seen {counts.seen} messages, {counts.spam} like spam, deleted {counts.deleted}; "
        f"{counts.appeals} appeals, {counts.overturned} overturned.\n\n{_USAGE}"
    )
