"""Authentication of SDK requests: API key, protocol version, HTTP message signature, nonce."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from msgspec import Struct

from guard.core import signing, wire
from guard.gateway.api.http import ProblemError, Scope, fail, note_owner
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.ledger import directory
from guard.gateway.ledger.state import NOTHING
from guard.gateway.services.keys import KeyRing
from guard.gateway.services.logs import note_request
from guard.gateway.storage.port import Storage

_NONCE_KEEP_MS = 2 * signing.SKEW_MAX_S * 1000


class KeyIdentity(Struct):
    """The caller whose key a request carries."""

    organisation_id: str
    key_id: str
    workflow_id: str | None
    hmac_secret: str | None
    nonce: str = ""
    expires_at_ms: int | None = None


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
        """A number that rises whenever some key may have changed."""
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

    async def identify(self, headers: dict[bytes, bytes]) -> KeyIdentity:
        """Return the owner of a request's key, before its body is read.

        A key with a secret also needs :meth:`check_signature`.

        Raises:
            ProblemError: 401 (GD-A003).
        """
        api_key = headers.get(b"x-api-key", b"").decode("latin-1").strip()
        found = await self._keys.find(api_key, "sdk") if api_key else None
        if found is None or found.key.organisation_id is None:
            raise fail(
                401,
                "GD-A003",
                "Key rejected",
                "the API key is missing, unknown, revoked or expired",
                headers=[(b"www-authenticate", b'ApiKey realm="guard"')],
            )
        key = found.key
        assert key.organisation_id is not None
        note_request(key.organisation_id, headers.get(b"x-request-id"))
        return KeyIdentity(
            key.organisation_id,
            key.key_id,
            key.workflow_id,
            found.hmac_secret,
            expires_at_ms=key.expires_at_ms,
        )

    async def authenticate(
        self, scope: Scope, headers: dict[bytes, bytes], body: bytes
    ) -> KeyIdentity:
        """Check key and signature, and return the caller.

        Raises:
            ProblemError: 401 for the key (GD-A003) or the signature (GD-A001).
        """
        identity = await self.identify(headers)
        if identity.hmac_secret is not None:
            await self.check_signature(identity, scope, headers, body)
        note_owner(scope, identity.organisation_id)
        return identity

    async def still_valid(self, identity: KeyIdentity, headers: dict[bytes, bytes]) -> bool:
        """Tell whether the key of an open channel is still valid, and update its expiry."""
        api_key = headers.get(b"x-api-key", b"").decode("latin-1").strip()
        found = await self._keys.find(api_key, "sdk")
        if found is None:
            return False
        identity.expires_at_ms = found.key.expires_at_ms
        return True

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
        nonce = parameters.nonce
        if not await self._storage.write(
            NOTHING, directory.use_nonce, identity.key_id, nonce, _NONCE_KEEP_MS
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
