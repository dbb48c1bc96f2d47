"""The bot in groups: it deletes or flags what the engine takes for spam, where it was asked to.

Administrators turn it on with /moderate. It never acts on an administrator, and acts on nobody when
it cannot find out who is one. What it does can be appealed against with one button; an
administrator decides, and the decision counts for the group's next messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import attrs
import msgspec
from telegram import (
    CallbackQuery,
    ChatMember,
    ChatMemberRestricted,
    ChatPermissions,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    Message,
    MessageEntity,
    ReplyParameters,
    Update,
    User,
)
from telegram.constants import ChatMemberStatus
from telegram.error import BadRequest, Forbidden
from telegram.ext import (
    Application,
    CallbackQueryHandler,
    ChatMemberHandler,
    CommandHandler,
    ContextTypes,
    MessageHandler,
    filters,
)

from spamdetect.service.analysis import Item, TextEngine, analyse
from spamdetect.service.groups import Case, Group, Groups, GroupSettings, Punishment
from spamdetect.service.inbox import end_turn
from spamdetect.service.keys import StoreError
from spamdetect.service.rules import Found
from spamdetect.service.shares import next_cell
from spamdetect.service.store import KeyStore
from spamdetect.service.traces import hashed
from spamdetect.service.visible import visible_text
from spamdetect.service.wire import Context
from spamdetect.thresholds import PROFILE_NAMES

_log = logging.getLogger("spamdetect.bot")

# Telegram lets a bot write about 20 messages a minute to a group.
_TIMES_PER_MINUTE: Final = 10
_BURST_S: Final = 60.0
_MAX_RATES: Final = 100_000
_AUTHOR: Final = "the author"
_MUTE_S: Final = 86_400.0
_PUNISHED: Final = {"mute": "muted for a day", "ban": "banned"}
_USAGE: Final = (
    "Administrators of this group set how I moderate:\n"
    "/moderate flag - answer what looks like spam\n"
    "/moderate delete - delete it (I need that right)\n"
    "/moderate strict | balanced | quiet - how easily something is spam\n"
    "/moderate mute 3 | ban 3 | forgive - what becomes of an author after 3 warnings\n"
    "/moderate newcomers strict | nolinks | off - for a day after they join\n"
    "/moderate log CHAT | log off - tell another chat what I do\n"
    "/moderate off - stop, and forget this group\n"
    "/moderate - how it is set, and what has happened\n"
    "/spam - as an answer to a message: it is spam, delete it"
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
        # One text at a time, so that a flood in one chat does not take all threads.
        self._judging = asyncio.Lock()
        # By chat for notices, and by chat and user for commands: the rate limit's number.
        self._rates: OrderedDict[tuple[int, ...], float] = OrderedDict()

    def add_handlers(self, app: Application[Any, Any, Any, Any, Any, Any]) -> None:
        """Let an application pass on what concerns groups."""
        groups = filters.ChatType.GROUPS
        app.add_handler(CommandHandler("moderate", self._moderate, filters.UpdateType.MESSAGE))
        app.add_handler(
            CommandHandler("spam", self._call_spam, groups & filters.UpdateType.MESSAGE)
        )
        app.add_handler(MessageHandler(filters.StatusUpdate.MIGRATE, self._migrate))
        app.add_handler(MessageHandler(filters.StatusUpdate.NEW_CHAT_MEMBERS, self._join))
        app.add_handler(ChatMemberHandler(self._join, ChatMemberHandler.CHAT_MEMBER))
        app.add_handler(CallbackQueryHandler(self._pressed, r"^(appeal|ham|spam):\d+$"))
        # In a group of handlers of its own: a command may be spam too.
        anything = groups & filters.UpdateType.MESSAGES
        app.add_handler(MessageHandler(anything, self._read), group=1)

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
            # Not of what notices may use: commands must not silence them.
            if self._may(message.chat_id, 0):
                await message.reply_text("Only administrators of this group can set that.")
            return
        try:
            await message.reply_text(await self._set(message, context.args or []))
        except StoreError as error:
            _log.error("the key store failed: %s", error)
            await message.reply_text("Sorry, that cannot be stored at the moment; try later.")

    async def _set(self, message: Message, arguments: Sequence[str]) -> str:
        group = await self._groups.of(message.chat_id)
        words = [argument.lower() for argument in arguments]
        if words == ["off"]:
            was_on = await self._groups.turn_off(message.chat_id)
            return "I moderate this group no longer." if was_on else "I do not moderate this group."
        changes = _changes(words)
        if not changes or (group is None and "policy" not in changes):
            return _USAGE if words or group is None else _status(group)
        log_chat = changes.get("log_chat")
        if log_chat and not await _may_log(message, log_chat):
            return (
                "I cannot write there for you: add me to that chat, and have yourself be one of "
                f"its administrators, under your own name. This chat is {message.chat_id}."
            )
        settings = group.settings if group is not None else GroupSettings()
        settings = msgspec.structs.replace(settings, **changes)
        await self._groups.turn_on(message.chat_id, settings)
        return _told(settings)

    async def _migrate(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message = update.effective_message
        if message is not None and message.migrate_to_chat_id is not None:
            await self._groups.move(message.chat_id, message.migrate_to_chat_id)

    async def _join(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        chat, changed = update.effective_chat, update.chat_member
        group = None if chat is None else await self._groups.of(chat.id)
        joined: Sequence[User] = ()
        if changed is not None and not _is_inside(changed.old_chat_member):
            joined = [changed.new_chat_member.user] if _is_inside(changed.new_chat_member) else ()
        elif update.message is not None:
            joined = update.message.new_chat_members
        for user in joined:
            if group is not None:
                await group.join(user.id)

    async def _read(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message = update.effective_message
        if message is None or message.from_user is None or message.is_automatic_forward:
            return
        group = await self._groups.of(message.chat_id)
        text = visible_text(message)
        if group is None or message.from_user.id == context.bot.id or not text:
            return
        case = await group.case(message.message_id)
        if case is None:
            group.counts.seen += 1
            found = await self._judge(group, text, message)
            if not found.analysis.prediction.is_spam:
                return
            if await _is_administrator(message) is not False:
                return
            case = await self._act(group, message, text, found, update.update_id)
        elif case.update_id != update.update_id:
            return  # flagged before, and edited since
        await self._tell(group, message, case)

    async def _call_spam(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        """An administrator has answered a message with /spam."""
        command = update.message
        message = command.reply_to_message if command is not None else None
        if command is None or command.from_user is None:
            return
        group = await self._groups.of(command.chat_id)
        if group is None or not self._may(command.chat_id, command.from_user.id):
            return
        if not await _is_administrator(command):
            return
        if message is None or message.from_user is None:
            await command.reply_text("Answer the message that is spam with /spam.")
        elif message.from_user.id == context.bot.id or await _is_administrator(message):
            await command.reply_text("I act on no administrator.")
        else:
            text = visible_text(message)
            found = await self._judge(group, text, message)
            case = await self._act(group, message, text, found, update.update_id, is_told=True)
            await group.report(case, is_spam=True)
            await _delete(command, command.message_id)
            await self._tell(group, message, case)

    async def _judge(self, group: Group, text: str, message: Message) -> Found:
        author = message.from_user
        assert author is not None
        async with self._judging:
            if self._engine is None:
                self._engine = await asyncio.to_thread(self._load_engine)
            engine = self._engine
            newcomers = group.settings.newcomers
            is_new = newcomers != "like others" and await group.is_new(author.id)
            profile = "strict" if is_new else group.settings.profile
            limit = engine.threshold_of(profile)
            item = Item(text, True, limit, traces=True)
            [found] = await asyncio.to_thread(analyse, engine, [item])
        if isinstance(found, Exception):
            raise found
        rules = await group.rules()
        said_by = Context(kind="chat", author=author.full_name[:320])
        judged = rules.judge(cast("Found", found), said_by, limit)
        if is_new and newcomers == "nolinks" and (_leads_away(judged) or message.reply_markup):
            verdict = attrs.evolve(judged.analysis.prediction, is_spam=True)
            return attrs.evolve(judged, analysis=attrs.evolve(judged.analysis, prediction=verdict))
        return judged

    async def _act(
        self,
        group: Group,
        message: Message,
        text: str,
        found: Found,
        update_id: int,
        *,
        is_told: bool = False,
    ) -> Case:
        settings = group.settings
        deleted = is_told or settings.policy == "delete"
        deleted = deleted and await _delete(message, message.message_id)
        author = _author_of(message)
        warnings = await group.warn(author, message.message_id)
        punished: Punishment = "none"
        if settings.punishment != "none" and warnings >= settings.after:
            punished = await _punish(message, author, settings.punishment)
        score = found.analysis.prediction.spam_score
        case = Case(
            message.message_id, author, time.time(), deleted, text, found.sketch, False, update_id,
            warnings, punished, 1.0 if is_told else score, hashed(found.identifiers),
        )  # fmt: skip
        await group.open_case(case)
        group.counts.spam += 1
        group.counts.deleted += deleted
        await group.save_counts()
        return case

    async def _tell(self, group: Group, message: Message, case: Case) -> None:
        """Say what was done to a message, in its topic and in the log chat."""
        assert message.from_user is not None
        settings = group.settings
        said = "was deleted" if case.deleted else "looks like spam"
        body = f"A message of {_AUTHOR} {said} ({case.score:.0%}). Warning {case.warnings}."
        if case.punished != "none":
            body += f" The author is {_PUNISHED[case.punished]}."
        elif settings.punishment != "none" and case.warnings >= settings.after:
            body += f" I may not {settings.punishment} here; an administrator can allow me to."
        if settings.policy == "delete" and not case.deleted:
            body += " I may not delete messages here; an administrator can allow me to."
        # The chat's next messages need not wait until Telegram takes notices again.
        end_turn()
        if settings.log_chat:
            await _log_to(message, settings.log_chat, body, case)
        if not self._may(message.chat_id):
            return  # a flood: messages go, notices are few
        await message.chat.send_message(
            body,
            entities=_mention(body, message.from_user),
            reply_markup=_buttons(("Appeal: not spam", f"appeal:{message.message_id}")),
            message_thread_id=message.message_thread_id if message.is_topic_message else None,
            reply_parameters=None
            if case.deleted
            else ReplyParameters(message.message_id, allow_sending_without_reply=True),
        )

    async def _pressed(self, update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        query = update.callback_query
        if query is None or query.data is None or not isinstance(query.message, Message):
            return
        what, _, number = query.data.partition(":")
        group = await self._groups.of(query.message.chat_id)
        case = None if group is None else await group.case(int(number))
        if group is None or case is None:
            await _answer(query, "This was decided already, or is too old.")
        elif await _is_member_administrator(query.message, query.from_user):
            await self._decide(group, case, query, query.message, is_spam=what == "spam")
        elif what == "appeal" and query.from_user.id == case.user_id:
            await self._appeal(group, case, query, query.message)
        else:
            await _answer(query, "Only its author can appeal, and only administrators decide.")

    async def _appeal(
        self, group: Group, case: Case, query: CallbackQuery, notice: Message
    ) -> None:
        if not case.appealed:
            group.counts.appeals += 1
            await group.open_case(msgspec.structs.replace(case, appealed=True))
            await group.save_counts()
        await _answer(query, "The administrators are asked.")
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
        await group.report(case, is_spam=is_spam)
        if is_spam:
            if not case.deleted:
                await _delete(notice, case.message_id)
            body, answer = "An administrator decided: it was spam.", "It stays so."
        else:
            await group.warn(case.user_id, case.message_id, -1)
            if case.punished != "none":
                await _forgive(notice, case.user_id, case.punished)
            body = "An administrator decided: it was not spam."
            if case.deleted:
                body += f" The message was:\n\n{case.text[:3500]}"
            answer = "Messages like it pass from now on."
        # Last: what a crash interrupts is done again from the start.
        await group.close_case(case)
        group.counts.overturned += not is_spam
        await group.save_counts()
        await _answer(query, answer)
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
    except (BadRequest, Forbidden) as error:
        _log.warning("an administrator cannot be told: %s", type(error).__name__)
        return None
    return member.status in {ChatMemberStatus.OWNER, ChatMemberStatus.ADMINISTRATOR}


async def _may_log(message: Message, log_chat: int) -> bool:
    """Whether the author of a message may have everything written to another chat."""
    bot, author = message.get_bot(), message.from_user
    if message.sender_chat is not None or author is None:
        return False
    try:
        member = await bot.get_chat_member(log_chat, author.id)
        if member.status not in {ChatMemberStatus.OWNER, ChatMemberStatus.ADMINISTRATOR}:
            return False
        await bot.send_message(log_chat, f"Here I log what I do in {message.chat.title}.")
    except (BadRequest, Forbidden):
        return False
    return True


async def _log_to(message: Message, log_chat: int, body: str, case: Case) -> None:
    where = f"{message.chat.title} ({message.chat_id}), author {case.user_id}, "
    text = f"{where}message {case.message_id}. {body}\n\n{case.text[:3500]}"
    with contextlib.suppress(BadRequest, Forbidden):  # it was deleted, or shuts the bot out
        await message.get_bot().send_message(
            log_chat, text, link_preview_options=LinkPreviewOptions(is_disabled=True)
        )


async def _delete(message: Message, message_id: int) -> bool:
    try:
        return await message.get_bot().delete_message(message.chat_id, message_id)
    except (BadRequest, Forbidden) as error:
        if "not found" in error.message:
            return True  # somebody was faster
        _log.warning("a message cannot be deleted: %s", type(error).__name__)
        return False


async def _punish(message: Message, author: int, punishment: Punishment) -> Punishment:
    bot, chat = message.get_bot(), message.chat_id
    try:
        if message.sender_chat is not None:
            await bot.ban_chat_sender_chat(chat, author)
            return "ban"
        if punishment == "ban":
            await bot.ban_chat_member(chat, author)
        else:
            until = int(time.time() + _MUTE_S)
            nothing = ChatPermissions.no_permissions()
            await bot.restrict_chat_member(chat, author, nothing, until_date=until)
    except (BadRequest, Forbidden) as error:
        _log.warning("an author cannot be stopped: %s", type(error).__name__)
        return "none"
    return punishment


async def _forgive(notice: Message, author: int, punished: Punishment) -> None:
    bot, chat = notice.get_bot(), notice.chat_id
    with contextlib.suppress(BadRequest, Forbidden):
        if author < 0:
            await bot.unban_chat_sender_chat(chat, author)
        elif punished == "ban":
            await bot.unban_chat_member(chat, author, only_if_banned=True)
        else:
            await bot.restrict_chat_member(chat, author, ChatPermissions.all_permissions())


async def _answer(query: CallbackQuery, text: str) -> None:
    with contextlib.suppress(BadRequest):  # pressed too long ago
        await query.answer(text)


def _leads_away(found: Found) -> bool:
    return not all(each.startswith("@") for each in found.identifiers)


def _author_of(message: Message) -> int:
    assert message.from_user is not None
    # All channels write under the id of one user.
    return message.from_user.id if message.sender_chat is None else message.sender_chat.id


def _is_inside(member: ChatMember) -> bool:
    if isinstance(member, ChatMemberRestricted):
        return member.is_member
    return member.status not in {ChatMemberStatus.LEFT, ChatMemberStatus.BANNED}


def _changes(words: Sequence[str]) -> dict[str, Any]:
    """What a command changes of the settings; nothing if it is not understood."""
    match words:
        case ["flag" | "delete" as policy]:
            return {"policy": policy}
        case [profile] if profile in PROFILE_NAMES:
            return {"profile": profile}
        case ["forgive"]:
            return {"punishment": "none", "after": 0}
        case ["mute" | "ban" as punishment, number] if number.isdecimal() and 0 < int(number) < 100:
            return {"punishment": punishment, "after": int(number)}
        case ["newcomers", "strict" | "nolinks" | "off" as newcomers]:
            return {"newcomers": "like others" if newcomers == "off" else newcomers}
        case ["log", "off"]:
            return {"log_chat": 0}
        case ["log", number] if number.removeprefix("-").isdecimal() and len(number) < 18:
            return {"log_chat": int(number)}
    return {}


def _mention(body: str, user: User) -> list[MessageEntity]:
    # Not by name: a name can be an advertisement.
    at = body.lower().index(_AUTHOR)
    return [MessageEntity(MessageEntity.TEXT_MENTION, at, len(_AUTHOR), user=user)]


def _buttons(*buttons: tuple[str, str]) -> InlineKeyboardMarkup:
    row = [InlineKeyboardButton(label, callback_data=data) for label, data in buttons]
    return InlineKeyboardMarkup([row])


def _told(settings: GroupSettings) -> str:
    done = "deleted" if settings.policy == "delete" else "answered with a flag"
    said = f"What looks like spam ({settings.profile}) is {done} from now on."
    if settings.punishment != "none":
        said += f" After {settings.after} warnings, its author is {_PUNISHED[settings.punishment]}."
    if settings.newcomers != "like others":
        said += f" For newcomers: {settings.newcomers}."
    return said + (f" Chat {settings.log_chat} is told." if settings.log_chat else "")


def _status(group: Group) -> str:
    counts, settings = group.counts, group.settings
    return (
        f"I moderate this group: {settings.policy}, {settings.profile}. {_told(settings)}\n"
        f"Seen {counts.seen} messages, {counts.spam} like spam, deleted {counts.deleted}; "
        f"{counts.appeals} appeals, {counts.overturned} overturned.\n\n{_USAGE}"
    )
