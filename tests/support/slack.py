"""What Slack does with a gateway's messages: it signs the presses of their buttons."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from tests.support.receivers import http_receiver


def signed(body: bytes, secret: str, at_s: float | None = None) -> dict[str, str]:
    """Return the headers of a request of a Slack app."""
    stamp = str(int(time.time() if at_s is None else at_s))
    mac = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256)
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": "v0=" + mac.hexdigest(),
            "Content-Type": "application/x-www-form-urlencoded"}  # fmt: skip


def pressed(button: Any, url: str, user: str = "U1") -> bytes:
    """Return what Slack sends when somebody presses a button of a message."""
    payload = {
        "type": "block_actions", "user": {"id": user, "username": "alice"},
        "actions": [{"type": "button", "action_id": button["action_id"],
                     "value": button["value"]}],
        "response_url": url,
    }  # fmt: skip
    return urllib.parse.urlencode({"payload": json.dumps(payload)}).encode()


@contextlib.contextmanager
def who_approves(signing_secret: str, interactions: Callable[[], str]) -> Iterator[str]:
    """Run a channel of Slack in which somebody presses Approve wherever it is to be had.

    Args:
        signing_secret: of the app.
        interactions: returns the request URL that the app was given.

    Yields:
        The address of its incoming webhook.
    """
    ended = threading.Event()
    with http_receiver() as receiver:

        def press() -> None:
            read = 0
            while not ended.wait(0.1):
                for got in receiver.got[read:]:
                    read += 1
                    for button in _buttons(got.json):
                        if button["action_id"] == "approve":
                            body = pressed(button, f"{receiver.url}/response")
                            httpx.post(
                                interactions(), content=body, headers=signed(body, signing_secret),
                                trust_env=False,
                            ).raise_for_status()  # fmt: skip

        person = threading.Thread(target=press)
        person.start()
        try:
            yield f"{receiver.url}/services/T0/B0/x"
        finally:
            ended.set()
            person.join()


def _buttons(message: Any) -> Iterator[Any]:
    for block in message.get("blocks", ()):
        if block["type"] == "actions":
            yield from block["elements"]
