"""What the processes of a run have left undelivered: charged before the run reports its spend."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final

from guard.breaker.exceptions import GuardError
from guard.delivery.flusher import Flusher
from guard.delivery.journal import live_journals
from guard.delivery.outbox import Outbox
from guard.delivery.spool import Spool, SpoolError, owner_of
from guard.settings import Settings
from guard.transport.client import GatewayClient

_LIVING_S: Final = 2.0
"""How long processes that outlive the program may take to deliver what they have."""

_POLL_S: Final = 0.05


def deliver(directory: Path, url: str, api_key: str, hmac_secret: str) -> int:
    """Charge what processes have left behind in a run's spool and journals; bounded.

    Args:
        directory: the run's spool.
        url: of the gateway.
        api_key, hmac_secret: of the run.

    Returns:
        How many events could not be delivered.
    """
    if not directory.exists():
        return 0
    ends_s = time.monotonic() + _LIVING_S
    while live_journals(directory) and time.monotonic() < ends_s:
        time.sleep(_POLL_S)
    settings = Settings.load(
        {}, api_url=url, api_key=api_key, hmac_secret=hmac_secret, spool_dir=directory
    )
    spool = Spool(directory, owner_of(url, api_key), bytes_max=settings.spool_max_bytes)
    try:
        # Of the living too: the key of the run is revoked now, so nobody charges that later.
        spool.take_over(also_living=True)
        if spool.look():
            asyncio.run(_deliver(settings, spool))
        return spool.look()
    except SpoolError:
        return 1
    finally:
        spool.close()


async def _deliver(settings: Settings, spool: Spool) -> None:
    outbox = Outbox(settings, lambda: True)
    client = GatewayClient(settings, outbox.health.heard)
    flusher = Flusher(
        outbox.buffer,
        client,
        settings,
        outbox.ids,
        outbox.health,
        on_error=lambda exc: None,
        spool=spool,
    )
    try:
        with contextlib.suppress(GuardError):
            await flusher.flush()
    finally:
        await client.close()
