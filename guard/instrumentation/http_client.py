"""Hooks ``http.client``: each body of what sends by it takes its hold as it leaves.

Requests of the standard library, and so of ``urllib.request``, are neither held nor metered: they
are reported.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final
from urllib.parse import unquote

from guard.instrumentation import patching
from guard.instrumentation.observed_call import WITHOUT_BODY, call_being_sent
from guard.instrumentation.patching import active

_WHY: Final = "it is sent by http.client or urllib; httpx, requests and aiohttp are metered"


def patch(module: ModuleType) -> None:
    """Hook ``HTTPConnection``."""
    patching.replace(module.HTTPConnection, "putrequest", _putrequest)
    patching.replace(module.HTTPConnection, "endheaders", _endheaders)
    patching.replace(module.HTTPConnection, "getresponse", _getresponse)


def _putrequest(original: Any) -> Any:
    @functools.wraps(original)
    def putrequest(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        if active() is not None and call_being_sent() is None:
            host = str(getattr(self, "_tunnel_host", None) or self.host).lower()
            port = self.port
            path = unquote(url.partition("?")[0])
            if path.startswith("http"):  # an absolute URL, as it is sent to a proxy
                _, _, rest = path.partition("://")
                host, slash, path = rest.partition("/")
                (host, _, port), path = host.lower().partition(":"), slash + path
            # A client that has lost its hook, such as requests, sends through this class too.
            patching.name_unhooked(method.upper(), host, port, path, _WHY)
        return original(self, method, url, *args, **options)

    return putrequest


def _endheaders(original: Any) -> Any:
    @functools.wraps(original)
    def endheaders(self: Any, *args: Any, **options: Any) -> Any:
        call = call_being_sent()
        if call is not None and self._method not in WITHOUT_BODY:
            # First, so that a request which finds no connection takes nothing.
            if self.sock is None and self.auto_open:
                self.connect()
            call.takes()
        return original(self, *args, **options)

    return endheaders


def _getresponse(original: Any) -> Any:
    @functools.wraps(original)
    def getresponse(self: Any, *args: Any, **options: Any) -> Any:
        response = original(self, *args, **options)
        call = call_being_sent()
        if call is not None:
            call.is_tried(response.status)
        return response

    return getresponse
