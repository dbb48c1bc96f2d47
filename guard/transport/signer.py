"""Signs requests to the gateway and checks its replies, by the gateway's clock."""

from __future__ import annotations

import os
import time

from guard.breaker.exceptions import GuardTransportError
from guard.core.signing import SignatureParameters, sign, verify_frame
from guard.settings import Settings
from guard.transport.replies import Reply


class Signer:
    """Signs and checks with the secret (``GUARD_HMAC_SECRET``); does nothing without one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # The gateway's clock minus this machine's, from its newest 401 that showed another time.
        # Used on the loop only.
        self._clock_offset_s = 0.0

    @property
    def signs(self) -> bool:
        """Whether there is a secret to sign with."""
        return self._settings.hmac_secret is not None

    def headers(self, method: str, url: str, body: bytes) -> tuple[dict[str, str], str]:
        """Return the signature headers of a request and their nonce; nothing without a secret."""
        secret = self._settings.hmac_secret
        if secret is None:
            return {}, ""
        parameters = SignatureParameters(
            created_s=int(time.time() + self._clock_offset_s),
            nonce=os.urandom(16).hex(),
            key_id=self._settings.api_key_prefix.rstrip("…") or "key",
        )
        headers = sign(
            method=method,
            target_uri=url,
            body=body,
            api_key=self._settings.api_key,
            secret=secret,
            parameters=parameters,
        )
        return headers, parameters.nonce

    def check(self, reply: Reply) -> None:
        """Check a reply that must be signed.

        Raises:
            GuardTransportError: it does not come from this gateway (``source="AUTH_ERROR"``).
        """
        # The nonce is the request's: a signed reply to another request cannot be replayed.
        secret = self._settings.hmac_secret
        if secret is not None and not verify_frame(
            secret, reply.nonce, reply.body, reply.signature
        ):
            raise GuardTransportError(
                f"{reply.endpoint}: the answer is not signed by this gateway",
                source="AUTH_ERROR",
                endpoint=reply.endpoint,
                retryable=False,
            )

    def resynchronised(self, reply: Reply) -> bool:
        """Adopt the gateway's clock from a 401 that carries it; True if a retry is worthwhile."""
        if reply.status != 401 or not self.signs:
            return False
        server_ms = reply.problem().server_time_ms
        if server_ms is None:
            return False
        offset_s = server_ms / 1000 - time.time()
        if abs(offset_s - self._clock_offset_s) < 1.0:
            return False  # the time was right, so a retry would be refused again
        self._clock_offset_s = offset_s
        return True
