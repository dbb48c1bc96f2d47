"""The line: calls that wait for money that is only set aside, and whom to wake when some returns.

A call that waits is not held open here. It asks again when it is woken, or after a while; so nobody
is given money who has gone, and a gateway that restarts finds its line again. Order is kept within
one replica; money that comes back at one wakes those who wait at the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import attrs

from guard.core import wire
from guard.gateway.domain.commands import EncodedAnswer, RequestOrigin
from guard.gateway.domain.waiting import LAPSE_MS, RETRY_MS, Place, Waiter

WAITING_MAX: Final = 10_000
"""Places in one organisation's line; who comes then does not wait."""

Push = Callable[[str, str, Sequence[str]], object]


TOLD_MS: Final = RETRY_MS
"""Other replicas are told again after so long that calls still wait here."""


class LinePeers(Protocol):
    """Other replicas on the same store."""

    def tell_waiting(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Tell them that calls wait here for money of some balances."""

    def tell_room(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Tell them that money has come back on some balances."""


@attrs.define(eq=False)
class _Entry:
    """A place that is taken.

    Attributes:
        waiter: as the ledger sees it.
        key_id: whose channels are woken.
        from_ms: when money came back last that it may use, or when it was asked first.
        seen_ms: when it was asked for last.
        is_woken: whether it was told to ask again, and has not yet.
    """

    waiter: Waiter
    key_id: str
    from_ms: int
    seen_ms: int
    is_woken: bool = False


class _Line:
    """One organisation's line: the entries in the order of asking, and who waits in them."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], _Entry] = {}
        self.waiters: tuple[Waiter, ...] = ()
        # When money came back last: who has lost a place in between waits on from then.
        self.freed_ms = 0
        # What other replicas were told last that is waited for here, and when.
        self.told: frozenset[int] = frozenset()
        self.told_ms = 0

    def changed(self) -> None:
        """Bring the order up to date."""
        found = sorted(self.entries.items(), key=lambda item: item[1].waiter.turn)
        self.entries = dict(found)
        self.waiters = tuple([entry.waiter for _, entry in found])


class WaitingLine:
    """The lines of this process, one for each organisation. Used on the loop only.

    Args:
        push: tells the channels of a key which calls are to ask again.
        clock_ms: the gateway's clock.
        peers: other replicas, where money may come back and be waited for.
    """

    def __init__(
        self, push: Push, clock_ms: Callable[[], int], peers: LinePeers | None = None
    ) -> None:
        self._push = push
        self._clock_ms = clock_ms
        self._peers = peers
        # What is waited for at other replicas, until they have to say so again; by organisation.
        self._elsewhere: dict[str, dict[int, int]] = {}
        # An organisation in whose line nobody waits has no entry.
        self._lines: dict[str, _Line] = {}

    def count(self) -> int:
        """Return how many wait, in all lines."""
        for organisation_id, line in list(self._lines.items()):
            self._lapse(organisation_id, line)
        return sum(len(line.entries) for line in self._lines.values())

    def waiters(self, organisation_id: str) -> tuple[Waiter, ...]:
        """Return who waits, in order."""
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
        if entry is not None:
            return Place(entry.waiter.since_ms, entry.from_ms, call.wait_ms)
        if line is not None and len(line.entries) >= WAITING_MAX:
            return None
        since_ms = max(0, now_ms - call.waited_ms)  # before this gateway was started, perhaps
        idle_ms = call.waited_ms if call.idle_ms is None else call.idle_ms
        from_ms = max(since_ms, now_ms - idle_ms, 0 if line is None else line.freed_ms)
        return Place(since_ms, from_ms, call.wait_ms)

    def has(self, request: RequestOrigin, call: wire.GateRequest) -> bool:
        """Tell whether a call has a place: it has asked before."""
        line = self._lines.get(request.organisation_id)
        return line is not None and (request.key_id, call.call_id) in line.entries

    def decided(
        self, request: RequestOrigin, call: wire.GateRequest, place: Place, answer: EncodedAnswer
    ) -> None:
        """Take in what became of a call with a place: it waits, or its place is free."""
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
        if entry is None:
            from_ms = max(place.from_ms, line.freed_ms)  # some may have come back meanwhile
            line.entries[name] = _Entry(waiter, name[0], from_ms, now_ms)
            line.changed()
            return
        was_woken, entry.is_woken = entry.is_woken, False
        entry.seen_ms = now_ms
        if entry.waiter != waiter:
            entry.waiter = waiter
            line.changed()
        # What came back is too little for it. Until it blocks the line, that may do for others.
        if was_woken and now_ms < waiter.blocks_from_ms:
            self._wake_next(organisation_id, line, waiter, below=waiter.amount)

    def left(self, request: RequestOrigin, call_id: str) -> bool:
        """Give up a place whose caller has gone; tell whether there was one."""
        line, name = self._lines.get(request.organisation_id), (request.key_id, call_id)
        if line is None or name not in line.entries:
            return False
        ended = line.entries.pop(name)
        self._changed(request.organisation_id, line)
        self._wake_next(request.organisation_id, line, ended.waiter)
        return True

    def freed(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Money has come back here: the waits for it start anew, and the first asks again."""
        if self._peers is not None and self._elsewhere:
            told = self.awaited(organisation_id).intersection(balance_ids)
            if told:
                self._peers.tell_room(organisation_id, told)
        self.freed_at_peer(organisation_id, balance_ids)

    def freed_at_peer(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Money has come back, here or at another replica."""
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
        """Limits may have changed: everybody asks again."""
        line = self._lines.get(organisation_id)
        for entry in () if line is None else line.entries.values():
            self._wake(organisation_id, entry)

    # -- other replicas ---------------------------------------------------------------------------

    def waits_at_peer(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Calls wait at another replica for money of some balances."""
        until_ms = self._clock_ms() + LAPSE_MS
        known = self._elsewhere.setdefault(organisation_id, {})
        known.update(dict.fromkeys(balance_ids, until_ms))

    def awaited(self, organisation_id: str) -> frozenset[int]:
        """Return the balances whose money is waited for at other replicas."""
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
        """Tell other replicas what is waited for here: at once what is new, and now and then."""
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
        """Wake the first that waits for some of the same money, and needs less than ``below``."""
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
        """Give up the places that nobody asks for: their callers have gone."""
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
