"""A WebSocket server in a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.server import ServerConnection, serve


@contextmanager
def socket_server(speak: Callable[[ServerConnection], None], **options: Any) -> Iterator[str]:
    """Serve connections by a function; the value is the address."""
    server = serve(speak, "127.0.0.1", 0, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join(120)
        # The server leaves its pipe open, and hundreds of them are more than `select` can take.
        os.close(server.shutdown_watcher)
        os.close(server.shutdown_notifier)
