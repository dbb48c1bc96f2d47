"""The network under the async client: one connection pool, bounded, every failure named."""

from __future__ import annotations

import asyncio

import httpx

from spamdetect._exchange import ApiRequest, ApiResponse
from spamdetect.errors import SpamResponseError, SpamTransportError
from spamdetect.settings import API_KEY_HEADER, ClientSettings

# Below the service's own keep-alive, so that the client is the one that closes.
_KEEP_ALIVE_S = 20.0


class HttpTransport:
    """Sends requests of the API to one service.

    A semaphore stands before the pool: thousands of callers then queue in it at no cost, where
    httpx's pool would search all of them each time that a connection becomes free.

    Args:
        settings: Address and key.
        max_connections: Most connections, and so most requests under way, at once.
        transport: httpx transport to use instead of the network, for tests and ASGI apps.
    """

    def __init__(
        self,
        settings: ClientSettings,
        max_connections: int,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._max_connections = max_connections
        self._transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None
        self._places = asyncio.Semaphore(max_connections)

    async def send(self, request: ApiRequest) -> ApiResponse:
        """Send one request and read the whole answer.

        Raises:
            SpamTransportError: No complete answer arrived.
            SpamResponseError: The answer is larger than any of the contract, or compressed.
        """
        client = self._pool()
        async with self._places:
            try:
                return await self._exchange(client, request)
            except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
                raise SpamTransportError(_describe(error, self._settings.base_url)) from error

    async def aclose(self) -> None:
        """Close the connections; the next call opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _pool(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            # Connections belong to the loop that opened them; after a second asyncio.run() the
            # first loop is closed and so are its sockets.
            self._loop = loop
            self._places = asyncio.Semaphore(self._max_connections)
            self._client = httpx.AsyncClient(
                headers={
                    "accept": "application/json",
                    "accept-encoding": "identity",
                    "content-type": "application/json",
                    API_KEY_HEADER: self._settings.api_key,
                },
                limits=httpx.Limits(
                    max_connections=self._max_connections,
                    max_keepalive_connections=self._max_connections,
                    keepalive_expiry=_KEEP_ALIVE_S,
                ),
                timeout=None,  # noqa: S113 - the client sets one total deadline around the call
                follow_redirects=False,
                transport=self._transport,
            )
        return self._client

    async def _exchange(self, client: httpx.AsyncClient, request: ApiRequest) -> ApiResponse:
        url = self._settings.base_url + request.path
        response = await client.send(
            client.build_request("POST", url, content=request.body), stream=True
        )
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise SpamResponseError(
                    "The answer is compressed though that was not asked for.",
                    status_code=response.status_code,
                )
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > request.max_answer_bytes:
                    raise SpamResponseError(
                        "The answer is larger than any answer of the contract.",
                        status_code=response.status_code,
                    )
                chunks.append(chunk)
        finally:
            await response.aclose()
        return ApiResponse(response.status_code, response.headers, b"".join(chunks))


def _describe(error: Exception, base_url: str) -> str:
    if isinstance(error, httpx.ConnectError):
        return f"Cannot connect to {base_url}: {error or 'refused'}. Is the service running?"
    if isinstance(error, httpx.RemoteProtocolError):
        return f"The connection to {base_url} broke before the answer was complete."
    return f"The request to {base_url} failed: {type(error).__name__}."
