"""Every HTTP call to the gateway: headers, signatures, deadlines, caps and retries."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx

from guard.breaker.circuit import CircuitBreaker
from guard.breaker.exceptions import (
    GuardBackendError,
    GuardError,
    GuardTransportError,
    RateLimitError,
)
from guard.breaker.replies import Reply, exception_for
from guard.core import wire
from guard.core.retry import Backoff, RetryQuota
from guard.core.signing import SignatureParameters, sign, verify_frame
from guard.scope import OWN_TRAFFIC
from guard.settings import Settings, is_loopback, require_secure
from guard.version import __version__

T = TypeVar("T")

_GZIP_ABOVE_BYTES: Final = 1024
_REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
_ATTEMPTS_MAX: Final = 4


class GatewayClient:
    """The gateway over HTTP; made and used on the background loop.

    Args:
        settings: address, key, secret and deadline.
        heard: called with None after each usable answer and with the exception otherwise.
    """

    def __init__(
        self,
        settings: Settings,
        heard: Callable[[BaseException | None], None],
    ) -> None:
        require_secure(settings.api_url)
        self._settings = settings
        self._heard = heard
        self._clock_offset_s = 0.0
        self.circuit = CircuitBreaker()
        self._quota = RetryQuota()
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
            },
        )

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
        """Give back a hold that was not used (``POST /gate/release``)."""
        await self._call(
            "POST",
            wire.RELEASE_PATH,
            dict,
            body=wire.encode(wire.ReleaseRequest(reservation_id, reason)),
            idempotency_key=f"release-{reservation_id}",
        )

    async def send(self, batch: wire.EventBatch) -> wire.EventsReply:
        """Deliver a batch of events (``POST /api/v1/events``).

        A 422 means that the events were taken and a commit went over its reservation; its body is
        the same, and it is returned like a 202.
        """
        return await self._call(
            "POST",
            wire.EVENTS_PATH,
            wire.EventsReply,
            body=wire.encode(batch),
            idempotency_key=batch.batch_id,
            also_ok=422,
        )

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

    def signed(self, method: str, url: str, body: bytes) -> tuple[dict[str, str], str]:
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
    ) -> T:
        """Exchange one message, within the total deadline, with retries where they are safe."""
        endpoint = path.partition("?")[0]
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
            problem = None if reply.status == also_ok else exception_for(reply)
            if problem is not None:
                raise problem
            if signed_reply:
                self._check_signature(reply)
            try:
                return wire.decode(reply.body, kind)
            except wire.WireError as exc:
                raise GuardTransportError(
                    f"{endpoint} answered something else than the protocol says: {exc}",
                    source="GATEWAY_ERROR",
                    endpoint=endpoint,
                ) from None

        deadline_s = self._settings.timeout_s + extra_s
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._with_retries(endpoint, attempt, attempts)
        except TimeoutError:
            self.circuit.failed(now_s=time.monotonic())
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
        self, endpoint: str, attempt: Callable[[], Awaitable[T]], attempts: int
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
            except RateLimitError:
                self.circuit.succeeded()
                raise
            except GuardTransportError as exc:
                self.circuit.failed(now_s=time.monotonic())
                tries += 1
                failure = exc
                if not exc.retryable or tries >= attempts or not self._quota.take():
                    raise
                await asyncio.sleep(self._backoff.delay_s(tries - 1, random.random()))
            except asyncio.CancelledError:
                self.circuit.abandoned()
                raise
            except BaseException:
                self.circuit.succeeded()  # a refusal is an answer
                raise
            else:
                self.circuit.succeeded()
                return answer

    async def _exchange(
        self, method: str, path: str, endpoint: str, headers: dict[str, str], body: bytes
    ) -> Reply:
        for resync in (False, True):
            request = self._client.build_request(
                method, path, headers=headers, content=body, extensions={OWN_TRAFFIC: True}
            )
            headers_signed, nonce = self.signed(method, str(request.url), body)
            request.headers.update(headers_signed)
            try:
                reply = await self._read(request, endpoint, nonce)
            except (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError) as exc:
                # `from None`: the cause holds the request, and that holds the key.
                raise GuardTransportError(
                    f"{endpoint}: {_why(exc)}", source="NETWORK_ERROR", endpoint=endpoint
                ) from None
            if resync or not self._resynchronise(reply):
                return reply
        raise AssertionError("unreachable")

    async def _read(self, request: httpx.Request, endpoint: str, nonce: str) -> Reply:
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes(65_536):
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
        return Reply(
            endpoint=endpoint,
            status=response.status_code,
            body=bytes(body),
            retry_after=response.headers.get("Retry-After"),
            now_s=time.time(),
            nonce=nonce,
            signature=response.headers.get("X-Guard-Signature", ""),
        )

    def _check_signature(self, reply: Reply) -> None:
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

    def _resynchronise(self, reply: Reply) -> bool:
        """Take over the gateway's clock from a 401 that tells it; True when that changed it."""
        if reply.status != 401 or self._settings.hmac_secret is None:
            return False
        told_ms = reply.problem().server_time_ms
        if told_ms is None:
            return False
        offset_s = told_ms / 1000 - time.time()
        if abs(offset_s - self._clock_offset_s) < 1.0:
            return False
        self._clock_offset_s = offset_s
        return True


def send_blocking(
    settings: Settings, batch: wire.EventBatch, deadline_s: float
) -> wire.EventsReply:
    """Deliver one last batch from the calling thread, without the background loop.

    At interpreter exit executors, and with them asynchronous name look-ups, are already dead.

    Raises:
        GuardError: the batch was not taken.
    """
    body = gzip.compress(wire.encode(batch), compresslevel=1)
    client = GatewayClient(settings, lambda _: None)
    url = settings.api_url + wire.EVENTS_PATH
    headers = {
        wire.HEADER_API_KEY: settings.api_key,
        wire.HEADER_PROTOCOL: str(wire.PROTOCOL_VERSION),
        wire.HEADER_IDEMPOTENCY: batch.batch_id,
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
        **client.signed("POST", url, body)[0],
    }
    try:
        with httpx.Client(
            verify=_verifies(settings.api_url),
            trust_env=not is_loopback(urlsplit(settings.api_url).hostname or ""),
            timeout=deadline_s,
        ) as blocking:
            request = blocking.build_request(
                "POST", url, headers=headers, content=body, extensions={OWN_TRAFFIC: True}
            )
            response = blocking.send(request)
            reply = Reply(wire.EVENTS_PATH, response.status_code, response.content)
    except (httpx.HTTPError, OSError) as exc:
        raise GuardTransportError(_why(exc), endpoint=wire.EVENTS_PATH) from None
    problem = None if reply.status == 422 else exception_for(reply)
    if isinstance(problem, GuardError):
        raise problem
    if problem is not None:
        raise GuardBackendError(str(problem), endpoint=wire.EVENTS_PATH)
    try:
        return wire.decode(reply.body, wire.EventsReply)
    except wire.WireError as exc:
        raise GuardTransportError(str(exc), endpoint=wire.EVENTS_PATH) from None


def _verifies(url: str) -> bool:
    # Loading the trust store costs about 20 ms; plain http (loopback only, checked) needs none.
    return urlsplit(url).scheme == "https"


def _why(exc: BaseException) -> str:
    """Name a network failure without repeating anything of the request."""
    name = type(exc).__name__
    text = str(exc)
    return f"{name}: {text}" if text else name
