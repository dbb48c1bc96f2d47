"""Delivers queued messages, signed according to Standard Webhooks (standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Final

import httpx

from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import DueDelivery
from guard.gateway.ledger import webhooks
from guard.gateway.ledger.state import NOTHING
from guard.gateway.storage.port import Writer

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = (5_000, 30_000, 300_000, 1_800_000, 7_200_000, 21_600_000, 43_200_000)
_TIMEOUT_S: Final = 10.0
CONCURRENT_MAX: Final = 100
_IDLE_S: Final = 5.0
_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses that IANA has given to anybody: translation, mapped, compatible and
site-local ones lie outside."""

_DOCUMENTATION: Final = ipaddress.ip_network("3fff::/20")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_url(url: str, *, private: bool = False) -> None:
    """Refuse addresses that a message must not be sent to.

    Args:
        url: the webhook's address.
        private: whether the gateway's operator allows loopback and private networks, and plain
            ``http`` to loopback addresses.

    Raises:
        ValueError: not a URL, not ``https``, credentials in it, or a host that is not public.
    """
    try:
        parts = httpx.URL(url)
        host = parts.host.rstrip(".")
    except (httpx.InvalidURL, UnicodeError):  # IDNA raises the latter
        raise ValueError("the URL is not valid") from None
    if parts.userinfo:
        raise ValueError("the URL must not contain credentials")
    if not host:
        raise ValueError("the URL has no host")
    address = _literal(host)
    if not private:
        local = host == "localhost" or host.endswith(".localhost")
        if local or (address is not None and not is_public(address)):
            raise ValueError("the host is not public; the gateway's operator has to allow it")
    if parts.scheme == "https":
        return
    if parts.scheme == "http" and private and address is not None and address.is_loopback:
        return
    raise ValueError("the URL must be https")


def is_public(address: Address) -> bool:
    """Tell whether an address is public, and the one embedded in a transition prefix too."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour is not None or address.teredo is not None:
            return False
        if address not in _UNICAST or address in _DOCUMENTATION:
            return False
    return address.is_global and not address.is_multicast


def _literal(host: str) -> Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    with contextlib.suppress(OSError, UnicodeError):  # 0x7f.1 and 2130706433 are addresses too
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


def signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the ``webhook-signature`` header: version 1, HMAC-SHA256, base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class WebhookSender:
    """Sends due messages until cancelled. No organisation can delay another's for long.

    Args:
        catalogue: the queue; a message leaves it after a 2xx answer or its last failed attempt.
        clock_ms: the gateway's clock.
        private: whether messages may go to loopback and private addresses.
    """

    def __init__(
        self, catalogue: Writer, clock_ms: Callable[[], int], *, private: bool = False
    ) -> None:
        self._catalogue = catalogue
        self._clock_ms = clock_ms
        self._private = private
        # Set when the queue may hold something that is due: a commit, or a delivery that ended.
        self._due = asyncio.Event()
        # By delivery. The queue names a message until its attempt is recorded; it is sent once.
        self._running: dict[str, asyncio.Task[None]] = {}
        # How many of each organisation are being sent, which the queue leaves room for.
        self._sending: collections.Counter[str] = collections.Counter()

    def wake(self) -> None:
        """Look at the queue now."""
        self._due.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with httpx.AsyncClient(
            timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False
        ) as http:
            try:
                while True:
                    self._due.clear()
                    try:
                        page = await self._catalogue.write(
                            NOTHING, webhooks.due, CONCURRENT_MAX, dict(self._sending)
                        )
                    except StoreError as exc:
                        logger.warning("webhooks wait: %s", exc)
                        page = []
                    for due in page:
                        if due.delivery_id not in self._running:
                            self._start(http, due)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_IDLE_S):
                            await self._due.wait()
            finally:
                for task in list(self._running.values()):
                    task.cancel()
                await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _start(self, http: httpx.AsyncClient, due: DueDelivery) -> None:
        if len(self._running) >= CONCURRENT_MAX:
            return
        task = asyncio.create_task(self._deliver(http, due), name="guard-gateway-webhook")
        self._running[due.delivery_id] = task
        self._sending[due.organisation_id] += 1
        task.add_done_callback(lambda _: self._ended(due))

    def _ended(self, due: DueDelivery) -> None:
        self._running.pop(due.delivery_id, None)
        self._sending[due.organisation_id] -= 1
        if not self._sending[due.organisation_id]:
            del self._sending[due.organisation_id]
        self._due.set()

    async def _deliver(self, http: httpx.AsyncClient, due: DueDelivery) -> None:
        status: int | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status = await self._post(http, due)
        except Exception as exc:  # noqa: BLE001  # whatever one message meets is its own
            logger.info("webhook %s not delivered: %s", due.delivery_id, type(exc).__name__)
        delivered = status is not None and 200 <= status < 300
        retry_in_ms = None
        if not delivered and status != 410 and due.attempts < len(RETRY_AFTER_MS):
            retry_in_ms = RETRY_AFTER_MS[due.attempts]
        # A message that is sent, and whose attempt is not recorded, is sent again: at least once.
        try:
            await self._catalogue.write(
                NOTHING,
                webhooks.attempted,
                due.delivery_id,
                status=status,
                delivered=delivered,
                retry_in_ms=retry_in_ms,
            )
        except StoreError as exc:
            logger.warning("a webhook's delivery could not be recorded: %s", exc)
            await asyncio.sleep(_IDLE_S)  # it is still due, and would be sent again at once

    async def _post(self, http: httpx.AsyncClient, due: DueDelivery) -> int:
        body = due.body.encode()
        timestamp_s = self._clock_ms() // 1000
        url = httpx.URL(due.url)
        headers = {
            "content-type": "application/json",
            "user-agent": "guard-gateway",
            "webhook-id": due.delivery_id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature(due.secret, due.delivery_id, timestamp_s, body),
        }
        extensions = {}
        if not self._private:
            check_url(due.url)
            # Connect to the address that was checked: a second look-up could return another.
            headers["host"] = url.netloc.decode("ascii")
            extensions["sni_hostname"] = url.raw_host.decode("ascii")
            url = url.copy_with(host=await _public_address(url))
        async with http.stream(
            "POST", url, content=body, headers=headers, extensions=extensions
        ) as response:
            return response.status_code  # the reply's body is not read


async def _public_address(url: httpx.URL) -> str:
    """Resolve a URL's host.

    Raises:
        OSError: it does not resolve, or one of its addresses is not public.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        url.raw_host.decode("ascii"), url.port or 443, type=socket.SOCK_STREAM
    )
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(is_public(ipaddress.ip_address(each)) for each in addresses):
        raise OSError("the host is not public")
    return addresses[0]
