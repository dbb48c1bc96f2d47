"""Authentication of SDK requests: API key, protocol version, HTTP message signature, nonce."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import attrs
import msgspec
from msgspec import Struct

from guard.core import signing, wire
from guard.core.wire import MayName
from guard.gateway.api.http import ProblemError, Scope, fail, store_failed, take_place
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import Key, Role
from guard.gateway.ledger import directory
from guard.gateway.services.keys import KeyRing
from guard.gateway.services.logs import note_request
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION

_NONCE_KEEP_MS: Final = 2 * signing.SKEW_MAX_S * 1000
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class KeyIdentity(Struct):
    """The party that a request is made for: its key's owner, or the caller named by a proxy's key.

    Attributes:
        organisation_id, key_id, workflow_id: of that party. For a proxy's key that names no caller,
            the organisation is the key's own, or the key's id if it belongs to none.
        hmac_secret, nonce, signer_id: of the key that signs: the proxy's, if there is one.
        expires_at_ms: when the first of the keys ends.
        role: ``proxy`` if a proxy's key names no caller.
        team, person: whose work the party's is, and who has its key.
        may_name, shows_cost: what its requests may name behind a proxy, and whether they are told
            what they have cost.
    """

    organisation_id: str
    key_id: str
    workflow_id: str | None
    hmac_secret: str | None
    nonce: str = ""
    expires_at_ms: int | None = None
    signer_id: str = ""
    role: Role = "sdk"
    team: str = ""
    person: str = ""
    may_name: tuple[MayName, ...] = ()
    shows_cost: bool = False


def _rejected(code: str, detail: str) -> ProblemError:
    title = "Caller rejected" if code == "GD-A004" else "Key rejected"
    challenge = [(b"www-authenticate", b'ApiKey realm="guard"')]
    return fail(401, code, title, detail, headers=challenge)


def _joined(proxy: Key, caller: Key) -> Key:
    """Return the caller's key, which ends with the proxy's if that is earlier."""
    ends = [each.expires_at_ms for each in (proxy, caller) if each.expires_at_ms is not None]
    return msgspec.structs.replace(caller, expires_at_ms=min(ends, default=None))


def signature_of(identity: KeyIdentity, answer: EncodedAnswer) -> list[tuple[bytes, bytes]] | None:
    """Return the header that signs an answer; None for keys without a secret."""
    if identity.hmac_secret is None:
        return None
    signature = signing.sign_frame(identity.hmac_secret, identity.nonce, answer.body)
    return [(b"x-guard-signature", signature.encode())]


@attrs.frozen(eq=False)
class Authenticator:
    """Checks the credentials of SDK requests.

    Args:
        keys: looks keys up.
        storage: remembers nonces.
        clock_ms: the gateway's clock.
        public_url: the URL that clients sign, when a proxy passes on another one.
    """

    _keys: KeyRing
    _storage: Storage
    _clock_ms: Callable[[], int]
    _public_url: str | None

    @property
    def generation(self) -> int:
        """A number that changes whenever some key may have changed."""
        return self._keys.generation

    def check_protocol(self, headers: dict[bytes, bytes]) -> None:
        """Refuse an SDK that does not speak protocol v3.

        Raises:
            ProblemError: 400 ``PROTOCOL_TOO_OLD``.
        """
        if headers.get(b"x-guard-protocol") == b"3":
            return
        text = headers.get(b"x-guard-protocol", b"0").strip()
        if not text.isdigit() or int(text[:9]) < wire.PROTOCOL_VERSION:
            raise fail(
                400,
                "PROTOCOL_TOO_OLD",
                "Protocol too old",
                f"{wire.HEADER_PROTOCOL} must be at least {wire.PROTOCOL_VERSION}",
                min_required_version=wire.SDK_MIN_VERSION_FOR_V3,
            )

    async def identify(self, headers: dict[bytes, bytes], *, alone: bool = False) -> KeyIdentity:
        """Return the party that a request is made for, before its body is read.

        A key with a secret also needs :meth:`check_signature`.

        Args:
            headers: of the request.
            alone: whether a proxy's key need not name a caller.

        Raises:
            ProblemError: 401 for the key (GD-A003), the caller (GD-A004), or a key that may not, or
                has to, name one (GD-A005).
        """
        identity = await self._identity(headers, alone=alone)
        # For the log lines of this request.
        note_request(identity.organisation_id, headers.get(b"x-request-id"))
        return identity

    async def _identity(self, headers: dict[bytes, bytes], *, alone: bool) -> KeyIdentity:
        credential = headers.get(b"x-api-key", b"").decode("latin-1").strip()
        api_key, names_caller, caller = credential.partition(wire.CALLER_SEPARATOR)
        found = await self._keys.find(api_key, "sdk", "proxy") if api_key else None
        if found is None or (found.key.role == "sdk" and found.key.organisation_id is None):
            raise _rejected("GD-A003", "the API key is missing, unknown, revoked or expired")
        key, secret = found.key, found.hmac_secret
        if names_caller:
            if key.role != "proxy":
                raise _rejected("GD-A005", "only a key of role proxy may name a caller")
            key = _joined(key, await self._caller(key, caller))
        elif key.role == "proxy" and not alone:
            raise _rejected("GD-A005", "a key of role proxy has to name the caller")
        return KeyIdentity(
            key.organisation_id or key.key_id,
            key.key_id,
            key.workflow_id,
            secret,
            expires_at_ms=key.expires_at_ms,
            signer_id=found.key.key_id,
            role=key.role,
            team=key.team,
            person=key.person,
            may_name=tuple(key.may_name),
            shows_cost=key.shows_cost,
        )

    async def _caller(self, proxy: Key, caller: str) -> Key:
        """Return the caller's key, which a proxy names by its hash.

        Raises:
            ProblemError: 401 (GD-A004).
        """
        is_hash = _HASH.fullmatch(caller) is not None
        found = await self._keys.find_hashed(bytes.fromhex(caller), "sdk") if is_hash else None
        if found is None or proxy.organisation_id not in (None, found.key.organisation_id):
            raise _rejected("GD-A004", "the caller's API key is unknown, revoked or expired")
        if found.hmac_secret is not None:
            detail = "the requests of the caller's key have to be signed, which no proxy can do"
            raise _rejected("GD-A004", detail)
        return found.key

    async def authenticate(
        self, scope: Scope, headers: dict[bytes, bytes], body: bytes, *, alone: bool = False
    ) -> KeyIdentity:
        """Check key and signature, and return the party that a request is made for.

        Args:
            scope, headers, body: of the request.
            alone: whether a proxy's key need not name a caller.

        Raises:
            ProblemError: 401 for the key (as :meth:`identify`) or the signature (GD-A001).
        """
        identity = await self.identify(headers, alone=alone)
        if identity.hmac_secret is not None:
            await self.check_signature(identity, scope, headers, body)
        take_place(scope, identity.organisation_id)
        return identity

    async def still_valid(self, identity: KeyIdentity, headers: dict[bytes, bytes]) -> bool:
        """Return whether the keys of an open channel are still valid, and update their expiry."""
        try:
            found = await self._identity(headers, alone=False)
        except ProblemError:
            return False
        identity.expires_at_ms = found.expires_at_ms
        return True

    async def require_valid(self, identity: KeyIdentity, headers: dict[bytes, bytes]) -> None:
        """Check like :meth:`still_valid` before a channel is opened, or its poll is answered.

        Raises:
            ProblemError: 401 (GD-A003), or 503 when the store fails.
        """
        try:
            is_valid = await self.still_valid(identity, headers)
        except StoreError as exc:
            raise store_failed(exc) from None
        if not is_valid:
            raise fail(401, "GD-A003", "Key rejected", "the key was revoked")

    async def check_signature(
        self, identity: KeyIdentity, scope: Scope, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        """Check a request's signature and use up its nonce.

        Raises:
            ProblemError: 401 (GD-A001).
        """
        assert identity.hmac_secret is not None
        try:
            parameters = signing.verify(
                method=scope.get("method", "GET"),
                target_uri=self._target_uri(scope, headers),
                body=body,
                api_key=headers.get(b"x-api-key", b"").decode("latin-1").strip(),
                secret=identity.hmac_secret,
                digest=headers.get(b"content-digest", b"").decode("latin-1"),
                signature_input=headers.get(b"signature-input", b"").decode("latin-1"),
                signature=headers.get(b"signature", b"").decode("latin-1"),
                now_s=self._clock_ms() // 1000,
            )
        except signing.SignatureError as exc:
            raise self._bad_signature(str(exc)) from None
        # Last, once the signature is known to be right: only the key's holder can use up nonces.
        nonce = parameters.nonce
        if not await self._storage.write(
            NO_ORGANISATION, directory.use_nonce, identity.signer_id, nonce, _NONCE_KEEP_MS
        ):
            raise self._bad_signature("the nonce was used before")
        identity.nonce = nonce

    def _bad_signature(self, detail: str) -> ProblemError:
        return fail(401, "GD-A001", "Bad signature", detail, server_time_ms=self._clock_ms())

    def _target_uri(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        if self._public_url is None:
            host = headers.get(b"host", b"").decode("latin-1")
            base = f"{scope['scheme']}://{host}"
        else:
            base = self._public_url.rstrip("/")
            if scope["type"] == "websocket":
                base = base.replace("http", "ws", 1)
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        uri = base + path.decode("latin-1")
        return f"{uri}?{query.decode('latin-1')}" if query else uri
