"""Keeps guard's own requests out of the log that httpx writes for the application."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import Final

# Whether the running code sends guard's own request. A context variable, because the application
# uses the same loggers at the same time.
_own: Final = contextvars.ContextVar("guard_own_request", default=False)
# Each of httpcore's layers has a logger of its own, and a filter does not apply to a logger's
# children.
_LOGGERS: Final = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")


def _is_of_others(record: logging.LogRecord) -> bool:
    return not _own.get()


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_is_of_others)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Drop what httpx logs in this context."""
    token = _own.set(True)
    try:
        yield
    finally:
        _own.reset(token)
