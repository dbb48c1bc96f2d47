"""Secrets of ``guard login``: its tokens, and the provider's, sealed.

Nothing in the database is enough to make or to read one. Tokens follow from their login, their
number and the gateway's key, so the answer to a refresh token can be given again without being
kept, and a forged one is told without a look at the database.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from typing import Final

from guard.gateway.services.keys import SDK_PREFIX

REFRESH_PREFIX: Final = "gdr_"
DEVICE_PREFIX: Final = "gdd_"
_ID_BYTES: Final = 16
_HEAD_BYTES: Final = _ID_BYTES + 4
_NONCE_BYTES: Final = 12


class LoginSecrets:
    """Makes, checks, seals.

    Args:
        key: the gateway's, random; replicas share it.
    """

    def __init__(self, key: str) -> None:
        # One key for each purpose: what is made for one of them is nothing for another.
        self._access, self._refresh, self._seal = (
            hmac.digest(key.encode(), f"guard login {purpose}".encode(), "sha256")
            for purpose in ("access", "refresh", "seal")
        )

    def __repr__(self) -> str:
        return "LoginSecrets()"

    def access_token(self, login_id: str, generation: int) -> str:
        """Return the access token that comes with a refresh token."""
        return SDK_PREFIX + _text(hmac.digest(self._access, _head(login_id, generation), "sha256"))

    def refresh_token(self, login_id: str, generation: int) -> str:
        """Return a login's refresh token with a number."""
        head = _head(login_id, generation)
        return REFRESH_PREFIX + _text(head + hmac.digest(self._refresh, head, "sha256"))

    def read_refresh_token(self, token: str) -> tuple[str, int] | None:
        """Return the login and the number of a refresh token; ``None`` if it is not one.

        >>> made = LoginSecrets("k" * 32)
        >>> made.read_refresh_token(made.refresh_token("00" * 16, 7)) == ("00" * 16, 7)
        True
        >>> LoginSecrets("l" * 32).read_refresh_token(made.refresh_token("00" * 16, 7)) is None
        True
        """
        try:
            raw = _bytes(token.removeprefix(REFRESH_PREFIX))
        except ValueError:
            return None
        head, mac = raw[:_HEAD_BYTES], raw[_HEAD_BYTES:]
        if not hmac.compare_digest(hmac.digest(self._refresh, head, "sha256"), mac):
            return None
        return head[:_ID_BYTES].hex(), int.from_bytes(head[_ID_BYTES:], "big")

    def seal(self, text: str) -> str:
        """Return a provider's token encrypted (AES-256-GCM); nothing stays nothing."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _text(nonce + AESGCM(self._seal).encrypt(nonce, text.encode(), b"")) if text else ""

    def unseal(self, sealed: str) -> str | None:
        """Return what was sealed; ``None`` if it was by another key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        raw = _bytes(sealed)
        try:
            opened = AESGCM(self._seal).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], b"")
        except InvalidTag:
            return None
        return opened.decode()


def new_login_id() -> str:
    """Return the id of a new login."""
    return secrets.token_hex(_ID_BYTES)


def _head(login_id: str, generation: int) -> bytes:
    return bytes.fromhex(login_id) + generation.to_bytes(4, "big")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
