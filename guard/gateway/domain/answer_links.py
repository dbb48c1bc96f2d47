"""Answers from messages: what a button or a link contains, and how a link is signed. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from guard.core import wire

TOKEN_MAX: Final = 2048
SLACK_SKEW_S: Final = 300
"""How far from now a request of Slack may be dated."""


class Subject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The question that an answer is for.

    Args:
        kind: an approval, or a call that waits for a budget to be raised.
        id: of the approval, or of the call.
        budget_id, balance_id: of the budget that asks.
        by: by how much a yes raises the budget, in its unit.
    """

    kind: Literal["approval", "asks"]
    id: Annotated[str, Meta(max_length=256)]
    budget_id: Annotated[str, Meta(max_length=64)] = ""
    balance_id: int = 0
    by: Annotated[int, Meta(ge=0, le=wire.NANOUSD_MAX)] = 0


class AnswerLink(Struct, frozen=True, kw_only=True):
    """The contents of a link.

    Args:
        channel_id: the channel whose key has signed it.
        subject: the question that it answers.
        ends_ms: when it expires, in Unix milliseconds.
    """

    channel_id: Annotated[str, Meta(max_length=64)]
    subject: Subject
    ends_ms: int


def sign(link: AnswerLink, key: str) -> str:
    """Return the token of a link."""
    said = _text(wire.encode(link))
    return f"{said}.{_mac(said, key)}"


def claimed(token: str) -> AnswerLink | None:
    """Return the contents of a token, unchecked; ``None`` for any other text.

    They name the channel, and so the key to check the token with (:func:`is_signed`).
    """
    said, dot, _ = token.partition(".")
    if not dot or len(token) > TOKEN_MAX:
        return None
    try:
        return wire.decode(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)), AnswerLink)
    except (binascii.Error, ValueError, wire.WireError):
        return None


def is_signed(token: str, key: str) -> bool:
    """Return whether a token was signed with a key; never with an empty one."""
    said, _, mac = token.partition(".")
    return bool(key) and hmac.compare_digest(
        mac.encode("utf-8", "replace"), _mac(said, key).encode()
    )


def _mac(said: str, key: str) -> str:
    # The prefix keeps signatures of other things, made with the same key, from passing for a link.
    signed = b"guard answer link:" + said.encode()
    return _text(hmac.new(key.encode(), signed, hashlib.sha256).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def is_slack_signature(
    signature: str, secret: str, timestamp: str, body: bytes, now_s: float
) -> bool:
    """Return whether Slack has signed a request recently (signature scheme v0).

    Source: https://docs.slack.dev/authentication/verifying-requests-from-slack
    """
    if not secret or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        return False
    if abs(now_s - int(timestamp)) > SLACK_SKEW_S:
        return False
    # The body as it came: parsed and encoded again, it might differ from what Slack has signed.
    signed = b"v0:" + timestamp.encode() + b":" + body
    expected = "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode())
