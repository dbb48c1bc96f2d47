"""A request gate without a gateway: it counts, and says what it is told to say."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import attrs

from guard.breaker.exceptions import GuardBudgetError, GuardError
from guard.breaker.refusals import Refusal
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.instrumentation.request_gate import PutLimit
from guard.scope.scope import Scope


@attrs.define(eq=False)
class FakeHold:
    """Money set aside, and all ends that it was given."""

    bound: RequestBound
    gate: FakeGate
    reservation_id: str | None
    output_tokens: int | None
    refusal: GuardError | None = None
    ends: list[Any] = attrs.field(factory=list)
    asked_for: list[int] = attrs.field(factory=list)
    entry: Any = None
    cost_nanousd: int | None = None
    lapsed: bool = False

    @property
    def amount_nanousd(self) -> int | None:
        return None

    def cost_at_most(self, input_tokens: int, output_tokens: int) -> int | None:
        return None

    def prices(self, model: str | None) -> bool:
        return True

    def has_lapsed(self) -> bool:
        return self.lapsed

    def settle(self, usage: Usage) -> None:
        self.ends.append(usage)

    def give_back(self) -> None:
        self.ends.append("back")

    def keep(self) -> None:
        self.ends.append("kept")

    def grow(self, output_tokens: int) -> None:
        self.asked_for.append(output_tokens)
        if self.gate.grows_by is None:
            self.refusal = GuardBudgetError(workflow_id="w", reason="no more", action="block")
        else:
            self.output_tokens = (self.output_tokens or 0) + self.gate.grows_by


@attrs.define(eq=False)
class FakeGate:
    """Grants ``left`` requests.

    Attributes:
        left: how many requests may go out.
        covered: whether they are covered without asking.
        assumed_output: the output of a request without a limit.
        grows_by: what a stream gets when it asks for more; None refuses.
        waits_s: how long the gateway takes.
        lapses: whether its first hold is over before its request leaves.
    """

    left: int = 1_000_000
    covered: bool = True
    assumed_output: int | None = 4096
    grows_by: int | None = None
    waits_s: float = 0.0
    lapses: bool = False
    holds: list[FakeHold] = attrs.field(factory=list)
    asked: list[RequestBound] = attrs.field(factory=list)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def hold(self, scope: Scope, bound: RequestBound) -> FakeHold | None:
        return self._grant(scope, bound) if self.covered else None

    def counted(self, scope: Scope, bound: RequestBound, path: str, body: bytes) -> RequestBound:
        return bound

    def ask(self, scope: Scope, bound: RequestBound, limit: PutLimit) -> FakeHold:
        self.asked.append(bound)
        time.sleep(self.waits_s)
        return self._grant(scope, bound)

    async def ask_async(self, scope: Scope, bound: RequestBound, limit: PutLimit) -> FakeHold:
        self.asked.append(bound)
        await asyncio.sleep(self.waits_s)
        return self._grant(scope, bound)

    def _grant(self, scope: Scope, bound: RequestBound) -> FakeHold:
        with self.lock:
            if self.left <= 0:
                error = GuardBudgetError(
                    workflow_id="w", reason="the budget is exhausted", action="block"
                )
                scope.refuse(error)
                raise Refusal(error)
            self.left -= 1
            output = self.assumed_output if bound.output_tokens is None else bound.output_tokens
            held = FakeHold(bound, self, f"lease-{len(self.holds)}", output)
            held.lapsed = self.lapses and not self.holds
            self.holds.append(held)
            return held

    @property
    def ends(self) -> list[Any]:
        """The end of each hold, which must be one."""
        assert all(len(held.ends) == 1 for held in self.holds), [h.ends for h in self.holds]
        return [held.ends[0] for held in self.holds]
