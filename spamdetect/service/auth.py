"""Who asks, and whether they may: the API key of a request and its limits."""

from __future__ import annotations

from spamdetect.models import ErrorCode
from spamdetect.service.keys import KeyRecord, StoreError, WouldWaitError, parse_key, secret_matches
from spamdetect.service.limits import Limits
from spamdetect.service.respond import RefusalError, retry_after
from spamdetect.service.steps import Steps
from spamdetect.service.store import KeyStore


def authenticate(api_key: bytes, store: KeyStore) -> Steps[KeyRecord]:
    """Find the key of a request.

    Args:
        api_key: The header ``x-api-key``; empty when there was none.
        store: Where the keys are.

    Raises:
        RefusalError: 401 ``MISSING_API_KEY`` or ``INVALID_API_KEY``; 503 ``UNAVAILABLE`` when the
            key store cannot be asked.
    """
    parts = parse_key(api_key.decode("latin-1").strip())
    if parts is None:
        if not api_key.strip():
            raise RefusalError(
                401,
                ErrorCode.MISSING_API_KEY,
                "Send your API key in the header x-api-key.",
                close=True,
            )
        raise _invalid()
    key_id, secret = parts
    try:
        try:
            record = store.find_now(key_id)
        except WouldWaitError:
            record = yield store.find(key_id)
    except StoreError:
        raise unavailable() from None
    if record is None or not secret_matches(secret, record) or record.revoked_s is not None:
        raise _invalid()
    return record


def count(key: KeyRecord, limits: Limits, texts: int = 1) -> Steps[None]:
    """Count texts against the limits of their key, all or none.

    Raises:
        RefusalError: 429 when they are used up; 503 ``UNAVAILABLE`` when the limiter could not
            read how often the key was used today.
    """
    try:
        try:
            limits.admit_now(key, texts)
        except WouldWaitError:
            yield limits.admit(key, texts)
    except StoreError:
        raise unavailable() from None


def _invalid() -> RefusalError:
    # One answer for unknown, wrong and revoked keys, so that it reveals nothing.
    return RefusalError(
        401, ErrorCode.INVALID_API_KEY, "The API key is not valid or was revoked.", close=True
    )


def unavailable() -> RefusalError:
    """503 when the key store cannot be asked."""
    return RefusalError(
        503,
        ErrorCode.UNAVAILABLE,
        "The service cannot check API keys at the moment; try again in a moment.",
        headers=retry_after(1),
        close=True,
    )
