"""All leases of a process: what is taken, asked for, granted, renewed, recalled and returned.

Every time is an argument, in seconds by one clock that never goes back. Every amount is whole
nano-dollars.
All methods are safe from any thread: the lock is held for microseconds, never across a wait.

Money is in one of three places, and moves between them under the lock only: ``Lease.free``,
``Lease.held`` (open holds), or on its way to or from the gateway. An update *removes* what it
returns before it is sent, so a lost update can strand money at the gateway until the lease expires,
but cannot let it be spent twice.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable
from typing import Final

from guard.core.globs import matches
from guard.core.leases.costs import worst_case
from guard.core.leases.holds import Hold
from guard.core.leases.lane import WINDOW_S, Lane
from guard.core.leases.lease import LaneKey, Lease, Subject
from guard.core.leases.records import LeaseRequest, Totals, Update
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
"""A lease without a call for this long returns its unused money."""
_AGE_MAX_S: Final = 60.0
"""An older lease is replaced, so that small differences in price between here and the gateway do
not add up."""
_RENEW_SHARE: Final = 1 / 3
"""A lease is renewed after this share of its lifetime, so two renewals in a row may be lost."""
_CALLS_MAX: Final = 1_000_000  # the protocol's limit on `LeaseAsk.demand_calls`
_PATIENCE_S: Final = 1.0
"""Shortest time between two top-ups of a lane, unless the first one is granted in full."""


class LeaseBook:
    """The leases of one process.

    Attributes:
        lock: held while the book, a lease or a hold changes.
        metered: workflows that spent something without a hold: their next call asks the gateway,
            and the events of that spending go along with the question.
        overshoots, overshot_nanousd: how often, and by how much, a call cost more than its hold.
    """

    def __init__(self) -> None:
        # Counted under the lock, since the start of the process.
        self.overshoots = 0
        self.overshot_nanousd = 0
        self.after_fork()

    def after_fork(self) -> None:
        """Start without leases in a forked child: they are the parent's."""
        # A new lock: a thread of the parent may have held the old one at the fork. Re-entrant:
        # a signal handler may make a call while its thread holds the lock.
        self.lock = threading.RLock()
        # Changed under the lock. Read without it by `take`: a lane that is missing there is just
        # not covered, and the caller asks.
        self._lanes: dict[LaneKey, Lane] = {}
        # All leases that may still hold money, by id, also those that no lane takes from. Under
        # the lock. `Lane.lease` is always one of these; a retired lease is here and in no lane.
        self._leases: dict[str, Lease] = {}
        # Added to by the threads that record events, discarded from by the background loop, read
        # by `take` in any thread; each is one atomic operation of a set.
        self.metered: set[str | None] = set()
        # How often coverage was voided; under the lock. `LeaseRequest` notes the count when it is
        # sent. If it has changed by the answer, the gateway may have judged by the old policy, and
        # the answer covers no later call.
        self._voided = 0
        # Until when leases may be used: without the control channel only for a moment, because a
        # kill could not arrive. Set on the background loop, read by `take` without the lock.
        self._usable_until_s = -math.inf
        # The latest `returns_until_s` of all leases; a hint for how often to tick.
        self._returns_until_s = -math.inf

    # -- taking -------------------------------------------------------------------------------

    def take(self, key: LaneKey, subject: Subject, now_s: float, calls: int = 1) -> Hold | None:
        """Cover a call by its lane's lease; None when the gateway must be asked.

        This is the fast path of every protected call, in the caller's thread.

        Args:
            key: the lane.
            subject: the call.
            now_s: the time.
            calls: how many calls it counts as in the lease's share of rate caps.
        """
        lane = self._lanes.get(key)
        if lane is None or now_s >= self._usable_until_s or key[0] in self.metered:
            return None
        with self.lock:
            lease = lane.lease
            if lease is None or now_s >= lease.expires_s:
                return None
            amount = lease.covered.get(subject)
            if type(amount) is not int:
                return None
            return self._take(lane, lease, amount, now_s, calls)

    def _take(self, lane: Lane, lease: Lease, amount: int, now_s: float, calls: int) -> Hold | None:
        """Take an amount from a lease, if it has so much. The caller holds the lock."""
        if lease.free < amount:
            return None
        if lease.calls is not None:
            if lease.calls < calls:
                return None
            lease.calls -= calls
        lane.calls += calls
        lease.free -= amount
        lease.held += amount
        lease.under_way += 1
        lease.used_s = now_s
        return Hold(self, lease, amount)

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
            # Requests differ in size: each takes its own worst case.
            worst = worst_case(rates, bound)
            if worst is None:
                return None
            hold = self._take(lane, lease, worst[0], now_s, calls)
        return None if hold is None else (hold, rates, worst[1])

    def needs(self, key: LaneKey, subject: Subject, bound: RequestBound | None) -> int:
        """Return what a call is expected to take; 0 when that is not known yet."""
        # Without the lock, here and in `rates`: a stale answer only makes an estimate worse.
        lane = self._lanes.get(key)
        lease = None if lane is None else lane.lease
        hold = None if lease is None else lease.covered.get(subject)
        if isinstance(hold, ModelRates):
            worst = None if bound is None else worst_case(hold, bound)
            return 0 if worst is None else worst[0]
        return hold or 0

    def rates(self, key: LaneKey, subject: Subject) -> ModelRates | None:
        """Return the rates of the lane's model at a vendor, if its lease knows them."""
        lane = self._lanes.get(key)
        lease = None if lane is None else lane.lease
        found = None if lease is None else lease.covered.get(subject)
        return found if isinstance(found, ModelRates) else None

    def spent(self, lease: Lease, cost: int, over: int) -> None:
        """Count what a hold has cost. The caller holds the lock."""
        lane = self._lanes.get(lease.lane)
        if lane is not None:
            lane.spent += cost
        if over:
            self.overshoots += 1
            self.overshot_nanousd += over

    # -- asking -------------------------------------------------------------------------------

    def ask(self, key: LaneKey, now_s: float, needed: int = 0, calls: int = 1) -> LeaseRequest:
        """Return what to ask for a lane.

        The free money of its lease is removed here and returned with the question. So each question
        must end with :meth:`granted`, :meth:`not_granted` or :meth:`unanswered`. Until then
        :meth:`due` does not close the lease.

        Args:
            key: the lane.
            now_s: the time.
            needed: what the waiting calls are known to take.
            calls: how many calls wait.
        """
        # Before the events are attached to the question. An event that is recorded from here on
        # sets the mark again; discarding afterwards could drop the mark of an event left behind.
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
            # What a call has cost above its hold is taken from the next grant: so that much more
            # is asked for.
            debt = 0 if lease is None else max(0, -lease.free)
            ask = LeaseAsk(
                demand_nanousd=min(needed + spent + debt, NANOUSD_MAX),
                demand_calls=min(calls + made, _CALLS_MAX),
            )
            if lease is not None:
                ask.lease_id = lease.lease_id
                ask.unused_nanousd, ask.calls_left = self._drain(lease)
                lease.is_asked = True
                # Not `renewed_s`: an answer may not come, and an older gateway's answer renews
                # nothing unless it grants something.
                lease.used_s = now_s
            return LeaseRequest(key, now_s, self._voided, ask)

    def granted(
        self, asked: LeaseRequest, granted: Granted, subject: Subject, amount: int, calls: int = 1
    ) -> Hold:
        """Add a grant to its lease and take from it the hold of the call that asked.

        One step under the lock: no other call can take the money that the asking call waited for.

        Args:
            asked: what was asked.
            granted: the answer.
            subject: the call.
            amount: its hold, by the answer.
            calls: how many calls it counts as in the lease's share of rate caps.
        """
        with self.lock:
            self._ended(asked)
            lane = self._lanes.get(asked.lane)
            if lane is None:  # forgotten as unused while the question was under way
                lane = self._lanes[asked.lane] = Lane(asked.sent_s)
            # `sent_s` everywhere, not the time of the answer: the gateway's clock for the lease
            # started between the two, so the lease is never thought to last longer than it does.
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
            lease.is_current = True  # it may have been retired meanwhile, for its age
            lease.pays_requests |= subject[0] == "llm"
            self._add(lease, asked.sent_s, granted)
            lease.calls = None if granted.calls is None else max(0, granted.calls - calls)
            lane.calls += calls
            lane.largest = amount
            lease.take(amount, max(lease.used_s, asked.sent_s))
            # What the answer covers besides the call that asked:
            # 1. others wait for money of these budgets: nothing, and unused money goes back;
            # 2. coverage was voided since the question: nothing, the next call asks again;
            # 3. else calls like this one; requests only if the gateway has sent their rates.
            if granted.returns_ms:
                self._return_until(lease, asked.sent_s + granted.returns_ms / 1000)
            elif asked.voided == self._voided:
                if subject[0] != "llm":
                    lease.cover(subject, amount)
                elif granted.rates is not None:
                    lease.cover(subject, granted.rates)
            return Hold(self, lease, amount)

    def _add(self, lease: Lease, sent_s: float, granted: Granted) -> None:
        """Add granted money to a lease. The caller holds the lock."""
        self._renewed(lease, sent_s, granted.ttl_ms)
        # A cost above the lease makes `free` negative here, but the gateway has charged it to the
        # budgets themselves. The part it reports for the first time is forgiven; else as much of
        # this grant would be held at the gateway and never used here. `max`: answers can arrive
        # out of order, and the total only grows.
        overspent = max(lease.overspent, granted.overspent_nanousd)
        lease.free += granted.granted_nanousd + overspent - lease.overspent
        lease.overspent = overspent
        # Subjects that were allowed under another version are not covered until each of them is
        # allowed again.
        if lease.policy_version != granted.policy_version:
            if lease.covered:
                lease.uncover()
            lease.policy_version = granted.policy_version

    # -- asking before a call waits --------------------------------------------------------------

    def low(self, now_s: float) -> list[tuple[LeaseRequest, GateRequest]]:
        """Return a top-up for each lease that would soon be used up, with its last question.

        A top-up returns no money: calls keep taking from the lease while it is under way. Each
        must end with :meth:`topped_up`, :meth:`not_granted` or :meth:`unanswered`. Until then
        questions of the lane wait for it, and :meth:`due` does not close the lease as idle.
        """
        found: list[tuple[LeaseRequest, GateRequest]] = []
        with self.lock:
            for key, lane in self._lanes.items():
                lease = lane.lease
                if lease is None or now_s >= min(lease.expires_s, self._usable_until_s):
                    continue
                if lease.question is None:
                    continue
                # Without coverage, or with unreported spending, the next call asks anyway.
                if not lease.covered or key[0] in self.metered or now_s - lease.used_s >= IDLE_S:
                    continue
                lacking = lane.lacks(now_s)
                if lacking:
                    lane.asked_ahead = True
                    lane.ahead_s = now_s + _PATIENCE_S  # `topped_up` resets it after a full grant
                    ask = LeaseAsk(
                        lease.lease_id, demand_nanousd=min(lacking, NANOUSD_MAX), ahead=True
                    )
                    found.append((LeaseRequest(key, now_s, self._voided, ask), lease.question))
        return found

    def is_asked_ahead(self, key: LaneKey) -> bool:
        """Return whether a top-up of a lane's lease is under way."""
        lane = self._lanes.get(key)
        return lane is not None and lane.asked_ahead

    def topped_up(self, asked: LeaseRequest, granted: Granted) -> Update | None:
        """Add the grant of a top-up to its lease.

        Returns:
            An update that returns the grant at once, if the lease was closed meanwhile.
        """
        with self.lock:
            self._ended(asked)
            lease = self._leases.get(granted.lease_id)
            if lease is None:
                return self.unwanted(asked, granted)
            self._add(lease, asked.sent_s, granted)
            lane = self._lanes.get(asked.lane)
            # After a full answer the lane may be topped up again at once. After a partial one
            # the budget is nearly used up, and calls that need more ask for themselves.
            if lane is not None and granted.granted_nanousd >= asked.ask.demand_nanousd:
                lane.ahead_s = asked.sent_s
            return None

    def unwanted(self, asked: LeaseRequest, granted: Granted) -> Update | None:
        """Return what returns a grant that nobody takes; None if its lease does when it closes."""
        with self.lock:
            if granted.lease_id in self._leases:
                return None
            # Not entered into the book: no call may take from it, and nothing would renew it.
            lease = Lease(granted.lease_id, asked.lane, asked.sent_s)
            back = LeaseUpdate(granted.lease_id, granted.granted_nanousd, close=True)
            return Update(lease, back)

    def not_granted(self, asked: LeaseRequest) -> None:
        """End a question or top-up whose answer grants nothing; its lease stays as it is."""
        with self.lock:
            self._ended(asked)

    def _ended(self, asked: LeaseRequest) -> None:
        """Note that a question or top-up is no longer under way. The caller holds the lock."""
        if asked.ask.ahead:
            lane = self._lanes.get(asked.lane)
            if lane is not None:
                lane.asked_ahead = False
        else:
            lease = self._leases.get(asked.ask.lease_id or "")
            if lease is not None:
                lease.is_asked = False

    def unanswered(self, asked: LeaseRequest) -> None:
        """Retire the lease of a question without a usable answer.

        Whether the gateway has taken back what the question returned, and whether it has granted
        more, is unknown. So no call takes from that lease again; its open holds settle in it, and
        closing it afterwards releases at the gateway whatever it holds.
        """
        with self.lock:
            self._ended(asked)
            lease = self._leases.get(asked.ask.lease_id or "")
            if lease is not None:
                self._retire(lease)

    def _renewed(self, lease: Lease, sent_s: float, ttl_ms: int) -> None:
        # `max`: answers of several requests can arrive out of order.
        lease.ttl_s = ttl_ms / 1000
        lease.renewed_s = max(lease.renewed_s, sent_s)
        lease.expires_s = max(lease.expires_s, sent_s + lease.ttl_s)

    def _retire(self, lease: Lease) -> None:
        """Let no call take from a lease. It stays in the book until its holds have ended."""
        lease.is_current = False
        lease.uncover()
        lane = self._lanes.get(lease.lane)
        if lane is not None and lane.lease is lease:
            lane.lease = None

    def _drain(self, lease: Lease) -> tuple[int, int]:
        """Remove the unused money and calls from a lease and return them.

        Before the update that returns them is sent: if the order were reversed, a call could take
        in between what the gateway gives to another process.
        """
        unused = max(0, lease.free)  # a debt stays in the lease
        lease.free -= unused
        calls, lease.calls = lease.calls or 0, None if lease.calls is None else 0
        return unused, min(calls, _CALLS_MAX)

    # -- what ends a permission ---------------------------------------------------------------

    def void(self, workflow_id: str | None = None) -> None:
        """Forget what is covered: policies, prices, budgets or settings have changed.

        The money stays in the leases; each subject has to be allowed anew.

        Args:
            workflow_id: the workflow, or pattern, that the change concerns; None for all.
        """
        with self.lock:
            # For all lanes, although one workflow may be concerned: the price is a few questions
            # more, and there is no count per lane to forget.
            self._voided += 1
            for lease in self._leases.values():
                named = lease.lane[0]
                if workflow_id is None or (named is not None and matches(workflow_id, named)):
                    lease.uncover()

    def usable_until(self, until_s: float) -> None:
        """Set until when leases may be used: for ever while pushes arrive, else for a moment."""
        self._usable_until_s = until_s  # one store, which `take` reads without the lock

    def recall(self, lease_ids: Collection[str], until_s: float = -math.inf) -> list[Update]:
        """Return at once the unused money of the given leases, as far as this process has them.

        Args:
            lease_ids: the leases.
            until_s: until then other processes wait for their money.
        """
        with self.lock:
            found = [self._leases[each] for each in lease_ids if each in self._leases]
            # First stop the coverage: it moves ready amounts to `free`, which is returned below.
            for lease in found:
                self._return_until(lease, until_s)
            return [self._returning(lease) for lease in found]

    def return_until(self, key: LaneKey, until_s: float) -> None:
        """Cover nothing in a lane until then, and return each hold's rest as soon as it ends.

        Other calls wait in line for the money: a covered call would be served before them.
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
        """Return whether some lease returns its unused money at once."""
        return now_s < self._returns_until_s

    def _returning(self, lease: Lease, *, close: bool = False) -> Update:
        unused, calls = self._drain(lease)
        if close:
            return Update(lease, LeaseUpdate(lease.lease_id, unused, calls, close))
        return self.renewal(lease, unused, calls)

    def renewal(self, lease: Lease, unused: int = 0, calls: int = 0) -> Update:
        """Return an update that renews a lease.

        Safe without the lock, as in ``LeaseUpdates._close``.
        """
        return Update(lease, LeaseUpdate(lease.lease_id, unused, calls))

    # -- keeping and returning ----------------------------------------------------------------

    def due(self, now_s: float) -> list[Update]:
        """Return the updates that are due: renewals, unused money, and closes of unused leases.

        A lease that is closed is forgotten here. Each lease gets at most one update per call. The
        cases, in this order:

        1. It has expired: nothing is taken from it any more. The gateway ends it by itself, and
           charges what may be under way.
        2. No hold is open, no question names it, and it is idle or retired: it is closed. Of one
           that has expired, this tells the gateway that its events are all that it has cost.
        3. It has free money, and is idle, retired or wanted back: the money is returned.
        4. A third of its lifetime is over: it is renewed.
        """
        updates: list[Update] = []
        with self.lock:
            for lease in list(self._leases.values()):
                # The grant of a top-up must find its lease; else it would have to be sent back.
                is_topped_up = lease.is_current and self.is_asked_ahead(lease.lane)
                idle = now_s - lease.used_s >= IDLE_S and not is_topped_up
                # `unseen` counts as spent here, but the gateway may be charged less by the event.
                # Only closing the lease releases the difference there, so it is replaced soon.
                if lease.unseen or now_s - lease.began_s >= _AGE_MAX_S:
                    self._retire(lease)
                # A question: the gateway may have added to the lease already. A close would end
                # that money there, and the answer would still have it spent here.
                is_used = lease.under_way or lease.is_asked
                has_expired = now_s >= lease.expires_s
                if has_expired:  # 1.
                    self._retire(lease)
                if not is_used and (idle or not lease.is_current):  # 2.
                    updates.append(self._returning(lease, close=True))
                    self._forget(lease)
                elif has_expired:
                    continue
                elif lease.free > 0 and (  # 3.
                    idle or not lease.is_current or now_s < lease.returns_until_s
                ):
                    updates.append(self._returning(lease))
                    lease.renewed_s = now_s  # returning money renews the lease too
                elif now_s - lease.renewed_s >= lease.ttl_s * _RENEW_SHARE:  # 4.
                    lease.renewed_s = now_s
                    updates.append(self.renewal(lease))
            self._forget_lanes(now_s)
        return updates

    def answered(self, update: Update, state: LeaseState | None, sent_s: float) -> None:
        """Take in the answer to an update; ``state`` is None when the gateway has no such lease."""
        with self.lock:
            if state is None or state.state != "open":
                # Ended at the gateway. Holds that nothing was sent for yet see that it is over;
                # when the last one has ended, `due` closes it.
                update.lease.expires_s = sent_s
                self._retire(update.lease)
            elif not update.closes:
                self._renewed(update.lease, sent_s, state.ttl_ms)

    def close(self) -> list[Update]:
        """End all leases; from here on nothing is covered."""
        with self.lock:
            self._usable_until_s = -math.inf
            updates = [self._returning(lease, close=True) for lease in self._leases.values()]
            # Unlike the closes of `due`, these leases may have open holds: the process ends, so
            # the gateway needs what is under way to charge it.
            for update in updates:
                lease = update.lease
                update.body.under_way_nanousd = lease.held if lease.pays_requests else 0
                self._forget(lease)
            return updates

    def _forget(self, lease: Lease) -> None:
        # Retire first: a hold that comes back later finds that its lease is not current.
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
        # Bounds the set: a workflow without a lane asks anyway, so it needs no mark.
        self.metered.intersection_update({key[0] for key in self._lanes})

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._lanes)

    @property
    def leases(self) -> int:
        """How many leases there are."""
        return len(self._leases)

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
            return Totals(
                len(leases),
                sum(max(0, lease.free) + lease.held for lease in leases),
                sum(lease.under_way for lease in leases),
            )
