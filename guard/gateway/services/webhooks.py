"""Delivers queued messages: to webhooks, Slack and PagerDuty over HTTP, and by mail.

At least once: the queue is in the store, and a message leaves it when its attempt is recorded. If
the process dies, or the store fails, between sending and recording, the message is sent again with
the same id.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import httpx

from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import DueDelivery
from guard.gateway.ledger import webhooks
from guard.gateway.services.channels import mail
from guard.gateway.services.channels.message import (
    PERMANENT,
    Post,
    ShownQuestion,
    message_of,
    post_of,
)
from guard.gateway.services.egress import address_of, check_url
from guard.gateway.storage.port import Writer
from guard.gateway.unit.state import NO_ORGANISATION

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = (5_000, 30_000, 300_000, 1_800_000, 7_200_000, 21_600_000, 43_200_000)
"""The wait after each failed attempt; after one more attempt the message has failed."""
_TIMEOUT_S: Final = 10.0
CONCURRENT_MAX: Final = 100
"""Maximum deliveries under way."""
_IDLE_S: Final = 5.0
"""How often the queue is read without a wake-up, for retries and messages of other replicas."""

Ask = Callable[[DueDelivery], Awaitable[ShownQuestion]]


async def no_question(_: DueDelivery) -> ShownQuestion:
    """Return a question without anything to show: the default where questions are not known."""
    return ShownQuestion()


class Outcome(NamedTuple):
    """The result of an attempt.

    Args:
        status: the status of HTTP, or the reply of SMTP.
        delivered: whether it has arrived.
        permanent: whether it must not be tried again.
        error: why it has not arrived, in a few words.
    """

    status: int | None
    delivered: bool = False
    permanent: bool = False
    error: str = ""


class WebhookSender:
    """Sends due messages until cancelled. No organisation can delay another's for long.

    Runs on the loop. One task reads the queue (:meth:`run`), and one more sends each message.

    Args:
        catalogue: the queue; a message leaves it when it is delivered, or at its last attempt.
        clock_ms: the gateway's clock.
        private: whether messages may go to loopback and private addresses.
        base_url: of the gateway, for links; empty when it is not known.
        ask: returns what a message shows of its question.
    """

    def __init__(
        self,
        catalogue: Writer,
        clock_ms: Callable[[], int],
        *,
        private: bool = False,
        base_url: str = "",
        ask: Ask = no_question,
    ) -> None:
        self._catalogue = catalogue
        self._clock_ms = clock_ms
        self._private = private
        self._base_url = base_url.rstrip("/")
        self._ask = ask
        self._tls = httpx.create_ssl_context(trust_env=False)
        # Set when the queue may hold something that is due: a commit, or a delivery that ended.
        self._due = asyncio.Event()
        # The tasks that send, by delivery id. The queue returns a message until its attempt is
        # recorded; one in here must not be started again.
        self._running: dict[str, asyncio.Task[None]] = {}
        # How many messages of each organisation are in ``_running``, so that the queue returns no
        # more of it than may be sent at once. Without zeros.
        self._sending: collections.Counter[str] = collections.Counter()

    def wake(self) -> None:
        """Look at the queue now."""
        self._due.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            while True:
                # Before the queue is read: what is queued, or ends, after the read sets it
                # again, and is not missed.
                self._due.clear()
                try:
                    page = await self._catalogue.write(
                        NO_ORGANISATION, webhooks.due, CONCURRENT_MAX, dict(self._sending)
                    )
                except StoreError as exc:
                    logger.warning("webhooks wait: %s", exc)
                    page = []
                except Exception:  # one failed look does not end the sender
                    logger.exception("webhooks wait")
                    page = []
                for due in page:
                    if due.delivery_id not in self._running:
                        self._start(due)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_IDLE_S):
                        await self._due.wait()
        # Cancelled, or failed: the deliveries end with it.
        finally:
            for task in list(self._running.values()):
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _start(self, due: DueDelivery) -> None:
        # Full: it stays in the queue. Each delivery that ends has the queue read again.
        if len(self._running) >= CONCURRENT_MAX:
            return
        task = asyncio.create_task(self._deliver(due), name="guard-gateway-webhook")
        self._running[due.delivery_id] = task
        self._sending[due.organisation_id] += 1
        task.add_done_callback(lambda _: self._ended(due))

    def _ended(self, due: DueDelivery) -> None:
        self._running.pop(due.delivery_id, None)
        self._sending[due.organisation_id] -= 1
        if not self._sending[due.organisation_id]:
            del self._sending[due.organisation_id]
        self._due.set()

    async def _deliver(self, due: DueDelivery) -> None:
        found = await self.attempt(due)
        if not found.delivered:
            logger.info("message %s not delivered: %s", due.delivery_id, found.error)
        retry_in_ms = None
        if not found.delivered and not found.permanent and due.attempts < len(RETRY_AFTER_MS):
            retry_in_ms = RETRY_AFTER_MS[due.attempts]
        # If the process dies here, the message is sent again: at least once, not at most once.
        try:
            await self._catalogue.write(
                NO_ORGANISATION,
                webhooks.attempted,
                due.delivery_id,
                status=found.status,
                delivered=found.delivered,
                retry_in_ms=retry_in_ms,
                error=found.error,
            )
        except Exception as exc:
            # A failure of the store is expected; anything else is a defect, and needs its place.
            logger.warning(
                "a message's delivery could not be recorded: %s", exc,
                exc_info=not isinstance(exc, StoreError),
            )  # fmt: skip
            # It is still due. While this task lives it is not started again, so this is the pause
            # before the next attempt.
            await asyncio.sleep(_IDLE_S)

    async def send_unrecorded(self, messages: list[DueDelivery]) -> None:
        """Send messages that cannot be queued, as the store has failed: one attempt each."""
        found = await asyncio.gather(*[self.attempt(each) for each in messages])
        for each in found:
            if not each.delivered:
                logger.warning("an alert was not delivered: %s", each.error)

    async def attempt(self, due: DueDelivery) -> Outcome:
        """Send a message once. Every failure is in the outcome; nothing is raised."""
        try:
            if due.kind == "email":
                message = message_of(due, self._base_url, await self._ask(due))
                return Outcome(await mail.send(message, private=self._private), delivered=True)
            async with asyncio.timeout(_TIMEOUT_S):
                message = message_of(due, self._base_url, await self._ask(due))
                post = post_of(message, self._clock_ms() // 1000)
                status = await self._post(post)
        except mail.MailRefusedError as exc:
            return Outcome(exc.code, permanent=exc.code >= 500, error=exc.reason)
        except Exception as exc:  # noqa: BLE001
            return Outcome(None, error=_why(exc))
        if 200 <= status < 300:
            return Outcome(status, delivered=True)
        permanent = status in PERMANENT.get(due.kind, ())
        return Outcome(status, permanent=permanent, error=f"the receiver answers {status}")

    async def _post(self, post: Post) -> int:
        url = httpx.URL(post.url)
        headers = {
            "content-type": "application/json",
            "user-agent": "guard-gateway",
            **post.headers,
        }
        extensions = {}
        check_url(post.url, private=self._private)
        if not self._private:
            # Connect to the address that was checked: a second look-up could return another.
            headers["host"] = url.netloc.decode("ascii")
            extensions["sni_hostname"] = url.raw_host.decode("ascii")
            host = url.raw_host.decode("ascii")
            url = url.copy_with(host=await address_of(host, url.port or 443))
        # A client of its own: when a request is cancelled, at its deadline, httpx may leave the
        # connection open and in the pool, which a shared one would run out of.
        async with (
            httpx.AsyncClient(
                verify=self._tls, timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False
            ) as http,
            http.stream(
                "POST", url, content=post.body, headers=headers, extensions=extensions
            ) as response,
        ):
            return response.status_code  # the reply's body is not read


def _why(exc: Exception) -> str:
    """Return why a message was not sent, without its address, as that of Slack is a secret."""
    if isinstance(exc, TimeoutError | httpx.TimeoutException):
        return "no answer in time"
    if isinstance(exc, ssl.SSLError) or "CERTIFICATE" in str(exc):
        return "TLS failed: the certificate is not one that is trusted"
    if isinstance(exc, httpx.ConnectError | ConnectionError):
        return "cannot connect"
    if str(exc) == "the host is not public" or "has to allow it" in str(exc):
        return "the host is not public"
    if isinstance(exc, socket.gaierror):
        return "the host's name is not known"
    if type(exc) is OSError and exc.errno is None:
        return str(exc)
    return type(exc).__name__
