"""Requests over the control socket: many in flight at once, and answers matched by id.

All requests that are made in one turn of the loop share a frame. A request whose answer is lost
with the socket is asked again over HTTP, with the same idempotency key: so it does not matter
whether the gateway has already carried it out.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from guard.core import wire
from guard.core.signing import sign_asks, verify_frame

logger = logging.getLogger("guard.control")

Op = Literal["gate", "gate/release", "gate/lease"]
Answered = Callable[[wire.SocketAnswer | None], object]
"""Called with the answer; with None if none came in time or the socket was lost: try HTTP then."""

IN_FLIGHT_MAX: Final = 2048
"""How many requests are in flight at once; the others wait in line."""

_FRAME_BYTES: Final = 128 * 1024
"""Size of the bodies at which a frame takes no further request."""


class _Request:
    """One request.

    ``sent_s`` is 0 until it is sent; ``late_s`` seconds after that it is given up.
    """

    __slots__ = ("answered", "ask", "late_s", "sent_s")

    def __init__(self, ask: wire.Ask, answered: Answered, late_s: float) -> None:
        self.ask = ask
        self.answered = answered
        self.late_s = late_s
        self.sent_s = 0.0


class AskChannel:
    """Sends requests over the socket while it is open; used on the background loop only.

    Args:
        secret: signs the frames when set.
        switched: called with True when the socket has opened and with False when it has closed.
        ready: called each time that requests become possible.

    Attributes:
        is_open: whether requests can be sent now. Read from any thread, as a hint.
        can_lease: whether the gateway grants leases now, which it does only over the socket.
    """

    def __init__(
        self,
        secret: str | None,
        switched: Callable[[bool], object] = lambda is_open: None,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        self._secret = secret
        self._switched = switched
        self._ready = ready
        # Both follow from the state below; set in `_look` only.
        self.is_open = False
        self.can_lease = False
        # What the gateway supports, as its capabilities said last.
        self._is_supported = False
        self._grants_leases = False
        # The open socket: how to send a frame (None without a socket), how to end the connection,
        # and the nonce of its signatures.
        self._send: Callable[[bytes], bool] | None = None
        self._abort: Callable[[], object] = lambda: None
        self._nonce = ""
        # Number of the newest signed frame on this socket. The gateway accepts each number once, so
        # a frame cannot be replayed.
        self._number = 0
        # Requests that are not sent yet, and those that are, by the id that their answer names. A
        # request is in one of the two until it is answered; taking it out is the right to answer
        # it.
        self._waiting: deque[_Request] = deque()
        self._in_flight: dict[str, _Request] = {}
        # How many answers are still to come, by id, to requests that were given up. A repeat has
        # the same id, and only the newest answer to it counts: after an older one that says to
        # wait, the gateway may have granted the repeat.
        self._overdue: dict[str, int] = {}
        # Whether a flush is certain to follow in this turn of the loop.
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting)

    def supports(self, is_supported: bool, *, leases: bool = False) -> None:
        """Set what the gateway behind the socket supports.

        Args:
            is_supported: whether it accepts requests over the socket.
            leases: whether it grants leases.
        """
        self._is_supported, self._grants_leases = is_supported, leases
        if self._look():
            self._ready()

    def _look(self) -> bool:
        """Update what is possible; return whether requests have just become possible."""
        was_open = self.is_open
        self.is_open = self._is_supported and self._send is not None
        self.can_lease = self.is_open and self._grants_leases
        return self.is_open and not was_open

    def opened(
        self,
        send: Callable[[bytes], bool],
        nonce: str,
        abort: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to use a socket that has opened.

        Args:
            send: sends a text frame without waiting; returns False when it cannot.
            nonce: the nonce of the handshake's signature.
            abort: ends a connection whose frames cannot be trusted.
        """
        self._send, self._nonce, self._number, self._abort = send, nonce, 0, abort
        can_go = self._look()
        self._switched(True)
        if can_go:  # last: `switched` has made leases valid again, which may cover what waits
            self._ready()

    def closed(self) -> None:
        """Stop using the socket: every request without an answer gets None. Idempotent."""
        if self._send is None:
            return
        self._send = None
        self._look()
        self._switched(False)
        # Taken out before any is answered: an answer may make its caller ask again, in here.
        lost = [*self._in_flight.values(), *self._waiting]
        self._in_flight = {}
        self._overdue = {}
        self._waiting.clear()
        for request in lost:
            self._tell(request, None)

    def ask(self, op: Op, request_id: str, body: bytes, answered: Answered, wait_s: float) -> None:
        """Send a request; everything that is asked in one turn of the loop goes in one frame.

        Args:
            op: the operation.
            request_id: the idempotency key, the same when it is asked over HTTP afterwards.
            body: the JSON body.
            answered: called with the answer.
            wait_s: how long to wait for one, in seconds.
        """
        request = _Request(wire.Ask(request_id, op, msgspec.Raw(body)), answered, wait_s)
        self._waiting.append(request)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    async def request(
        self, op: Op, request_id: str, body: bytes, wait_s: float
    ) -> wire.SocketAnswer | None:
        """Send a request and return its answer; None when it has to be asked over HTTP.

        Args:
            op, request_id, body, wait_s: as for :meth:`ask`.
        """
        if not self.is_open:
            return None
        told: asyncio.Future[wire.SocketAnswer | None] = asyncio.get_running_loop().create_future()
        self.ask(op, request_id, body, functools.partial(_set, told), wait_s)
        return await told

    def hold(self) -> bool:
        """Send nothing before the next :meth:`flush`.

        Returns:
            Whether the caller has to call it. Not if a flush follows in this turn anyway.
        """
        is_first = not self._scheduled
        self._scheduled = True
        return is_first

    def flush(self) -> None:
        """Send the waiting requests, up to the most that may be in flight."""
        self._scheduled = False
        now_s = time.monotonic()
        while self._waiting and len(self._in_flight) < IN_FLIGHT_MAX:
            asks: list[wire.Ask] = []
            size = 0
            while self._waiting and len(self._in_flight) < IN_FLIGHT_MAX and size < _FRAME_BYTES:
                request = self._waiting.popleft()
                request.sent_s = now_s
                # Before it is sent, so that it is never in neither.
                self._in_flight[request.ask.id] = request
                asks.append(request.ask)
                size += len(memoryview(request.ask.body))
            # Closing or congested: HTTP instead of a wait, since callers have deadlines.
            if not self._send_frame(wire.encode(wire.Asks(asks))):
                for ask in asks:
                    # An answer to the one before may have closed the channel and emptied the dict.
                    unsent = self._in_flight.pop(ask.id, None)
                    if unsent is not None:
                        self._tell(unsent, None)

    def _send_frame(self, frame: bytes) -> bool:
        send = self._send
        if send is None:
            return False
        if self._secret is not None:
            number = self._number + 1
            signature = sign_asks(self._secret, self._nonce, number, frame)
            frame = wire.encode(wire.SignedFrame(frame.decode(), signature, number))
        if not send(frame):
            return False
        # Only now: the number of a frame that was not sent is used by the next one.
        self._number += 1
        return True

    def received(self, frame: bytes) -> None:
        """Process a frame of answers; one that cannot be read or trusted ends the connection."""
        payload: str | bytes = frame
        try:
            if self._secret is not None:
                signed = wire.decode(frame, wire.SignedFrame)
                payload = signed.payload
                if not verify_frame(self._secret, self._nonce, payload.encode(), signed.signature):
                    raise wire.WireError("its signature is wrong")
            answers = wire.decode(payload, wire.Answers)
        except wire.WireError as exc:
            logger.warning("control: a frame of answers cannot be used: %s", exc)
            # Which requests it answers is unknown. `closed` follows and sends all of them over
            # HTTP.
            self._abort()
            return
        self.answers(answers.answers)

    def answers(self, told: list[wire.SocketAnswer]) -> None:
        """Pass the answers of one frame to their requests; drop those to what was given up."""
        self._scheduled = True  # what the callers ask next goes into one frame, sent below
        for each in told:
            overdue = self._overdue.pop(each.id, 0)
            if overdue > 1:
                self._overdue[each.id] = overdue - 1
            if overdue:
                continue
            request = self._in_flight.pop(each.id, None)
            if request is None:
                continue
            try:
                request.answered(each)
            except Exception:  # the other answers of the frame have to be passed on
                logger.exception("an answer over the control socket")
        if self._waiting:
            self.flush()
        else:
            self._scheduled = False

    def sweep(self, now_s: float) -> None:
        """Give up on requests in flight whose answer is late; called at intervals.

        One sweep costs less than a timer for each request.
        """
        late = [
            request
            for request in self._in_flight.values()
            if now_s - request.sent_s >= request.late_s
        ]
        for request in late:
            self._in_flight.pop(request.ask.id, None)
            overdue = self._overdue.pop(request.ask.id, 0)
            if len(self._overdue) >= IN_FLIGHT_MAX:  # the oldest answer is not coming any more
                del self._overdue[next(iter(self._overdue))]
            self._overdue[request.ask.id] = overdue + 1
            self._tell(request, None)
        if self._waiting:
            self.flush()

    def _tell(self, request: _Request, told: wire.SocketAnswer | None) -> None:
        try:
            request.answered(told)
        except Exception:
            logger.exception("an answer over the control socket")


def _set(future: asyncio.Future[wire.SocketAnswer | None], told: wire.SocketAnswer | None) -> None:
    if not future.done():  # its task may have been cancelled
        future.set_result(told)
