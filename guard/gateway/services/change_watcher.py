"""Wakes listeners within the process when the data of their organisation changes."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.usage import Watermark
from guard.gateway.storage.port import Storage

INTERVAL_S: Final = 0.25
LISTENERS_MAX: Final = 500
_OF_CONNECTIONS: Final = 0.1
"""Share of the server's connections for the streams of open pages."""
_OF_ONE: Final = 0.8
"""Share of these for one organisation."""

logger = logging.getLogger(__name__)


class ChangeListener:
    """One listener; wait with :meth:`wait`."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Report a change."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change; ``False`` when none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class ChangeWatcher:
    """Polls the watermarks of the organisations that have listeners, and wakes them on a change.

    One cheap query per organisation and interval, however many listeners it has. It also works
    with several gateways on one store.

    Args:
        storage: has the watermarks.
        connections_max: of the server, of which listeners may use a share.
    """

    def __init__(self, storage: Storage, connections_max: int = 10 * LISTENERS_MAX) -> None:
        self._storage = storage
        self._most = max(2, min(LISTENERS_MAX, int(connections_max * _OF_CONNECTIONS)))
        # By organisation; one without listeners is not asked about.
        self._listeners: dict[str, set[ChangeListener]] = {}
        # What was last seen of each; the first look wakes no listener, since its page is new.
        self._watermarks: dict[str, Watermark] = {}
        # Set by each subscription, and cleared by :meth:`run` when no listener is left: without
        # any, the store is not queried.
        self._wanted = asyncio.Event()
        # Whether the last look succeeded. Pages show when it did not, and are woken to do so.
        self.healthy = True
        # From :meth:`close` on; listeners have to end.
        self.closing = False

    def is_full(self, organisation_id: str) -> bool:
        """Return whether there are too many listeners for another one of an organisation."""
        own = len(self._listeners.get(organisation_id, ()))
        everyones = sum(len(group) for group in self._listeners.values())
        return everyones >= self._most or own >= max(1, int(self._most * _OF_ONE))

    def subscribe(self, organisation_id: str) -> ChangeListener:
        """Open a listener."""
        listener = ChangeListener()
        self._listeners.setdefault(organisation_id, set()).add(listener)
        self._wanted.set()
        return listener

    def unsubscribe(self, organisation_id: str, listener: ChangeListener) -> None:
        """Close a listener."""
        group = self._listeners.get(organisation_id, set())
        group.discard(listener)
        if not group:
            self._listeners.pop(organisation_id, None)
            self._watermarks.pop(organisation_id, None)

    def close(self) -> None:
        """Wake every listener so that it can end."""
        self.closing = True
        self._wake_all()

    def _wake_all(self) -> None:
        for group in self._listeners.values():
            for listener in group:
                listener.wake()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._wanted.wait()
            if not self._listeners:
                self._wanted.clear()
                continue
            await self._look()
            await asyncio.sleep(INTERVAL_S)

    async def _look(self) -> None:
        # A snapshot: listeners come and go while the query runs.
        known = {organisation_id: self._watermarks.get(organisation_id) for organisation_id in
                 self._listeners}  # fmt: skip
        try:
            found = await self._storage.watermarks(known)
        except Exception as exc:
            # One failed look does not end the watch. A failure of the store is expected; anything
            # else is a defect, and needs its place.
            if self.healthy:
                logger.warning(
                    "the dashboard cannot read the store: %s", exc,
                    exc_info=not isinstance(exc, StoreError),
                )  # fmt: skip
            self.healthy = False
            self._wake_all()
            return
        recovered, self.healthy = not self.healthy, True
        for organisation_id, watermark in found.items():
            changed = recovered or known.get(organisation_id) not in (None, watermark)
            # Its last listener may have gone meanwhile: nothing would remove the watermark then.
            if organisation_id in self._listeners:
                self._watermarks[organisation_id] = watermark
            for listener in self._listeners.get(organisation_id, ()) if changed else ():
                listener.wake()
