"""The session with the gateway: client, flusher and subscriber of one process, on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from guard.breaker.exceptions import (
    GuardError,
    GuardProtocolError,
)
from guard.control.ask_channel import AskChannel
from guard.control.directives import DirectiveFeed
from guard.control.subscriber import Subscriber
from guard.core import wire
from guard.delivery.flusher import Flusher
from guard.delivery.outbox import Outbox
from guard.delivery.spool import Spool, owner_of
from guard.loop import BackgroundLoop, Tasks
from guard.session.approvals import Approvals
from guard.session.lease_requests import LeaseRequests
from guard.settings import Settings
from guard.transport.client import GatewayClient
from guard.transport.local import keep_running
from guard.version import __version__

if TYPE_CHECKING:
    from guard.local_gateway import LocalGateway

logger = logging.getLogger("guard.session")

_RELEASES_AT_ONCE: Final = 4
_CATCH_UP_MAX_S: Final = 1.0
_CLOSE_S: Final = 2.0
_TURN_S: Final = 0.005
_UNANSWERED_S: Final = 0.25
"""How long ``close`` waits for the answers to questions that are under way."""
_WITHDRAW_S: Final = 1.0
"""How long ``close`` waits for releases that are under way, such as withdrawn approvals."""
_RETURN_S: Final = 1.0
"""How long ``close`` waits until the gateway has its leases back, over HTTP where there is no
socket: to others their money is missing until they expire."""


class LeaseService(Protocol):
    """The service that looks after the leases of this process; see ``guard.asking.keeper``."""

    @property
    def asking(self) -> int:
        """How many questions are under way over HTTP."""

    async def run(self) -> None:
        """Do what is due, until cancelled."""

    def capable(self, features: frozenset[str]) -> None:
        """Note what the gateway can do."""

    def recalled(self, lease_ids: list[str], returns_s: float) -> None:
        """Return unused money at once, and for ``returns_s`` seconds as soon as it is unused."""

    def room(self, call_ids: list[str]) -> None:
        """Ask again for calls that wait in line: money has come back for them."""

    def pushed(self, messages: Iterable[wire.ControlMessage]) -> None:
        """Void the coverage that control messages may have changed."""

    def switched(self, is_open: bool, good_for_s: float) -> None:
        """Set for how long leases may be used after the socket has opened or was lost."""

    def socket_ready(self) -> None:
        """Send the questions that wait for HTTP over the socket."""

    async def close(self) -> None:
        """End all leases."""

    async def stop(self) -> None:
        """Cancel the requests that are under way."""


class Session:
    """Owns everything that talks to the gateway; created on the background loop.

    All of its methods run on that loop. A forked child makes its own session and never closes the
    parent's.

    Args:
        settings: address, key and intervals.
        outbox: the events to deliver.
        directives: applies control messages, and knows which was the newest.
        leases: looks after the leases of this process.
        on_error: called with errors for the hooks.
        learned: called with the gateway's capabilities and what they say about the key.
        local_gateway: started again when it has crashed.
        restarts: returns whether the gateway is started again by itself.

    Attributes:
        client: the gateway over HTTP.
        flusher: delivers events.
        subscriber: the control channel.
        asks: requests over the control socket.
        lease_requests: renew and end what the gateway holds.
        approvals: the calls that wait for a person.
        features: the gateway's features; None before its first answer.
    """

    def __init__(
        self,
        settings: Settings,
        outbox: Outbox,
        directives: DirectiveFeed,
        leases: LeaseService,
        on_error: Callable[[BaseException], None],
        learned: Callable[[wire.Capabilities], None],
        local_gateway: LocalGateway | None = None,
        restarts: Callable[[], bool] = lambda: False,
    ) -> None:
        self._health = health = outbox.health
        self._timeout_s = settings.timeout_s
        self._local = local_gateway
        self._directives = directives
        self._leases = leases
        self._learned = learned
        # Whether the gateway's capabilities were read and its protocol fits.
        self._probed = False
        # Whether the key is a proxy's own; known from the first probe on.
        self._is_proxys = False
        # Whether the socket was lost: when it opens again, the gateway is probed again.
        self._reconnected = False
        self.client = GatewayClient(
            settings,
            health.heard,
            recovered=self._recovered,
            # Another program may take over the port of a local gateway that has crashed.
            grants_are_signed=local_gateway is not None,
            restarts=restarts,
        )
        self._api_url = settings.api_url
        self.flusher = Flusher(
            outbox,
            self.client,
            settings,
            on_error=on_error,
            on_decision=directives.decided,
            spool=_spool(settings),
        )
        # Everything here lives on the background loop; other threads read `features`, and
        # `asks.is_open` as a hint.
        # The newest late probe, so that there is one at a time.
        self._probing: asyncio.Task[None] | None = None
        # The tasks that run until `close`.
        self._services: list[asyncio.Task[None]] = []
        # None in the last delivery of a process without a background loop.
        self._background: BackgroundLoop | None = None
        self.features: frozenset[str] | None = None
        self.asks = AskChannel(
            settings.hmac_secret, switched=self._asks_switched, ready=leases.socket_ready
        )
        self.subscriber = Subscriber(
            settings,
            self.client,
            directives,
            apply=self._controlled,
            switched=self._switched,
            asks=self.asks,
            recalled=leases.recalled,
            room=leases.room,
            key_ended=self._key_ended,
        )
        self.lease_requests = LeaseRequests(self.client, self.asks, outbox.ids)
        self.approvals = Approvals(self.lease_requests, self.release_soon)
        # Releases under way, which `close` waits for, and the limit on them: thousands of callers
        # may give up at the same moment.
        self._releases = Tasks()
        self._releasing = asyncio.Semaphore(_RELEASES_AT_ONCE)

    async def caught_up(self) -> None:
        """Wait briefly until the gateway's messages so far are applied."""
        if self._is_proxys:
            return  # a proxy's own key gets no messages
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_CATCH_UP_MAX_S, self._timeout_s)):
                await self.subscriber.caught_up()

    @property
    def is_proxys(self) -> bool:
        """Whether the key is a proxy's own: only its callers' keys have events and leases."""
        return self._is_proxys

    async def verify(self) -> None:
        """Check once more that the gateway accepts the key.

        Raises:
            GuardError: the key is refused, or nothing was decided.
        """
        await self._read_capabilities()

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
        if capabilities.key_id:
            self.flusher.belongs_to(owner_of(self._api_url, capabilities.key_id))
        self._is_proxys = capabilities.role == "proxy"
        if self._is_proxys:
            self._stand_by()
        # `features` before `asks.supports`, which may send the questions that wait.
        self.flusher.limits = capabilities.limits
        self._health.capable(capabilities)
        self.features = frozenset(capabilities.features)
        self.asks.supports(
            wire.FEATURE_GATE_WS in self.features, leases=wire.FEATURE_LEASES in self.features
        )
        self._leases.capable(self.features)
        self._learned(capabilities)

    def start_services(self, background: BackgroundLoop) -> None:
        """Start the long-lived tasks. Each of them survives failures of the gateway."""
        self._background = background
        # For a loop that ends without `close`; `close` takes it back.
        background.at_close(self.client.close)
        if self._is_proxys:
            self._stand_by()
            return
        self._services = [
            background.spawn(self.flusher.run, name="guard-flusher"),
            background.spawn(self.subscriber.run, name="guard-subscriber"),
            background.spawn(self._leases.run, name="guard-leases"),
            background.spawn(self.approvals.run, name="guard-approvals"),
        ]
        if self._local is not None:
            keep = functools.partial(keep_running, self._local)
            self._services.append(background.spawn(keep, name="guard-local-gateway"))

    def _stand_by(self) -> None:
        """Replace the services by one that checks the key from time to time.

        A proxy's own key serves its callers only, so there is nothing to deliver or to lease.
        """
        self._health.stands_by = True
        for task in self._services:
            task.cancel()
        self._services = []
        if self._background is not None:
            self._services = [self._background.spawn(self._look_at_key, name="guard-proxy-key")]

    async def _look_at_key(self) -> None:
        while True:
            await asyncio.sleep(self._health.poll_interval_ms / 1000)
            with contextlib.suppress(GuardError):  # the status shows it
                self._health.capable(await self.client.capabilities())

    def give_back(self, reply: wire.GateReply, *, stays: bool = False) -> None:
        """Release the reservation of a reply, or withdraw its approval request, without waiting.

        Called on the background loop when no caller waits for the reply.

        Args:
            reply: the reply.
            stays: leave the approval request open for the same call, should it come again.
        """
        if reply.approval_id is not None:
            self.approvals.dropped(reply.approval_id)
        granted = reply.reservation_id or reply.approval_id
        if granted is not None:
            self.release_soon(granted, stays=stays)

    def release_soon(self, granted: str, *, stays: bool = False) -> None:
        """Release a reservation, an approval request or a call's place in line, without waiting."""
        self._releases.start(self._release(granted, stays))

    async def _release(self, granted: str, stays: bool) -> None:
        try:
            async with self._releasing:
                await self.client.release(granted, "the call waits no longer", stays=stays)
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("releasing what a call does not need: %s", exc)

    def _controlled(self, *messages: wire.ControlMessage) -> None:
        """Apply messages of the control channel.

        The directives before the leases: a call that finds no coverage is checked by the new state.
        """
        for message in messages:
            if message.type == "approval" and message.approval_id is not None:
                self.approvals.answered(message.approval_id, bool(message.approved))
        self._health.touch()
        self._directives.apply(*messages)
        self._leases.pushed(messages)

    def _asks_switched(self, is_open: bool) -> None:
        """Note that the socket has opened or was lost."""
        self._leases.switched(is_open, self._health.poll_interval_ms / 1000)
        if not is_open:
            self._reconnected = True
            # The gateway that comes back may be another version: no questions over the socket
            # until it has been probed.
            self.asks.supports(False)
        elif self._reconnected:
            self._reconnected = False
            self._probe_soon()

    def _key_ended(self) -> None:
        """Stop using leases at once: the gateway has ended the key."""
        self._leases.switched(False, 0.0)

    def _switched(self, channel: str) -> None:
        self._health.switched(channel)
        if channel != "none":
            self._recovered()

    def _recovered(self) -> None:
        """Deliver what waits, and probe if no probe has succeeded: the gateway answers again."""
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

    async def close(self, left_s: float = _CLOSE_S) -> None:
        """Withdraw what waits, return the leases, close the control socket, end everything.

        Each step is bounded in time and may fail without hindering the next. The order:

        1. Withdraw approval requests. First: it starts releases, which 3. waits for.
        2. Wait for answers under way. Their callers are gone, so what they grant is released.
        3. Wait for the releases. Before 5.: they need the connections.
        4. Return the leases. After 2., whose grants come into them.
        5. Close the socket with a closing handshake, cancel all tasks, close the HTTP client.

        The caller has delivered the events before: closing a lease ends what pays for them.

        Args:
            left_s: total time, in seconds; part of it is kept for closing the socket cleanly.
        """
        # 1.
        self.approvals.close()
        # 2.
        ends_s = time.monotonic() + min(_UNANSWERED_S, left_s / 4)
        while (self._leases.asking or len(self.asks)) and time.monotonic() < ends_s:  # noqa: ASYNC110  # nothing else needs an event for it
            await asyncio.sleep(_TURN_S)  # what is granted now is given back
        # 3.
        await self._releases.wait(min(_WITHDRAW_S, left_s / 4))
        # 4.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(min(_RETURN_S, left_s / 4)):
                await self._leases.close()
        # 5.
        with contextlib.suppress(Exception):
            await self.subscriber.close()
        await self._leases.stop()
        self._releases.cancel()
        services = [*self._services]
        if self._probing is not None:
            services.append(self._probing)
        # Before the client is closed, which would end their requests with an error.
        for task in services:
            task.cancel()
        if services:
            await asyncio.wait(services)
        await self._releases.wait()
        with contextlib.suppress(Exception):
            await self.client.close()
        if self._background is not None:
            self._background.closed_already(self.client.close)


def _spool(settings: Settings) -> Spool | None:
    if settings.spool_dir is None:
        return None
    owner = owner_of(settings.api_url, settings.owner_key)
    return Spool(settings.spool_dir, owner, bytes_max=settings.spool_max_bytes)


def _version(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split("."):
        digits = "".join(sign for sign in part if sign.isdigit())
        if not digits or not part[0].isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)
