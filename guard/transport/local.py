"""``api_url="local"``: settings for this user's gateway, and the service that keeps it running."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

import attrs

from guard.breaker.exceptions import GuardConfigError
from guard.loop import in_thread
from guard.settings import LOCAL, Settings

if TYPE_CHECKING:
    from guard.local_gateway import LocalGateway

logger = logging.getLogger("guard.local")

_LOOK_S: Final = 0.5
_RETRY_MAX_S: Final = 30.0


def resolve(settings: Settings) -> tuple[Settings, LocalGateway | None]:
    """Return settings with a real address and keys, and the local gateway if it is wanted.

    Starts that gateway unless it runs.

    Raises:
        GuardConfigError: the local gateway cannot be started.
    """
    if settings.api_url != LOCAL:
        return settings, None
    gateway = _join()
    resolved = attrs.evolve(
        settings,
        api_url=gateway.url,
        api_key=settings.api_key or gateway.identity.api_key,
        hmac_secret=settings.hmac_secret if settings.api_key else gateway.identity.hmac_secret,
    )
    return resolved, gateway


async def start_early(api_url: str | None) -> LocalGateway | None:
    """Start the local gateway in a thread, if it is wanted, without blocking the caller's loop.

    The caller has to call ``leave`` on the result.

    Raises:
        GuardConfigError: it cannot be started.
    """
    wanted = api_url if api_url is not None else os.environ.get("GUARD_API_URL", "")
    if not isinstance(wanted, str) or wanted.strip().lower() != LOCAL:
        return None
    return await in_thread(_join)


def _join() -> LocalGateway:
    from guard.local_gateway import LocalGatewayError, join

    try:
        return join()
    except LocalGatewayError as exc:
        raise GuardConfigError(str(exc)) from None


async def keep_running(gateway: LocalGateway) -> None:
    """Start the local gateway again whenever it has crashed, until cancelled."""
    from guard.local_gateway import LocalGatewayError

    delay_s = _LOOK_S
    while True:
        await asyncio.sleep(delay_s)
        if gateway.is_running():
            delay_s = _LOOK_S
            continue
        try:
            await in_thread(gateway.restore)
        except LocalGatewayError as exc:
            logger.warning("%s", exc)
            delay_s = min(_RETRY_MAX_S, 4 * delay_s)
        else:
            logger.info("the local gateway had ended and was started again")
