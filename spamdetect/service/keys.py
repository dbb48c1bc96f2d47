"""API keys: their form, their hash, and what is stored of them.

A key is ``spam_<id>_<secret>``. The id finds the row, the secret is 256 random bits of which
only the SHA-256 is stored; a slow hash would add nothing to a secret that cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

import attrs

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
