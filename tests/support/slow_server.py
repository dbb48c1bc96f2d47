"""An HTTP server that never hurries: it hangs, drips, floods, or answers like a vendor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from pathlib import Path

from tests.support.closing import Accepted


class SlowServer:
    """Serves on loopback in a thread of its own, by path.

    ``/hang`` never answers, ``/drip`` sends a chunk every 20 ms, ``/stall`` one chunk and then
    nothing, ``/flood`` chunks without a pause, ``/ok`` a short answer; any POST is answered by
    ``answers``, by the first key that is in the path.

    Attributes:
        url: where it listens.
        answers: part of a path -> JSON document.
        chunk: what a stream repeats.
        requests: the paths that were asked for.
        open_connections: how many there are now.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.answers: dict[str, object] = {}
        self.chunk = b"data: x\n\n"
        self.requests: list[str] = []
        self.open_connections = 0
        self._certificate = certificate
        self._accepted = Accepted(self._serve)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="slow-server")
        self._thread.start()
        assert self._started.wait(120)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self._port}"

    def close(self) -> None:
        """End the server."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)

    def count(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(path in request for request in list(self.requests))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        context = None
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=context, backlog=512)
        )
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._accepted.end(server))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = head.split(b" ", 2)[:2]
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                await reader.readexactly(length)
                self.requests.append(path.decode())
                await self._answer(method.decode(), path.decode(), reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(
        self, method: str, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path.startswith("/hang"):
            await reader.read()  # until the client goes away
            raise asyncio.IncompleteReadError(b"", 1)
        if path.startswith(("/drip", "/stall", "/flood")):
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            chunk = self.chunk * (500 if path.startswith("/flood") else 1)
            frame = b"%x\r\n%s\r\n" % (len(chunk), chunk)
            while True:
                writer.write(frame)
                await writer.drain()
                if path.startswith("/drip"):
                    await asyncio.sleep(0.02)
                if path.startswith("/stall"):
                    await reader.read()
                    raise asyncio.IncompleteReadError(b"", 1)
        document: object = {}
        for part, answer in self.answers.items():
            if part in path:
                document = answer
                break
        body = json.dumps(document).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        await writer.drain()
