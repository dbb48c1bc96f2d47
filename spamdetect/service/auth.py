"""Authentication: the API key of a request."""

from __future__ import annotations

from typing import Any

from spamdetect.models import ErrorCode
from spamdetect.service.keys import KeyRecord, KeyStore, StoreError, parse_key, secret_matches
from spamdetect.service.respond import RefusalError, retry_after


async def authenticate(scope: Any, store: KeyStore) -> KeyRecord:
    """Find the key of a request.

    Raises:
        RefusalError: 401 ``MISSING_API_KEY`` or ``INVALID_API_KEY``; 503 ``UNAVAILABLE`` when the
            key store cannot be asked.
    """
    values = [value for name, value in scope["headers"] if name == b"x-api-key"]
    if not values or not values[0].strip():
        raise RefusalError(
            401,
            ErrorCode.MISSING_API_KEY,
            "Send your API key in the header x-api-key.",
            close=True,
        )
    parts = parse_key(values[0].decode("latin-1").strip()) if len(values) == 1 else None
    if parts is not None:
        try:
            record = await store.find(parts[0])
        except StoreError:
            raise RefusalError(
                503,
                ErrorCode.UNAVAILABLE,
                "The service cannot check API keys at the moment; try again in a moment.",
                headers=retry_after(1),
                close=True,
            ) from None
        if record is not None and secret_matches(parts[1], record) and record.revoked_s is None:
            return record
    # One answer for unknown, wrong and revoked keys, so that it reveals nothing.
    raise RefusalError(
        401, ErrorCode.INVALID_API_KEY, "The API key is not valid or was revoked.", close=True
    )
