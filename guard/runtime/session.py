"""The session with the gateway: client, flusher and subscriber of one process, on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardError,
    GuardProtocolError,
    GuardTransportError,
)
from guard.control.ask_channel import AskChannel
from guard.control.subscriber import Subscriber
from guard.core import wire
from guard.core.buffer import EventBuffer
from guard.core.ids import IdFactory
from guard.core.leases import LeaseBook
from guard.delivery.flusher import Flusher, OnDecision
from guard.delivery.health import Health
from guard.delivery.spool import Spool, owner_of
from guard.loop import BackgroundLoop
from guard.runtime.lease_keeper import LeaseKeeper
from guard.runtime.local import keep_running
from guard.settings import Settings
from guard.transport.client import GatewayClient
from guard.transport.replies import BodyRefusedError
from guard.version import __version__

if TYPE_CHECKING:
    from guard.local_gateway import LocalGateway

logger = logging.getLogger("guard.session")

_EARLY_ANSWERS_MAX: Final = 4096
_APPROVAL_WAIT_MAX_S: Final = 3600.0
_RELEASES_AT_ONCE: Final = 4
_CATCH_UP_MAX_S: Final = 1.0
_RETURN_S: Final = 0.2


class Session:
    """Owns everything that talks to the gateway; created on the background loop.

    Args:
        settings: address, key and intervals.
        ids: event, batch and nonce ids.
        buffer: the events to deliver.
        health: notes how requests end.
        control_position: returns the number and epoch of the newest control message applied.
        tools_version: returns the version of the tool rules that are applied.
        controlled: applies control messages.
        on_error: called with errors for the hooks.
        on_decision: called with decisions in replies to events, if there is no control channel.
        leases: what this process may spend without asking.
        read_answers: reads the LLM answers that are unread, so that their holds settle.

    Attributes:
        client: the gateway over HTTP.
        flusher: delivers events.
        subscriber: the control channel.
        asks: requests over the control socket.
        features: what the gateway can do; None before it has said so.
    """

    def __init__(
        self,
        settings: Settings,
        ids: IdFactory,
        buffer: EventBuffer,
        health: Health,
        *,
        control_position: Callable[[], tuple[int, str]],
        tools_version: Callable[[], str],
        controlled: Callable[..., None],
        on_error: Callable[[BaseException], None],
        on_decision: OnDecision,
        leases: LeaseBook,
        read_answers: Callable[[], None],
        local_gateway: LocalGateway | None = None,
    ) -> None:
        self._health = health
        self._timeout_s = settings.timeout_s
        self._local = local_gateway
        self._apply = controlled
        self._probed = False
        self._reconnected = False
        self.client = GatewayClient(
            settings,
            health.heard,
            recovered=self._recovered,
            # Another program may take over the port of a local gateway that has crashed.
            grants_are_signed=local_gateway is not None,
        )
        self.flusher = Flusher(
            buffer,
            self.client,
            settings,
            ids,
            health,
            on_error=on_error,
            on_decision=on_decision,
            spool=_spool(settings),
        )
        self._probing: asyncio.Task[None] | None = None
        self._services: list[asyncio.Task[None]] = []
        self.features: frozenset[str] | None = None
        self.asks = AskChannel(settings.hmac_secret, switched=self._asks_switched)
        self._leases = LeaseKeeper(leases, self.asks, self.client, self.flusher, ids, read_answers)
        self.subscriber = Subscriber(
            settings,
            self.client,
            position=control_position,
            tools=tools_version,
            apply=self._controlled,
            switched=self._switched,
            asks=self.asks,
            recalled=self._leases.recalled,
        )
        self._approvals: dict[str, asyncio.Future[bool]] = {}
        self._early_answers: OrderedDict[str, bool] = OrderedDict()
        self._releases: set[asyncio.Task[None]] = set()
        self._releasing = asyncio.Semaphore(_RELEASES_AT_ONCE)

    @property
    def can_lease(self) -> bool:
        """Whether the gateway grants leases now: only over the socket."""
        features = self.features
        return self.asks.is_open and features is not None and wire.FEATURE_LEASES in features

    async def caught_up(self) -> None:
        """Wait briefly until the gateway's messages so far are applied."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_CATCH_UP_MAX_S, self._timeout_s)):
                await self.subscriber.caught_up()

    async def probe(self) -> None:
        """Ask for the capabilities and check that both sides speak protocol v3.

        Raises:
            GuardError: no answer, the key is refused, or the protocol is incompatible.
        """
        if self._probed:
            return
        await self._read_capabilities()

    async def _read_capabilities(self) -> None:
        capabilities = await self.client.capabilities()
        if capabilities.protocol != wire.PROTOCOL_VERSION or _version(__version__) < _version(
            capabilities.min_sdk_version
        ):
            error = GuardProtocolError(
                f"the gateway speaks protocol {capabilities.protocol} and asks for SDK "
                f"{capabilities.min_sdk_version} or newer; this is {__version__}, which speaks "
                f"protocol {wire.PROTOCOL_VERSION}",
                min_required_version=capabilities.min_sdk_version,
            )
            self._health.heard(error)
            raise error
        self._probed = True
        self.flusher.limits = capabilities.limits
        self._health.capable(capabilities)
        self.features = frozenset(capabilities.features)
        self.asks.is_supported = wire.FEATURE_GATE_WS in self.features

    def start_services(self, background: BackgroundLoop) -> None:
        """Start the long-lived tasks."""
        background.at_close(self.client.close)
        self._services = [
            background.spawn(self.flusher.run, name="guard-flusher"),
            background.spawn(self.subscriber.run, name="guard-subscriber"),
            background.spawn(self._leases.run, name="guard-leases"),
        ]
        if self._local is not None:
            keep = functools.partial(keep_running, self._local)
            self._services.append(background.spawn(keep, name="guard-local-gateway"))

    async def ask(self, request: wire.GateRequest, deadline_s: float) -> wire.GateReply:
        """Ask whether a call may run; events buffered for its workflow are piggybacked.

        A reply may say ``pending``; :meth:`approval` waits for the answer.

        Args:
            request: the call.
            deadline_s: total time in seconds.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        records, request.events = self.flusher.piggyback(request.workflow_id)
        ends_s = time.monotonic() + deadline_s
        try:
            reply = await self.client.gate(request, deadline_s=deadline_s)
        except BodyRefusedError:
            # One of the events cannot be read. That is no reason to refuse the call: they are sent
            # separately, and the bad one is found and left out there.
            self.flusher.requeue(records)
            if not records:
                raise
            records, request.events = [], []
            left_s = max(0.0, ends_s - time.monotonic())
            reply = await self.client.gate(request, deadline_s=left_s)
        except BaseException:
            self.flusher.requeue(records)
            raise
        self.flusher.acknowledge(records, reply.events)
        request.events = []
        self.flusher.flush_rest()
        return reply

    async def ask_approved(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask again after a person has approved the call.

        Raises:
            GuardError: refused, or no usable answer within the deadline.
        """
        reply = await self.client.gate(request, asked_again=True)
        if reply.decision != "allow":
            raise GuardTransportError(
                "an approved call is still pending",
                source="GATEWAY_ERROR",
                endpoint=wire.GATE_PATH,
            )
        return reply

    def give_back(self, reply: wire.GateReply) -> None:
        """Release what a reply granted, or withdraw its approval request, without waiting.

        Call it on the background loop when nobody waits for the reply any more.
        """
        granted = reply.reservation_id or reply.approval_id
        if granted is not None:
            self._release_soon(granted)

    async def approval(self, request: wire.GateRequest, reply: wire.GateReply) -> None:
        """Wait until a person has answered.

        Raises:
            GuardBlockedException: refused, or not answered in time.
        """
        if reply.approval_id is None:
            raise GuardTransportError(
                "a pending decision without an approval_id",
                source="GATEWAY_ERROR",
                endpoint=wire.GATE_PATH,
            )
        ends_ms = reply.expires_at_ms
        wait_s = _APPROVAL_WAIT_MAX_S
        if ends_ms is not None:
            wait_s = min(wait_s, max(0.0, ends_ms / 1000 - time.time()))
        answer = self._approval_of(reply.approval_id)
        try:
            async with asyncio.timeout(wait_s):
                approved = await asyncio.shield(answer)
            reason = "" if approved else "an operator refused the call"
        except TimeoutError:
            reason = "no operator approved the call in time"
        finally:
            self._approvals.pop(reply.approval_id, None)
        if reason:
            raise GuardBlockedException(
                workflow_id=request.workflow_id,
                reason=reason,
                action="approval",
                tool_name=request.tool_name,
                status_code=403,
            )

    def _release_soon(self, granted: str) -> None:
        task = asyncio.get_running_loop().create_task(
            self._release(granted), context=contextvars.Context()
        )
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, granted: str) -> None:
        try:
            async with self._releasing:
                await self.client.release(granted, "the call waits no longer")
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("releasing what a call does not need: %s", exc)

    def _approval_of(self, approval_id: str) -> asyncio.Future[bool]:
        """Return the future of a person's answer, which may arrive before the caller waits."""
        future = self._approvals.get(approval_id)
        if future is None:
            future = self._approvals[approval_id] = asyncio.get_running_loop().create_future()
        early = self._early_answers.pop(approval_id, None)
        if early is not None and not future.done():
            future.set_result(early)
        return future

    def _answered(self, approval_id: str, approved: bool) -> None:
        future = self._approvals.get(approval_id)
        if future is not None:
            if not future.done():
                future.set_result(approved)
            return
        self._early_answers[approval_id] = approved
        while len(self._early_answers) > _EARLY_ANSWERS_MAX:  # most belong to other processes
            self._early_answers.popitem(last=False)

    def _controlled(self, *messages: wire.ControlMessage) -> None:
        for message in messages:
            if message.type == "approval" and message.approval_id is not None:
                self._answered(message.approval_id, bool(message.approved))
        self._apply(*messages)
        self._leases.pushed(messages)

    def _asks_switched(self, is_open: bool) -> None:
        """The way for requests over the socket has opened or gone."""
        self._leases.switched(is_open, self._health.poll_interval_ms / 1000)
        if not is_open:
            self._reconnected = True
            self.asks.is_supported = False  # what comes back may be another version
        elif self._reconnected:
            self._reconnected = False
            self._probe_soon()

    def _switched(self, channel: str) -> None:
        self._health.switched(channel)
        if channel != "none":
            self._recovered()

    def _recovered(self) -> None:
        """The gateway answers again: deliver what waits, and probe if no probe has succeeded."""
        self.flusher.wake()
        if not self._probed:
            self._probe_soon()

    def _probe_soon(self) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.get_running_loop().create_task(
                self._probe_late(), context=contextvars.Context()
            )

    async def _probe_late(self) -> None:
        try:
            await self._read_capabilities()
        except GuardError as exc:  # the status shows it; the next channel change tries again
            logger.debug("late probe: %s", exc)

    async def close(self) -> None:
        """Return the leases, close the control socket cleanly, then end everything."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_RETURN_S):
                await self._leases.close()
        with contextlib.suppress(Exception):
            await self.subscriber.close()
        await self._leases.stop()
        services = [*self._services, *self._releases]
        if self._probing is not None:
            services.append(self._probing)
        for task in services:  # first: one that is still connecting would leave a socket behind
            task.cancel()
        if services:
            await asyncio.wait(services)
        with contextlib.suppress(Exception):
            await self.client.close()


def _spool(settings: Settings) -> Spool | None:
    if settings.spool_dir is None:
        return None
    owner = owner_of(settings.api_url, settings.api_key)
    return Spool(settings.spool_dir, owner, bytes_max=settings.spool_max_bytes)


def _version(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split("."):
        digits = "".join(sign for sign in part if sign.isdigit())
        if not digits or not part[0].isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)
