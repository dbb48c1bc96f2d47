"""What every test can rely on."""

from __future__ import annotations

import signal

import httpx
from hypothesis import HealthCheck, settings

# A run that was started in the background inherits an ignored SIGINT, and so would every program
# that the tests start; Ctrl-C is part of what they test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine's load only; and a test that is tried
# again by the runner has another executor.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("suite")

# A busy machine may take longer for an answer than httpx waits by itself, which is 5 seconds.
for _ask in (httpx.Client.__init__, httpx.AsyncClient.__init__, httpx.request,
             httpx.get, httpx.head, httpx.post, httpx.put, httpx.patch, httpx.delete):  # fmt: skip
    _ask.__kwdefaults__["timeout"] = httpx.Timeout(60.0)
