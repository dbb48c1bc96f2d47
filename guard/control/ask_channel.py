"""Requests over the control socket: many in flight, answers by id, one frame for a loop's turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from guard.core import wire
from guard.core.signing import sign_asks

logger = logging.getLogger("guard.control")

Op = Literal["gate", "gate/release", "gate/lease"]
Answered = Callable[[wire.Told | None], object]
"""Takes the answer; None when the socket was lost, or no answer came: ask another way."""

IN_FLIGHT_MAX: Final = 2048
"""How many requests are in flight at once; the others wait in line."""
_FRAME_BYTES: Final = 128 * 1024


class _Question:
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
        switched: told when requests can go over the socket, and when not any more.

    Attributes:
        is_supported: whether the gateway behind the socket takes requests over it.
    """

    def __init__(
        self, secret: str | None, switched: Callable[[bool], object] = lambda is_open: None
    ) -> None:
        self._secret = secret
        self._switched = switched
        self.is_supported = False
        self._send: Callable[[bytes], bool] | None = None
        self._nonce = ""
        self._number = 0
        self._waiting: deque[_Question] = deque()
        self._in_flight: dict[str, _Question] = {}
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent now. Read from any thread, as a hint."""
        return self.is_supported and self._send is not None

    def opened(self, send: Callable[[bytes], bool], nonce: str) -> None:
        """The socket is open.

        Args:
            send: sends a text frame without waiting; False when it cannot.
            nonce: of the handshake's signature.
        """
        self._send, self._nonce, self._number = send, nonce, 0
        self._switched(True)

    def closed(self) -> None:
        """The socket is gone: whoever waits for an answer asks another way."""
        if self._send is None:
            return
        self._send = None
        self._switched(False)
        lost = [*self._in_flight.values(), *self._waiting]
        self._in_flight = {}
        self._waiting.clear()
        for question in lost:
            self._tell(question, None)

    def ask(self, op: Op, request_id: str, body: bytes, answered: Answered, wait_s: float) -> None:
        """Send a request; everything that is asked in one turn of the loop goes in one frame.

        Args:
            op: what is asked.
            request_id: the idempotency key.
            body: the JSON body.
            answered: called with the answer.
            wait_s: how long to wait for one, in seconds.
        """
        question = _Question(wire.Ask(request_id, op, msgspec.Raw(body)), answered, wait_s)
        self._waiting.append(question)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def hold(self) -> None:
        """Send nothing before the next :meth:`flush`, which the caller makes in the same turn."""
        self._scheduled = True

    def flush(self) -> None:
        """Send what waits, as far as there is room in flight."""
        self._scheduled = False
        now_s = time.monotonic()
        while self._waiting and len(self._in_flight) < IN_FLIGHT_MAX:
            asks: list[wire.Ask] = []
            size = 0
            while self._waiting and len(self._in_flight) < IN_FLIGHT_MAX and size < _FRAME_BYTES:
                question = self._waiting.popleft()
                question.sent_s = now_s
                self._in_flight[question.ask.id] = question
                asks.append(question.ask)
                size += len(memoryview(question.ask.body))
            if not self._send_frame(wire.encode(wire.Asks(asks))):
                for ask in asks:
                    self._tell(self._in_flight.pop(ask.id, None), None)

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
        self._number += 1
        return True

    def answers(self, told: list[wire.Told]) -> None:
        """Hand the answers of one frame on; those that nobody waits for are dropped."""
        self.hold()  # what the answers make their callers ask goes in one frame
        for each in told:
            self._tell(self._in_flight.pop(each.id, None), each)
        self.flush()

    def sweep(self, now_s: float) -> None:
        """Give up on requests that have waited too long for an answer."""
        late = [
            question
            for question in self._in_flight.values()
            if now_s - question.sent_s >= question.late_s
        ]
        for question in late:
            self._in_flight.pop(question.ask.id, None)
            self._tell(question, None)
        if self._waiting:
            self.flush()

    def _tell(self, question: _Question | None, told: wire.Told | None) -> None:
        if question is None:
            return
        try:
            question.answered(told)
        except Exception:
            logger.exception("an answer over the control socket")
