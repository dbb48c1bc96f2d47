"""Requests over the control socket: many in flight, answered in any order.

If the connection is lost, its answers are dropped. The client repeats the requests on its next
connection, under the same ids, and gets the stored answers of those that were committed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from guard.core import signing, wire
from guard.gateway.api.auth import Authenticator, KeyIdentity
from guard.gateway.api.decisions import DecisionHandlers, Operation, overloaded, request_of
from guard.gateway.api.http import ProblemError, fail, store_failed
from guard.gateway.api.socket import (
    CLOSE_ERROR,
    CLOSE_POLICY,
    CLOSE_REVOKED,
    CLOSE_UNREADABLE,
    Socket,
)
from guard.gateway.api.stepping import Stepping
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.domain.errors import StoreError
from guard.gateway.services.load import REQUEST_BYTES, Load

ASKS_MAX: Final = 4096
"""Requests in one frame."""

_ANSWER_FRAME_BYTES: Final = 65_536
"""A frame of answers is ended at this size; clients read frames of four times that."""

logger = logging.getLogger(__name__)


class BadFrameError(Exception):
    """A frame that ends the connection.

    Args:
        code: of the close frame.
        reason: what was wrong with it.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class SocketAsks:
    """Decides what one client asks over its control socket.

    All requests of one read are submitted in the same turn of the loop, so they are one group for
    the store; all that a commit answers is written at once.

    Args:
        socket: the connection.
        identity: whose key it was opened with.
        headers: of its handshake, which hold the key.
        authenticator: checks whether the key is still valid.
        decisions: the operations.
        load: counts the bytes of requests in flight, those over HTTP included.
        clock_ms: the gateway's clock.
    """

    def __init__(
        self,
        socket: Socket,
        identity: KeyIdentity,
        headers: dict[bytes, bytes],
        authenticator: Authenticator,
        decisions: DecisionHandlers,
        load: Load,
        clock_ms: Callable[[], int],
    ) -> None:
        self._socket = socket
        self._identity = identity
        self._headers = headers
        self._authenticator = authenticator
        self._load = load
        self._clock_ms = clock_ms
        gate = functools.partial(decisions.gate, leases=True)
        self._operations: dict[str, tuple[str, Operation]] = {
            "gate": (wire.GATE_PATH, gate),
            "gate/release": (wire.RELEASE_PATH, decisions.release),
            "gate/lease": (wire.LEASE_PATH, decisions.lease),
        }
        self._counted = decisions.counted
        self._loop = asyncio.get_running_loop()
        # All state belongs to the loop.
        # The keys' generation at the last check of this one. If the authenticator's is another,
        # some key has changed, and this one is checked again.
        self._generation = authenticator.generation
        # The number of the last signed frame: it rises by one, so a frame cannot be replayed.
        self._number = 0
        # Requests that were begun and have no answer yet.
        self._in_flight = 0
        # Whether frames are being read: answers that come meanwhile are sent after them, together.
        self._is_reading = False
        # Checks the key again; reading from the client is paused meanwhile. Kept here because the
        # loop refers to its tasks weakly.
        self._checking: asyncio.Task[None] | None = None
        # Answers that are not sent yet, and the bytes of their requests. Those count as the
        # organisation's load until then, so that a client that does not read gets no more memory.
        self._waiting: list[wire.SocketAnswer] = []
        self._waiting_bytes = 0
        # Whether a call of ``_flush`` is booked for the end of this turn of the loop.
        self._flush_is_due = False
        # Whether no more requests are begun; and whether no more answers can be sent. The second
        # implies the first, and neither goes back.
        self._ended = self._is_lost = False
        # Cleared and awaited by ``finish``; set when nothing is in flight and nothing waits.
        self._idle = asyncio.Event()
        self._idle.set()

    # -- from the socket -----------------------------------------------------------------------

    def received(self, frames: list[bytes]) -> None:
        """Begin the requests of some frames."""
        # 1. The gateway is ending, or the connection is: the client asks again elsewhere.
        if self._ended:
            return
        expires_at_ms = self._identity.expires_at_ms
        has_expired = expires_at_ms is not None and expires_at_ms <= self._clock_ms()
        # 2. The key has expired since the handshake, or some key has changed, perhaps this one. The
        # frames wait for the check, and nothing is read before it ends, which would overtake them.
        if has_expired or self._generation != self._authenticator.generation:
            self._socket.hold_reading(True)
            self._checking = self._loop.create_task(self._check_key(frames))
        # 3. Nearly always.
        else:
            self._read(frames)

    def writable(self) -> None:
        """Send the answers that waited for the client."""
        self._flush()

    def lost(self) -> None:
        """Drop the answers: the client asks again on another connection."""
        self._ended = self._is_lost = True
        self._drop_answers()

    async def finish(self) -> None:
        """Take no more requests, and wait until those in flight are answered."""
        self._ended = True
        if self._in_flight or self._waiting:
            self._idle.clear()
            await self._idle.wait()

    # -- requests ------------------------------------------------------------------------------

    async def _check_key(self, frames: list[bytes]) -> None:
        """Check the key again, then begin the requests of the frames."""
        try:
            # Before the check: if a key changes meanwhile, ``received`` checks again.
            generation = self._authenticator.generation
            if not await self._authenticator.still_valid(self._identity, self._headers):
                self._close(CLOSE_REVOKED, "the key was revoked, or has expired")
                return
            self._generation = generation
        except StoreError:
            self._close(CLOSE_ERROR, "the store failed")
            return
        finally:
            self._socket.hold_reading(False)
        self.received(frames)

    def _read(self, frames: list[bytes]) -> None:
        self._is_reading = True
        try:
            for frame in frames:
                for ask in self._opened(frame):
                    self._begin(ask)
        except BadFrameError as exc:
            self._close(exc.code, str(exc))
        finally:
            self._is_reading = False

    def _opened(self, frame: bytes) -> list[wire.Ask]:
        """Return the requests in a frame; other frames of the protocol have none.

        Raises:
            BadFrameError: it is not a frame of this protocol, or its signature is missing or wrong.
        """
        secret = self._identity.hmac_secret
        try:
            if secret is not None:
                frame = self._verified(frame, secret)
            asks = _asks(frame)
        except wire.WireError as exc:
            raise BadFrameError(CLOSE_UNREADABLE, f"not a frame of guard.v3: {exc}"[:120]) from None
        if len(asks) > ASKS_MAX:
            raise BadFrameError(CLOSE_POLICY, f"at most {ASKS_MAX} requests in a frame")
        return asks

    def _verified(self, frame: bytes, secret: str) -> bytes:
        try:
            signed = wire.decode(frame, wire.SignedFrame)
        except wire.WireError:
            if wire.decode(frame, _Typed).type != "asks":
                return frame
            raise BadFrameError(CLOSE_POLICY, "a frame of requests is not signed") from None
        payload = signed.payload.encode()
        number = self._number + 1
        if signed.number != number or not signing.verify_asks(
            secret, self._identity.nonce, number, payload, signed.signature
        ):
            raise BadFrameError(CLOSE_POLICY, "a frame of requests has a wrong signature")
        self._number = number
        return payload

    def _begin(self, ask: wire.Ask) -> None:
        """Begin one request, or refuse it if the gateway is overloaded.

        It has no task of its own (see ``Stepping``), so it ends even if the connection is lost.
        """
        size = len(ask.body) + REQUEST_BYTES
        if self._load.take(self._identity.organisation_id, size):
            self._in_flight += 1
            Stepping(self._decided(ask, size), self._answered)
        else:
            path, _ = self._operations[ask.op]
            self._tell(ask.id, self._counted(path, overloaded().answer))

    async def _decided(self, ask: wire.Ask, size: int) -> tuple[str, EncodedAnswer, int]:
        path, operation = self._operations[ask.op]
        try:
            request = request_of(self._identity, path, ask.id, ask.body)
            return ask.id, await operation(request, ask.body), size
        except ProblemError as exc:
            answer = exc.answer
        except StoreError as exc:
            answer = store_failed(exc).answer
        # ``Stepping`` needs a result in any case: otherwise the request would count as in flight
        # for ever. A future that the coroutine waits for may have been cancelled.
        except (Exception, asyncio.CancelledError):
            known = {"organisation_id": self._identity.organisation_id, "request_id": ask.id}
            logger.exception("a request over the control socket failed", extra=known)
            answer = fail(500, "GD-B002", "Internal error").answer
        return ask.id, self._counted(path, answer), size

    def _answered(self, decided: tuple[str, EncodedAnswer, int]) -> None:
        self._in_flight -= 1
        self._tell(*decided)
        if not self._in_flight and not self._is_reading:
            self._flush()  # no other answer can come in this turn

    # -- answers -------------------------------------------------------------------------------

    def _tell(self, ask_id: str, answer: EncodedAnswer, size: int = 0) -> None:
        """Send an answer at the end of this turn of the loop, with all others of the turn.

        Args:
            ask_id: of the request.
            answer: to it.
            size: bytes counted for the request; released once the answer is sent.
        """
        self._waiting.append(wire.SocketAnswer(ask_id, answer.status, msgspec.Raw(answer.body)))
        self._waiting_bytes += size
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        # 1. Too late: they only have to be subtracted from the load.
        if self._is_lost:
            self._drop_answers()
        # 2. Nothing to send, or not now: ``writable`` flushes again.
        if not self._waiting or self._socket.is_paused:
            return
        # 3. In frames of a limited size, all in one write.
        frames: list[bytes] = []
        answers: list[wire.SocketAnswer] = []
        size = 0
        for answer in self._waiting:
            answers.append(answer)
            size += len(answer.body)
            if size >= _ANSWER_FRAME_BYTES:
                frames.append(self._frame(answers))
                answers, size = [], 0
        if answers:
            frames.append(self._frame(answers))
        self._drop_answers()
        self._socket.send(frames)

    def _frame(self, answers: list[wire.SocketAnswer]) -> bytes:
        return sealed(self._identity, wire.encode(wire.Answers(answers)))

    def _drop_answers(self) -> None:
        """Drop the answers that are sent, or that cannot be sent any more."""
        self._waiting.clear()
        if self._waiting_bytes:
            self._load.release(self._identity.organisation_id, self._waiting_bytes)
            self._waiting_bytes = 0
        if not self._in_flight:
            self._idle.set()

    def _close(self, code: int, reason: str) -> None:
        self._ended = True
        self._socket.close(code, reason)


def _asks(frame: bytes) -> list[wire.Ask]:
    """Return the requests in a frame.

    Raises:
        WireError: it is not a JSON object with a type, or its requests cannot be read.
    """
    try:
        return wire.decode(frame, wire.Asks).asks
    except wire.WireError:
        if wire.decode(frame, _Typed).type != "asks":
            return []  # an acknowledgement, or a frame of a newer SDK
        raise


class _Typed(msgspec.Struct):
    type: str


def sealed(identity: KeyIdentity, payload: bytes) -> bytes:
    """Return a frame to the client, signed if its key has a secret."""
    if identity.hmac_secret is None:
        return payload
    signature = signing.sign_frame(identity.hmac_secret, identity.nonce, payload)
    return wire.encode(wire.SignedFrame(payload.decode(), signature))
