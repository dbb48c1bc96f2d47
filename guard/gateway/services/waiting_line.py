"""The line: calls that wait for money that is set aside, and which to wake when some comes back.

The request of a waiting call is not held open here. The call asks again when it is woken, and after
a while by itself: so no caller that has gone is granted money, a lost wake-up costs a second, and a
gateway that restarts gets its line back. Order is kept within a replica; money that comes back at
one of them wakes calls that wait at the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import attrs

from guard.core import wire
from guard.gateway.domain.commands import EncodedAnswer, RequestOrigin
from guard.gateway.domain.waiting import LAPSE_MS, RETRY_MS, Place, Waiter

WAITING_MAX: Final = 10_000
"""Maximum places in one organisation's line; a call that comes then is refused."""

Push = Callable[[str, str, Sequence[str]], object]


TOLD_MS: Final = RETRY_MS
"""How often other replicas are notified that calls still wait here; they forget it otherwise."""


class LinePeers(Protocol):
    """Other replicas on the same store."""

    def tell_waiting(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Notify them that calls wait here for money of some balances."""

    def announce_room(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Notify them that money has come back on some balances."""


@attrs.define(eq=False)
class _Entry:
    """A place in line.

    Attributes:
        waiter: the waiting call, as the ledger sees it.
        key_id: the key whose channels are woken.
        from_ms: when money that it may use came back last, or when the call asked first.
        seen_ms: when the call asked last; a place lapses ``LAPSE_MS`` after that.
        is_woken: whether a wake-up was sent since the call asked last. It gets no second one.
    """

    waiter: Waiter
    key_id: str
    from_ms: int
    seen_ms: int
    is_woken: bool = False


class _Line:
    """One organisation's line. It has an entry in :class:`WaitingLine` while it is not empty."""

    def __init__(self) -> None:
        # By key and call id, in the order in which the calls asked first.
        self.entries: dict[tuple[str, str], _Entry] = {}
        # The entries' waiters, in the same order. Immutable, since commands carry it along: a
        # command that is queued, or runs twice, decides by the line as it was.
        self.waiters: tuple[Waiter, ...] = ()
        # When money came back last, on any balance. A call that lost its place meanwhile, or that
        # is in a transaction while money comes back, counts its wait from then.
        self.freed_ms = 0
        # The balances that other replicas were last notified of, and when.
        self.told: frozenset[int] = frozenset()
        self.told_ms = 0

    def changed(self) -> None:
        """Restore the order, and ``waiters``, after a change of ``entries``."""
        found = sorted(self.entries.items(), key=lambda item: item[1].waiter.turn)
        self.entries = dict(found)
        self.waiters = tuple([entry.waiter for _, entry in found])


class WaitingLine:
    """The lines of this process, one for each organisation. Used on the loop only, without awaits.

    Args:
        push: notifies the channels of a key which calls are to ask again.
        clock_ms: the gateway's clock.
        peers: other replicas on the same store, if there may be any.
    """

    def __init__(
        self, push: Push, clock_ms: Callable[[], int], peers: LinePeers | None = None
    ) -> None:
        self._push = push
        self._clock_ms = clock_ms
        self._peers = peers
        # By organisation: the balances that calls at other replicas wait for, each with the time at
        # which that is forgotten unless the replica repeats it. A replica that dies says nothing.
        self._elsewhere: dict[str, dict[int, int]] = {}
        # By organisation; one without a waiting call has no entry.
        self._lines: dict[str, _Line] = {}

    def count(self) -> int:
        """Return how many calls wait, in all lines."""
        for organisation_id, line in list(self._lines.items()):
            self._lapse(organisation_id, line)
        return sum(len(line.entries) for line in self._lines.values())

    def waiters(self, organisation_id: str) -> tuple[Waiter, ...]:
        """Return the waiting calls, in order."""
        line = self._lines.get(organisation_id)
        if line is None:
            return ()
        self._lapse(organisation_id, line)
        return line.waiters

    def place(self, request: RequestOrigin, call: wire.GateRequest) -> Place | None:
        """Return the place of a call that would wait; ``None`` for one that does not."""
        if not call.wait_ms:
            return None
        now_ms = self._clock_ms()
        line = self._lines.get(request.organisation_id)
        entry = None if line is None else line.entries.get((request.key_id, call.call_id))
        # 1. It has a place.
        if entry is not None:
            return Place(entry.waiter.since_ms, entry.from_ms, call.wait_ms)
        # 2. There is no room for it.
        if line is not None and len(line.entries) >= WAITING_MAX:
            return None
        # 3. It comes for the first time, or has waited elsewhere: at a gateway that was restarted
        # since, or at another replica. It says itself how long, so that it keeps its turn.
        since_ms = max(0, now_ms - call.waited_ms)
        idle_ms = call.waited_ms if call.idle_ms is None else call.idle_ms
        from_ms = max(since_ms, now_ms - idle_ms, 0 if line is None else line.freed_ms)
        return Place(since_ms, from_ms, call.wait_ms)

    def has(self, request: RequestOrigin, call: wire.GateRequest) -> bool:
        """Return whether a call has a place: it has asked before."""
        line = self._lines.get(request.organisation_id)
        return line is not None and (request.key_id, call.call_id) in line.entries

    def decided(
        self, request: RequestOrigin, call: wire.GateRequest, place: Place, answer: EncodedAnswer
    ) -> None:
        """Apply the decision on a call that would wait: it gets or keeps its place, or leaves it.

        The place is taken only now, after the commit. Money that came back during the transaction
        found no entry to wake; the call asks again by itself within ``RETRY_MS``.
        """
        organisation_id, name = request.organisation_id, (request.key_id, call.call_id)
        line = self._lines.get(organisation_id)
        if answer.waits is not None:
            if line is None:
                line = self._lines[organisation_id] = _Line()
            self._waits(line, organisation_id, name, answer.waits, place)
            self._tell_waiting(organisation_id, line, answer.waits)
        else:
            self.left(request, call.call_id)

    def _waits(
        self,
        line: _Line,
        organisation_id: str,
        name: tuple[str, str],
        waiter: Waiter,
        place: Place,
    ) -> None:
        now_ms = self._clock_ms()
        entry = line.entries.get(name)
        # 1. It is new.
        if entry is None:
            from_ms = max(place.from_ms, line.freed_ms)  # some may have come back meanwhile
            line.entries[name] = _Entry(waiter, name[0], from_ms, now_ms)
            line.changed()
            return
        # 2. It has asked again, and still waits: it can be woken again.
        was_woken, entry.is_woken = entry.is_woken, False
        entry.seen_ms = now_ms
        if entry.waiter != waiter:
            entry.waiter = waiter
            line.changed()
        # 3. What woke it is too little for it. Until it blocks smaller calls behind it, that may be
        # enough for one of them, which was not woken: only the first in line is.
        if was_woken and now_ms < waiter.blocks_from_ms:
            self._wake_next(organisation_id, line, waiter, below=waiter.amount)

    def left(self, request: RequestOrigin, call_id: str) -> bool:
        """Give up a call's place, as it is decided or its caller has gone.

        Returns:
            Whether it had one.
        """
        # The next one is woken, also where the call was granted money: it may have needed less than
        # what came back, and it may have blocked smaller calls.
        line, name = self._lines.get(request.organisation_id), (request.key_id, call_id)
        if line is None or name not in line.entries:
            return False
        ended = line.entries.pop(name)
        self._changed(request.organisation_id, line)
        self._wake_next(request.organisation_id, line, ended.waiter)
        return True

    def freed(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Handle money that has come back here, as a commit reports: notify peers, wake a call."""
        if self._peers is not None and self._elsewhere:
            told = self.awaited(organisation_id).intersection(balance_ids)
            if told:
                self._peers.announce_room(organisation_id, told)
        self.freed_at_peer(organisation_id, balance_ids)

    def freed_at_peer(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Restart the waits for money that has come back anywhere, and wake the first of them.

        One call at a time: if all of them asked again, all but the first would do so for nothing.
        """
        line = self._lines.get(organisation_id)
        if line is None:
            return
        self._lapse(organisation_id, line)
        freed, now_ms = frozenset(balance_ids), self._clock_ms()
        line.freed_ms = now_ms
        is_first = True
        for entry in line.entries.values():
            if entry.waiter.balance_ids & freed:
                entry.from_ms = now_ms
                if is_first:
                    self._wake(organisation_id, entry)
                is_first = False

    def stirred(self, organisation_id: str) -> None:
        """Wake all calls of an organisation, as its limits may have changed."""
        line = self._lines.get(organisation_id)
        for entry in () if line is None else line.entries.values():
            self._wake(organisation_id, entry)

    # -- other replicas ---------------------------------------------------------------------------

    def waits_at_peer(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Note that calls wait at another replica for money of some balances."""
        until_ms = self._clock_ms() + LAPSE_MS
        known = self._elsewhere.setdefault(organisation_id, {})
        known.update(dict.fromkeys(balance_ids, until_ms))

    def awaited(self, organisation_id: str) -> frozenset[int]:
        """Return the balances that calls at other replicas wait for."""
        known = self._elsewhere.get(organisation_id)
        if known is None:
            return frozenset()
        now_ms = self._clock_ms()
        live = {each: until_ms for each, until_ms in known.items() if until_ms > now_ms}
        if live:
            self._elsewhere[organisation_id] = live
        else:
            del self._elsewhere[organisation_id]
        return frozenset(live)

    def _tell_waiting(self, organisation_id: str, line: _Line, newest: Waiter) -> None:
        """Notify other replicas of the balances waited for here: new ones at once, all regularly.

        Each notice has all of them, since those at the peers are forgotten after a while.
        """
        now_ms = self._clock_ms()
        is_due = now_ms >= line.told_ms + TOLD_MS or not newest.balance_ids <= line.told
        if self._peers is not None and is_due:
            wanted = frozenset[int]().union(*(waiter.balance_ids for waiter in line.waiters))
            line.told, line.told_ms = wanted, now_ms
            self._peers.tell_waiting(organisation_id, wanted)

    # -- one line ---------------------------------------------------------------------------------

    def _wake(self, organisation_id: str, entry: _Entry) -> None:
        if not entry.is_woken:
            entry.is_woken = True
            self._push(organisation_id, entry.key_id, [entry.waiter.call_id])

    def _wake_next(
        self, organisation_id: str, line: _Line, before: Waiter, below: int | None = None
    ) -> None:
        """Wake the first other call that waits for the same money and needs less than ``below``."""
        for entry in line.entries.values():
            waiter = entry.waiter
            if (
                waiter is not before
                and waiter.balance_ids & before.balance_ids
                and (below is None or (waiter.amount < below and not entry.is_woken))
            ):
                self._wake(organisation_id, entry)
                return

    def _lapse(self, organisation_id: str, line: _Line) -> None:
        """Remove the places of calls that ask no more: their callers have gone."""
        long_ago_ms = self._clock_ms() - LAPSE_MS
        gone = [name for name, entry in line.entries.items() if entry.seen_ms < long_ago_ms]
        for name in gone:
            del line.entries[name]
        if gone:
            self._changed(organisation_id, line)

    def _changed(self, organisation_id: str, line: _Line) -> None:
        line.changed()
        if not line.entries:
            del self._lines[organisation_id]
