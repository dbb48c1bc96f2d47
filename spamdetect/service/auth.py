"""Authentication: the API key of a request."""

from __future__ import annotations

from spamdetect.models import ErrorCode
from spamdetect.service.keys import KeyRecord, KeyStore, StoreError, parse_key, secret_matches
from spamdetect.service.respond import Headers, RefusalError, retry_after


async def authenticate(headers: Headers, store: KeyStore) -> KeyRecord:
    """Find the key of a request.

    Raises:
        RefusalError: 401 ``MISSING_API_KEY`` or ``INVALID_API_KEY``; 503 ``UNAVAILABLE`` when the
            key store cannot be asked.
    """
    values = [value for name, value in headers if name == b"x-api-key"]
    key_id, secret = _parts(values[0] if values else b"", len(values))
    try:
        record = await store.find(key_id)
    except StoreError:
        raise unavailable() from None
    return _checked(record, secret)


def authenticate_now(api_key: bytes, store: KeyStore) -> KeyRecord:
    """:func:`authenticate` without waiting, for a request with one key or none (empty).

    Raises:
        WouldWaitError: The key store must be awaited.
    """
    key_id, secret = _parts(api_key, 1)
    try:
        record = store.find_now(key_id)
    except StoreError:
        raise unavailable() from None
    return _checked(record, secret)


def _parts(api_key: bytes, count: int) -> tuple[str, str]:
    parts = parse_key(api_key.decode("latin-1").strip()) if count == 1 else None
    if parts is None:
        if not api_key.strip():
            raise RefusalError(
                401,
                ErrorCode.MISSING_API_KEY,
                "Send your API key in the header x-api-key.",
                close=True,
            )
        raise _invalid()
    return parts


def _checked(record: KeyRecord | None, secret: str) -> KeyRecord:
    if record is None or not secret_matches(secret, record) or record.revoked_s is not None:
        raise _invalid()
    return record


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
