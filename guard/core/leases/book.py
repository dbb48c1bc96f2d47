"""All leases of a process: what is taken, asked for, granted, renewed, recalled and returned.

Time is an argument, by a monotonic clock. Safe from any thread: the lock is held for microseconds,
never while anything waits.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable
from typing import Final

from guard.core.globs import matches
from guard.core.leases.costs import worst_case
from guard.core.leases.holds import CallHold, Hold
from guard.core.leases.lane import WINDOW_S, Lane
from guard.core.leases.lease import CallPool, LaneKey, Lease, Subject
from guard.core.leases.records import Asked, Totals, Update
from guard.core.request_bound import RequestBound
from guard.core.wire import (
    NANOUSD_MAX,
    GateRequest,
    LeaseAsk,
    LeaseState,
    LeaseUpdate,
    ModelRates,
)
from guard.core.wire import LeaseGrant as Granted

IDLE_S: Final = 2.0
"""After so long without a call, what is unused goes back."""
_AGE_MAX_S: Final = 60.0
"""An older lease is replaced, so that small differences in price between here and the gateway do
not add up."""
_RENEW_SHARE: Final = 1 / 3
_TELL_S: Final = 1.0
"""So often the gateway is told what is under way and written down nowhere, where that changes."""
_CALLS_MAX: Final = 1_000_000
_PATIENCE_S: Final = 1.0
"""A lease that could not be topped up is left alone for so long."""


class LeaseBook:
    """The leases of one process.

    Attributes:
        lock: held while the book, a lease or a hold changes.
        metered: workflows in which something was spent that no hold covers: their next call asks,
            and what was spent is reported with it.
        unwritten: what requests can cost that are under way and no journal knows of, with what pays
            for them, by serial number; any thread.
        tells: whether there is no journal, so that the gateway is told of all.
        overshoots, overshot_nanousd: how often, and by how much, a call cost more than its hold.
    """

    def __init__(self) -> None:
        self.overshoots = 0
        self.overshot_nanousd = 0
        self.after_fork()

    def after_fork(self) -> None:
        """Start without leases in a forked child: they are the parent's."""
        self.lock = threading.RLock()  # re-entrant: a signal handler may make a call
        # Read without the lock by `take`: a lane that is missing there is just not covered.
        self._lanes: dict[LaneKey, Lane] = {}
        # All leases that may still hold money, also those that no lane takes from any more.
        self._leases: dict[str, Lease] = {}
        # Added to by any thread, and looked at before anything is covered.
        self.metered: set[str | None] = set()
        self.unwritten: dict[int, tuple[str, int]] = {}
        self.tells = False
        # How often coverage was voided. An answer that was decided before the newest void covers
        # nothing, since the gateway may have judged by the old policy.
        self._voided = 0
        # Until when leases may be used: without the control channel only for a moment.
        self._usable_until_s = -math.inf
        # Until when some lease is in return mode.
        self._returns_until_s = -math.inf

    # -- taking -------------------------------------------------------------------------------

    def take(self, key: LaneKey, subject: Subject, now_s: float, calls: int = 1) -> Hold | None:
        """Cover a call by its lane's lease; None when the gateway must be asked.

        Args:
            key: the lane.
            subject: the call.
            now_s: the time.
            calls: how many calls of the share of rate caps it is.
        """
        lane = self._lanes.get(key)
        if lane is None or now_s >= self._usable_until_s or key[0] in self.metered:
            return None
        lease = lane.lease
        if lease is None or now_s >= lease.expires_s:
            return None
        pool = lease.covered.get(subject)
        if type(pool) is not CallPool:
            return None
        if pool.ready and lease.calls is None:
            # Without the lock: `pop` is atomic, and a pool that was closed meanwhile is noticed
            # below, where the hold goes back at once.
            try:
                pool.ready.pop()
            except IndexError:  # another thread was faster
                return self._cut(lane, pool, subject, now_s, calls)
            hold = CallHold(self, lease, pool.amount, True, pool, [True])
            if pool.is_open:
                lane.calls += calls
                lease.used_s = now_s
                return hold
            hold.give_back()
        return self._cut(lane, pool, subject, now_s, calls)

    def _cut(
        self, lane: Lane, pool: CallPool, subject: Subject, now_s: float, calls: int
    ) -> Hold | None:
        """Take a call's money from what is free in its lane's lease."""
        with self.lock:
            lease = lane.lease
            if lease is None or lease.covered.get(subject) is not pool:
                return None
            amount = pool.amount
            if lease.free < amount:
                lease.reclaim()
                if lease.free < amount:
                    return None
            if lease.calls is not None:
                if lease.calls < calls:
                    return None
                lease.calls -= calls
            lane.calls += calls
            lease.take(amount, now_s)
        return CallHold(self, lease, amount, True, pool, [True])

    def take_request(
        self, key: LaneKey, subject: Subject, bound: RequestBound, now_s: float, calls: int = 1
    ) -> tuple[Hold, ModelRates, int] | None:
        """Cover an LLM request by its worst case; None when the gateway must be asked.

        Returns:
            The hold, the rates of the model, and how many output tokens the hold pays for.
        """
        lane = self._lanes.get(key)
        if lane is None or now_s >= self._usable_until_s or key[0] in self.metered:
            return None
        with self.lock:
            lease = lane.lease
            if lease is None or now_s >= lease.expires_s:
                return None
            rates = lease.covered.get(subject)
            if type(rates) is not ModelRates:
                return None
            worst = worst_case(rates, bound)
            if worst is None:
                return None
            amount, paid_output = worst
            if lease.free < amount:
                lease.reclaim()
                if lease.free < amount:
                    return None
            if lease.calls is not None:
                if lease.calls < calls:
                    return None
                lease.calls -= calls
            lane.calls += calls
            lease.take(amount, now_s)
        return Hold(self, lease, amount), rates, paid_output

    def needs(self, key: LaneKey, subject: Subject, bound: RequestBound | None) -> int:
        """Return what a call is expected to take; 0 when that is not known yet."""
        lane = self._lanes.get(key)
        lease = None if lane is None else lane.lease
        hold = None if lease is None else lease.covered.get(subject)
        if isinstance(hold, ModelRates):
            worst = None if bound is None else worst_case(hold, bound)
            return 0 if worst is None else worst[0]
        return 0 if hold is None else hold.amount

    def rates(self, key: LaneKey, subject: Subject) -> ModelRates | None:
        """Return what the lane's model costs at a vendor, if a lease of the lane has said so."""
        lane = self._lanes.get(key)
        lease = None if lane is None else lane.lease
        found = None if lease is None else lease.covered.get(subject)
        return found if isinstance(found, ModelRates) else None

    def spent(self, lease: Lease, cost: int, over: int) -> None:
        """Count what a hold has cost; called with the lock held."""
        lane = self._lanes.get(lease.lane)
        if lane is not None:
            lane.spent += cost
        if over:
            self.overshoots += 1
            self.overshot_nanousd += over

    # -- asking -------------------------------------------------------------------------------

    def ask(self, key: LaneKey, now_s: float, needed: int = 0, calls: int = 1) -> Asked:
        """Return what to ask for a lane; what is free in its lease is given back by asking.

        Args:
            key: the lane.
            now_s: the time.
            needed: what the calls that wait are known to take.
            calls: how many wait.
        """
        self.metered.discard(key[0])
        with self.lock:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(now_s)
                spent = made = 0
            else:
                spent, made = lane.recent(now_s)
            lease = lane.lease
            if lease is not None and now_s >= lease.expires_s:
                self._retire(lease)
                lease = None
            if lease is not None:
                lease.reclaim()
            # What a call has cost above its hold is taken from the next grant.
            debt = 0 if lease is None else max(0, -lease.free)
            ask = LeaseAsk(
                demand_nanousd=min(needed + spent + debt, NANOUSD_MAX),
                demand_calls=min(calls + made, _CALLS_MAX),
            )
            if lease is not None:
                ask.lease_id = lease.lease_id
                ask.unused_nanousd, ask.calls_left = self._drain(lease)
                lease.used_s = lease.renewed_s = now_s
            return Asked(key, now_s, self._voided, ask)

    def granted(
        self, asked: Asked, granted: Granted, subject: Subject, amount: int, calls: int = 1
    ) -> Hold:
        """Take in a grant, and from it the hold of the call that asked.

        Args:
            asked: what was asked.
            granted: the answer.
            subject: the call.
            amount: its hold, by the answer.
            calls: how many calls of the share of rate caps it is.
        """
        with self.lock:
            lane = self._lanes.get(asked.lane)
            if lane is None:
                lane = self._lanes[asked.lane] = Lane(asked.sent_s)
            lease = self._leases.get(granted.lease_id)
            if lease is None:
                lease = self._leases[granted.lease_id] = Lease(
                    granted.lease_id, asked.lane, asked.sent_s
                )
                lease.overspent = granted.overspent_nanousd
            if lane.lease is not lease:
                # The gateway has opened a new lease, so what the old one has left goes back with
                # the next tick; its holds under way settle where they were taken.
                if lane.lease is not None:
                    self._retire(lane.lease)
                lane.lease = lease
            lease.is_current = True
            if self.tells:
                lease.told = -1  # the gateway has added this call's
            self._add(lease, asked.sent_s, granted)
            lease.calls = None if granted.calls is None else max(0, granted.calls - calls)
            lane.calls += calls
            lane.largest = amount
            lease.take(amount, max(lease.used_s, asked.sent_s))
            if granted.returns_ms:
                self._return_until(lease, asked.sent_s + granted.returns_ms / 1000)
            elif asked.voided == self._voided:
                if subject[0] != "llm":
                    lease.cover(subject, amount)
                elif granted.rates is not None:
                    lease.cover(subject, granted.rates)
            return Hold(self, lease, amount)

    def _add(self, lease: Lease, sent_s: float, granted: Granted) -> None:
        self._renewed(lease, sent_s, granted.ttl_ms)
        # What was charged beyond the lease is no debt of it, else as much of this grant would
        # be held at the gateway and never used here.
        overspent = max(lease.overspent, granted.overspent_nanousd)
        lease.free += granted.granted_nanousd + overspent - lease.overspent
        lease.overspent = overspent
        if lease.policy_version != granted.policy_version:
            if lease.covered:
                lease.uncover()
            lease.policy_version = granted.policy_version

    # -- asking before a call waits --------------------------------------------------------------

    def low(self, now_s: float) -> list[tuple[Asked, GateRequest]]:
        """Return what to ask for leases that would soon be used up, and what each was granted for.

        Nothing is given back by asking; :meth:`topped_up` or :meth:`not_topped_up` takes in the
        answer. Until then the lane is not asked for, and its lease is not closed.
        """
        found: list[tuple[Asked, GateRequest]] = []
        with self.lock:
            for key, lane in self._lanes.items():
                lease = lane.lease
                if lease is None or now_s >= min(lease.expires_s, self._usable_until_s):
                    continue
                if lease.question is None:
                    continue
                if not lease.covered or key[0] in self.metered or now_s - lease.used_s >= IDLE_S:
                    continue
                lacking = lane.lacks(now_s)
                if lacking:
                    lane.asked_ahead = True
                    lane.ahead_s = now_s + _PATIENCE_S  # unless it is answered sooner
                    ask = LeaseAsk(
                        lease.lease_id, demand_nanousd=min(lacking, NANOUSD_MAX), ahead=True
                    )
                    found.append((Asked(key, now_s, self._voided, ask), lease.question))
        return found

    def is_asked_ahead(self, key: LaneKey) -> bool:
        """Tell whether a question that tops up a lane's lease is under way."""
        lane = self._lanes.get(key)
        return lane is not None and lane.asked_ahead

    def topped_up(self, asked: Asked, granted: Granted) -> Update | None:
        """Take in what was granted before anybody had to wait.

        Returns:
            What goes back at once, if the lease was closed meanwhile.
        """
        with self.lock:
            self._not_asked_ahead(asked)
            lease = self._leases.get(granted.lease_id)
            if lease is None:
                lease = Lease(granted.lease_id, asked.lane, asked.sent_s)
                back = LeaseUpdate(granted.lease_id, granted.granted_nanousd, close=True)
                return Update(lease, back)
            self._add(lease, asked.sent_s, granted)
            lane = self._lanes.get(asked.lane)
            # After a full answer the lane may be topped up again at once. After a partial one
            # the budget is nearly used up, and calls that need more ask for themselves.
            if lane is not None and granted.granted_nanousd >= asked.ask.demand_nanousd:
                lane.ahead_s = asked.sent_s
            return None

    def not_topped_up(self, asked: Asked) -> None:
        """Take in that a top-up was refused."""
        with self.lock:
            self._not_asked_ahead(asked)

    def _not_asked_ahead(self, asked: Asked) -> None:
        lane = self._lanes.get(asked.lane)
        if lane is not None:
            lane.asked_ahead = False

    def unanswered(self, asked: Asked) -> None:
        """An ask had no usable answer, so it is unknown what it gave back and was granted.

        Nothing more is taken from the lease that it named. The holds under way stay in it.
        """
        with self.lock:
            if asked.ask.ahead:
                self._not_asked_ahead(asked)
            lease = self._leases.get(asked.ask.lease_id or "")
            if lease is not None:
                self._retire(lease)

    def _renewed(self, lease: Lease, sent_s: float, ttl_ms: int) -> None:
        lease.ttl_s = ttl_ms / 1000
        lease.renewed_s = max(lease.renewed_s, sent_s)
        lease.expires_s = max(lease.expires_s, sent_s + lease.ttl_s)

    def _retire(self, lease: Lease) -> None:
        lease.is_current = False
        lease.uncover()
        lane = self._lanes.get(lease.lane)
        if lane is not None and lane.lease is lease:
            lane.lease = None

    def _drain(self, lease: Lease) -> tuple[int, int]:
        """Take out what is unused: money and calls."""
        lease.reclaim()
        unused = max(0, lease.free)
        lease.free -= unused
        calls, lease.calls = lease.calls or 0, None if lease.calls is None else 0
        return unused, min(calls, _CALLS_MAX)

    # -- what ends a permission ---------------------------------------------------------------

    def void(self, workflow_id: str | None = None) -> None:
        """Forget what is covered: policies, prices, budgets or settings have changed.

        Args:
            workflow_id: the workflow, or pattern, that the change concerns; None for all.
        """
        with self.lock:
            self._voided += 1
            for lease in self._leases.values():
                named = lease.lane[0]
                if workflow_id is None or (named is not None and matches(workflow_id, named)):
                    lease.uncover()

    def usable_until(self, until_s: float) -> None:
        """Set until when leases may be used: for ever while pushes arrive, else for a moment."""
        self._usable_until_s = until_s

    def recall(self, lease_ids: Collection[str], until_s: float = -math.inf) -> list[Update]:
        """Give back at once what is unused in those of these leases that are held here.

        Args:
            lease_ids: the leases.
            until_s: until then others wait for what they hold.
        """
        with self.lock:
            found = [self._leases[each] for each in lease_ids if each in self._leases]
            for lease in found:
                self._return_until(lease, until_s)
            return [self._returning(lease) for lease in found]

    def return_until(self, key: LaneKey, until_s: float) -> None:
        """Cover nothing in a lane until then, and give back at once what a call has not used.

        Others wait for the money: a call that is covered would be served before them.
        """
        with self.lock:
            lane = self._lanes.get(key)
            if lane is not None and lane.lease is not None:
                self._return_until(lane.lease, until_s)

    def _return_until(self, lease: Lease, until_s: float) -> None:
        if until_s > lease.returns_until_s:
            lease.returns_until_s = until_s
            lease.uncover()
            self._returns_until_s = max(self._returns_until_s, until_s)

    def is_returning(self, now_s: float) -> bool:
        """Tell whether some lease gives back at once what is not used."""
        return now_s < self._returns_until_s

    def _returning(self, lease: Lease, *, close: bool = False) -> Update:
        unused, calls = self._drain(lease)
        if close:
            return Update(lease, LeaseUpdate(lease.lease_id, unused, calls, close))
        return self.renewal(lease, unused, calls)

    def renewal(self, lease: Lease, unused: int = 0, calls: int = 0) -> Update:
        """Return an update that renews a lease, and says what is under way if need be."""
        lease.told = self._unwritten_in().get(lease.lease_id, 0)
        update = LeaseUpdate(lease.lease_id, unused, calls, under_way_nanousd=lease.told)
        return Update(lease, update)

    def _unwritten_in(self) -> dict[str, int]:
        """Return what is under way and written down nowhere, by what pays for it."""
        found: dict[str, int] = {}
        for lease_id, amount in list(self.unwritten.values()) if self.unwritten else ():
            found[lease_id] = found.get(lease_id, 0) + amount
        return found

    # -- keeping and returning ----------------------------------------------------------------

    def due(self, now_s: float) -> list[Update]:
        """Return what is due: renewals, idle money, the end of leases that are not used any more.

        A lease that has expired, or is closed, is forgotten here.
        """
        updates: list[Update] = []
        with self.lock:
            unwritten = self._unwritten_in()
            for lease in list(self._leases.values()):
                is_topped_up = lease.is_current and self.is_asked_ahead(lease.lane)
                idle = now_s - lease.used_s >= IDLE_S and not is_topped_up
                # The gateway releases what was only thought to be spent when the lease is closed.
                if lease.unseen or now_s - lease.began_s >= _AGE_MAX_S:
                    self._retire(lease)
                if idle:
                    lease.reclaim()
                if now_s >= lease.expires_s:
                    self._forget(lease)
                elif not lease.under_way and (idle or not lease.is_current):
                    updates.append(self._returning(lease, close=True))
                    self._forget(lease)
                elif lease.free > 0 and (
                    idle or not lease.is_current or now_s < lease.returns_until_s
                ):
                    updates.append(self._returning(lease))
                    lease.renewed_s = now_s
                elif now_s - lease.renewed_s >= lease.ttl_s * _RENEW_SHARE or (
                    now_s - lease.told_s >= _TELL_S
                    and unwritten.get(lease.lease_id, 0) != lease.told
                ):
                    lease.renewed_s = lease.told_s = now_s
                    updates.append(self.renewal(lease))
            self._forget_lanes(now_s)
        return updates

    def answered(self, update: Update, state: LeaseState | None, sent_s: float) -> None:
        """Take in the answer to an update; None when the gateway does not know the lease."""
        with self.lock:
            if state is None or state.state != "open":
                self._forget(update.lease)
            elif not update.closes:
                self._renewed(update.lease, sent_s, state.ttl_ms)

    def close(self) -> list[Update]:
        """End all leases; nothing is covered any more."""
        with self.lock:
            self._usable_until_s = -math.inf
            updates = [self._returning(lease, close=True) for lease in self._leases.values()]
            unwritten = self._unwritten_in()
            for update in updates:
                update.body.under_way_nanousd = unwritten.get(update.lease.lease_id, 0)
                self._forget(update.lease)
            return updates

    def _forget(self, lease: Lease) -> None:
        self._retire(lease)
        self._leases.pop(lease.lease_id, None)

    def _forget_lanes(self, now_s: float) -> None:
        unused: Iterable[LaneKey] = [
            key
            for key, lane in self._lanes.items()
            if lane.lease is None and not lane.asked_ahead and now_s - lane.began_s >= 2 * WINDOW_S
        ]
        for key in unused:
            del self._lanes[key]
        # A workflow without a lane asks anyway.
        self.metered.intersection_update({key[0] for key in self._lanes})

    @property
    def lanes(self) -> int:
        """How many lanes are known."""
        return len(self._lanes)

    def set_aside_for(self, workflow_id: str) -> int:
        """Return the money in the leases of a workflow's lanes."""
        with self.lock:
            return sum(
                max(0, lease.free) + lease.held
                for lease in self._leases.values()
                if lease.lane[0] == workflow_id
            )

    def totals(self) -> Totals:
        """Return what all leases amount to."""
        with self.lock:
            leases = self._leases.values()
            for lease in leases:
                lease.reclaim()
            return Totals(
                len(leases),
                sum(max(0, lease.free) + lease.held for lease in leases),
                sum(lease.under_way for lease in leases),
            )
