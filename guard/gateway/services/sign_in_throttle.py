"""How often a password may be tried, from known devices and from other browsers."""

from __future__ import annotations

import collections
from typing import Final, Literal

Kind = Literal["address", "name", "device"]

FREE: Final[dict[Kind, int]] = {"address": 5, "name": 10, "device": 10}
"""Failures in a row that cost no time."""
_WAIT_MAX_MS: Final[dict[Kind, int]] = {"address": 300_000, "device": 30_000}
"""The longest wait, which doubles from a second on with each failure."""
NAME_INTERVAL_MS: Final = 2000
"""Time between two checks of a name's password for browsers that are not known."""
LINE_MAX_MS: Final = 40_000
"""The longest time that such an attempt waits in line: twenty intervals."""
STRANGERS_MAX: Final = 32
"""Maximum attempts of unknown browsers under way, for all names together."""
_FORGET_MS: Final = 900_000
_TRACKED_MAX: Final = 10_000


class ThrottledError(Exception):
    """Too many attempts; the next one is accepted after ``retry_after_ms``."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {-(-retry_after_ms // 1000)} s")
        self.retry_after_ms = retry_after_ms


class Throttle:
    """Decides whether an attempt is refused, and how long it waits in line. Pure: time is given.

    A known device is slowed down by its own failures only. Other browsers are slowed down by the
    failures of their address. Once a name has had too many failures, its password is checked at
    intervals, in the order of asking, with one attempt of each address in line. So an attacker
    cannot lock an operator out: the operator's attempt is checked when its turn comes.

    Each process counts on its own. Used on the loop only.
    """

    def __init__(self) -> None:
        # By kind and value: the failures in a row, and the time of the newest check, which for a
        # name may be in the future (it is the end of the line). In the order of the attempts; the
        # oldest is dropped when there are too many.
        self._failures: dict[Kind, collections.OrderedDict[str, tuple[int, int]]] = {
            kind: collections.OrderedDict() for kind in FREE
        }
        # Addresses with an attempt under way, from :meth:`enter` to :meth:`left`.
        self._busy: set[str] = set()

    def enter_known(self, now_ms: int, device: str) -> None:
        """Admit an attempt from a known device; it counts as failed until it succeeds.

        Raises:
            ThrottledError: the device has failed too often.
        """
        self._require(now_ms, "device", device)
        self._count("device", device, now_ms, now_ms)

    def enter(self, now_ms: int, address: str, name: str) -> int:
        """Admit an attempt and return how long it waits in line, in milliseconds.

        It counts as failed until it succeeds, so that attempts at the same time count, too.
        :meth:`left` has to follow.

        Raises:
            ThrottledError: the address has failed too often or has an attempt under way, or the
                line is full.
        """
        # Nothing is counted before all checks have passed: a refused attempt changes nothing.
        self._require(now_ms, "address", address)
        if address in self._busy or len(self._busy) >= STRANGERS_MAX:
            raise ThrottledError(NAME_INTERVAL_MS)
        count, last_ms = self._failures["name"].get(name, (0, now_ms))
        turn_ms = now_ms
        if count >= FREE["name"]:
            turn_ms = max(now_ms, last_ms + NAME_INTERVAL_MS)
        if turn_ms - now_ms > LINE_MAX_MS:
            raise ThrottledError(turn_ms - now_ms - LINE_MAX_MS)
        self._busy.add(address)
        self._count("address", address, now_ms, turn_ms)
        self._count("name", name, now_ms, turn_ms)
        return turn_ms - now_ms

    def left(self, address: str) -> None:
        """Note that an attempt is over."""
        self._busy.discard(address)

    def succeeded_known(self, device: str) -> None:
        """Forget the failures of a device that has signed in."""
        self._failures["device"].pop(device, None)

    def succeeded(self, address: str, name: str) -> None:
        """Forget the failures of an address that has signed in, but of its name only this attempt.

        An attacker's failures of the same name stay, and keep slowing the attacker down.
        """
        self._failures["address"].pop(address, None)
        if name in self._failures["name"]:
            count, last_ms = self._failures["name"][name]
            self._failures["name"][name] = (count - 1, last_ms)

    def _require(self, now_ms: int, kind: Kind, value: str) -> None:
        count, last_ms = self._failures[kind].get(value, (0, 0))
        over = count - FREE[kind]
        if over < 0 or now_ms - last_ms >= _FORGET_MS:
            return
        wait_ms: int = min(1000 * 2 ** min(over, 20), _WAIT_MAX_MS[kind])
        if last_ms + wait_ms > now_ms:
            raise ThrottledError(last_ms + wait_ms - now_ms)

    def _count(self, kind: Kind, value: str, now_ms: int, turn_ms: int) -> None:
        tracked = self._failures[kind]
        count, last_ms = tracked.pop(value, (0, now_ms))
        if now_ms - last_ms >= _FORGET_MS:
            count = 0
        tracked[value] = (count + 1, turn_ms)
        if len(tracked) > _TRACKED_MAX:
            tracked.popitem(last=False)
