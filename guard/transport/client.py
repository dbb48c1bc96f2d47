"""Every call to the gateway: its deadline, retries and circuit, and what a reply means."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlencode

from guard.breaker.circuit import CircuitBreaker
from guard.breaker.exceptions import (
    GuardAuthError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
)
from guard.breaker.rejection import CallerRejectedError
from guard.core import wire
from guard.core.mistaken import mistaken_key
from guard.core.retry import Backoff, RetryAfter, RetryQuota, retry_after_s
from guard.settings import Settings
from guard.transport.http import GatewayHttp, HttpRequest
from guard.transport.replies import (
    BodyRefusedError,
    NotAGatewayError,
    Reply,
    exception_for,
    not_a_gateway,
)
from guard.transport.signer import Signer

T = TypeVar("T")
logger = logging.getLogger("guard.transport")

_ATTEMPTS_MAX: Final = 4
_FAIR_SHARE: Final = 0.5
"""A timeout counts against the gateway only if it had this share of the usual deadline; what
remains of a deadline after waiting in this process may be too short for any gateway."""

_LATE_SHARE: Final = 1.25
"""A timeout noticed later than this says nothing about the gateway: the loop was held up."""


class GatewayClient:
    """The gateway over HTTP; made and used on the background loop.

    Args:
        settings: address, key, secret and deadline.
        heard: called with None after each usable answer and with the exception otherwise.
        recovered: called when the gateway answers again after the circuit was open.
        grants_are_signed: whether a grant without a signature is refused.
        restarts: tells whether the gateway is this user's own, which is started again by itself.
    """

    def __init__(
        self,
        settings: Settings,
        heard: Callable[[BaseException | None], None],
        recovered: Callable[[], None] = lambda: None,
        *,
        grants_are_signed: bool = False,
        restarts: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._heard = heard
        self._recovered = recovered
        self._http = GatewayHttp(settings, restarts)
        self.circuit = CircuitBreaker()
        self._grants_are_signed = grants_are_signed
        # Why the gateway could not be reached; None once it has answered.
        self._unreached: str | None = None
        # Whether a gate request has raised that reason in this outage.
        self._raised_unreached = False
        # Shared by all requests: in an outage they retry few times in all, not each several times.
        self._quota = RetryQuota()
        self._retry_after = RetryAfter()
        self._backoff = Backoff(base_s=0.05, cap_s=1.0)

    @property
    def signer(self) -> Signer:
        """Signs requests by the gateway's clock, including those that another client sends."""
        return self._http.signer

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What the gateway's certificate is checked against; also for the control socket."""
        return self._http.tls

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def capabilities(self) -> wire.Capabilities:
        """Ask for the gateway's capabilities (``GET /api/v1/capabilities``)."""
        _, capabilities = await self._call(
            HttpRequest.of("GET", wire.CAPABILITIES_PATH), wire.Capabilities
        )
        return capabilities

    async def gate(
        self,
        request: wire.GateRequest,
        key: str | None = None,
        *,
        deadline_s: float | None = None,
    ) -> wire.GateReply:
        """Ask whether a call may run (``POST /gate``).

        Args:
            request: the call.
            key: the idempotency key, if another than the call's id: a new question for the same
                call, not a retry of the first one.
            deadline_s: total time in seconds; the configured timeout when None.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        body = wire.encode(request)
        _, reply = await self._call(
            HttpRequest.of("POST", wire.GATE_PATH, body, key or request.call_id),
            wire.GateReply,
            deadline_s=deadline_s,
            signed_reply=self._grants_are_signed,
        )
        if reply.call_id != request.call_id:
            raise GuardTransportError(
                "the gateway answered another call", source="GATEWAY_ERROR", endpoint=wire.GATE_PATH
            )
        return reply

    async def release(self, reservation_id: str, reason: str, *, stays: bool = False) -> None:
        """Release an unused reservation, or withdraw an approval (``POST /gate/release``).

        Args:
            reservation_id: of either.
            reason: for the gateway's log.
            stays: leave the approval open for the same call, should it come again.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        body = wire.encode(wire.ReleaseRequest(reservation_id, reason, stays))
        # Several callers can leave one approval, one after the other.
        key = f"{reservation_id}-left-{time.time_ns()}" if stays else f"{reservation_id}-release"
        await self._call(HttpRequest.of("POST", wire.RELEASE_PATH, body, key), dict)

    async def update_lease(self, update: wire.LeaseUpdate, key: str) -> wire.LeaseState:
        """Renew a lease, or give back what is unused in it (``POST /gate/lease``).

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        request = HttpRequest.of("POST", wire.LEASE_PATH, wire.encode(update), key)
        _, state = await self._call(request, wire.LeaseState, signed_reply=self._grants_are_signed)
        return state

    def left_alone(self, endpoint: str) -> RateLimitError | None:
        """Return the error for a request to an endpoint that asked not to be called for a while."""
        waits = self._retry_after
        if not waits.until_s or (wait_s := waits.left_s(endpoint, now_s=time.monotonic())) <= 0:
            return None
        return RateLimitError(
            f"{endpoint} asked to be left alone for another {wait_s:.1f} s",
            retry_after=wait_s,
            endpoint=endpoint,
        )

    def read(self, reply: Reply, kind: type[T]) -> T:
        """Return what a reply that came over the control socket says.

        Raises:
            GuardError, WorkflowKilledInterrupt: as over HTTP.
        """
        try:
            _, value = self._value_of(reply, kind, 200, signed_reply=False)
        except BaseException as exc:
            self._heard(exc)
            raise
        self._heard(None)
        if self.circuit.is_disturbed or self._unreached is not None:
            self._answered()
        return value

    async def send(self, batch_id: str, body: bytes) -> tuple[int, wire.EventsReply]:
        """Deliver a batch of events (``POST /api/v1/events``).

        Args:
            batch_id: the idempotency key, the same on every retry.
            body: the encoded :class:`~guard.core.wire.EventBatch`.

        Returns:
            The status and the reply. 422 means that a commit exceeded its reservation; the
            events were accepted all the same.

        Raises:
            BodyRefusedError: the batch must be split, or an event left out.
            GuardError: not accepted now.
        """
        return await self._call(
            HttpRequest.of("POST", wire.EVENTS_PATH, body, batch_id), wire.EventsReply, also_ok=422
        )

    async def poll(
        self, after: int, wait_ms: int, tools: str = wire.NO_TOOL_RULES
    ) -> wire.ControlReply:
        """Wait for control messages after a sequence number (``GET /api/v1/control``).

        Args:
            after: the number.
            wait_ms: how long the gateway may wait for a message, in milliseconds.
            tools: version of the tool rules that are known here; the gateway sends other ones.
        """
        query = f"after={after}&wait_ms={wait_ms}&tools={tools}"
        _, reply = await self._call(
            HttpRequest.of("GET", f"{wire.CONTROL_PATH}?{query}"),
            wire.ControlReply,
            deadline_s=self._settings.timeout_s + wait_ms / 1000,
            attempts=1,
            signed_reply=True,
        )
        return reply

    async def spend(self, query: Mapping[str, str]) -> wire.SpendReply:
        """Ask what a workflow has spent (``GET /api/v1/spend``).

        Args:
            query: ``workflow``, and optionally ``run``, ``agent``, ``chain`` and ``user``.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        request = HttpRequest.of("GET", f"{wire.SPEND_PATH}?{urlencode(query)}")
        _, reply = await self._call(request, wire.SpendReply, signed_reply=True)
        return reply

    # -- one call ---------------------------------------------------------------------------------

    async def _call(
        self,
        request: HttpRequest,
        kind: type[T],
        *,
        also_ok: int = 200,
        deadline_s: float | None = None,
        attempts: int = _ATTEMPTS_MAX,
        signed_reply: bool = False,
    ) -> tuple[int, T]:
        """Send one request, within the total deadline, with retries where they are safe."""
        endpoint = request.endpoint
        unwanted = self.left_alone(endpoint)
        if unwanted is not None:
            raise unwanted
        if deadline_s is None:
            deadline_s = self._settings.timeout_s

        async def attempt() -> tuple[int, T]:
            reply = await self._http.send(request)
            return self._value_of(reply, kind, also_ok, signed_reply)

        ends_s = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._with_retries(endpoint, attempt, attempts, ends_s)
        except TimeoutError:
            # Only a timeout that is certainly the gateway's opens the circuit.
            late = time.monotonic() - ends_s > (_LATE_SHARE - 1) * deadline_s
            if deadline_s >= _FAIR_SHARE * self._settings.timeout_s and not late:
                self._failed()
            error = GuardTransportError(
                f"no answer from {endpoint} within {deadline_s:.3g} s", endpoint=endpoint
            )
            self._heard(error)
            raise error from None
        except BaseException as exc:
            self._heard(exc)
            raise
        self._heard(None)
        return answer

    def _value_of(
        self, reply: Reply, kind: type[T], also_ok: int, signed_reply: bool
    ) -> tuple[int, T]:
        problem = None if reply.status == also_ok else exception_for(reply)
        if problem is not None:
            self._note_wait(reply)
            raise self._explained(reply, _refined(reply, problem))
        if self._retry_after.until_s:
            self._retry_after.clear(reply.endpoint)
        if signed_reply:
            self.signer.check(reply)
        try:
            return reply.status, wire.decode(reply.body, kind)
        except wire.WireError as exc:
            if kind is wire.Capabilities:
                raise not_a_gateway(reply, self._settings.api_url) from None
            raise GuardTransportError(
                f"{reply.endpoint} answered something else than the protocol says: {exc}",
                source="GATEWAY_ERROR",
                endpoint=reply.endpoint,
            ) from None

    def _explained(self, reply: Reply, problem: BaseException) -> BaseException:
        """Say what to type, where the address or the key is a mistake that can be told."""
        if isinstance(problem, NotAGatewayError):
            return not_a_gateway(reply, self._settings.api_url)
        address = self._settings.api_url
        if reply.status == 404 and reply.endpoint == wire.CAPABILITIES_PATH and "/" in address[8:]:
            return not_a_gateway(reply, address)  # a gateway, but not below this path
        # A caller's key is refused through a proxy's, which is no mistake.
        if isinstance(problem, GuardAuthError) and not isinstance(problem, CallerRejectedError):
            mistake = mistaken_key(self._settings.api_key, "gdk_")
            if mistake is not None:
                text = f"{mistake}: set GUARD_API_KEY to one of `guard gateway keys create NAME`"
                return GuardAuthError(
                    f"{text} ({problem.message})",
                    error_code=problem.error_code,
                    status_code=problem.status_code,
                )
        return problem

    async def _with_retries(
        self, endpoint: str, attempt: Callable[[], Awaitable[T]], attempts: int, ends_s: float
    ) -> T:
        self._quota.first_try()
        tries = 0
        failure: GuardTransportError | None = None
        while True:
            # Asked before each attempt: other requests may have opened the circuit meanwhile.
            if not self.circuit.allows(now_s=time.monotonic()):
                raise failure or self._not_asked(endpoint)
            try:
                answer = await attempt()
            except (RateLimitError, BodyRefusedError):
                self._answered()  # it works; a retry would get the same answer
                raise
            except GuardTransportError as exc:
                if exc.source == "AUTH_ERROR":  # an answer, though not to be believed
                    self._answered()
                    raise
                self._failed()
                if exc.source == "NETWORK_ERROR":
                    self._unreached = str(exc.args[0])
                tries += 1
                failure = exc
                now_s = time.monotonic()
                delay_s = max(
                    self._backoff.delay_s(tries - 1, random.random()),
                    self._retry_after.left_s(endpoint, now_s=now_s),
                )
                last = not exc.retryable or tries >= attempts or now_s + delay_s >= ends_s
                if last or not self._quota.take():
                    raise
                await asyncio.sleep(delay_s)
            except asyncio.CancelledError:
                # Also the deadline in `_call`, which counts its failure itself. A probe must not
                # stay out for ever.
                self.circuit.abandoned()
                raise
            except BaseException:
                self._answered()  # a refusal is an answer
                raise
            else:
                self._answered()
                return answer

    def _not_asked(self, endpoint: str) -> GuardTransportError:
        """Return the error for a request that is not sent, because the circuit is open.

        The first gate request of an outage raises the failure itself: the requests that opened the
        circuit may have been the SDK's own.
        """
        why = self._unreached
        if why is not None and endpoint == wire.GATE_PATH and not self._raised_unreached:
            self._raised_unreached = True
            return GuardTransportError(why, source="NETWORK_ERROR", endpoint=endpoint)
        text = "the gateway has been failing; not asked again yet"
        return GuardTransportError(
            text if why is None else f"{text}: {why}", source="BREAKER_OPEN", endpoint=endpoint
        )

    def _answered(self) -> None:
        self._unreached = None
        self._raised_unreached = False
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

    def _note_wait(self, reply: Reply) -> None:
        """Remember for how long an endpoint asked not to be called."""
        if reply.status not in (429, 503):
            return
        document = reply.problem()
        wait_s = retry_after_s(reply.retry_after, now_s=reply.now_s)
        if wait_s is None and document.retry_after_ms is not None:
            wait_s = document.retry_after_ms / 1000
        # A cap that an operator set on some calls says nothing about the others, and a failed
        # store refuses by itself: neither may close the gate for everybody.
        concerns_all = reply.endpoint != wire.GATE_PATH or (
            reply.status == 429 and document.action != "rate"
        )
        if concerns_all and (wait_s is not None or reply.status == 429):
            self._retry_after.set(reply.endpoint, wait_s, now_s=time.monotonic())


def _refined(reply: Reply, problem: BaseException) -> BaseException:
    """Single out a body that can never be accepted, and confine a kill to the gate."""
    if isinstance(problem, WorkflowKilledInterrupt) and reply.endpoint != wire.GATE_PATH:
        # A kill interrupts the call that asked the gate, not a service of the background loop.
        return GuardTransportError(
            f"{reply.endpoint} answered {reply.status}: {problem}",
            source="GATEWAY_ERROR",
            endpoint=reply.endpoint,
            retryable=False,
        )
    code = reply.problem().error_code or ""
    unreadable = reply.status in (400, 415) and code.startswith("GD-P")
    if isinstance(problem, GuardTransportError) and (reply.status == 413 or unreadable):
        return BodyRefusedError(
            str(problem.args[0]), source="GATEWAY_ERROR", endpoint=reply.endpoint, retryable=False
        )
    return problem
