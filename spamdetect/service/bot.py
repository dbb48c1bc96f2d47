"""The chat bot that hands out API keys: ``/token`` in a private chat on Telegram.

Source: spam detection HTTP API, part 5. One active key per user; a new ``/token`` replaces it. What
it does in groups is in :mod:`spamdetect.service.moderation`.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from telegram import BotCommand, Update, User
from telegram.constants import ParseMode
from telegram.error import BadRequest, InvalidToken, NetworkError, TelegramError
from telegram.ext import (
    Application,
    ApplicationBuilder,
    CommandHandler,
    ContextTypes,
    MessageHandler,
    filters,
)

from spamdetect.errors import SpamConfigError
from spamdetect.service.inbox import UPDATES, Inbox, PatientRequest
from spamdetect.service.keys import KeyRecord, KeySpec, StoreError
from spamdetect.service.limits import Limits
from spamdetect.service.moderation import GroupModerator
from spamdetect.service.shares import next_cell
from spamdetect.service.store import KeyStore
from spamdetect.settings import read_number

_log = logging.getLogger("spamdetect.bot")

_DAY_S: Final = 86_400.0
_BURST_S: Final = 30.0
_MAX_USERS: Final = 100_000
_POOL_TIMEOUT_S: Final = 30.0
_COMMANDS: Final = (
    ("token", "Get an API key (replaces the one you have)"),
    ("usage", "See your key and today's requests"),
    ("revoke", "Revoke your key"),
    ("moderate", "In a group: flag or delete spam (administrators)"),
    ("spam", "In a group, as a reply: delete a message as spam (administrators)"),
    ("help", "What this bot does"),
)
# In groups the bot answers only its commands; status updates, such as joins, are not for it.
_ANYTHING_ELSE: Final = (
    filters.UpdateType.MESSAGE & filters.ChatType.PRIVATE & ~filters.StatusUpdate.ALL
)
BotApp = Application[Any, Any, Any, Any, Any, Any]
_Handler = Callable[[Update, ContextTypes.DEFAULT_TYPE], Coroutine[Any, Any, None]]


@attrs.frozen
class BotSettings:
    """How the bot runs.

    Attributes:
        token: The token from Telegram's BotFather; never shown.
        api_url: Bot API server, without ``/bot``; a local server works.
        service_url: Base URL of the service, shown to users.
        keys_per_day: Maximum keys that one user gets in 24 hours.
        commands_per_minute: Maximum commands of one user answered per minute.
        rate_per_minute: Requests per minute of the keys handed out.
        quota_per_day: Requests per UTC day of the keys handed out.
        webhook_url: Public HTTPS address for Telegram to call; empty means polling.
        webhook_secret: Shared secret of the webhook.
    """

    token: str = attrs.field(repr=False)
    api_url: str = "https://api.telegram.org"
    service_url: str = ""
    keys_per_day: int = 5
    commands_per_minute: int = 10
    rate_per_minute: int = 60
    quota_per_day: int = 1000
    webhook_url: str = ""
    webhook_secret: str = attrs.field(default="", repr=False)


def read_bot_settings(
    *,
    token_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    **arguments: str | None,
) -> BotSettings:
    """Combine arguments, ``SPAMDETECT_BOT_*`` in the environment and defaults.

    Args:
        token_file: File that holds the token; else ``SPAMDETECT_BOT_TOKEN``.
        environ: Environment to read instead of the process's own.
        arguments: ``api_url``, ``service_url``, ``webhook_url``.

    Raises:
        SpamConfigError: The token is missing, or a value is wrong.
    """
    env = os.environ if environ is None else environ
    token = env.get("SPAMDETECT_BOT_TOKEN", "")
    if token_file is not None:
        try:
            token = token_file.read_text("utf-8")
        except OSError as error:
            raise SpamConfigError(f"Cannot read {token_file}: {error.strerror}.") from None
    token = token.strip()
    if not token:
        raise SpamConfigError(
            "No bot token. Get one from @BotFather on Telegram, then set SPAMDETECT_BOT_TOKEN or "
            "pass --token-file."
        )
    values: dict[str, Any] = {}
    for field in attrs.fields(BotSettings):
        name = f"SPAMDETECT_BOT_{field.name.upper()}"
        if field.name == "token" or not env.get(name, "").strip():
            continue
        values[field.name] = (
            int(read_number(name, env, 0)) if field.type in {int, "int"} else env[name]
        )
    values.update({name: value for name, value in arguments.items() if value is not None})
    settings = BotSettings(token, **values)
    if settings.webhook_url and len(settings.webhook_secret) < 16:
        raise SpamConfigError(
            "A webhook needs SPAMDETECT_BOT_WEBHOOK_SECRET, of at least 16 characters A-Z a-z 0-9 "
            "_ -, so that only Telegram can call it."
        )
    return settings


class TokenBot:
    """Answers the commands.

    Args:
        settings: How it runs.
        store: Where keys live; the service reads the same store.
        limits: Gives the number of a key's requests today.
        moderator: What it does in groups.
    """

    def __init__(
        self,
        settings: BotSettings,
        store: KeyStore,
        limits: Limits,
        moderator: GroupModerator,
    ) -> None:
        self._settings = settings
        self._store = store
        self._limits = limits
        self._moderator = moderator
        # Per user: the rate limit's number, and whether the user was told to slow down.
        # Revoking has a separate rate: a flood of other commands must not keep a leaked key valid.
        self._rates: OrderedDict[tuple[int, bool], tuple[float, bool]] = OrderedDict()
        # By update: what passes, so that the update is tried again.
        self._errors: dict[int, Exception] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[BotApp, Inbox]]:
        """Receive updates until the end of the block.

        Yields:
            The application that answers them, and where they wait for it.

        Raises:
            SpamConfigError: Telegram refuses the token, or cannot be reached.
        """
        app: BotApp = (
            ApplicationBuilder()
            .token(self._settings.token)
            .base_url(f"{self._settings.api_url.rstrip('/')}/bot")
            .request(PatientRequest(connection_pool_size=256, pool_timeout=_POOL_TIMEOUT_S))
            .updater(None)
            .build()
        )
        for name, handler in (
            ("start", self._help),
            ("help", self._help),
            ("token", self._token),
            ("revoke", self._revoke),
            ("usage", self._usage),
        ):
            guarded = self._guarded(handler, own_rate=name == "revoke")
            app.add_handler(CommandHandler(name, guarded, filters.UpdateType.MESSAGE))
        self._moderator.add_handlers(app)
        app.add_handler(MessageHandler(_ANYTHING_ELSE, self._guarded(self._help)))
        app.add_error_handler(self._note_error)
        try:
            await self._connect(app)
        except SpamConfigError:
            await app.bot.shutdown()
            raise

        async def handle(update: Update) -> None:
            await app.process_update(update)
            if error := self._errors.pop(update.update_id, None):
                raise error

        inbox = Inbox(self._store, app.bot, handle)
        try:
            async with inbox.running(polling=not self._settings.webhook_url):
                yield app, inbox
        finally:
            await app.shutdown()

    async def _connect(self, app: BotApp) -> None:
        try:
            await app.initialize()
            await app.bot.set_my_commands([BotCommand(*command) for command in _COMMANDS])
            if self._settings.webhook_url:
                await app.bot.set_webhook(
                    self._settings.webhook_url,
                    secret_token=self._settings.webhook_secret,
                    allowed_updates=UPDATES,
                )
            else:
                await app.bot.delete_webhook()
        except InvalidToken:
            raise SpamConfigError("Telegram refuses the bot token; check it.") from None
        except TelegramError as error:
            raise SpamConfigError(
                f"The Bot API at {self._settings.api_url} cannot be used: {type(error).__name__}."
            ) from None

    def is_telegram(self, secret: str) -> bool:
        """Whether a call of the webhook is from Telegram.

        Args:
            secret: Header ``X-Telegram-Bot-Api-Secret-Token`` of the request.
        """
        expected = self._settings.webhook_secret
        return hmac.compare_digest(secret.encode(), expected.encode())

    async def _note_error(self, update: object, context: ContextTypes.DEFAULT_TYPE) -> None:
        error = context.error
        passes = isinstance(error, StoreError | NetworkError) and not isinstance(error, BadRequest)
        if passes and error is not None and isinstance(update, Update):
            self._errors[update.update_id] = error
        else:
            _log.warning("an update failed: %s", type(error).__name__)

    def _guarded(
        self, handler: Callable[[User], Coroutine[Any, Any, str]], *, own_rate: bool = False
    ) -> _Handler:
        async def guarded(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
            user, chat, message = update.effective_user, update.effective_chat, update.message
            if user is None or chat is None or message is None or user.is_bot:
                return
            may_answer, may_scold = self._admit((user.id, own_rate))
            if not may_answer:
                if may_scold:
                    await message.reply_text("Slow down, please; try again in a minute.")
                return
            if chat.type != chat.PRIVATE:
                await message.reply_text("Write to me in a private chat; keys are personal.")
                return
            try:
                answer = await handler(user)
            except StoreError as error:
                _log.error("the key store failed: %s", error)
                answer = "Sorry, keys are not available at the moment; try again later."
            await message.reply_text(answer, parse_mode=ParseMode.HTML)

        return guarded

    def _admit(self, who: tuple[int, bool]) -> tuple[bool, bool]:
        cell_s, was_told = self._rates.pop(who, (0.0, False))
        cell_s, wait_s = next_cell(
            cell_s, time.monotonic(), self._settings.commands_per_minute, _BURST_S
        )
        throttled = wait_s > 0
        self._rates[who] = (cell_s, throttled)
        while len(self._rates) > _MAX_USERS:
            self._rates.popitem(last=False)
        return not throttled, throttled and not was_told

    async def _help(self, user: User) -> str:
        where = f" at {self._settings.service_url}" if self._settings.service_url else ""
        commands = "\n".join(f"/{name} - {what}" for name, what in _COMMANDS)
        return (
            f"I give out API keys for the spam-detection service{where}, and I moderate groups."
            f"\n\n{commands}\n\n"
            "Send the key in the header <code>x-api-key</code> of each request."
        )

    async def _token(self, user: User) -> str:
        owner = _owner(user)
        issued = await self._store.issued_since(owner, time.time() - _DAY_S)
        if issued >= self._settings.keys_per_day:
            return (
                f"You had {issued} keys in the last 24 hours, and that is the most. Your newest "
                "one still works, unless you revoked it."
            )
        earlier = await self._store.active_key_of(owner)
        new = await self._store.create(
            KeySpec(
                label="chat bot",
                owner=owner,
                rate_per_minute=self._settings.rate_per_minute,
                quota_per_day=self._settings.quota_per_day,
            )
        )
        replaced = "Your earlier key no longer works. " if earlier is not None else ""
        return (
            f"Your API key:\n\n<code>{new.api_key}</code>\n\n{replaced}I cannot show it again: "
            "store it, and delete this message. It allows "
            f"{_limits_of(self._settings.rate_per_minute, self._settings.quota_per_day)}."
        )

    async def _revoke(self, user: User) -> str:
        record = await self._store.active_key_of(_owner(user))
        if record is None or not await self._store.revoke(record.key_id):
            return "You have no key. /token gives you one."
        return "Your key is revoked and refused from now on. /token gives you a new one."

    async def _usage(self, user: User) -> str:
        record: KeyRecord | None = await self._store.active_key_of(_owner(user))
        if record is None:
            return "You have no key. /token gives you one."
        used = await self._limits.usage_today(record.key_id)
        limits = _limits_of(record.rate_per_minute or 0, record.quota_per_day or 0)
        return f"Key <code>{record.key_id}</code>: {used} requests today (UTC). It allows {limits}."


def _owner(user: User) -> str:
    return f"telegram:{user.id}"


def _limits_of(rate_per_minute: int, quota_per_day: int) -> str:
    rate = f"{rate_per_minute} requests a minute" if rate_per_minute else "any rate"
    quota = f"{quota_per_day} a day" if quota_per_day else "any number a day"
    return f"{rate} and {quota}"
