"""Keeps guard's own requests and loop out of the program's logs, traces and cookies."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from http.cookiejar import CookieJar

# Whether the running code is guard's own: it sends a request, or makes a loop. A context variable,
# because the application uses the same loggers at the same time.
_own: Final = contextvars.ContextVar("guard_own_request", default=False)
# Each of httpcore's layers has a logger of its own, and a filter does not apply to a logger's
# children.
_LOGGERS: Final = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "asyncio")


def _is_of_others(record: logging.LogRecord) -> bool:
    return not _own.get()


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_is_of_others)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Drop what httpx and asyncio log in this context, and have OpenTelemetry make no spans.

    A handler of the program may make protected calls, which would wait for what is logged here.
    """
    token = _own.set(True)
    otel = sys.modules.get("opentelemetry.context")
    before = otel and otel.attach(otel.set_value("suppress_instrumentation", True))
    try:
        yield
    finally:
        if otel is not None:
            otel.detach(before)
        _own.reset(token)


def no_cookies() -> CookieJar:
    """Return a jar that takes nothing: a cookie is for people, and would go from one to another."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # `import guard` needs neither

    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
