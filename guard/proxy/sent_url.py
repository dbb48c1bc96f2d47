"""A URL whose path and query leave as they came, on every way that httpx has to a server."""

from __future__ import annotations

import httpx


class SentURL(httpx.URL):
    """A URL that is sent as it was asked for.

    httpx quotes anew what a URL has. Its extension ``target`` prevents that, but behind a forward
    proxy httpcore sends it to the proxy as well: as the place to connect to.

    Args:
        url: the URL.
        target: its path and query, as they are sent.
    """

    def __init__(self, url: str, target: bytes) -> None:
        super().__init__(url)
        self._target = target

    @property
    def raw_path(self) -> bytes:
        """The path and the query, as they are sent."""
        return self._target
