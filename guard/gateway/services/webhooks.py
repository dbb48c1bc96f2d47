"""Delivers queued notices, signed as Standard Webhooks asks (standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import httpx

from guard.gateway.storage.port import Catalogue, DueDelivery, StoreError

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = (5_000, 30_000, 300_000, 1_800_000, 7_200_000, 21_600_000, 43_200_000)
_TIMEOUT_S: Final = 10.0
_PAGE: Final = 20
_IDLE_S: Final = 5.0


def check_url(url: str) -> None:
    """Refuse addresses that a notice must not be sent to.

    Raises:
        ValueError: not ``https`` (plain ``http`` only to a loopback address), or credentials in it.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL may not hold credentials")
    if not parts.hostname:
        raise ValueError("the URL has no host")
    if parts.scheme == "https":
        return
    with contextlib.suppress(ValueError):
        if parts.scheme == "http" and ipaddress.ip_address(parts.hostname).is_loopback:
            return
    raise ValueError("the URL has to be https; http only to a loopback address")


def signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the ``webhook-signature`` header: version 1, HMAC-SHA256, base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class WebhookSender:
    """Sends what is due, one page at a time, until cancelled.

    Args:
        catalogue: holds the queue; a message leaves it when it was answered with 2xx, or when it
            has failed for the last time.
        clock_ms: the gateway's clock.
    """

    def __init__(self, catalogue: Catalogue, clock_ms: Callable[[], int]) -> None:
        self._catalogue = catalogue
        self._clock_ms = clock_ms
        self._due = asyncio.Event()

    def wake(self) -> None:
        """Look at the queue now."""
        self._due.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with httpx.AsyncClient(
            timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False
        ) as http:
            while True:
                try:
                    page = await self._catalogue.due_deliveries(_PAGE)
                    await asyncio.gather(*(self._deliver(http, due) for due in page))
                except StoreError as exc:
                    logger.warning("webhooks wait: %s", exc)
                    page = []
                if len(page) < _PAGE:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_IDLE_S):
                            await self._due.wait()
                self._due.clear()

    async def _deliver(self, http: httpx.AsyncClient, due: DueDelivery) -> None:
        status: int | None = None
        body = due.body.encode()
        timestamp_s = self._clock_ms() // 1000
        headers = {
            "content-type": "application/json",
            "user-agent": "guard-gateway",
            "webhook-id": due.delivery_id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(due.secret, due.delivery_id, timestamp_s, body),
        }
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                async with http.stream("POST", due.url, content=body, headers=headers) as response:
                    status = response.status_code  # the reply's body is nobody's business
        except (httpx.HTTPError, TimeoutError, OSError) as exc:
            logger.info("webhook %s not delivered: %s", due.delivery_id, type(exc).__name__)
        delivered = status is not None and 200 <= status < 300
        retry_in_ms = None
        if not delivered and status != 410 and due.attempts < len(RETRY_AFTER_MS):
            retry_in_ms = RETRY_AFTER_MS[due.attempts]
        await self._catalogue.delivery_done(
            due.delivery_id, status=status, delivered=delivered, retry_in_ms=retry_in_ms
        )
