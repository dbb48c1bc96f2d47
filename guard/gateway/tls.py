"""Certificates of a gateway that serves TLS itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Final

from guard.gateway.settings import GatewaySettings

_DAYS: Final = 3650
_TIMEOUT_S: Final = 60.0


class TlsError(Exception):
    """The certificate cannot be used or made; the text says why."""


def files_of(settings: GatewaySettings) -> tuple[Path, Path] | None:
    """Return the certificate chain and its key, both checked; None without TLS.

    A self-signed certificate is made when there is none yet.

    Raises:
        TlsError: a file is missing, or the key is another certificate's.
    """
    if settings.tls_self_signed:
        both = settings.own_files.absolute().with_name(f"{settings.own_files.stem}.tls.pem")
        if not both.exists():
            _make(both, settings.host)
        chain, key = both, both
    elif settings.tls_cert is not None:
        chain, key = settings.tls_cert, settings.tls_key or settings.tls_cert
    else:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
    except OSError as exc:  # ssl.SSLError is one
        why = exc.strerror or exc.reason if isinstance(exc, ssl.SSLError) else exc.strerror
        raise TlsError(
            f"the certificate {chain} with the key {key} cannot be used: {why}"
        ) from None
    return chain, key


def fingerprint(chain: Path) -> str:
    """Return the SHA-256 fingerprint of the first certificate in a file, as clients pin it."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = chain.read_text("ascii", "replace").partition(begin)
    body, closed, _ = rest.partition(end)
    if not (found and closed):
        raise TlsError(f"{chain} holds no certificate")
    der = ssl.PEM_cert_to_DER_cert(begin + body + end)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def _make(target: Path, host: str) -> None:
    """Make a key and a certificate for it, both in one file that only its owner can read."""
    program = shutil.which("openssl")
    if program is None:
        raise TlsError("a self-signed certificate is made by the program openssl: install it")
    # Under another name until it is complete: two gateways may start at the same time, and a killed
    # one must not leave half a file.
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    names = ["DNS:localhost", "IP:127.0.0.1", "IP:::1"]
    if host not in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::"):  # noqa: S104  # compared
        is_address = ":" in host or host.replace(".", "").isdigit()
        names.append(f"{'IP' if is_address else 'DNS'}:{host}")
    try:
        # Made here, not by openssl, for its mode: it holds the private key.
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        done = subprocess.run(  # noqa: S603  # arguments are passed one by one
            [
                program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                "-nodes", "-sha256", "-days", str(_DAYS), "-subj", "/CN=guard gateway",
                "-addext", f"subjectAltName={','.join(names)}",
                "-addext", "basicConstraints=critical,CA:FALSE",
                "-keyout", str(fresh), "-out", "-",
            ],
            capture_output=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise TlsError(f"openssl made no certificate: {done.stderr.decode(errors='replace')}")
        with fresh.open("ab") as file:
            file.write(done.stdout)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
    except (OSError, subprocess.SubprocessError) as exc:
        raise TlsError(f"no certificate can be made beside the database: {exc}") from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
