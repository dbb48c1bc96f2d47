"""A user's own forward proxy: it writes down what it is asked for, and is every server itself."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import attrs


@attrs.define
class UsersProxy:
    """What a forward proxy has been asked.

    Attributes:
        url: where it listens.
        heads: the heads of the requests that it got.
        received: bytes that came after these, by the first line.
        status: what it answers to ``CONNECT``.
    """

    url: str
    heads: list[str] = attrs.Factory(list)
    received: dict[str, int] = attrs.Factory(dict)
    status: str = "200 OK"

    def lines(self) -> list[str]:
        """Return the first lines of the requests."""
        return [head.partition("\r\n")[0] for head in self.heads]

    def serve(self, peer: socket.socket) -> None:
        """Answer one request; of a tunnel send back all that comes through it."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = peer.recv(65536)
            if not data:
                return
            head += data
        text, _, rest = head.partition(b"\r\n\r\n")
        self.heads.append(text.decode("latin-1"))
        line = text.decode("latin-1").partition("\r\n")[0]
        if not line.startswith("CONNECT"):
            body = f"you asked {line}\n".encode()
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        peer.sendall(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("2"):
            return
        while True:
            self.received[line] = self.received.get(line, 0) + len(rest)
            if rest:
                peer.sendall(rest)
            rest = peer.recv(262_144)
            if not rest:
                return


@contextlib.contextmanager
def users_proxy() -> Iterator[UsersProxy]:
    """Run one for the block, in threads of this process."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        peers: list[socket.socket] = []
        found = UsersProxy(f"http://127.0.0.1:{listening.getsockname()[1]}")

        def one(peer: socket.socket) -> None:
            with contextlib.suppress(OSError), peer:
                found.serve(peer)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listening.accept()
                    peers.append(peer)
                    threading.Thread(target=one, args=(peer,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for peer in peers:
                peer.close()
