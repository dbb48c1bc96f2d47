"""The key store: each operation is written once, in SQL that SQLite and PostgreSQL both understand.

An engine runs the statements and says how it writes what the two write differently. In a statement
``@`` stands before the name of a table and ``?`` for a parameter.
"""

from __future__ import annotations

import abc
import functools
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, ClassVar, Concatenate, Final, LiteralString, ParamSpec, TypeAlias, TypeVar

import attrs

from spamdetect.service.keys import KeyRecord, KeySpec, NewKey, StoredRule, make_key
from spamdetect.service.shares import Share, Wanted, take

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="KeyStore")
Rows: TypeAlias = list[Any]
Statement: TypeAlias = tuple[LiteralString, Sequence[Any]]
# Is sent the rows of each statement that it yields.
Transaction: TypeAlias = Generator[Statement, Rows, R]

# Telegram gives an update again for so long, if it believes that the bot has not had it.
UPDATE_AGE_S: Final = 86_400.0
# PostgreSQL takes 65,535 parameters in one statement, SQLite half as many.
_ROWS_MAX: Final = 1000
_COLUMNS: Final = (
    "key_id, secret_hash, label, owner, created_s, revoked_s, rate_per_minute, quota_per_day,"
    " rules_version"
)
SELECT_KEYS: Final = f"SELECT {_COLUMNS} FROM @api_keys"
_USAGE: Final = "SELECT requests FROM @key_usage WHERE key_id = ? AND day = ?"
# Locks the key's row: changes of one key's rules take turns.
_TOUCH: Final = (
    "UPDATE @api_keys SET rules_version = rules_version + 1"
    " WHERE key_id = ? AND revoked_s IS NULL RETURNING key_id"
)
# The column rules_version is added afterwards, because earlier versions had none.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS @api_keys (
  key_id TEXT PRIMARY KEY,
  secret_hash {blob} NOT NULL,
  label TEXT NOT NULL,
  owner TEXT NOT NULL,
  created_s {real} NOT NULL,
  revoked_s {real},
  rate_per_minute {integer},
  quota_per_day {integer}
) {by_key};
CREATE UNIQUE INDEX IF NOT EXISTS @one_active_key_per_owner
  ON @api_keys (owner) WHERE revoked_s IS NULL AND owner <> '';
