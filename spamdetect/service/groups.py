"""The groups that the bot moderates: their settings, counts and cases, in the key store.

A group that turns moderation on owns a key that nobody is shown. Everything about the group is a
rule of this key, its feedback too: no group feels another one, and turning moderation off deletes
all of it together with the key.
"""

from __future__ import annotations

import time
from typing import Final, Literal, TypeVar

import msgspec

from spamdetect.service.keys import KeyRecord, KeySpec, StoredRule
from spamdetect.service.rule_book import RuleBook
from spamdetect.service.rules import Feedback, KeyRules
from spamdetect.service.steps import run_steps
from spamdetect.service.store import KeyStore
from spamdetect.thresholds import ProfileName

T = TypeVar("T", bound=msgspec.Struct)

Policy = Literal["flag", "delete"]
Punishment = Literal["none", "mute", "ban"]
Newcomers = Literal["like others", "strict", "nolinks"]

# Older ones make room: of users that were warned, and of messages that may be appealed for.
_MAX_WARNED: Final = 1000
_MAX_JOINED: Final = 1000
_NEW_S: Final = 86_400.0
_MAX_CASES: Final = 200
_CASE_DAYS: Final = 7
_MAX_GROUPS: Final = 10_000


class GroupSettings(msgspec.Struct, frozen=True):
    """What a group's administrators chose.

    Attributes:
        policy: Whether spam is deleted, or only answered with a flag.
        profile: The model's profile that says what is spam.
        punishment: What becomes of an author after so many warnings.
        after: How many warnings that takes.
        newcomers: What holds for somebody who has joined within a day.
        log_chat: Chat that is told of everything that is done; 0 is none.
    """

    policy: Policy = "flag"
    profile: ProfileName = "balanced"
    punishment: Punishment = "none"
    after: int = 0
    newcomers: Newcomers = "like others"
    log_chat: int = 0


class Counts(msgspec.Struct):
    """What happened in a group since moderation was turned on."""

    seen: int = 0
    spam: int = 0
    deleted: int = 0
    appeals: int = 0
    overturned: int = 0


class Case(msgspec.Struct, frozen=True):
    """A message that was taken for spam.

    Attributes:
        message_id: The message.
        user_id: Its author, or the channel in whose name it was written.
        opened_s: Unix time.
        deleted: Whether it was deleted.
        text: The text, to put it back.
        sketch: Its hashes, for feedback.
        appealed: Whether the author has asked the administrators.
        update_id: The update that it was opened for, which may have to be done again.
        warnings: How many the author had then.
        punished: What became of the author.
        score: How surely it is spam.
        identifiers: Hashes of the links, numbers and names in it, for feedback.
    """

    message_id: int
    user_id: int
    opened_s: float
    deleted: bool
    text: str
    sketch: tuple[int, ...]
    appealed: bool = False
    update_id: int = 0
    warnings: int = 0
    punished: Punishment = "none"
    score: float = 1.0
    identifiers: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Case({self.message_id})"


class _Warnings(msgspec.Struct, frozen=True):
    count: int
    message_id: int = 0  # the last one that was counted: once, also when its update is done again


class _Joined(msgspec.Struct, frozen=True):
    at_s: float


