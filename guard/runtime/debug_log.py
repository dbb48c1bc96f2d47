"""The debug log that ``init(debug=True)`` writes to standard error."""

from __future__ import annotations

import logging
import sys
from typing import Final

_LOGGER: Final = logging.getLogger("guard")
_FORMAT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"

_handler: logging.Handler | None = None


def start() -> None:
    """Log everything in the SDK to standard error, at debug level. Idempotent."""
    global _handler
    if _handler is None:
        _handler = logging.StreamHandler(sys.stderr)
        _handler.setFormatter(logging.Formatter(_FORMAT))
        _LOGGER.addHandler(_handler)
        _LOGGER.setLevel(logging.DEBUG)


def stop() -> None:
    """Return logging to the application. Idempotent."""
    global _handler
    if _handler is not None:
        _LOGGER.removeHandler(_handler)
        _LOGGER.setLevel(logging.NOTSET)
        _handler = None
