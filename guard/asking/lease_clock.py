"""The clock of leases: it goes on while the machine is suspended, as the gateway's does."""

from __future__ import annotations

import functools
import sys
import time
from typing import Final

_CLOCKS: Final = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}
"""By platform, the clock that counts suspends. There ``time.monotonic`` stands still meanwhile, so
a lease that the gateway has long given to others would still seem to last."""

now_s: Final = (
    functools.partial(time.clock_gettime, getattr(time, _CLOCKS[sys.platform]))
    if sys.platform in _CLOCKS
    else time.monotonic
)
"""Return the time in seconds; for all times of leases, of questions and of renewals."""
