"""What Telegram sends to the bot, until it is done.

An update is stored before Telegram hears that it has arrived, and forgotten when it is done: what a
crash interrupts is done at the next start. The updates of a chat are done in their order, one after
the other; a chat that waits for Telegram makes no other one wait. Each update is read by itself:
one that cannot be read is counted and left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import msgspec
from telegram import Bot, Update
from telegram.error import NetworkError, TelegramError
from telegram.request import HTTPXRequest

from spamdetect.service.analysis import place_of
from spamdetect.service.keys import StoreError
from spamdetect.service.store import KeyStore

_log = logging.getLogger("spamdetect.bot")

UPDATES: Final = ("message", "edited_message", "callback_query", "chat_member")
_POLL_S: Final = 30
_WAIT_S: Final = 1.0  # after a failure; twice as long after the next one
_MAX_WAIT_S: Final = 30.0
_GRACE_S: Final = 5.0
# More than one flood brings; beyond it, Telegram keeps what it has not delivered yet.
_MAX_RUNNING: Final = 10_000
_MAX_STARTS: Final = 5
_TRIES: Final = 10
_turn: contextvars.ContextVar[_Turn] = contextvars.ContextVar("turn")


def end_turn() -> None:
    """Let the chat's next update begin; what is left of this one may wait for Telegram."""
    _turn.get().end()


class Inbox:
    """Receives updates.

    Args:
        store: Where they are until they are done.
        bot: The bot, initialised.
        handle: Does one update. A :class:`StoreError` has it tried again.
    """

    def __init__(
        self, store: KeyStore, bot: Bot, handle: Callable[[Update], Awaitable[None]]
    ) -> None:
        self._store = store
        self._bot = bot
        self._handle = handle
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self.skipped = 0
        """Updates that could not be read."""

    @contextlib.asynccontextmanager
    async def running(self, *, polling: bool) -> AsyncIterator[None]:
        """Do what an earlier process has left, and receive until the end of the block."""
        left = await self._store.unfinished_updates(self._bot.id)
        for number, (content, starts) in sorted(left.items()):
            if starts < _MAX_STARTS:
                self._begin(number, msgspec.json.decode(content))
            else:
                await self._skip(number, "the bot stopped in it each time")
        poller = asyncio.create_task(self._poll()) if polling else None
        try:
            yield
        finally:
            if poller is not None:
                poller.cancel()
                await asyncio.wait([poller])
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_GRACE_S)
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def take(self, received: Sequence[Any]) -> None:
        """Store updates and begin them; afterwards Telegram may forget them.

        Raises:
            StoreError: They are not stored; Telegram must give them again.
        """
        while len(self._tasks) >= _MAX_RUNNING:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        numbered = {number: each for each in received if (number := _number_of(each)) is not None}
        if len(numbered) < len(received):
            await self._skip(None, "it has no number")
        if not numbered:
            return
        contents = {number: msgspec.json.encode(each) for number, each in numbered.items()}
        for number in sorted(await self._store.take_updates(self._bot.id, contents)):
            self._begin(number, numbered[number])

    async def _poll(self) -> None:
        offset, wait_s = 0, _WAIT_S
        while True:
            asked = urlencode(
                {
                    "offset": offset,
                    "timeout": _POLL_S,
                    "allowed_updates": msgspec.json.encode(UPDATES).decode(),
                }
            )
            try:
                # As JSON: the library's own getUpdates fails as a whole when it cannot read one.
                received = await self._bot.request.post(
                    f"{self._bot.base_url}/getUpdates?{asked}", read_timeout=_POLL_S + 5
                )
                if not isinstance(received, list):
                    raise TelegramError("no list of updates")
                await self.take(received)
                numbers = [number for each in received if (number := _number_of(each)) is not None]
                offset, wait_s = max(numbers, default=offset - 1) + 1, _WAIT_S
            except Exception as error:  # noqa: BLE001 - the bot must not become deaf
                # Only the type: error messages can contain the URL, and the URL contains the token.
                _log.warning("polling failed, trying again: %s", type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)

    def _begin(self, number: int, raw: Any) -> None:
        turns = self._turns.setdefault(_chat_of(raw), asyncio.Lock())
        task = asyncio.create_task(self._do(number, raw, turns))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, number: int, raw: Any, turns: asyncio.Lock) -> None:
        async with _Turn(turns):
            try:
                update = Update.de_json(raw, self._bot)
            except Exception as error:  # noqa: BLE001 - as many kinds as there are wrong messages
                await self._skip(number, f"{type(error).__name__} at {place_of(error)}")
                return
            await self._until_done(lambda: self._handle(update))
        await self._until_done(lambda: self._store.finish_update(self._bot.id, number))

    async def _until_done(self, do: Callable[[], Awaitable[None]]) -> None:
        wait_s, failures = _WAIT_S, 0
        while True:
            try:
                return await do()
            except (StoreError, NetworkError) as error:
                _log.warning("an update is tried again: %s", type(error).__name__)
                failures += isinstance(error, NetworkError)
                if failures == _TRIES:
                    return None
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    async def _skip(self, number: int | None, why: str) -> None:
        self.skipped += 1
        _log.warning("an update cannot be read (%d so far): %s", self.skipped, why)
        if number is not None:
            await self._until_done(lambda: self._store.finish_update(self._bot.id, number))


class _Turn:
    """A chat's lock, held until the block ends or :func:`end_turn` is called in it."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._holds = False

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self._holds = True
        _turn.set(self)

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self._holds:
            self._holds = False
            self._lock.release()


class PatientRequest(HTTPXRequest):
    """Calls Telegram, and calls again after as long as it asks for with a 429."""

    async def do_request(self, url: str, method: str, *args: Any, **options: Any) -> Any:
        """See :class:`telegram.request.BaseRequest`."""
        for _ in range(_TRIES):
            code, payload = await super().do_request(url, method, *args, **options)
            if code != HTTPStatus.TOO_MANY_REQUESTS:
                return code, payload
            await asyncio.sleep(_retry_after_s(payload))
        raise NetworkError("too many requests")

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """See :class:`telegram.request.BaseRequest`, which logs what it cannot read."""
        try:
            return json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise TelegramError("the answer is not JSON") from None


def _retry_after_s(payload: bytes) -> float:
    try:
        return max(float(json.loads(payload)["parameters"]["retry_after"]), 0.0)
    except (ValueError, TypeError, KeyError, RecursionError):
        return _WAIT_S


def _number_of(raw: object) -> int | None:
    number = raw.get("update_id") if isinstance(raw, dict) else None
    return number if isinstance(number, int) else None


def _chat_of(raw: dict[str, Any]) -> int:
    """The chat that an update is from, else its user; 0 where neither can be told."""
    for said in raw.values():
        if isinstance(said, dict):
            inside = said if "chat" in said else said.get("message")
            chat = inside.get("chat") if isinstance(inside, dict) else None
            if isinstance(moved := said.get("migrate_to_chat_id"), int):
                return moved  # before whatever is said there
            for who in (chat, said.get("from")):
                if isinstance(who, dict) and isinstance(who.get("id"), int):
                    return int(who["id"])
    return 0
