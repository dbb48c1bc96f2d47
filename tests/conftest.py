"""What every test can rely on."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import ssl
from collections.abc import Callable
from typing import Any

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


def _sharing(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """Read the certificates of all authorities once, and not for each of thousands of clients."""

    @functools.cache
    def shared(trust_env: bool, *named: str | None) -> ssl.SSLContext:
        return create(trust_env=trust_env)

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        return shared(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    return context


for _name in ("httpx", "httpx2"):
    with contextlib.suppress(ImportError):
        _transports: Any = importlib.import_module(f"{_name}._transports.default")
        _transports.create_ssl_context = _sharing(_transports.create_ssl_context)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through every imported module again and again.

    A full collection took half a second, and many tests end with one.
    """
    gc.collect()
    gc.freeze()
