"""Back pressure: how much the requests in hand may hold together."""

from __future__ import annotations

from typing import Final

REQUEST_BYTES: Final = 4096
"""What a request costs beside its body."""

_EVENTS_SHARE: Final = 0.5
"""Part of the room that event batches may fill, so that a flood of them never refuses a call."""


class Load:
    """Counts the bytes of requests that are being read, decided or committed.

    Args:
        bytes_max: most bytes in hand; a request that would go over it is to be refused.
    """

    __slots__ = ("_bytes_max", "in_hand", "refused")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.in_hand = 0
        self.refused = 0

    def take(self, size: int, *, events: bool = False) -> bool:
        """Count bytes in; False, and nothing counted, when there is no room for them.

        Something always fits when nothing else is in hand.

        >>> load = Load(10)
        >>> load.take(8), load.take(8), load.give_back(8), load.take(11)
        (True, False, None, True)
        """
        most = self._bytes_max * _EVENTS_SHARE if events else self._bytes_max
        if self.in_hand and self.in_hand + size > most:
            self.refused += 1
            return False
        self.in_hand += size
        return True

    def give_back(self, size: int) -> None:
        """Count bytes out: the request is answered."""
        self.in_hand -= size
