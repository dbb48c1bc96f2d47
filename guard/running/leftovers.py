"""Charges what the processes of a run have left undelivered, soon after their end.

What delivers is imported when something is left: a program would wait for it otherwise, before it
starts.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from guard.gateway.domain.key_hierarchy import owner_of as key_above
from guard.running import plan, reports
from guard.running.repeating import repeating

if TYPE_CHECKING:
    from guard.delivery.spool import Spool
    from guard.settings import Settings

_LIVING_S: Final = 2.0
"""How long processes that outlive the program may take to deliver their events."""

_POLL_S: Final = 0.05
_LOOK_S: Final = 0.5
_JOIN_S: Final = 5.0


class Leftovers:
    """The events and open requests that ended processes of a run have not delivered.

    Called by the thread of :meth:`charging` while the run lasts, then by the main thread.

    Args:
        directory: the directory of the run.
        url: the URL of the gateway.
        api_key, hmac_secret: those of the run.
    """

    def __init__(self, directory: Path, url: str, api_key: str, hmac_secret: str) -> None:
        self._directory = directory
        self._gateway = {"api_url": url, "api_key": api_key, "hmac_secret": hmac_secret}

    def charging(self) -> contextlib.AbstractContextManager[None]:
        """While the block lasts, charge what each process has left soon after the process's end."""
        return repeating(self._look, _LOOK_S, "guard-leftovers", _JOIN_S)

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            self._charge(also_living=False)

    def charge_all(self) -> int:
        """Charge what all processes have left, also those that still live, within a bounded time.

        Returns:
            How many events could not be delivered.
        """
        ends_s = time.monotonic() + _LIVING_S
        while time.monotonic() < ends_s and any(
            _any_lives(directory / plan.SPOOL)
            for directory in (self._directory, *self._abandoned())
        ):
            time.sleep(_POLL_S)
        # The living ones' as well: the run's key is revoked next, so they could not be charged
        # later.
        return self._charge(also_living=True)

    def remove(self) -> None:
        """Remove the directories of the run, and of the killed runs within it."""
        for directory in (*self._abandoned(), self._directory):
            shutil.rmtree(directory, ignore_errors=True)

    def _charge(self, *, also_living: bool) -> int:
        left = self._charge_in(self._directory, also_living=also_living, of_all=False)
        for directory in self._abandoned():
            left += self._charge_in(directory, also_living=also_living, of_all=True)
        return left

    def _charge_in(self, directory: Path, *, also_living: bool, of_all: bool) -> int:
        place = directory / plan.SPOOL
        if not place.is_dir():
            return 0
        from guard.delivery.spool import Spool, SpoolError, owner_of
        from guard.settings import Settings

        settings = Settings.load({}, spool_dir=self._directory / plan.SPOOL, **self._gateway)
        owner = owner_of(settings.api_url, settings.api_key)
        spool = Spool(place, owner, bytes_max=settings.spool_max_bytes)
        try:
            spool.take_over(also_living=also_living, of_all=of_all)
            if spool.noted() or spool.count():
                import asyncio

                asyncio.run(_deliver(settings, spool))
            return spool.count()
        except SpoolError:
            return 1  # not 0: how many there are is unknown
        finally:
            spool.close()

    def _abandoned(self) -> list[Path]:
        """Return the directories of the runs within this one whose ``guard run`` was killed.

        Their keys are revoked, so what they have left is charged to this run's.
        """
        return list(_abandoned_in(self._directory))


def _abandoned_in(directory: Path) -> Iterator[Path]:
    outer = reports.place_of(directory)
    for pid in reports.nested(directory) if outer is not None else ():
        found = reports.nested_in(directory, pid)
        inner = None if found is None else reports.place_of(found)
        if found and inner and outer and key_above(inner.key_id) == outer.key_id:
            yield found
            yield from _abandoned_in(found)


def _any_lives(place: Path) -> bool:
    """Tell whether a living process writes a journal there."""
    if not place.is_dir():
        return False
    from guard.delivery.journal import live_journals

    return live_journals(place) > 0


async def _deliver(settings: Settings, spool: Spool) -> None:
    from guard.breaker.exceptions import GuardError
    from guard.delivery.flusher import Flusher
    from guard.delivery.outbox import Outbox
    from guard.transport.client import GatewayClient

    outbox = Outbox(settings, lambda: True)
    client = GatewayClient(settings, outbox.health.heard)
    flusher = Flusher(outbox, client, settings, on_error=lambda exc: None, spool=spool)
    try:
        with contextlib.suppress(GuardError):
            await flusher.flush()
    finally:
        await client.close()
