"""Recalls: asking the holders of leases for what they do not use, before a call is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs

WAIT_S: Final = 0.25
"""How long a refusal waits for the holders."""

SILENCE_S: Final = 1.0
"""A holder that did not answer in time is not waited for again for so long."""

_SILENT_MAX: Final = 10_000

Push = Callable[[str, Mapping[str, Sequence[str]], int], int]


class Peers(Protocol):
    """Other replicas on the same store."""

    def ask_peers(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int
    ) -> bool:
        """Have other replicas recall leases too; ``False`` when there are none."""

    def tell_peers(self, organisation_id: str, lease_id: str) -> None:
        """Tell them that a lease has given back what it does not use."""


@attrs.define(eq=False)
class Recalls:
    """The recalls under way in this process. Calls that are refused at once share them.

    Used on the loop only.

    Args:
        push: sends a recall of leases, by the key that holds them, to the sockets of an
            organisation, with the time in which what they do not use goes back at once; returns
            how many it is on its way to.
        peers: other replicas, whose sockets the holders may have.
        wait_s: how long a refusal waits for the holders.
        silence_s: how long a holder that did not answer is left alone.
    """

    _push: Push
    _peers: Peers | None = None
    _wait_s: float = attrs.field(default=WAIT_S, kw_only=True)
    _silence_s: float = attrs.field(default=SILENCE_S, kw_only=True)
    # Leases that a call at another replica waits for, with their organisation.
    _for_peers: dict[str, str] = attrs.field(factory=dict, init=False)
    # Leases that a call here waits for. All calls wait for one future: one recall serves them.
    _under_way: dict[str, asyncio.Future[None]] = attrs.field(factory=dict, init=False)
    # Until when a lease is not recalled again, because its holder did not answer.
    _silent_until_s: dict[str, float] = attrs.field(factory=dict, init=False)

    async def recall(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int = 0
    ) -> None:
        """Recall leases, and wait until each has answered or the time is over.

        Whatever has come back by then is in the store, also when another process has taken it in.

        Args:
            organisation_id: of the leases.
            leases: lease ids by the key that holds them.
            returns_ms: for so long, in milliseconds, a call may wait for what they hold.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        waiting: set[asyncio.Future[None]] = set()
        new: dict[str, list[str]] = {}
        for key_id, lease_ids in leases.items():
            for lease_id in lease_ids:
                if lease_id in self._under_way:
                    waiting.add(self._under_way[lease_id])
                elif self._silent_until_s.get(lease_id, 0.0) <= now_s:
                    new.setdefault(key_id, []).append(lease_id)
        # No await from here to the futures below: an answer cannot come before they are known.
        asked = bool(new) and self._push(organisation_id, new, returns_ms) > 0
        if new and self._peers is not None:
            asked = self._peers.ask_peers(organisation_id, new, returns_ms) or asked
        if asked:
            for lease_id in (each for lease_ids in new.values() for each in lease_ids):
                self._under_way[lease_id] = answer = loop.create_future()
                waiting.add(answer)
                loop.call_later(self._wait_s, self._give_up, lease_id, answer)
        if waiting:
            await asyncio.wait(waiting, timeout=self._wait_s)

    def asked_by_peer(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int
    ) -> None:
        """Ask the holders that are connected here, for another replica that waits."""
        if self._push(organisation_id, leases, returns_ms):
            found = [each for lease_ids in leases.values() for each in lease_ids]
            self._for_peers.update(dict.fromkeys(found, organisation_id))
            loop = asyncio.get_running_loop()
            loop.call_later(self._wait_s, self._forget_peers, found)

    def _forget_peers(self, lease_ids: Sequence[str]) -> None:
        for lease_id in lease_ids:
            self._for_peers.pop(lease_id, None)

    def is_recalled(self, lease_id: str) -> bool:
        """Tell whether a refusal waits for what a lease does not use."""
        return lease_id in self._under_way or lease_id in self._for_peers

    def answered(self, lease_id: str) -> None:
        """Note that a lease has given back what it does not use."""
        organisation_id = self._for_peers.pop(lease_id, None)
        if organisation_id is not None and self._peers is not None:
            self._peers.tell_peers(organisation_id, lease_id)
        self.answered_at_peer(lease_id)

    def answered_at_peer(self, lease_id: str) -> None:
        """Note that a lease has given back, here or at another replica."""
        self._silent_until_s.pop(lease_id, None)
        answer = self._under_way.pop(lease_id, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _give_up(self, lease_id: str, answer: asyncio.Future[None]) -> None:
        if answer.done():
            return
        answer.set_result(None)
        del self._under_way[lease_id]
        now_s = asyncio.get_running_loop().time()
        # Full: holders that are silent no longer go first. If it stays full, this one is not noted,
        # and the next refusal waits for it once more: slower, never wrong.
        if len(self._silent_until_s) >= _SILENT_MAX:
            self._silent_until_s = {
                name: until_s for name, until_s in self._silent_until_s.items() if until_s > now_s
            }
        if len(self._silent_until_s) < _SILENT_MAX:
            self._silent_until_s[lease_id] = now_s + self._silence_s
