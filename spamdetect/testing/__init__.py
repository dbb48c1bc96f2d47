"""The real service in process, for tests and demonstrations of programs that use it.

Nothing here needs pytest; the fixtures are in :mod:`spamdetect.testing.plugin`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from spamdetect.errors import SpamConfigError
from spamdetect.version import installs

if TYPE_CHECKING:
    from spamdetect.service.analysis import TextEngine


@attrs.frozen
class RunningService:
    """A service that is accepting requests on a loopback port.

    Attributes:
        base_url: For ``SpamClient(base_url=...)``.
        api_key: A key that it accepts.
    """

    base_url: str
    api_key: str = attrs.field(repr=False)


@contextlib.asynccontextmanager
async def run_service_async(
    *, engine: TextEngine | None = None, **settings: object
) -> AsyncIterator[RunningService]:
    """Run the real service in this event loop, on a free loopback port, with its own keys.

    Args:
        engine: Engine to use; None loads the bundled model.
        settings: Attributes of :class:`spamdetect.service.settings.ServiceSettings`; the default
            has no rate limit, and a key store that is deleted at the end.

    Raises:
        SpamConfigError: The service cannot start, for instance because its extra is missing.
    """
    try:
        from spamdetect.service.app import SpamService
        from spamdetect.service.keys import KeySpec
        from spamdetect.service.server import serving
        from spamdetect.service.settings import read_service_settings
    except ImportError as error:
        raise SpamConfigError(f"The service needs its extra: {installs('spam')}.") from error
    with tempfile.TemporaryDirectory(prefix="spamdetect-") as folder:
        chosen: dict[str, object] = {
            "port": 0,
            "database_url": f"sqlite:///{Path(folder) / 'keys.sqlite3'}",
            "rate_per_minute": 0,
            **settings,
        }
        service = SpamService(read_service_settings(environ={}, **chosen), engine)
        async with serving(service) as server:
            key = server.first_key or await service.store.create(KeySpec(label="test"))
            yield RunningService(server.base_url, key.api_key)


@contextlib.contextmanager
def run_service(
    *, engine: TextEngine | None = None, **settings: object
) -> Iterator[RunningService]:
    """Run the real service in a background thread, on a free loopback port.

    Args:
        engine: Engine to use; None loads the bundled model.
        settings: As in :func:`run_service_async`.

    Raises:
        SpamConfigError: The service cannot start.

    Example:
        >>> from spamdetect import SpamClient
        >>> def demo() -> bool:
        ...     with run_service() as service:
        ...         with SpamClient(service.base_url, service.api_key) as spam:
        ...             return spam.predict("You won! Claim your prize").is_spam
    """
    from anyio.from_thread import start_blocking_portal

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(run_service_async(engine=engine, **settings)) as service,
    ):
        yield service