CREATE INDEX IF NOT EXISTS @keys_by_owner ON @api_keys (owner, created_s) WHERE owner <> '';
CREATE TABLE IF NOT EXISTS @key_usage (
  key_id TEXT NOT NULL, day TEXT NOT NULL, requests {integer} NOT NULL,
  PRIMARY KEY (key_id, day)
) {by_key};
CREATE TABLE IF NOT EXISTS @key_cells (
  key_id TEXT PRIMARY KEY, cell_s {real} NOT NULL
) {by_key};
CREATE TABLE IF NOT EXISTS @feedback (
  feedback_id TEXT PRIMARY KEY, key_id TEXT NOT NULL, received_s {real} NOT NULL,
  is_spam {boolean} NOT NULL, text {any_text} NOT NULL
);
CREATE TABLE IF NOT EXISTS @key_rules (
  key_id TEXT NOT NULL, kind TEXT NOT NULL, rule_id TEXT NOT NULL, created_s {real} NOT NULL,
  content {blob} NOT NULL, PRIMARY KEY (key_id, kind, rule_id)
) {by_key};
-- The content of one that is done is NULL.
CREATE TABLE IF NOT EXISTS @bot_updates (
  bot_id {integer} NOT NULL, update_id {integer} NOT NULL, received_s {real} NOT NULL,
  content {blob}, starts {integer} NOT NULL DEFAULT 0, PRIMARY KEY (bot_id, update_id)
) {by_key};
"""


@attrs.frozen(kw_only=True)
class Spelling:
    """What the engines write differently.

    Attributes:
        prefix: Of the names of tables and indexes.
        parameter: Stands for a parameter.
        lock: Lets transactions that name the same thing take turns; empty where all do.
        now_s: The store's clock, as Unix time.
        integer: The type of whole numbers of 64 bits.
        real: The type of floating-point numbers.
        blob: The type of bytes.
        boolean: The type of what is true or false.
        any_text: The type of texts in which U+0000 may be.
        encoded: Makes such a text of its UTF-8.
        by_key: Stores a table in the order of its primary key.
    """

    prefix: LiteralString
    parameter: LiteralString
    lock: LiteralString
    now_s: LiteralString
    integer: LiteralString
    real: LiteralString
    blob: LiteralString
    boolean: LiteralString
    any_text: LiteralString
    encoded: LiteralString
    by_key: LiteralString

    def spelled(self, sql: LiteralString) -> LiteralString:
        """A statement for the engine."""
        return sql.replace("@", self.prefix).replace("?", self.parameter)

    @property
    def schema(self) -> LiteralString:
        """Creates what is missing of the tables."""
        return self.spelled(
            _SCHEMA.format(
                integer=self.integer,
                real=self.real,
                blob=self.blob,
                boolean=self.boolean,
                any_text=self.any_text,
                by_key=self.by_key,
            )
        )


def _in_transaction(
    steps: Callable[Concatenate[S, P], Transaction[R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    @functools.wraps(steps)
    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._transact(steps(self, *args, **kwargs))

    return method


class KeyStore(abc.ABC):
    """Where keys, usage counts, rules and reports live; one suite tests it on every engine."""

    spelling: ClassVar[Spelling]

    @abc.abstractmethod
    def find_now(self, key_id: str) -> KeyRecord | None:
        """:meth:`find` without waiting.

        Raises:
            WouldWaitError: The store must be awaited.
        """

    @abc.abstractmethod
    async def find(self, key_id: str) -> KeyRecord | None:
        """The key with this id, revoked or not."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Release connections."""

    @abc.abstractmethod
    async def _read(self, sql: LiteralString, *parameters: Any) -> Rows:
        """Run a statement that changes nothing."""

    @abc.abstractmethod
    async def _change(self, sql: LiteralString, *parameters: Any) -> Rows:
        """Run a statement that is a transaction by itself."""

    @abc.abstractmethod
    async def _transact(self, steps: Transaction[R]) -> R:
        """Run statements in one transaction, which an exception of theirs undoes."""

    @_in_transaction
    def create(self, spec: KeySpec) -> Transaction[NewKey]:
        """Make a key; an owner's earlier key is revoked in the same transaction.

        The earlier key's rules become the new one's.
        """
        return (yield from self._create(spec))

    @_in_transaction
    def create_first(self, spec: KeySpec) -> Transaction[NewKey | None]:
        """Make a key unless there has ever been one, as one step among all processes."""
        yield from self._take_turns("the first key")
        any_key = yield _statement("SELECT 1 FROM @api_keys LIMIT 1")
        return None if any_key else (yield from self._create(spec))

    def _create(self, spec: KeySpec) -> Transaction[NewKey]:
        new, secret_hash = make_key()
        now_s = time.time()
        earlier: Rows = []
        if spec.owner:
            # Two concurrent requests of one owner take turns, instead of one failing.
            yield from self._take_turns(spec.owner)
            earlier = yield _statement(
                "UPDATE @api_keys SET revoked_s = ? WHERE owner = ? AND revoked_s IS NULL"
                " RETURNING key_id, rules_version",
                now_s,
                spec.owner,
            )
        old_id, version = earlier[0] if earlier else ("", 0)
        if version:
            yield _statement(
                "UPDATE @key_rules SET key_id = ? WHERE key_id = ?", new.key_id, old_id
            )
        key = (new.key_id, secret_hash, spec.label, spec.owner, now_s, None,
               spec.rate_per_minute, spec.quota_per_day, version)  # fmt: skip
        yield from _insert(f"@api_keys ({_COLUMNS})", [key])
        return new

    def _take_turns(self, name: str) -> Transaction[None]:
        if self.spelling.lock:
            yield _statement(self.spelling.lock, name)

    @_in_transaction
    def revoke(self, key_id: str) -> Transaction[bool]:
        """Revoke a key and delete its rules; False when there is no such active key."""
        revoked = yield _statement(
            "UPDATE @api_keys SET revoked_s = ? WHERE key_id = ? AND revoked_s IS NULL"
            " RETURNING key_id",
            time.time(),
            key_id,
        )
        yield _statement("DELETE FROM @key_rules WHERE key_id = ?", key_id)
        return bool(revoked)

    async def list_keys(self) -> list[KeyRecord]:
        """Every key, oldest first."""
        rows = await self._read(f"{SELECT_KEYS} ORDER BY created_s, key_id")
        return [KeyRecord(*row) for row in rows]

    async def active_key_of(self, owner: str) -> KeyRecord | None:
        """The active key of an owner."""
        rows = await self._read(f"{SELECT_KEYS} WHERE owner = ? AND revoked_s IS NULL", owner)
        return KeyRecord(*rows[0]) if rows else None

    async def change_owner(self, key_id: str, owner: str) -> None:
        """Give a key to another owner, who must have no active one."""
        await self._change("UPDATE @api_keys SET owner = ? WHERE key_id = ?", owner, key_id)

    async def issued_since(self, owner: str, since_s: float) -> int:
        """How many keys an owner has been given since this Unix time."""
        [(issued,)] = await self._read(
            "SELECT count(*) FROM @api_keys WHERE owner = ? AND created_s >= ?", owner, since_s
        )
        return int(issued)

    @_in_transaction
    def take_share(self, key_id: str, wanted: Wanted) -> Transaction[Share]:
        """Take a share of a key's limits, in one transaction, on the store's clock."""
        # Locks the key's row, so that processes take turns.
        [(cell_s, now_s)] = yield _statement(
            "INSERT INTO @key_cells AS cell (key_id, cell_s) VALUES (?, 0)"
            " ON CONFLICT (key_id) DO UPDATE SET cell_s = cell.cell_s"
            f" RETURNING cell_s, {self.spelling.now_s}",
            key_id,
        )
        known = yield _statement(_USAGE, key_id, wanted.day)
        used = known[0][0] if known else 0
        cell_s, now_used, share = take(cell_s, used, now_s, wanted)
        yield _statement("UPDATE @key_cells SET cell_s = ? WHERE key_id = ?", cell_s, key_id)
        yield from self._add_usage([(key_id, wanted.day, now_used - used)])
        return share

    async def add_usage(self, counts: dict[tuple[str, str], int]) -> None:
        """Add requests to the counts of (key id, UTC day as ``YYYY-MM-DD``)."""
        # In a fixed order, so that replicas that write concurrently cannot deadlock.
        rows = [(*slot, requests) for slot, requests in sorted(counts.items())]
        if 0 < len(rows) <= _ROWS_MAX:
            # A statement by itself is one round trip, with a transaction around it three.
            sql, parameters = next(self._add_usage(rows))
            await self._change(sql, *parameters)
        else:
            await self._transact(self._add_usage(rows))

    def _add_usage(self, counts: list[tuple[str, str, int]]) -> Transaction[None]:
        yield from _insert(
            "@key_usage AS used (key_id, day, requests)",
            counts,
            "ON CONFLICT (key_id, day) DO UPDATE SET requests = used.requests + excluded.requests",
        )

    async def usage(self, key_id: str, day: str) -> int:
        """The stored number of a key's requests on a UTC day."""
        rows = await self._read(_USAGE, key_id, day)
        return int(rows[0][0]) if rows else 0

    async def add_feedback(self, feedback_id: str, key_id: str, text: str, is_spam: bool) -> None:
        """Store a report; repeating its id changes nothing."""
        await self._change(
            "INSERT INTO @feedback (feedback_id, key_id, received_s, is_spam, text)"
            f" VALUES (?, ?, ?, ?, {self.spelling.encoded}) ON CONFLICT (feedback_id) DO NOTHING",
            feedback_id,
            key_id,
            time.time(),
            is_spam,
            text.encode(),
        )

    async def feedback(self) -> list[tuple[str, bool]]:
        """Every stored report as (text, is spam), oldest first, for retraining."""
        rows = await self._read(
            "SELECT text, is_spam FROM @feedback ORDER BY received_s, feedback_id"
        )
        return [
            (text if isinstance(text, str) else text.decode(), bool(is_spam))
            for text, is_spam in rows
        ]

    async def rules(self, key_id: str) -> list[StoredRule]:
        """The rules of a key, oldest first."""
        rows = await self._read(
            "SELECT kind, rule_id, content FROM @key_rules WHERE key_id = ?"
            " ORDER BY created_s, kind, rule_id",
            key_id,
        )
        return [StoredRule(*row) for row in rows]

    @_in_transaction
    def put_rules(
        self, key_id: str, rules: Sequence[StoredRule], most: int, *, drop_oldest: bool = False
    ) -> Transaction[bool]:
        """Store rules of an active key, each instead of an earlier one with its id.

        Args:
            key_id: The key.
            rules: The rules, of one kind.
            most: How many of their kind the key may have.
            drop_oldest: Whether the oldest makes room; otherwise none is stored if one is too many.

        Returns:
            Whether they were stored.
        """
        if not (yield _statement(_TOUCH, key_id)):
            return False
        one = key_id, rules[0].kind
        contents = {rule.rule_id: rule.content for rule in rules}
        if not drop_oldest:
            known = yield _statement(
                "SELECT rule_id FROM @key_rules WHERE key_id = ? AND kind = ?", *one
            )
            if len(contents.keys() | {rule_id for (rule_id,) in known}) > most:
                return False
        now_s = time.time()
        yield from _insert(
            "@key_rules (key_id, kind, rule_id, created_s, content)",
            [(*one, rule_id, now_s, content) for rule_id, content in contents.items()],
            "ON CONFLICT (key_id, kind, rule_id) DO UPDATE"
            " SET created_s = excluded.created_s, content = excluded.content",
        )
        # SQLite wants a limit before an offset: the largest.
        yield _statement(
            "DELETE FROM @key_rules WHERE key_id = ? AND kind = ? AND rule_id IN ("
            " SELECT rule_id FROM @key_rules WHERE key_id = ? AND kind = ?"
            " ORDER BY created_s DESC, rule_id LIMIT 9223372036854775807 OFFSET ?)",
            *one,
            *one,
            most,
        )
        return True

    @_in_transaction
    def delete_rule(self, key_id: str, kind: str, rule_id: str) -> Transaction[bool]:
        """Delete a rule; False when the key has none with this id."""
        yield _statement(_TOUCH, key_id)
        deleted = yield _statement(
            "DELETE FROM @key_rules WHERE key_id = ? AND kind = ? AND rule_id = ?"
            " RETURNING rule_id",
            key_id,
            kind,
            rule_id,
        )
        return bool(deleted)

    @_in_transaction
    def take_updates(self, bot_id: int, updates: dict[int, bytes]) -> Transaction[list[int]]:
        """Store what a bot has received, in one transaction.

        Args:
            bot_id: The bot.
            updates: What Telegram sent, by its number. A number that the bot has had within a day
                changes nothing.

        Returns:
            The numbers that are new.
        """
        now_s = time.time()
        yield _statement(
            "DELETE FROM @bot_updates WHERE bot_id = ? AND content IS NULL AND received_s < ?",
            bot_id,
            now_s - UPDATE_AGE_S,
        )
        taken = yield from _insert(
            "@bot_updates (bot_id, update_id, received_s, content)",
            [(bot_id, number, now_s, content) for number, content in updates.items()],
            "ON CONFLICT (bot_id, update_id) DO NOTHING RETURNING update_id",
        )
        return [number for (number,) in taken]

    async def finish_update(self, bot_id: int, update_id: int) -> None:
        """Forget what was in an update that is done; its number is known for a day."""
        await self._change(
            "UPDATE @bot_updates SET content = NULL WHERE bot_id = ? AND update_id = ?",
            bot_id,
            update_id,
        )

    async def unfinished_updates(self, bot_id: int) -> dict[int, tuple[bytes, int]]:
        """What a bot has received and not done, and how many times this was asked before."""
        rows = await self._change(
            "UPDATE @bot_updates SET starts = starts + 1 WHERE bot_id = ? AND content IS NOT NULL"
            " RETURNING update_id, content, starts - 1",
            bot_id,
        )
        return {number: (content, starts) for number, content, starts in rows}

    async def ping(self) -> None:
        """Raise :class:`~spamdetect.service.keys.StoreError` when the store cannot be used."""
        await self._read("SELECT count(*) FROM @api_keys WHERE key_id = ''")


def _statement(sql: LiteralString, *parameters: Any) -> Statement:
    return sql, parameters


def _insert(
    into: LiteralString, rows: Sequence[Sequence[Any]], then: LiteralString = ""
) -> Transaction[Rows]:
    """Insert rows, many with each statement, and return what those return."""
    returned: Rows = []
    for start in range(0, len(rows), _ROWS_MAX):
        some = rows[start : start + _ROWS_MAX]
        one: list[LiteralString] = ["?"] * len(some[0])
        places: list[LiteralString] = [f"({', '.join(one)})"] * len(some)
        returned += yield _statement(
            f"INSERT INTO {into} VALUES {', '.join(places)} {then}",
            *(value for row in some for value in row),
        )
    return returned
