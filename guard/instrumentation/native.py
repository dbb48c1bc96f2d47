"""Names LLM requests of clients that write to their sockets in C or Rust.

No Python code sees their bodies and answers, so they can be neither held nor metered. They are
named where Python calls them, and refused there where nothing may go unseen.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from guard.core.usage.realtime import find_socket
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.observed_call import call_being_sent
from guard.instrumentation.observer import Observer

_WHY: Final = "it is sent by {}, which guard cannot meter; httpx, requests and aiohttp are metered"


def name_request(client: str, method: str, url: Any) -> None:
    """Report a request that a native client is about to send, if it asks a model.

    Args:
        client: the name of the client's package.
        method: the HTTP method.
        url: the URL, as text or bytes; anything else is left to the client.

    Raises:
        Refusal, GuardBlockedException: such requests are refused here.
    """
    observer = patching.active()
    # A call that is being sent is held above: the client is another one's transport.
    if observer is None or call_being_sent() is not None:
        return
    try:
        text = url.decode() if isinstance(url, bytes) else str(url)
        # libcurl takes URLs without a scheme.
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port, path = (parts.hostname or "").lower(), parts.port, unquote(parts.path)
    except ValueError:  # the client will say what is wrong with it
        return
    if parts.scheme not in ("ws", "wss"):
        why = _WHY.format(client)
        patching.name_unhooked(method.upper(), host, port, path, why, by=client)
    elif not own_proxy.is_at(host, port) and find_socket(host, path, parts.query) is not None:
        name_call(observer, client, host, path)


def name_call(observer: Observer, client: str, host: str, path: str) -> None:
    """Report a call that asks a model and is about to be sent.

    Args:
        observer: the active observer.
        client: the name of the client's package.
        host, path: where it goes.

    Raises:
        Refusal: such requests are refused here.
    """
    observer.unmetered(host, path, _WHY.format(client), by=client)
