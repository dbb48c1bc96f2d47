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
        lease_id: the id of the reservation; the events that it pays for name it.
        lane: the lane that it belongs to.
        free: what later calls may take; negative after a cost above its hold.
        calls: how many calls the share of rate caps still allows; None without a cap.
        covered: what it covers: by subject, what a call takes or the rates of a vendor's requests.
        policy_version: the version of the policy under which ``covered`` was allowed.
        under_way: how many holds are open.
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
        pays_requests: whether LLM requests were taken from it, and not only calls.
        returns_until_s: until then others wait for the money: what is not used goes back at once.
        question: the question of the newest grant; a top-up repeats it.
    """

    __slots__ = (
        "began_s", "calls", "covered", "expires_s", "free", "held", "is_asked", "is_current",
        "lane", "lease_id", "overspent", "pays_requests", "policy_version", "question", "renewed_s",
        "returns_until_s", "ttl_s", "under_way", "unseen", "used_s",
    )  # fmt: skip

    def __init__(self, lease_id: str, lane: LaneKey, now_s: float) -> None:
        # Every field is changed under the book's lock, with two exceptions. `used_s` is set by any
        # thread: it only decides when a lease counts as idle. `question` is set and read on the
        # background loop. `take` reads `covered`, `calls` and `expires_s` without the lock.
        self.lease_id = lease_id
        self.lane = lane
        self.free = 0
        self.calls: int | None = None
        self.covered: dict[Subject, int | ModelRates] = {}
        self.policy_version = ""
        self.under_way = 0
        self.held = 0
        self.ttl_s = self.expires_s = 0.0
        self.began_s = self.renewed_s = self.used_s = now_s
        self.unseen = 0
        self.overspent = 0
        self.is_current = True
        self.is_asked = False
        self.pays_requests = False
        self.returns_until_s = 0.0
        self.question: GateRequest | None = None

    def cover(self, subject: Subject, hold: int | ModelRates) -> None:
        """Cover calls like one that the gateway has allowed. The caller holds the lock."""
        if len(self.covered) >= _COVERED_MAX:
            self.uncover()
        self.covered[subject] = hold

    def uncover(self) -> None:
        """End all coverage; the money stays. The caller holds the lock."""
        self.covered = {}  # replaced, not cleared: threads read the old dict without the lock

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
