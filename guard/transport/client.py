"""Every call to the gateway: its deadline, retries and circuit, and the meaning of its reply."""

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
from guard.loop import fair_timeout
from guard.settings import Settings
from guard.transport.http import GatewayHttp, HttpRequest
from guard.transport.replies import (
    BodyRefusedError,
    NotAGatewayError,
    Reply,
    UnreadableReplyError,
    exception_for,
    not_a_gateway,
)
from guard.transport.signer import Signer

T = TypeVar("T")
logger = logging.getLogger("guard.transport")

_ATTEMPTS_MAX: Final = 4
_FAIR_SHARE: Final = 0.5
"""A timeout counts against the gateway only with at least this share of the usual deadline: after a
wait in this process, the rest of a deadline may be too short for any gateway."""


class GatewayClient:
    """The gateway over HTTP; made and used on the background loop, so it has no locks.

    A retry sends the same body with the same idempotency key: if the first answer was lost, the
    gateway repeats it instead of deciding or charging again.

    Args:
        settings: address, key, secret and deadline.
        heard: called with None after each usable answer and with the exception otherwise.
        recovered: called when the gateway answers again after the circuit was open.
        grants_are_signed: whether a grant without a signature is refused.
        restarts: returns whether the gateway is this user's own, which is restarted automatically.
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
        # Endpoints whose newest answer was an error, and whether the gateway has not answered at
        # all: an open circuit refuses what fails itself, and everything where nothing is answered.
        self._failing: set[str] = set()
        self._is_silent = False
        self._grants_are_signed = grants_are_signed
        # Why the gateway could not be reached at the newest try; None once it has answered.
        self._unreached: str | None = None
        # Whether a gate request has raised that reason in this outage.
        self._raised_unreached = False
        # Shared by all requests, so that they retry few times in total during an outage.
        self._quota = RetryQuota()
        # Until when each endpoint has asked not to be called.
        self._retry_after = RetryAfter()
        self._backoff = Backoff(base_s=0.05, cap_s=1.0)

    @property
    def signer(self) -> Signer:
        """Signs requests by the gateway's clock, including those that another client sends."""
        return self._http.signer

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context that checks the gateway's certificate; also for the control socket."""
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
            key: the idempotency key, if it is not the call's id: for a new question about the same
                call, as opposed to a retry.
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
        # A proxy or a cache in between may have mixed up the answers: never run a call on
        # another's.
        if reply.call_id != request.call_id:
            raise GuardTransportError(
                "the gateway answered another call", source="GATEWAY_ERROR", endpoint=wire.GATE_PATH
            )
        return reply

    async def release(self, reservation_id: str, reason: str, *, stays: bool = False) -> None:
        """Release an unused reservation, or withdraw an approval (``POST /gate/release``).

        Args:
            reservation_id: id of the reservation or the approval.
            reason: for the gateway's log.
            stays: whether the approval stays open, in case the same call comes again.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        body = wire.encode(wire.ReleaseRequest(reservation_id, reason, stays))
        # A reservation is released once. An approval can be left by several callers in turn, and
        # each of these requests has to count.
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
        """Return the content of a reply that came over the control socket.

        Raises:
            GuardError, WorkflowKilledInterrupt: as over HTTP.
        """
        try:
            _, value = self._value_of(reply, kind, 200, signed_reply=False)
        except BaseException as exc:
            self._heard(exc)
            raise
        self._heard(None)
        # This is on the path of every call: the circuit is touched only if that changes something.
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
        self, after: int, wait_ms: int, known: str = f"tools={wire.NO_TOOL_RULES}"
    ) -> wire.ControlReply:
        """Wait for control messages after a sequence number (``GET /api/v1/control``).

        Args:
            after: the number.
            wait_ms: how long the gateway may wait for a message, in milliseconds.
            known: the versions of what is known here, as a query; the gateway sends other ones.
        """
        query = f"after={after}&wait_ms={wait_ms}&{known}"
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

    async def models(self, provider: str) -> list[str]:
        """Ask which models of a vendor the key may use (``GET /api/v1/models``).

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        query = urlencode({"provider": provider})
        request = HttpRequest.of("GET", f"{wire.MODELS_PATH}?{query}")
        _, reply = await self._call(request, wire.ModelsReply, signed_reply=True)
        return reply.models

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
        """Send one request, within the total deadline, with retries where they are safe.

        Whatever the number of tries, ``heard`` is called once.
        """
        endpoint = request.endpoint
        # Not an outcome of this request: the endpoint's earlier answer has been counted.
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
            async with fair_timeout(deadline_s):
                answer = await self._with_retries(endpoint, attempt, attempts, ends_s)
        except TimeoutError:
            # Only a timeout that is certainly the gateway's counts for the circuit.
            if deadline_s >= _FAIR_SHARE * self._settings.timeout_s:
                self._is_silent = True
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
        """Return the status and the decoded value of a reply, or raise what it means.

        Args:
            reply: the reply.
            kind: type of its value.
            also_ok: a status besides 2xx that has such a value.
            signed_reply: whether a reply without a signature is refused.
        """
        problem = None if reply.status == also_ok else exception_for(reply)
        if problem is not None:
            self._note_wait(reply)
            raise self._explained(reply, _refined(reply, problem))
        if self._retry_after.until_s:
            self._retry_after.clear(reply.endpoint)
        # Before it is decoded: nothing in an untrusted body is used.
        if signed_reply:
            self.signer.check(reply)
        try:
            return reply.status, wire.decode(reply.body, kind)
        except wire.WireError as exc:
            foreign = not_a_gateway(reply, self._settings.api_url)
            if kind is wire.Capabilities:
                raise foreign from None
            says, at = str(foreign.args[0]), reply.endpoint
            raise UnreadableReplyError(says, source="GATEWAY_ERROR", endpoint=at) from exc

    def _explained(self, reply: Reply, problem: BaseException) -> BaseException:
        """Return the problem, with advice if the address or the key is a recognisable mistake."""
        address = self._settings.api_url
        # Another program; or a gateway, but not below this path.
        foreign = isinstance(problem, NotAGatewayError)
        if foreign or (reply.status == 404 and "/" in address[8:] and not reply.problem().detail):
            return not_a_gateway(reply, address)
        # Not for a proxy's caller: the caller's key is refused, while the proxy's own is right.
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
        """Call ``attempt`` until it succeeds, fails for good, or the tries or the time are used up.

        Every attempt ends in one of four ways for the circuit: answered, failed, abandoned, or not
        made. A probe of an open circuit that ended in none of them would block all later ones.
        """
        self._quota.first_try()
        tries = 0
        failure: GuardTransportError | None = None
        while True:
            # Asked before each attempt: other requests may have opened the circuit meanwhile.
            if not self.circuit.allows(now_s=time.monotonic()) and (
                self._is_silent or endpoint in self._failing
            ):
                raise failure or self._not_asked(endpoint)
            try:
                answer = await attempt()
            # 1. The gateway works, and a retry would get the same answer.
            except (RateLimitError, BodyRefusedError):
                self._answered()
                raise
            # 2. No usable answer: retry, unless it would not help, or not be in time.
            except GuardTransportError as exc:
                if exc.source == "AUTH_ERROR":  # an answer, though one that cannot be trusted
                    self._answered()
                    raise
                self._failed()
                self._failing.add(endpoint)
                if exc.source == "NETWORK_ERROR":
                    self._unreached = str(exc.args[0])
                    self._is_silent = True
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
            # 3. Cancelled, or the deadline in `_call`, which counts its failure itself.
            except asyncio.CancelledError:
                self.circuit.abandoned()
                raise
            # 4. A refusal, which is an answer.
            except BaseException:
                self._answered()
                raise
            # 5. Success.
            else:
                self._answered()
                self._failing.discard(endpoint)
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
        self._is_silent = False
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
        # At the gate, an operator's cap on some calls says nothing about other calls, and a gateway
        # whose store failed refuses by itself: neither may close the gate for all calls.
        concerns_all = reply.endpoint != wire.GATE_PATH or (
            reply.status == 429 and document.action != "rate"
        )
        if concerns_all and (wait_s is not None or reply.status == 429):
            self._retry_after.set(reply.endpoint, wait_s, now_s=time.monotonic())


def _refined(reply: Reply, problem: BaseException) -> BaseException:
    """Return the problem, as :class:`BodyRefusedError` for a body that can never be accepted.

    A kill stays one at the gate only.
    """
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
