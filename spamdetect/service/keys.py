"""API keys: their form, their hash, and what a key store offers.

A key is ``spam_<id>_<secret>``. The id finds the row, the secret is 256 random bits of which
only the SHA-256 is stored; a slow hash would add nothing to a secret that cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from spamdetect.service.shares import Share, Wanted

# Telegram gives an update again for so long, if it believes that the bot has not had it.
UPDATE_AGE_S: Final = 86_400.0
_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_KEY: Final = re.compile(r"spam_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")


@attrs.frozen
class NewKey:
    """A new key, at the only moment when its secret is known.

    Attributes:
        key_id: Identifies the key in lists and metrics; not secret.
        api_key: The whole key, for the header ``x-api-key``.
    """

    key_id: str
    api_key: str = attrs.field(repr=False)


@attrs.frozen
class KeyRecord:
    """A stored key.

    Attributes:
        key_id: Identifies the key.
        secret_hash: SHA-256 of the secret.
        label: What the operator called it.
        owner: Who holds it, such as ``telegram:1234``; empty for keys made on the command line.
        created_s: Unix time of creation in seconds.
        revoked_s: Unix time of revocation in seconds, or None while it is active.
        rate_per_minute: Requests per minute, 0 for no limit, None for the service's default.
        quota_per_day: Requests per UTC day, 0 for no limit, None for the service's default.
        rules_version: Changes with every change of the key's rules; 0 while it never had any.
    """

    key_id: str
    secret_hash: bytes = attrs.field(repr=False)
    label: str
    owner: str
    created_s: float
    revoked_s: float | None
    rate_per_minute: int | None
    quota_per_day: int | None
    rules_version: int = 0


@attrs.frozen
class StoredRule:
    """Something that a key has said about its texts: an entry of a list, or feedback.

    Attributes:
        kind: ``list`` or ``feedback``.
        rule_id: Identifies it among those of its key and kind.
        content: The rest, as the service encodes it.
    """

    kind: str
    rule_id: str
    content: bytes = attrs.field(repr=False)


@attrs.frozen
class KeySpec:
    """The properties of a new key; see :class:`KeyRecord`."""

    label: str = ""
    owner: str = ""
    rate_per_minute: int | None = None
    quota_per_day: int | None = None


class KeyStore(Protocol):
    """Where keys, usage counts, rules and reports live; one suite tests every store."""

    def find_now(self, key_id: str) -> KeyRecord | None:
        """:meth:`find` without waiting.

        Raises:
            WouldWaitError: The store must be awaited.
        """

    async def find(self, key_id: str) -> KeyRecord | None:
        """The key with this id, revoked or not."""

    async def create(self, spec: KeySpec) -> NewKey:
        """Make a key; an owner's earlier key is revoked in the same transaction.

        The earlier key's rules become the new one's.
        """

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key and delete its rules; False when there is no such active key."""

    async def list_keys(self) -> list[KeyRecord]:
        """Every key, oldest first."""

    async def create_first(self, spec: KeySpec) -> NewKey | None:
        """Make a key unless there has ever been one, as one step among all processes."""

    async def active_key_of(self, owner: str) -> KeyRecord | None:
        """The active key of an owner."""

    async def change_owner(self, key_id: str, owner: str) -> None:
        """Give a key to another owner, who must have no active one."""

    async def issued_since(self, owner: str, since_s: float) -> int:
        """How many keys an owner has been given since this Unix time."""

    async def take_share(self, key_id: str, wanted: Wanted) -> Share:
        """Take a share of a key's limits, in one transaction, on the store's clock."""

    async def add_usage(self, counts: dict[tuple[str, str], int]) -> None:
        """Add requests to the counts of (key id, UTC day as ``YYYY-MM-DD``)."""

    async def usage(self, key_id: str, day: str) -> int:
        """The stored number of a key's requests on a UTC day."""

    async def add_feedback(self, feedback_id: str, key_id: str, text: str, is_spam: bool) -> None:
        """Store a report; repeating its id changes nothing."""

    async def feedback(self) -> list[tuple[str, bool]]:
        """Every stored report as (text, is spam), oldest first, for retraining."""

    async def rules(self, key_id: str) -> list[StoredRule]:
        """The rules of a key, oldest first."""

    async def put_rules(
        self, key_id: str, rules: Sequence[StoredRule], most: int, *, drop_oldest: bool = False
    ) -> bool:
        """Store rules of an active key, each instead of an earlier one with its id.

        Args:
            key_id: The key.
            rules: The rules, of one kind.
            most: How many of their kind the key may have.
            drop_oldest: Whether the oldest makes room; otherwise none is stored if one is too many.

        Returns:
            Whether they were stored.
        """

    async def delete_rule(self, key_id: str, kind: str, rule_id: str) -> bool:
        """Delete a rule; False when the key has none with this id."""

    async def take_updates(self, bot_id: int, updates: dict[int, bytes]) -> list[int]:
        """Store what a bot has received, in one transaction.

        Args:
            bot_id: The bot.
            updates: What Telegram sent, by its number. A number that the bot has had within a day
                changes nothing.

        Returns:
            The numbers that are new.
        """

    async def finish_update(self, bot_id: int, update_id: int) -> None:
        """Forget what was in an update that is done; its number is known for a day."""

    async def unfinished_updates(self, bot_id: int) -> dict[int, tuple[bytes, int]]:
        """What a bot has received and not done, and how many times this was asked before."""

    async def ping(self) -> None:
        """Raise :class:`StoreError` when the store cannot be used."""

    async def close(self) -> None:
        """Release connections."""


class WouldWaitError(Exception):
    """What was asked for at once takes time; use the coroutine."""


class StoreError(Exception):
    """The key store cannot be reached or used; the message contains no secret."""


def make_key() -> tuple[NewKey, bytes]:
    """Make a key and the hash to store."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    return NewKey(key_id, f"spam_{key_id}_{secret}"), _hash(secret)


def parse_key(api_key: str) -> tuple[str, str] | None:
    """Split a key into id and secret, or None when it does not have the form of a key."""
    match = _KEY.fullmatch(api_key)
    return None if match is None else (match[1], match[2])


def secret_matches(secret: str, record: KeyRecord) -> bool:
    """Whether a secret is that of a stored key, compared in constant time."""
    return hmac.compare_digest(_hash(secret), record.secret_hash)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