class Group:
    """One moderated group."""

    def __init__(self, store: KeyStore, book: RuleBook, key: KeyRecord) -> None:
        self._store = store
        self._book = book
        self._key = key
        self.settings = GroupSettings()
        self.counts = Counts()

    async def load(self) -> None:
        """Read the settings and the counts."""
        self.settings = await self._one("group", "settings", GroupSettings) or self.settings
        self.counts = await self._one("group", "counts", Counts) or self.counts

    async def change(self, settings: GroupSettings) -> None:
        """Take other settings."""
        self.settings = settings
        await self._put("group", "settings", settings, 2)

    async def save_counts(self) -> None:
        """Store the counts; what was seen since the last spam is in memory until the next."""
        await self._put("group", "counts", self.counts, 2)

    async def rules(self) -> KeyRules:
        """The feedback of the group."""
        key = await self._store.find(self._key.key_id)
        return await run_steps(self._book.rules_of(key or self._key))

    async def warn(self, user_id: int, message_id: int, change: int = 1) -> int:
        """Count a warning for a message, or take one back; returns how many the user has."""
        known = await self._one("warning", str(user_id), _Warnings) or _Warnings(0)
        if known.message_id != change * message_id:
            count = max(0, known.count + change)
            known = _Warnings(count, change * message_id)
            await self._put("warning", str(user_id), known, _MAX_WARNED)
        return known.count

    async def join(self, user_id: int) -> None:
        """Note that somebody has joined."""
        await self._put("joined", str(user_id), _Joined(time.time()), _MAX_JOINED)

    async def is_new(self, user_id: int) -> bool:
        """Whether somebody has joined within a day."""
        joined = await self._one("joined", str(user_id), _Joined)
        return joined is not None and joined.at_s > time.time() - _NEW_S

    async def open_case(self, case: Case) -> None:
        """Keep a message for an appeal, for a week at most."""
        for old in await self._all("case", Case):
            if old.opened_s < time.time() - _CASE_DAYS * 86_400:
                await self.close_case(old)
        await self._put("case", str(case.message_id), case, _MAX_CASES)

    async def case(self, message_id: int) -> Case | None:
        """The case of a message, if it is open."""
        return await self._one("case", str(message_id), Case)

    async def close_case(self, case: Case) -> bool:
        """Forget a case; false when somebody else was first."""
        return await self._store.delete_rule(self._key.key_id, "case", str(case.message_id))

    async def report(self, case: Case, *, is_spam: bool) -> None:
        """Let what a message really was count for the group's later messages."""
        if case.sketch:
            name = f"message {case.message_id}"
            feedback = Feedback(name, is_spam, time.time(), case.sketch, case.identifiers)
            await run_steps(self._book.add_feedback(self._key, feedback))

    async def _put(self, kind: str, rule_id: str, value: msgspec.Struct, most: int) -> None:
        rule = StoredRule(kind, rule_id, msgspec.json.encode(value))
        await self._store.put_rules(self._key.key_id, [rule], most, drop_oldest=True)

    async def _one(self, kind: str, rule_id: str, struct: type[T]) -> T | None:
        for rule in await self._store.rules(self._key.key_id):
            if (rule.kind, rule.rule_id) == (kind, rule_id):
                return msgspec.json.decode(rule.content, type=struct)
        return None

    async def _all(self, kind: str, struct: type[T]) -> list[T]:
        rules = await self._store.rules(self._key.key_id)
        return [
            msgspec.json.decode(rule.content, type=struct) for rule in rules if rule.kind == kind
        ]


class Groups:
    """The moderated groups of one bot.

    Args:
        store: Where they are.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._book = RuleBook(store)
        # By chat: the key that the group had, and the group; None is not moderated.
        self._known: dict[int, Group | None] = {}

    async def of(self, chat_id: int) -> Group | None:
        """The group of a chat, or None where moderation is off."""
        if chat_id not in self._known:
            key = await self._store.active_key_of(_owner(chat_id))
            group = None if key is None else Group(self._store, self._book, key)
            if group is not None:
                await group.load()
            if len(self._known) >= _MAX_GROUPS:
                self._known.clear()
            self._known[chat_id] = group
        return self._known[chat_id]

    async def turn_on(self, chat_id: int, settings: GroupSettings) -> None:
        """Begin to moderate a group, or change how."""
        group = await self.of(chat_id)
        if group is None:
            await self._store.create(KeySpec(label="moderated group", owner=_owner(chat_id)))
            del self._known[chat_id]
            group = await self.of(chat_id)
            assert group is not None
        await group.change(settings)

    async def turn_off(self, chat_id: int) -> bool:
        """Stop moderating a group and delete what is known of it."""
        self._known.pop(chat_id, None)
        key = await self._store.active_key_of(_owner(chat_id))
        return key is not None and await self._store.revoke(key.key_id)

    async def move(self, chat_id: int, new_chat_id: int) -> None:
        """Follow a group that has become a supergroup, with another id."""
        key = await self._store.active_key_of(_owner(chat_id))
        if key is not None and await self._store.active_key_of(_owner(new_chat_id)) is None:
            await self._store.change_owner(key.key_id, _owner(new_chat_id))
        self._known.pop(chat_id, None)
        self._known.pop(new_chat_id, None)


def _owner(chat_id: int) -> str:
    return f"telegram-group:{chat_id}"
