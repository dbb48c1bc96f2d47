"""Checks of TLS connections to a gateway: by an authority, or by one pinned certificate.

Used by the SDK and by the gateway's own commands, so it imports nothing of guard.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import ssl
from typing import Any, Final

_FINGERPRINT: Final = re.compile(
    r"(?:sha-?256[:=])?((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})", re.IGNORECASE
)


def read_fingerprint(text: str) -> str:
    """Return the SHA-256 fingerprint of a certificate as 64 hexadecimal digits.

    Raises:
        ValueError: what a fingerprint looks like.

    >>> read_fingerprint("SHA256:" + ":".join(["AB"] * 32)) == "ab" * 32
    True
    """
    found = _FINGERPRINT.fullmatch(text.strip())
    if found is None:
        raise ValueError("a SHA-256 fingerprint, such as sha256: and 64 hexadecimal digits")
    return found[1].replace(":", "").lower()


def client_context(fingerprint: str | None = None) -> ssl.SSLContext:
    """Return the context of a client.

    Args:
        fingerprint: that of the only certificate that is accepted, from any issuer and for any
            name; without one, authorities are trusted: those of ``SSL_CERT_FILE`` or
            ``SSL_CERT_DIR`` where set, else the system's and certifi's.
    """
    if fingerprint is not None:
        return _pinned(read_fingerprint(fingerprint))
    context = ssl.create_default_context()
    if not os.environ.get("SSL_CERT_FILE") and not os.environ.get("SSL_CERT_DIR"):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _pinned(wanted: str) -> ssl.SSLContext:
    """Return a context whose handshakes fail unless the peer shows the pinned certificate.

    The check is part of the handshake itself, so that no byte is sent to another peer.
    """

    def check(certificate: bytes | None) -> None:
        found = hashlib.sha256(certificate or b"").hexdigest()
        if not hmac.compare_digest(found, wanted):
            raise ssl.SSLCertVerificationError(
                "the gateway's certificate is not the one of GUARD_TLS_FINGERPRINT; it shows "
                f"sha256:{found}"
            )

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(binary_form=True))

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, *args: Any, **options: Any) -> None:
            super().do_handshake(*args, **options)
            check(self.getpeercert(binary_form=True))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The fingerprint replaces both checks: it is of the certificate itself. In this order, since
    # `CERT_NONE` is refused while the name is checked.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslobject_class = PinnedObject
    context.sslsocket_class = PinnedSocket
    return context
