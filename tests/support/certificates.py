"""Certificates for tests, made by the program ``openssl``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import attrs

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@attrs.frozen
class Authority:
    """Issues certificates.

    Attributes:
        folder: where all files are.
        certificate: what clients trust.
    """

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def _key(self) -> Path:
        return self.folder / "authority.key"

    def issue(self, names: str, stem: str = "server") -> tuple[Path, Path]:
        """Return a certificate and its key, for names such as ``DNS:localhost,IP:127.0.0.1``."""
        certificate, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        request, extensions = self.folder / f"{stem}.csr", self.folder / f"{stem}.ext"
        _openssl("req", *_NEW_KEY, "-subj", "/CN=gateway", "-keyout", key, "-out", request)
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
            "-days", "2", "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate, key


def new_authority(folder: Path) -> Authority:
    """Make an authority in a folder."""
    made = Authority(folder)
    _openssl(
        "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=test authority",
        "-addext", "keyUsage=critical,keyCertSign",
        "-keyout", made._key, "-out", made.certificate,
    )  # fmt: skip
    return made


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
