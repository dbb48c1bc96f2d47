"""HTTP message signatures (RFC 9421 subset), content digests (RFC 9530) and signed control frames.

One algorithm, ``hmac-sha256``, over a fixed list of covered components. The subset is deliberately
small: there is nothing to negotiate, so there is nothing to downgrade.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

from msgspec import Struct

COVERED: Final = ("@method", "@target-uri", "content-digest", "x-api-key")
SKEW_MAX_S: Final = 300
_LABEL: Final = "guard"
_INPUT = re.compile(
    r"guard=(?P<described>\((?P<covered>[^()]*)\);created=(?P<created>\d{1,12})"
    r';nonce="(?P<nonce>[\w-]{8,128})";keyid="(?P<keyid>(?:[ !#-\[\]-~]|\\["\\]){1,256})"'
    r';alg="hmac-sha256")',
    re.ASCII,
)
_ESCAPED = re.compile(r'\\(["\\])')
_SIGNATURE = re.compile(r"guard=:(?P<value>[A-Za-z0-9+/]{43}=):")
_FRAME_CONTEXT: Final = b"guard.v3 control frame\n"
_ASKS_CONTEXT: Final = b"guard.v3 request frame\n"


class SignatureError(ValueError):
    """A signature is missing, malformed, stale or wrong. The text never holds a secret."""


class SignatureParameters(Struct, frozen=True):
    """The parameters that a signature carries."""

    created_s: int
    nonce: str
    key_id: str


def content_digest(body: bytes) -> str:
    """Return the ``Content-Digest`` value of a body, as sent (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def sign(
    *,
    method: str,
    target_uri: str,
    body: bytes,
    api_key: str,
    secret: str,
    parameters: SignatureParameters,
) -> dict[str, str]:
    """Return the headers that sign one request.

    Args:
        method: HTTP method; case-sensitive (RFC 9421, 2.2.1).
        target_uri: the absolute URI as sent, with its query.
        body: the bytes on the wire, after content coding; ``b""`` when there is none.
        api_key: the value of ``X-API-Key``.
        secret: the shared HMAC secret.
        parameters: creation time in Unix seconds, a nonce never used before, the key id.

    Returns:
        ``Content-Digest``, ``Signature-Input`` and ``Signature``.
    """
    digest = content_digest(body)
    described = _describe(parameters)
    base = _signature_base(method, target_uri, digest, api_key, described)
    return {
        "Content-Digest": digest,
        "Signature-Input": f"{_LABEL}={described}",
        "Signature": f"{_LABEL}=:{_mac(secret, base)}:",
    }


def verify(
    *,
    method: str,
    target_uri: str,
    body: bytes,
    api_key: str,
    secret: str,
    digest: str,
    signature_input: str,
    signature: str,
    now_s: int,
) -> SignatureParameters:
    """Check a request's signature and return its parameters.

    The caller must still refuse a nonce that it has seen before.

    Raises:
        SignatureError: any part is missing, malformed, older or newer than 300 s, or wrong.
    """
    matched = _INPUT.fullmatch(signature_input.strip())
    value = _SIGNATURE.fullmatch(signature.strip())
    if matched is None or value is None:
        raise SignatureError("the signature headers are missing or malformed")
    if matched["covered"] != " ".join(f'"{name}"' for name in COVERED):
        raise SignatureError("the signature covers other components than this protocol asks for")
    key_id = _ESCAPED.sub(r"\1", matched["keyid"])
    parameters = SignatureParameters(int(matched["created"]), matched["nonce"], key_id)
    # The parameters as they were sent: `created=0017` must not pass for `created=17`.
    base = _signature_base(method, target_uri, digest, api_key, matched["described"])
    # The time is checked last: without the secret, an answer says nothing about the clock.
    right = hmac.compare_digest(value["value"].encode(), _mac(secret, base).encode())
    if not right or not hmac.compare_digest(digest.encode(), content_digest(body).encode()):
        raise SignatureError("the signature does not match the request")
    if abs(now_s - parameters.created_s) > SKEW_MAX_S:
        raise SignatureError("the signature's time is too far from the gateway's clock")
    return parameters


def sign_frame(secret: str, nonce: str, payload: bytes) -> str:
    """Return the signature of one control message, bound to its connection by ``nonce``.

    ``nonce`` is the one in the signature of the request that opened the channel (the WebSocket
    handshake or the poll), so that a frame recorded on one connection is worthless on another.
    """
    return _mac(secret, _FRAME_CONTEXT + nonce.encode() + b"\n" + payload)


def verify_frame(secret: str, nonce: str, payload: bytes, signature: str) -> bool:
    """Return, in constant time, whether a control message was signed for this connection."""
    return hmac.compare_digest(
        sign_frame(secret, nonce, payload).encode(), signature.encode("utf-8", "replace")
    )


def sign_asks(secret: str, nonce: str, number: int, payload: bytes) -> str:
    """Return the signature of one frame of requests from a client, bound to its place.

    Args:
        secret: the shared HMAC secret.
        nonce: the nonce of the signature of the handshake, as in :func:`sign_frame`.
        number: 1 for the first such frame of the connection, one more for each that follows; so a
            frame cannot be repeated, left out or moved.
        payload: the frame's JSON.
    """
    place = f"{nonce}\n{number}\n".encode()
    return _mac(secret, _ASKS_CONTEXT + place + payload)


def verify_asks(secret: str, nonce: str, number: int, payload: bytes, signature: str) -> bool:
    """Return, in constant time, whether a frame of requests was signed for this place."""
    return hmac.compare_digest(
        sign_asks(secret, nonce, number, payload).encode(), signature.encode("utf-8", "replace")
    )


def _describe(parameters: SignatureParameters) -> str:
    covered = " ".join(f'"{name}"' for name in COVERED)
    key_id = parameters.key_id.replace("\\", "\\\\").replace('"', '\\"')  # RFC 8941, 3.3.3
    return (
        f'({covered});created={parameters.created_s};nonce="{parameters.nonce}"'
        f';keyid="{key_id}";alg="hmac-sha256"'
    )


def _signature_base(
    method: str, target_uri: str, digest: str, api_key: str, described: str
) -> bytes:
    lines = (
        f'"@method": {method}',
        f'"@target-uri": {target_uri}',
        f'"content-digest": {digest}',
        f'"x-api-key": {api_key}',
        f'"@signature-params": {described}',
    )
    return "\n".join(lines).encode()


def _mac(secret: str, message: bytes) -> str:
    digest = hmac.new(secret.encode(), message, hashlib.sha256).digest()
    return base64.b64encode(digest).decode()
