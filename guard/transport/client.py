"""Every HTTP call to the gateway: headers, signatures, deadlines, caps and retries."""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast
from urllib.parse import urlsplit

import httpx

from guard.breaker.circuit import CircuitBreaker
from guard.breaker.exceptions import GuardTransportError, RateLimitError
from guard.core import wire
from guard.core.retry import Backoff, RetryQuota, Silence, retry_after_s
from guard.scope.scope import OWN_TRAFFIC
from guard.settings import Settings, is_loopback, require_secure
from guard.transport.replies import Reply, exception_for
from guard.transport.signer import Signer
from guard.version import __version__

T = TypeVar("T")
logger = logging.getLogger("guard.gateway_client")

_GZIP_ABOVE_BYTES: Final = 1024
_REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
_ATTEMPTS_MAX: Final = 4


class BodyRefusedError(GuardTransportError):
    """The gateway will never take this body: too large, or something in it cannot be read."""


class GatewayClient:
    """The gateway over HTTP; made and used on the background loop.

    Args:
        settings: address, key, secret and deadline.
        heard: called with None after each usable answer and with the exception otherwise.
        recovered: called when the gateway answers again after it was given up.
    """

    def __init__(
        self,
        settings: Settings,
        heard: Callable[[BaseException | None], None],
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        require_secure(settings.api_url)
        self._settings = settings
        self._heard = heard
        self._recovered = recovered
        self.signer = Signer(settings)
        self.circuit = CircuitBreaker()
        self._quota = RetryQuota()
        self._silence = Silence()
        self._backoff = Backoff(base_s=0.05, cap_s=1.0)
        host = urlsplit(settings.api_url).hostname or ""
        self._client = httpx.AsyncClient(
            base_url=settings.api_url,
            verify=_verifies(settings.api_url),
            # A proxy from the environment must not see traffic that is meant for this machine.
            trust_env=not is_loopback(host),
            follow_redirects=False,
            timeout=None,  # noqa: S113  # one total deadline below, instead of one per read
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16),
            headers={
                wire.HEADER_API_KEY: settings.api_key,
                wire.HEADER_PROTOCOL: str(wire.PROTOCOL_VERSION),
                "User-Agent": f"guard-python/{__version__}",
                "Accept": "application/json",
                "Accept-Encoding": "identity",  # replies are small
            },
        )

        base = httpx.URL(settings.api_url.rstrip("/"))
        # Made once: putting a URL together is a tenth of a call's time.
        self._urls = {
            path: base.copy_with(path=base.path.rstrip("/") + path)
            for path in (wire.GATE_PATH, wire.EVENTS_PATH)
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def capabilities(self) -> wire.Capabilities:
        """Ask what the gateway speaks (``GET /api/v1/capabilities``)."""
        return await self._call("GET", wire.CAPABILITIES_PATH, wire.Capabilities)

    async def gate(self, request: wire.GateRequest, *, asked_again: bool = False) -> wire.GateReply:
        """Ask whether a call may run (``POST /gate``).

        Args:
            request: the call.
            asked_again: a new question after an approval, not a retry of the first one.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        reply = await self._call(
            "POST",
            wire.GATE_PATH,
            wire.GateReply,
            body=wire.encode(request),
            idempotency_key=f"{request.call_id}-approved" if asked_again else request.call_id,
        )
        if reply.call_id != request.call_id:
            raise GuardTransportError(
                "the gateway answered another call", source="GATEWAY_ERROR", endpoint=wire.GATE_PATH
            )
        return reply

    async def release(self, reservation_id: str, reason: str) -> None:
        """Give back a hold, or withdraw an approval, that is not needed (``POST /gate/release``).

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        await self._call(
            "POST",
            wire.RELEASE_PATH,
            dict,
            body=wire.encode(wire.ReleaseRequest(reservation_id, reason)),
            idempotency_key=f"{reservation_id}-release",
        )

    async def send(self, batch_id: str, body: bytes) -> tuple[wire.EventsReply, bool]:
        """Deliver a batch of events (``POST /api/v1/events``).

        Args:
            batch_id: the idempotency key, the same on every retry.
            body: the encoded :class:`~guard.core.wire.EventBatch`.

        Returns:
            The reply, and whether a commit went over its reservation (422): the events were taken
            then too, and the reply is the same.

        Raises:
            BodyRefusedError: the batch has to be split, or an event left out.
            GuardError: not taken now.
        """
        statuses: list[int] = []
        reply = await self._call(
            "POST",
            wire.EVENTS_PATH,
            wire.EventsReply,
            body=body,
            idempotency_key=batch_id,
            also_ok=422,
            statuses=statuses,
        )
        return reply, statuses[-1:] == [422]

    async def poll(self, after: int, wait_ms: int) -> wire.ControlReply:
        """Wait for control messages after a sequence number (``GET /api/v1/control``)."""
        return await self._call(
            "GET",
            f"{wire.CONTROL_PATH}?after={after}&wait_ms={wait_ms}",
            wire.ControlReply,
            extra_s=wait_ms / 1000,
            attempts=1,
            signed_reply=True,
        )

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: bytes = b"",
        idempotency_key: str | None = None,
        also_ok: int = 200,
        extra_s: float = 0.0,
        attempts: int = _ATTEMPTS_MAX,
        signed_reply: bool = False,
        statuses: list[int] | None = None,
    ) -> T:
        """Exchange one message, within the total deadline, with retries where they are safe."""
        endpoint = path.partition("?")[0]
        silent_s = self._silence.left_s(endpoint, now_s=time.monotonic())
        if silent_s > 0:
            raise RateLimitError(
                f"{endpoint} asked to be left alone for another {silent_s:.1f} s",
                retry_after=silent_s,
                endpoint=endpoint,
            )
        headers = {}
        if body:
            headers["Content-Type"] = "application/json"
            if len(body) > _GZIP_ABOVE_BYTES:
                body = gzip.compress(body, compresslevel=1)
                headers["Content-Encoding"] = "gzip"
        if idempotency_key is not None:
            headers[wire.HEADER_IDEMPOTENCY] = idempotency_key

        async def attempt() -> T:
            reply = await self._exchange(method, path, endpoint, headers, body)
            if statuses is not None:
                statuses.append(reply.status)
            problem = None if reply.status == also_ok else exception_for(reply)
            if problem is not None:
                raise self._refined(reply, problem)
            self._silence.answered(endpoint)
            if signed_reply:
                self.signer.check(reply)
            try:
                return wire.decode(reply.body, kind)
            except wire.WireError as exc:
                raise GuardTransportError(
                    f"{endpoint} answered something else than the protocol says: {exc}",
                    source="GATEWAY_ERROR",
                    endpoint=endpoint,
                ) from None

        deadline_s = self._settings.timeout_s + extra_s
        ends_s = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._with_retries(endpoint, attempt, attempts, ends_s)
        except TimeoutError:
            self._failed()
            error = GuardTransportError(
                f"no answer from {endpoint} within {deadline_s:g} s", endpoint=endpoint
            )
            self._heard(error)
            raise error from None
        except BaseException as exc:
            self._heard(exc)
            raise
        self._heard(None)
        return answer

    async def _with_retries(
        self, endpoint: str, attempt: Callable[[], Awaitable[T]], attempts: int, ends_s: float
    ) -> T:
        self._quota.first_try()
        tries = 0
        failure: GuardTransportError | None = None
        while True:
            if not self.circuit.allows(now_s=time.monotonic()):
                raise failure or GuardTransportError(
                    "the gateway has been failing; not asked again yet",
                    source="BREAKER_OPEN",
                    endpoint=endpoint,
                )
            try:
                answer = await attempt()
            except (RateLimitError, BodyRefusedError):
                self._answered()
                raise
            except GuardTransportError as exc:
                self._failed()
                tries += 1
                failure = exc
                now_s = time.monotonic()
                delay_s = max(
                    self._backoff.delay_s(tries - 1, random.random()),
                    self._silence.left_s(endpoint, now_s=now_s),
                )
                last = not exc.retryable or tries >= attempts or now_s + delay_s >= ends_s
                if last or not self._quota.take():
                    raise
                await asyncio.sleep(delay_s)
            except asyncio.CancelledError:
                self.circuit.abandoned()
                raise
            except BaseException:
                self._answered()  # a refusal is an answer
                raise
            else:
                self._answered()
                return answer

    def _answered(self) -> None:
        was = self.circuit.state
        self.circuit.succeeded()
        if was != "closed":
            logger.info("the gateway answers again")
            self._recovered()

    def _failed(self) -> None:
        was = self.circuit.state
        self.circuit.failed(now_s=time.monotonic())
        if was == "closed" and self.circuit.state == "open":
            logger.info("the gateway fails; it is left alone, but for single probes")

    def _refined(self, reply: Reply, problem: BaseException) -> BaseException:
        """Take note of what a refusal asks for, and name a body that can never be taken."""
        if reply.status in (429, 503):
            document = reply.problem()
            wait_s = retry_after_s(reply.retry_after, now_s=reply.now_s)
            if wait_s is None and document.retry_after_ms is not None:
                wait_s = document.retry_after_ms / 1000
            # A cap that an operator set on some calls says nothing about the others, and a store
            # that failed refuses by itself: neither may close the gate for everybody.
            concerns_all = reply.endpoint != wire.GATE_PATH or (
                reply.status == 429 and document.action != "rate"
            )
            if concerns_all and (wait_s is not None or reply.status == 429):
                self._silence.asked(reply.endpoint, wait_s, now_s=time.monotonic())
        code = reply.problem().error_code or ""
        unreadable = reply.status in (400, 415) and code.startswith("GD-P")
        if isinstance(problem, GuardTransportError) and (reply.status == 413 or unreadable):
            return BodyRefusedError(
                str(problem), source="GATEWAY_ERROR", endpoint=reply.endpoint, retryable=False
            )
        return problem

    async def _exchange(
        self, method: str, path: str, endpoint: str, headers: dict[str, str], body: bytes
    ) -> Reply:
        for resync in (False, True):
            request = self._client.build_request(
                method,
                self._urls.get(path, path),
                headers=headers,
                content=body,
                extensions={OWN_TRAFFIC: True},
            )
            nonce = ""
            if self.signer.signs:
                headers_signed, nonce = self.signer.headers(method, str(request.url), body)
                request.headers.update(headers_signed)
            try:
                reply = await self._read(request, endpoint, nonce)
            except (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError) as exc:
                # `from None`: the cause holds the request, and that holds the key.
                raise GuardTransportError(
                    f"{endpoint}: {_why(exc)}", source="NETWORK_ERROR", endpoint=endpoint
                ) from None
            if resync or not self.signer.resynchronised(reply):
                return reply
        raise AssertionError("unreachable")

    async def _read(self, request: httpx.Request, endpoint: str, nonce: str) -> Reply:
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            # A tenth of a call's time is saved where there is no coding to be undone.
            plain = "content-encoding" not in response.headers
            stream = cast("httpx.AsyncByteStream", response.stream)
            async for chunk in stream if plain else response.aiter_bytes(65_536):
                body += chunk
                if len(body) > _REPLY_BYTES_MAX:
                    raise GuardTransportError(
                        f"{endpoint} answered more than {_REPLY_BYTES_MAX} bytes",
                        source="GATEWAY_ERROR",
                        endpoint=endpoint,
                        retryable=False,
                    )
        finally:
            await response.aclose()
            del response.stream  # it and the response hold each other: work for the collector
        return Reply(
            endpoint=endpoint,
            status=response.status_code,
            body=bytes(body),
            retry_after=response.headers.get("Retry-After"),
            now_s=time.time(),
            nonce=nonce,
            signature=response.headers.get("X-Guard-Signature", ""),
        )


def _verifies(url: str) -> bool:
    # Loading the trust store costs about 20 ms; plain http (loopback only, checked) needs none.
    return urlsplit(url).scheme == "https"


def _why(exc: BaseException) -> str:
    """Name a network failure without repeating anything of the request."""
    name = type(exc).__name__
    text = str(exc)
    return f"{name}: {text}" if text else name
