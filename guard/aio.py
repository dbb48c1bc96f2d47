"""``guard.init``, ``guard.shutdown`` and ``guard.spend`` for asyncio, without blocking the loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from guard import facade
from guard.breaker.exceptions import BreakerTransportError
from guard.loop.threads import in_thread
from guard.runtime.runtime import GuardRuntime
from guard.spending import Spend, spend_async

logger = logging.getLogger("guard")


async def init(
    api_key: str | None = None, api_url: str | None = None, debug: bool = False
) -> GuardRuntime:
    """Initialise the process's runtime like ``guard.init``, without blocking the loop.

    Args:
        api_key, api_url, debug: as for ``guard.init``.

    Raises:
        GuardError, InsecureTransportError: as by ``guard.init``.

    Example:
        >>> async def main() -> None:
        ...     await init(api_url="local")
    """
    return await GuardRuntime.start(api_key, api_url, debug=debug or None)


async def shutdown(timeout: float = 2.0, flush: bool = True) -> None:
    """Deliver what is buffered and stop, like ``guard.shutdown``, without blocking the loop.

    Args:
        timeout: as for ``guard.shutdown``.
        flush: whether to deliver what is buffered.

    Raises:
        BreakerTransportError: events could not be delivered in time.
    """
    # `finish`: a caller that is cancelled still waits for the end of the shutdown.
    await in_thread(facade.shutdown, timeout, flush, finish=True)


async def spend(workflow: str | None = None, *, run: str | None = None) -> Spend:
    """Ask the gateway what a workflow has spent, like ``guard.spend``, without blocking the loop.

    Args:
        workflow: its id; the current workflow, and its current run, when None.
        run: one of its runs.

    Raises:
        ValueError, GuardError: as by ``guard.spend``.
    """
    return await spend_async(workflow, run=run)


@contextlib.asynccontextmanager
async def lifespan(app: Any = None) -> AsyncIterator[None]:
    """Initialise guard when an ASGI application starts, and shut it down when it stops.

    Events that cannot be delivered at the end are logged; the stop succeeds all the same.

    Args:
        app: the application; not used.

    Raises:
        GuardError, InsecureTransportError: as by ``guard.init``; the server does not start then.

    Example:
        >>> from fastapi import FastAPI
        >>> app = FastAPI(lifespan=lifespan)
    """
    await init()
    try:
        yield
    finally:
        try:
            await shutdown()
        except BreakerTransportError as exc:
            logger.warning("at the end of the application: %s", exc)
