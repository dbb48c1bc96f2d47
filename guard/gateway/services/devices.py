"""Devices on which an operator has signed in: tokens that need no table.

A token is signed with the hash of the operator's password: a new password ends it, and every
replica on the store can check it. It signs no one in. It only spares its holder the line in which
unknown browsers wait.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

TOKEN_LENGTH_MAX: Final = 128
_SHAPE: Final = re.compile(r"([0-9]{1,15})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})", re.ASCII)


def issue(operator_id: str, password_hash: str, expires_at_ms: int) -> str:
    """Return a token for a device of an operator.

    Args:
        operator_id: whose device it is.
        password_hash: as it is stored.
        expires_at_ms: Unix milliseconds.
    """
    device = secrets.token_urlsafe(16)
    return f"{expires_at_ms}.{device}.{_mac(operator_id, password_hash, expires_at_ms, device)}"


def is_token(token: str) -> bool:
    """Return whether a text has the form of a token."""
    return len(token) <= TOKEN_LENGTH_MAX and _SHAPE.fullmatch(token) is not None


def device_of(token: str, operator_id: str, password_hash: str, now_ms: int) -> str | None:
    """Return the device that a token names; ``None`` when it is not valid for this operator.

    >>> token = issue("o", "$argon2id$...", 2000)
    >>> device_of(token, "o", "$argon2id$...", 1000) == token.split(".")[1]
    True
    >>> device_of(token, "o", "$argon2id$...", 2000) is None
    True
    """
    found = _SHAPE.fullmatch(token)
    if found is None or int(found[1]) <= now_ms:
        return None
    mac = _mac(operator_id, password_hash, int(found[1]), found[2])
    return found[2] if hmac.compare_digest(mac, found[3]) else None


def _mac(operator_id: str, password_hash: str, expires_at_ms: int, device: str) -> str:
    # The parts cannot run into one another: ids and devices contain no NUL.
    text = f"guard device\0{operator_id}\0{expires_at_ms}\0{device}"
    return hmac.new(password_hash.encode(), text.encode(), hashlib.sha256).hexdigest()
