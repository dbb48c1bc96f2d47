"""How often a password may be tried: by known devices, and by everyone else."""

from __future__ import annotations

import collections
from typing import Final, Literal

Kind = Literal["address", "name", "device"]

FREE: Final[dict[Kind, int]] = {"address": 5, "name": 10, "device": 10}
"""Failures in a row that cost no time."""
_WAIT_MAX_MS: Final[dict[Kind, int]] = {"address": 300_000, "device": 30_000}
"""The longest wait, which doubles from a second on with each failure."""
NAME_INTERVAL_MS: Final = 2000
"""Between two checks of a name's password for browsers that are not known."""
LINE_MAX_MS: Final = 40_000
"""How long such an attempt waits in line at most: twenty of them."""
STRANGERS_MAX: Final = 32
"""Such attempts under way, for all names."""
_FORGET_MS: Final = 900_000
_TRACKED_MAX: Final = 10_000


class ThrottledError(Exception):
    """Too many attempts; the next one is accepted after ``retry_after_ms``."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {-(-retry_after_ms // 1000)} s")
        self.retry_after_ms = retry_after_ms


class Throttle:
    """Decides whether an attempt is refused, and how long it waits in line. Pure: time is given.

    A known device waits for its own failures alone. Others wait for those of their address; and
    once a name has had too many failures, its password is checked at intervals, in the order of
    asking, one attempt of each address. So strangers keep nobody out: they are in line as well.
    Each process counts on its own.
    """

    def __init__(self) -> None:
        # Of each kind: failures in a row, and the time of the last check. The oldest first, and
        # dropped when there are too many.
        self._failures: dict[Kind, collections.OrderedDict[str, tuple[int, int]]] = {
            kind: collections.OrderedDict() for kind in FREE
        }
        # Addresses with an attempt under way.
        self._busy: set[str] = set()

    def enter_known(self, now_ms: int, device: str) -> None:
        """Let an attempt from a known device in; it counts as failed until it succeeds.

        Raises:
            ThrottledError: the device has failed too often.
        """
        self._require(now_ms, "device", device)
        self._count("device", device, now_ms, now_ms)

    def enter(self, now_ms: int, address: str, name: str) -> int:
        """Return how long an attempt waits in line, in milliseconds; it counts as failed.

        :meth:`left` has to follow.

        Raises:
            ThrottledError: the address has failed too often or has an attempt under way, or the
                line is full.
        """
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
        """Forget the failures of an address that has signed in; the name's stay."""
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
