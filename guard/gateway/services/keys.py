"""API keys: made, hashed, looked up, revoked."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from guard.core.ids import IdFactory
from guard.gateway.domain.key_hierarchy import child_id
from guard.gateway.domain.records import Key, KeyAttributes, KeySecret, Role
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION

SDK_PREFIX: Final = "gdk_"
ADMIN_PREFIX: Final = "gda_"
PROXY_PREFIX: Final = "gdp_"
_PREFIXES: Final = {"sdk": SDK_PREFIX, "admin": ADMIN_PREFIX, "proxy": PROXY_PREFIX}
NO_ATTRIBUTES: Final = KeyAttributes()
_CACHE_MAX: Final = 20_000
USES_EVERY_MS: Final = 5_000
"""How often the times are written at which secrets were last used."""


class NewKey(Struct):
    """A new key with its secrets, which are shown once.

    Afterwards the key is stored as a hash, and the HMAC secret only to check signatures.
    """

    key: Key
    api_key: str
    key_hash: bytes
    hmac_secret: str | None

    def __repr__(self) -> str:
        return f"NewKey({self.key.prefix}...)"


def hash_key(api_key: str) -> bytes:
    """Return the hash that is stored. Keys carry 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(api_key.encode("utf-8", "replace")).digest()


def make_key(
    ids: IdFactory,
    now_ms: int,
    *,
    role: Role,
    organisation_id: str | None,
    name: str,
    workflow_id: str | None = None,
    expires_at_ms: int | None = None,
    signed: bool = False,
    hmac_secret: str | None = None,
    owner_id: str | None = None,
    api_key: str | None = None,
    attributes: KeyAttributes = NO_ATTRIBUTES,
) -> NewKey:
    """Make a key, random if none is given, and a secret when its requests have to be signed."""
    if api_key is None:
        api_key = _PREFIXES[role] + secrets.token_urlsafe(32)
    if signed and hmac_secret is None:
        hmac_secret = secrets.token_urlsafe(32)
    own_id = ids.uuid7(now_ms)
    key = Key(
        key_id=own_id if owner_id is None else child_id(owner_id, own_id),
        organisation_id=organisation_id,
        role=role,
        name=name,
        prefix=api_key[:12],
        workflow_id=workflow_id,
        signed=hmac_secret is not None,
        expires_at_ms=expires_at_ms,
        **{name: getattr(attributes, name) for name in KeyAttributes.__struct_fields__},
    )
    return NewKey(key, api_key, hash_key(api_key), hmac_secret)


class KeyRing:
    """Looks keys up by hash, with a cache that a revocation empties at once.

    Used on the loop only.

    Attributes:
        generation: rises whenever any key may have changed; a key that was found before is to be
            looked up again.
    """

    def __init__(self, storage: Storage, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        # By hash; ``None`` for keys that do not exist, since programs with a wrong key keep trying.
        # Emptied when it is full, and by each change of any key.
        self._cache: dict[bytes, KeySecret | None] = {}
        self.generation = 0
        # Puts off the end of a work key, by its hash, if its person is still known.
        self.put_off: Callable[[bytes], Awaitable[None]] | None = None
        # When secrets were last used, by hash, since these were last written.
        self._used_ms: dict[bytes, int] = {}
        self._written_ms = clock_ms()

    async def find(self, api_key: str, *roles: Role) -> KeySecret | None:
        """Return a valid key of one of these roles, or ``None``."""
        return await self.find_hashed(hash_key(api_key), *roles)

    async def find_hashed(self, hashed: bytes, *roles: Role) -> KeySecret | None:
        """Like :meth:`find`, by the hash of the key.

        Raises:
            StoreError: it cannot be told whether the key is valid.
        """
        found, now_ms = await self._read(hashed), self._clock_ms()
        if self.put_off is not None and _may_be_put_off(found, now_ms):
            await self.put_off(hashed)
            self._cache.pop(hashed, None)
            found = await self._read(hashed)
        # Checked with each call, also of a cached key: it may expire while it is in the cache.
        if found is None or found.key.role not in roles or found.key.revoked_at_ms is not None:
            return None
        if _has_expired(found.key, now_ms):
            return None
        self._used_ms[hashed] = now_ms
        return found

    async def _read(self, hashed: bytes) -> KeySecret | None:
        while hashed not in self._cache:
            generation = self.generation
            found = await self._storage.find_key(hashed)
            # A key that was revoked while it was read is not what was read: once more.
            if generation == self.generation:
                if len(self._cache) >= _CACHE_MAX:
                    self._cache.clear()
                self._cache[hashed] = found
        return self._cache[hashed]

    async def write_uses(self) -> None:
        """Write when secrets were last used, unless that was done seconds ago.

        What a failure of the store loses is written with the next use.
        """
        now_ms = self._clock_ms()
        if self._used_ms and now_ms - self._written_ms >= USES_EVERY_MS:
            used_ms, self._used_ms, self._written_ms = self._used_ms, {}, now_ms
            await self._storage.write(NO_ORGANISATION, directory.note_secrets_used, used_ms)

    def forget(self) -> None:
        """Empty the cache, because some key has changed."""
        self.generation += 1
        self._cache.clear()


def _has_expired(key: Key, now_ms: int) -> bool:
    return key.expires_at_ms is not None and key.expires_at_ms <= now_ms


def _may_be_put_off(found: KeySecret | None, now_ms: int) -> bool:
    if found is None or found.key.revoked_at_ms is not None or not _has_expired(found.key, now_ms):
        return False
    return found.works_until_ms is not None and found.works_until_ms > now_ms
