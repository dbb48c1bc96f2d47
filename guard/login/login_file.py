"""The file that has this machine's login: ``~/.config/guard/login.json``, for its owner alone."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from guard.local_gateway import read_json, try_lock, write_json

_LOCK_WAIT_S: Final = 60.0
"""More than a refresh takes."""
_LOOK_S: Final = 0.05


class LoginFileError(Exception):
    """The file cannot be used; the text says what to do."""


@attrs.frozen
class StoredLogin:
    """One login.

    Args:
        url: the address of the gateway.
        access_token: a key of guard's.
        ends_ms: when that ends.
        refresh_token: for the next one; empty where the provider gives none.
        tls_fingerprint: the fingerprint of the gateway's certificate; empty: authorities decide.
    """

    url: str
    access_token: str = attrs.field(repr=False)
    ends_ms: int
    refresh_token: str = attrs.field(default="", repr=False)
    tls_fingerprint: str = ""


class LoginFile:
    """Reads and writes the login; one process at a time may refresh it.

    Args:
        environ: the environment of the command.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = environ.get("XDG_CONFIG_HOME", "")
        try:
            base = Path(given) if os.path.isabs(given) else Path.home() / ".config"
        except RuntimeError:
            raise LoginFileError(
                "this user has no home directory; set XDG_CONFIG_HOME to a directory"
            ) from None
        self._directory = base / "guard"
        self._path = self._directory / "login.json"

    def read(self) -> StoredLogin | None:
        """Return the login; ``None`` if nobody is signed in.

        Raises:
            LoginFileError: other users may read the file.
        """
        with contextlib.suppress(OSError):
            mode = self._path.stat().st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise LoginFileError(
                    f"other users may read {self._path}: sign in again after `guard logout`"
                )
        stored = read_json(self._path)
        known = {field.name: stored.get(field.name) for field in attrs.fields(StoredLogin)}
        ends_ms = known.pop("ends_ms")
        texts = {name: value for name, value in known.items() if isinstance(value, str)}
        if len(texts) < len(known) or not isinstance(ends_ms, int):
            return None
        return StoredLogin(ends_ms=ends_ms, **texts)

    def write(self, login: StoredLogin) -> None:
        """Replace the login, in one step.

        Raises:
            LoginFileError: it cannot be written.
        """
        try:
            write_json(self._path, attrs.asdict(login))
        except OSError as exc:
            raise self._unusable(exc) from None

    def remove(self) -> None:
        """Forget the login."""
        self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the login to this process: two that refresh at once would race for one token.

        Raises:
            LoginFileError: another process keeps it, or the directory cannot be used.
        """
        ends_s = time.monotonic() + _LOCK_WAIT_S
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            while (descriptor := try_lock(self._directory / "login.lock")) is None:
                if time.monotonic() > ends_s:
                    raise LoginFileError("another process keeps the login locked; try again")
                time.sleep(_LOOK_S)
        except OSError as exc:
            raise self._unusable(exc) from None
        try:
            yield
        finally:
            os.close(descriptor)

    def _unusable(self, exc: OSError) -> LoginFileError:
        return LoginFileError(f"{self._directory} cannot be used: {exc.strerror or exc}")
