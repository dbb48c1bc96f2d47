"""Circuit breaker as a pure state machine: time is an argument, nothing is awaited.

closed --(threshold consecutive failures)--> open --(cooldown over)--> half_open
half_open --(probe succeeds)--> closed; half_open --(probe fails)--> open, for twice as long.

Failures of requests that were sent before the circuit opened change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

CircuitState = Literal["closed", "open", "half_open"]


class CircuitBreaker:
    """Refuses calls to an endpoint that keeps failing, and lets one probe through at a time.

    Args:
        threshold: consecutive failures that open the circuit.
        cooldown_s: how long the circuit first stays open, in seconds; doubles up to the maximum.
        cooldown_max_s: the longest that it stays open, in seconds.
        caller: returns who asks or reports; each has one request at a time.

    Attributes:
        is_disturbed: whether a call has failed, or the circuit has been open, since the last
            answer.

    >>> breaker = CircuitBreaker(threshold=1, cooldown_s=5.0, caller=lambda: "me")
    >>> breaker.failed(now_s=0.0)
    >>> breaker.allows(now_s=1.0), breaker.allows(now_s=5.0), breaker.allows(now_s=5.0)
    (False, True, False)
    """

    def __init__(
        self,
        threshold: int = 5,
        cooldown_s: float = 1.0,
        cooldown_max_s: float = 10.0,
        *,
        caller: Callable[[], object] = asyncio.current_task,
    ) -> None:
        self.threshold = threshold
        self.cooldown_s = cooldown_s
        self.cooldown_max_s = cooldown_max_s
        self.is_disturbed = False
        self._caller = caller
        # Written on one thread only, that of the background loop, so there is no lock.
        # Failures since the last answer.
        self._failures = 0
        # When the next probe may be made, on the caller's clock; None while closed.
        self._open_until_s: float | None = None
        # How long the circuit stays open the next time.
        self._next_cooldown_s = cooldown_s
        # Whether a probe is under way; until it ends, all other calls are refused.
        self._probing = False
        # Who makes or made the newest probe; None if it has failed, or an answer came since. Kept
        # when it is abandoned: a request that reaches its deadline is abandoned, and then failed.
        self._prober: object = None

    @property
    def state(self) -> CircuitState:
        """The state as of the last call or report."""
        if self._open_until_s is None:
            return "closed"
        return "half_open" if self._probing else "open"

    def allows(self, *, now_s: float) -> bool:
        """Return whether a call may be made; the first one after the cooldown is the probe.

        The caller has to report its end: ``succeeded``, ``failed`` or ``abandoned``.
        """
        if self._open_until_s is None:
            return True
        if self._probing or now_s < self._open_until_s:
            return False
        self._probing = True
        self._prober = self._caller()
        return True

    def succeeded(self) -> None:
        """Report an answer (any answer of the service, including a refusal)."""
        self.is_disturbed = False
        self._failures = 0
        self._open_until_s = None
        self._probing = False
        self._prober = None
        self._next_cooldown_s = self.cooldown_s

    def failed(self, *, now_s: float) -> None:
        """Report that no usable answer came."""
        self.is_disturbed = True
        self._failures += 1
        if self._open_until_s is None:
            opens = self._failures >= self.threshold
        else:
            opens = self._is_prober()
        if opens:
            self._open_until_s = now_s + self._next_cooldown_s
            self._next_cooldown_s = min(self._next_cooldown_s * 2, self.cooldown_max_s)
            self._probing = False
            self._prober = None

    def end_cooldown(self, *, now_s: float) -> None:
        """Let the next call be the probe; for a last call, which cannot be made later."""
        if self._open_until_s is not None:
            self._open_until_s = min(self._open_until_s, now_s)

    def abandoned(self) -> None:
        """Report that the call ended without a result (it was cancelled)."""
        if self._is_prober():
            self._probing = False

    def _is_prober(self) -> bool:
        return self._prober is not None and self._caller() is self._prober
