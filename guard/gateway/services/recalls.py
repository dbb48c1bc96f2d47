"""Recalls: asking the holders of leases for what they do not use, before a call is refused.

All of it is an optimisation of refusals. Holders answer by an ordinary question or update of their
lease, which commits what they give back; the recall only waits for that. So a recall, or an answer,
that is lost costs a refusal that need not have been, and never money.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import attrs

WAIT_S: Final = 0.25
"""How long a refusal waits for the holders."""

SILENCE_S: Final = 1.0
"""How long a lease whose holder did not answer in time is not recalled again."""

IGNORING_MAX: Final = 10_000
"""Maximum keys that are remembered as not answering; a new one replaces the oldest."""

_SILENT_MAX: Final = 10_000
"""Maximum leases that are remembered as not answering."""

Push = Callable[[str, Mapping[str, Sequence[str]], int], int]


class Peers(Protocol):
    """Other replicas on the same store."""

    def ask_peers(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int
    ) -> bool:
        """Have other replicas recall leases too; ``False`` when there are none."""

    def tell_peers(self, organisation_id: str, lease_id: str) -> None:
        """Notify them that a lease has given back what it does not use."""


class _Asked(NamedTuple):
    """A lease that a call here waits for."""

    key_id: str
    answer: asyncio.Future[None]


class _Silent(NamedTuple):
    """A lease that is not recalled again until a time, because its holder did not answer."""

    key_id: str
    until_s: float


@attrs.define(eq=False)
class Recalls:
    """The recalls under way in this process, shared by calls that are refused at the same time.

    Used on the loop only. Only :meth:`recall` awaits, and it changes nothing after that.

    Args:
        push: sends a recall of leases, by the key that holds them, to the sockets of an
            organisation, with the time in which what they do not use goes back at once; returns
            the number of sockets.
        peers: other replicas, which the holders may be connected to.
        wait_s: how long a refusal waits for the holders.
        silence_s: how long a holder that did not answer is left alone.
    """

    _push: Push
    _peers: Peers | None = None
    _wait_s: float = attrs.field(default=WAIT_S, kw_only=True)
    _silence_s: float = attrs.field(default=SILENCE_S, kw_only=True)
    # Leases that a call at another replica waits for, with their organisation. Removed by the
    # answer, or after ``wait_s``.
    _for_peers: dict[str, str] = attrs.field(factory=dict, init=False)
    # Leases that a call here waits for, each with the one future that all such calls wait for.
    # Removed by the answer, or after ``wait_s``: a future in here is never done.
    _under_way: dict[str, _Asked] = attrs.field(factory=dict, init=False)
    # Leases whose holder did not answer; those of which the time is over are removed when it is
    # full. A late answer removes its lease.
    _silent: dict[str, _Silent] = attrs.field(factory=dict, init=False)
    # Keys that have not answered since a recall went unanswered; the newest last. Their leases are
    # kept small, so that they hold nothing that would have to be recalled.
    _ignoring: dict[str, None] = attrs.field(factory=dict, init=False)

    async def recall(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int = 0
    ) -> None:
        """Recall leases, and wait until each has answered or the time is over.

        What has come back by then is committed, by this process or another one.

        Args:
            organisation_id: of the leases.
            leases: lease ids by the key that holds them.
            returns_ms: how long the holders are to give back at once what they do not use, in
                milliseconds.
        """
        now_s = asyncio.get_running_loop().time()
        waiting: set[asyncio.Future[None]] = set()
        new: dict[str, list[str]] = {}
        for key_id, lease_ids in leases.items():
            for lease_id in lease_ids:
                if lease_id in self._under_way:
                    waiting.add(self._under_way[lease_id].answer)
                elif not self._is_silent(lease_id, now_s):
                    new.setdefault(key_id, []).append(lease_id)
        waiting |= self._ask(organisation_id, new, returns_ms)
        if waiting:
            await asyncio.wait(waiting, timeout=self._wait_s)

    def ask_again(self, organisation_id: str, key_id: str, lease_id: str) -> None:
        """Recall a new lease of a key that ignored a recall, to find out whether it answers now.

        No call waits for it. The holder that ignored the recall may have been another process of
        the same key, which is gone.
        """
        is_asked = lease_id in self._under_way or self._is_silent(
            lease_id, asyncio.get_running_loop().time()
        )
        if key_id in self._ignoring and not is_asked:
            self._ask(organisation_id, {key_id: [lease_id]}, 0)

    def _is_silent(self, lease_id: str, now_s: float) -> bool:
        known = self._silent.get(lease_id)
        return known is not None and known.until_s > now_s

    def _ask(
        self, organisation_id: str, new: Mapping[str, Sequence[str]], returns_ms: int
    ) -> set[asyncio.Future[None]]:
        """Push a recall of leases; return the answers to wait for, none if no holder is reached."""
        # No await from here to the futures below: an answer cannot be handled before they exist.
        asked = bool(new) and self._push(organisation_id, new, returns_ms) > 0
        if new and self._peers is not None:
            asked = self._peers.ask_peers(organisation_id, new, returns_ms) or asked
        if not asked:
            return set()
        loop = asyncio.get_running_loop()
        answers: set[asyncio.Future[None]] = set()
        for key_id, lease_ids in new.items():
            for lease_id in lease_ids:
                self._under_way[lease_id] = each = _Asked(key_id, loop.create_future())
                answers.add(each.answer)
                loop.call_later(self._wait_s, self._give_up, lease_id, each)
        return answers

    def asked_by_peer(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int
    ) -> None:
        """Recall leases on behalf of another replica, which waits for them."""
        if self._push(organisation_id, leases, returns_ms):
            for lease_ids in leases.values():
                self._for_peers.update(dict.fromkeys(lease_ids, organisation_id))
            loop = asyncio.get_running_loop()
            loop.call_later(self._wait_s, self._forget_peers, leases)

    def _forget_peers(self, leases: Mapping[str, Sequence[str]]) -> None:
        # Those that are still in there were not answered in time.
        for key_id, lease_ids in leases.items():
            for lease_id in lease_ids:
                if self._for_peers.pop(lease_id, None) is not None:
                    self._note_ignored(key_id)

    def is_recalled(self, lease_id: str) -> bool:
        """Return whether a refusal, here or at a peer, waits for what a lease does not use."""
        return lease_id in self._under_way or lease_id in self._for_peers

    def is_ignored_by(self, key_id: str) -> bool:
        """Return whether a key has not answered since a recall went unanswered.

        As far as this process knows, which only sees the recalls that it sent itself.
        """
        return key_id in self._ignoring

    def answered(self, lease_id: str) -> None:
        """Note that a lease has given back what it does not use; called after the commit."""
        organisation_id = self._for_peers.pop(lease_id, None)
        if organisation_id is not None and self._peers is not None:
            self._peers.tell_peers(organisation_id, lease_id)
        self.answered_at_peer(lease_id)

    def answered_at_peer(self, lease_id: str) -> None:
        """Note that a lease has given back, here or at another replica."""
        silent = self._silent.pop(lease_id, None)
        if silent is not None and silent.until_s > asyncio.get_running_loop().time():
            self._ignoring.pop(silent.key_id, None)  # late, but it is an answer
        asked = self._under_way.pop(lease_id, None)
        if asked is not None:
            self._ignoring.pop(asked.key_id, None)
            if not asked.answer.done():
                asked.answer.set_result(None)

    def _note_ignored(self, key_id: str) -> None:
        self._ignoring.pop(key_id, None)
        self._ignoring[key_id] = None
        if len(self._ignoring) > IGNORING_MAX:
            del self._ignoring[next(iter(self._ignoring))]

    def _give_up(self, lease_id: str, asked: _Asked) -> None:
        # Answered in time. The lease may be under recall once more by now, with another future.
        if asked.answer.done():
            return
        asked.answer.set_result(None)
        del self._under_way[lease_id]
        self._note_ignored(asked.key_id)
        now_s = asyncio.get_running_loop().time()
        # Full: those whose time is over are removed. If it stays full, this one is not noted, and
        # the next refusal waits for it once more: slower, never wrong.
        if len(self._silent) >= _SILENT_MAX:
            self._silent = {
                name: each for name, each in self._silent.items() if each.until_s > now_s
            }
        if len(self._silent) < _SILENT_MAX:
            self._silent[lease_id] = _Silent(asked.key_id, now_s + self._silence_s)
