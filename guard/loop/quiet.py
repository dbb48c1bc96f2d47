"""Keeps guard out of the program's way: of its logs, traces and cookies, and of its idle time."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from http.cookiejar import CookieJar

# Whether the running code is guard's own: it sends a request, or makes a loop. A context variable,
# because the application uses the same loggers at the same time.
_own: Final = contextvars.ContextVar("guard_own_request", default=False)
# Each of httpcore's layers has a logger of its own, and a filter does not apply to a logger's
# children.
_EARLY_S: Final = 0.001
"""How early a timer may fire: it must not fire again for the same moment."""
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


def until_pulse_s(period_s: float) -> float:
    """Return the seconds until a process's next moment of a period, for services that look in vain.

    Those of one process wake together, so an idle process is woken once in a period; those of
    different processes do not, so that a host's workers do not all send at the same moment.
    """
    phase_s = os.getpid() * 0.618 % 1.0
    left_s = period_s - (time.monotonic() - phase_s) % period_s
    return left_s if left_s > _EARLY_S else left_s + period_s
