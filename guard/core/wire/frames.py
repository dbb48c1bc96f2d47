"""Frames of the control socket that carry requests and their answers."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from guard.core.wire.fields import Name


class Ask(Struct, omit_defaults=True):
    """One request over the control socket: the HTTP request with the same body.

    Args:
        id: the idempotency key; the answer carries it.
        op: the path, without its leading slash: ``gate``, ``gate/release`` or ``gate/lease``.
        body: the JSON body.
    """

    id: Name
    op: Literal["gate", "gate/release", "gate/lease"]
    body: msgspec.Raw


class Asks(Struct, tag_field="type", tag="asks"):
    """A frame from the SDK: requests, in any number."""

    asks: list[Ask]


class SignedFrame(Struct, omit_defaults=True):
    """A frame with its signature, where the key has a secret (see :mod:`guard.core.signing`).

    Args:
        payload: the JSON of the frame.
        signature: by ``sign_frame`` from the gateway, by ``sign_asks`` from the SDK.
        number: the number of a frame from the SDK, from 1 in each connection; 0 from the gateway.
    """

    payload: str
    signature: str
    number: int = 0


class SocketAnswer(Struct, omit_defaults=True):
    """One answer over the control socket.

    Args:
        id: the id of the request.
        status: as over HTTP.
        body: the JSON body, a reply or a problem document.
    """

    id: Name
    status: int
    body: msgspec.Raw


class Answers(Struct, tag_field="type", tag="answers"):
    """A frame from the gateway: answers, in any number and order."""

    answers: list[SocketAnswer]
