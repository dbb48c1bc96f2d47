"""Reports LLM requests of the standard library: ``http.client``, and so ``urllib.request``.

They are neither held nor metered. Requests of observed clients that send through ``http.client``,
such as requests and botocore, are not reported.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from guard.core.usage import find_endpoint
from guard.core.usage.vendors import provider_of
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.observed_call import call_being_sent
from guard.instrumentation.patching import active

_WHY: Final = "it is sent by http.client or urllib; httpx, requests and aiohttp are metered"


def patch(module: ModuleType) -> None:
    """Hook ``HTTPConnection``."""
    patching.replace(module.HTTPConnection, "putrequest", _putrequest)


def _putrequest(original: Any) -> Any:
    @functools.wraps(original)
    def putrequest(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        observer = active()
        if observer is not None and call_being_sent() is None:
            host = str(getattr(self, "_tunnel_host", None) or self.host).lower()
            port = self.port
            path = url.partition("?")[0]
            if path.startswith("http"):  # an absolute URL, as it is sent to a proxy
                _, _, rest = path.partition("://")
                host, slash, path = rest.partition("/")
                (host, _, port), path = host.lower().partition(":"), slash + path
            if own_proxy.is_at(host, port):
                return original(self, method, url, *args, **options)
            endpoint = find_endpoint(method.upper(), host, path)
            if endpoint is not None and endpoint.is_unknown:
                observer.unknown_path(host, path)
            elif endpoint is not None and endpoint.asks and (endpoint.certain or provider_of(host)):
                # A client that has lost its hook, such as requests, sends through this class too.
                observer.unmetered(host, path, patching.TAKEN_OUT if patching.rehook() else _WHY)
        return original(self, method, url, *args, **options)

    return putrequest
