"""One lease and what it covers. Money is whole nano-dollars."""

from __future__ import annotations

import functools
from typing import Final

from guard.core.wire import GateRequest, ModelRates

LaneKey = tuple[str | None, str | None, str | None, str | None, str]
"""``(workflow, agent, chain, user, model)``: what decides which budgets apply."""

Subject = tuple[str, str, str | None, tuple[str, ...]]
"""``(kind, function, tool name, tools)``: what the gateway has allowed."""

_COVERED_MAX: Final = 1000
"""Most subjects of a lease; a program that makes up tool names must not grow it without end."""


@functools.lru_cache(256)
def request_subject(provider: str, local: bool = False) -> Subject:
    """Return the subject of an LLM request to a vendor; those to this machine have rates apart.

    >>> request_subject("openai")
    ('llm', 'openai', None, ())
    """
    return ("llm", f"local {provider}" if local else provider, None, ())


class Lease:
    """A reservation that this process spends by itself.

    Attributes:
        lease_id: of the reservation; the events that it pays for name it.
        lane: the lane that it belongs to.
        free: what later calls may take; negative after a cost above its hold.
        calls: how many calls the share of rate caps still allows; None without a cap.
        covered: what it covers: by subject, the pool of a call or the rates of a vendor's requests.
        policy_version: the version of the policy under which ``covered`` was allowed.
        under_way: how many holds are open, plus the amounts ready in pools.
        held: the money of these. ``free + held`` is all that was granted and is neither spent nor
            returned.
        ttl_s, expires_s: how long it lasts after a renewal, and its end by the monotonic clock.
        renewed_s, used_s: when a renewal was last sent, and when a hold was last taken.
        began_s: when it was first asked for.
        unseen: what was counted as spent without knowing the cost. The gateway charges the cost
            in the event, so the difference stays reserved until the lease is closed.
        overspent: what the gateway has charged beyond what it held; nothing is owed for that.
        is_current: whether holds may still be taken from it.
        is_asked: whether a question that names it is under way; top-ups do not count.
        told, told_s: the amount under way that was last reported to the gateway, and when; -1 when
            the gateway's figure is unknown.
        returns_until_s: until then others wait for the money: what is not used goes back at once.
        question: the question of the newest grant; a top-up repeats it.
    """

    __slots__ = (
        "began_s", "calls", "covered", "expires_s", "free", "held", "is_asked", "is_current",
        "lane", "lease_id", "overspent", "policy_version", "question", "renewed_s",
        "returns_until_s", "told", "told_s", "ttl_s", "under_way", "unseen", "used_s",
    )  # fmt: skip

    def __init__(self, lease_id: str, lane: LaneKey, now_s: float) -> None:
        # Every field is changed under the book's lock, with two exceptions. `used_s` is set by any
        # thread: it only decides when a lease counts as idle. `question` is set and read on the
        # background loop. `take` reads `covered`, `calls` and `expires_s` without the lock.
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
        self.is_asked = False
        self.told = 0
        self.told_s = now_s
        self.returns_until_s = 0.0
        self.question: GateRequest | None = None

    @property
    def left(self) -> int:
        """What later calls may take: the free money and the amounts ready in pools."""
        ready = 0
        for pool in self.covered.values():
            if type(pool) is CallPool:
                ready += pool.amount * len(pool.ready)
        return self.free + ready

    def cover(self, subject: Subject, hold: int | ModelRates) -> None:
        """Cover calls like one that the gateway has allowed. The caller holds the lock."""
        if len(self.covered) >= _COVERED_MAX:
            self.uncover()
        if type(hold) is ModelRates:
            self.covered[subject] = hold
            return
        pool = self.covered.get(subject)
        if type(pool) is CallPool:
            if pool.amount == hold:
                return
            # Another price: amounts of the old size must not be taken for the new one. Closed
            # before it is drained; see `CallPool.is_open`.
            pool.is_open = False
            self.reclaim()
        assert type(hold) is int
        self.covered[subject] = CallPool(hold)

    def uncover(self) -> None:
        """End all coverage; the money stays. The caller holds the lock."""
        # Replaced, not cleared: threads read the old dict without the lock.
        covered, self.covered = self.covered, {}
        for pool in covered.values():
            if type(pool) is CallPool:
                pool.is_open = False
                self._drain(pool)

    def reclaim(self) -> None:
        """Move the amounts that are ready in pools back to ``free``. The caller holds the lock.

        The pools stay open: other threads may take from them, and return to them, meanwhile.
        """
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
        """Move an amount from ``held`` back to ``free``: its hold has ended."""
        self.free += amount
        self.held -= amount
        self.under_way -= 1

    def take(self, amount: int, now_s: float) -> None:
        """Move an amount from ``free`` to ``held``: a hold begins."""
        self.free -= amount
        self.held += amount
        self.under_way += 1
        self.used_s = now_s


class CallPool:
    """Money for one kind of call, cut to its size: taken and returned without the book's lock.

    Protected calls that a lease covers come by the hundred thousand, and most return all that they
    took. So the amount is kept for the next call, until the lease needs it otherwise. While it is
    ready it counts in the lease's ``held`` and ``under_way``: taking and returning it changes
    neither, which is why no lock is needed.

    Attributes:
        amount: what one call takes.
        ready: one item for each amount that is ready; ``append`` and ``pop`` are atomic.
        is_open: whether it may be used; it is never opened again. The closing thread sets it to
            False first and drains the pool afterwards; a thread that takes or returns an amount
            moves it first and reads this flag afterwards. So at least one of the two sees the
            other, and no amount is left in a closed pool.
    """

    __slots__ = ("amount", "is_open", "ready")

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.ready: list[bool] = []
        self.is_open = True
