"""One lease, what it covers, and the holds that are taken from it. Money is whole nano-dollars."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from guard.core.request_bound import RequestBound
from guard.core.wire import NANOUSD_MAX, GateRequest, ModelRates

if TYPE_CHECKING:  # pulls in every vendor's format
    from guard.core.usage import Usage

LaneKey = tuple[str | None, str | None, str | None, str | None, str]
"""``(workflow, agent, chain, user, model)``: what decides which budgets apply."""

Subject = tuple[str, str, str | None, tuple[str, ...]]
"""``(kind, function, tool name, tools)``: what the gateway has allowed."""

_MILLION: Final = 1_000_000
_COVERED_MAX: Final = 1000


@functools.lru_cache(256)
def request_subject(provider: str) -> Subject:
    """Return the subject of an LLM request to a vendor.

    >>> request_subject("openai")
    ('llm', 'openai', None, ())
    """
    return ("llm", provider, None, ())


def worst_case(rates: ModelRates, bound: RequestBound) -> tuple[int, int] | None:
    """Return the most that a request can cost, and the output tokens that this pays for.

    None when neither the request nor the rates bound it.
    """
    tokens_in, tokens_out = bound.input_tokens, bound.output_tokens
    if tokens_in is None:
        tokens_in = rates.context_tokens
    if tokens_out is None:
        tokens_out = rates.assumed_output_tokens
    if tokens_in is None or tokens_out is None:
        return None
    total = tokens_in * rates.worst_input_per_mtok + tokens_out * rates.worst_output_per_mtok
    return min(-(-total // _MILLION), NANOUSD_MAX), tokens_out


def paid_output(rates: ModelRates | None, bound: RequestBound, amount: int) -> int | None:
    """Return the largest output that a hold pays for; None if that is unknown.

    Where a bound is only assumed, the gateway may set aside less than the worst case.

    >>> rates = ModelRates(1, 2, 1, 1, 2, 2, 1_000_000, 2_000_000, assumed_output_tokens=4096)
    >>> paid_output(rates, RequestBound("openai", "m", 10, None), 50)
    20
    """
    if bound.output_tokens is not None or rates is None:
        return bound.output_tokens
    assumed, price = rates.assumed_output_tokens, rates.worst_output_per_mtok
    if assumed is None or not price:
        return assumed
    tokens_in = bound.input_tokens if bound.input_tokens is not None else 0
    left = amount * _MILLION - tokens_in * rates.worst_input_per_mtok
    return min(assumed, max(1, left // price))


def cost_of(rates: ModelRates, usage: Usage) -> int:
    """Return what an answer cost: as the vendor says, else by the rates, rounded up."""
    cost = usage.cost_nanousd
    if cost is None:
        total = (
            usage.input_tokens * rates.input_per_mtok
            + usage.output_tokens * rates.output_per_mtok
            + usage.cache_read_tokens * rates.cache_read_per_mtok
            + usage.cache_write_tokens * rates.cache_write_per_mtok
            + usage.reasoning_tokens * rates.reasoning_per_mtok
            + usage.audio_tokens * rates.audio_per_mtok
        )
        cost = min(-(-total // _MILLION), NANOUSD_MAX)
    for other in usage.others:
        cost += cost_of(rates, other)  # models of one answer; the gateway knows each one's price
    return cost


class Lease:
    """A reservation that this process spends by itself.

    Attributes:
        lease_id: of the reservation; the events that it pays for name it.
        lane: the lane that it belongs to.
        free: what calls still to come may take; negative after a cost above its hold.
        calls: how many calls the share of rate caps still allows; None without a cap.
        covered: what it covers: the money for each subject, or the rates of a vendor's requests.
        policy_version: under which ``covered`` was allowed.
        under_way: how many holds are open, and ready in a pool; ``held`` is their money.
        ttl_s, expires_s: how long it lasts after a renewal, and its end by the monotonic clock.
        renewed_s, used_s: when a renewal was last asked for, and when a hold was last taken.
        began_s: when it was asked for first.
        unseen: what was counted as spent without knowing the cost. The gateway charges what it is
            told, so the difference stays with the lease until that is closed.
        overspent: what the gateway has charged beyond what it held; nothing is owed for that.
        is_current: whether holds may still be taken from it.
        question: what was asked when it was granted last, to ask the like before it is used up.
    """

    __slots__ = (
        "began_s", "calls", "covered", "expires_s", "free", "held", "is_current", "lane",
        "lease_id", "overspent", "policy_version", "question", "renewed_s", "ttl_s", "under_way",
        "unseen", "used_s",
    )  # fmt: skip

    def __init__(self, lease_id: str, lane: LaneKey, now_s: float) -> None:
        self.lease_id = lease_id
        self.lane = lane
        self.free = 0
        self.calls: int | None = None
        self.covered: dict[Subject, CallPool | ModelRates] = {}
        self.policy_version = ""
        self.under_way = 0
        self.held = 0
        self.ttl_s = self.expires_s = 0.0
        self.began_s = self.renewed_s = self.used_s = now_s
        self.unseen = 0
        self.overspent = 0
        self.is_current = True
        self.question: GateRequest | None = None

    @property
    def left(self) -> int:
        """What calls still to come may take, with what waits for them in pools."""
        ready = 0
        for pool in self.covered.values():
            if type(pool) is CallPool:
                ready += pool.amount * len(pool.ready)
        return self.free + ready

    def cover(self, subject: Subject, hold: int | ModelRates) -> None:
        """Cover calls like one that the gateway has allowed."""
        if len(self.covered) >= _COVERED_MAX:
            self.uncover()
        if type(hold) is ModelRates:
            self.covered[subject] = hold
            return
        pool = self.covered.get(subject)
        if type(pool) is CallPool:
            if pool.amount == hold:
                return
            pool.is_open = False
            self.reclaim()
        assert type(hold) is int
        self.covered[subject] = CallPool(hold)

    def uncover(self) -> None:
        """Cover nothing any more."""
        covered, self.covered = self.covered, {}
        for pool in covered.values():
            if type(pool) is CallPool:
                pool.is_open = False
                self._drain(pool)

    def reclaim(self) -> None:
        """Move the money that waits in pools back to what is free."""
        for pool in self.covered.values():
            if type(pool) is CallPool and pool.ready:
                self._drain(pool)

    def _drain(self, pool: CallPool) -> None:
        while True:
            try:
                pool.ready.pop()
            except IndexError:
                return
            self.ended(pool.amount)

    def ended(self, amount: int) -> None:
        """Move an amount from what is held back to what is free."""
        self.free += amount
        self.held -= amount
        self.under_way -= 1

    def take(self, amount: int, now_s: float) -> None:
        """Move an amount from what is free to what is held."""
        self.free -= amount
        self.held += amount
        self.under_way += 1
        self.used_s = now_s


class CallPool:
    """Money for one kind of call, cut to its size: taken and given back without the book's lock.

    Protected calls that a lease covers come by the hundred thousand, and most give back all that
    they took. So it is kept for the next one, until the lease needs it otherwise.

    Attributes:
        amount: what one call takes.
        ready: an item for each amount that waits; ``append`` and ``pop`` are atomic.
        is_open: whether it may be used. Who closes it drains it afterwards; who has put something
            in looks here afterwards.
    """

    __slots__ = ("amount", "is_open", "ready")

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.ready: list[bool] = []
        self.is_open = True


class Account(Protocol):
    """The book that a hold belongs to."""

    lock: threading.RLock

    def spent(self, lease: Lease, cost: int, over: int) -> None:
        """Count what a hold has cost, and by how much that was more than the hold."""


class Hold(Struct, eq=False):
    """What one call or request takes from a lease while it is under way; only its first end counts.

    Attributes:
        lease: what it was taken from.
        amount: the money.
    """

    _account: Account
    lease: Lease
    amount: int
    _is_open: bool = True

    def settle(self, cost: int) -> bool:
        """Pay what the call cost and return the rest; False when it has ended already."""
        account = self._account
        with account.lock:
            if not self._is_open:
                return False
            self._is_open = False
            lease = self.lease
            lease.ended(self.amount)
            lease.free -= cost
            account.spent(lease, cost, max(0, cost - self.amount))
        return True

    def give_back(self) -> bool:
        """Return all of it: nothing was spent; False when it has ended already."""
        with self._account.lock:
            if not self._is_open:
                return False
            self._is_open = False
            self.lease.ended(self.amount)
        return True

    def keep(self) -> bool:
        """Count all of it as spent, since its cost is not known; False when it has ended."""
        with self._account.lock:
            self.lease.unseen += self.amount if self._is_open else 0
            return self.settle(self.amount)

    def grow(self, amount: int) -> bool:
        """Take more from what is free; False when there is too little, or it has ended."""
        with self._account.lock:
            lease = self.lease
            if not self._is_open or not lease.is_current or lease.free < amount:
                return False
            lease.free -= amount
            lease.held += amount
            self.amount += amount
        return True

    def absorb(self, other: Hold) -> bool:
        """Take over another hold of the same lease; False when that cannot be."""
        with self._account.lock:
            if not (self._is_open and other._is_open) or other.lease is not self.lease:
                return False
            other._is_open = False
            self.amount += other.amount
            self.lease.under_way -= 1
        return True


class CallHold(Hold):
    """The hold of a protected call, which goes back to its pool.

    Attributes:
        _pool: where it came from.
        _ends: popped by its first end, which is atomic.
    """

    _pool: CallPool = CallPool(0)
    _ends: list[bool] = []

    def give_back(self) -> bool:
        """Return all of it: nothing was spent; False when it has ended already."""
        try:
            self._ends.pop()
        except IndexError:
            return False
        pool = self._pool
        pool.ready.append(True)
        if pool.is_open:
            return True
        try:
            pool.ready.pop()
        except IndexError:  # whoever closed it has drained it since
            return True
        with self._account.lock:
            self.lease.ended(self.amount)
        return True

    def settle(self, cost: int) -> bool:
        """Pay what the call cost and return the rest; False when it has ended already."""
        try:
            self._ends.pop()
        except IndexError:
            return False
        return super().settle(cost)

    def keep(self) -> bool:
        """Count all of it as spent, since its cost is not known; False when it has ended."""
        with self._account.lock:
            if not self.settle(self.amount):
                return False
            self.lease.unseen += self.amount
        return True
