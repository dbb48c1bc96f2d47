"""The lock that keeps a database file to one process, also if the file has several names.

There are two locks. One is on a file beside the database, which exists before the database does.
The other is on the database itself, so that a second name of the file (a link) does not get around
the first; it is a lock of an open file description, on a byte that SQLite never uses. A process
that closes any descriptor of a file loses its record locks on it, and SQLite's locks are such: so
nothing here opens a file that this process has locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_BYTE: Final = 1 << 62
_FLOCK: Final = "hhqqi4x"
"""``struct flock``: type, whence, start, length, and a process id of zero."""

# Linux has it; elsewhere only the file beside the database is locked.
_SET_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)

_IN_USE: Final = "another gateway is using this database"

_mine: set[tuple[int, int]] = set()
"""Device and inode of each database that this process has locked; under ``_mine_lock``."""
_mine_lock: Final = threading.Lock()


class FileLock:
    """Keeps a database to its holder until it is closed.

    Args:
        path: of the database, which need not exist.

    Raises:
        RuntimeError: a gateway has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The descriptor of the database, and its entry in ``_mine``; ``None`` while it is not
        # locked.
        self._database: tuple[int, tuple[int, int]] | None = None
        self._beside = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            with _in_use():
                fcntl.flock(self._beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                self.take_file()
        except BaseException:
            self.close()
            raise

    def take_file(self) -> None:
        """Lock the file that the path names now: it was made or replaced since the last time.

        No connection to it may be open in this process.

        Raises:
            RuntimeError: a gateway has it by another name.
        """
        self._leave_file()
        if _SET_LOCK is None:
            return
        with _mine_lock:
            found = os.stat(self._path)
            inode = (found.st_dev, found.st_ino)
            # Before the file is opened: closing a second descriptor would end SQLite's locks.
            if inode in _mine:
                raise RuntimeError(_IN_USE)
            writable = os.access(self._path, os.W_OK)
            opened = os.open(self._path, os.O_RDWR if writable else os.O_RDONLY)
            kind = fcntl.F_WRLCK if writable else fcntl.F_RDLCK
            try:
                with _in_use():
                    fcntl.fcntl(
                        opened, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, _BYTE, 1, 0)
                    )
            except BaseException:
                os.close(opened)
                raise
            _mine.add(inode)
            self._database = opened, inode

    def _leave_file(self) -> None:
        if self._database is None:
            return
        (opened, inode), self._database = self._database, None
        # Together under the lock: between the two, another thread could open the file, and the
        # close would end its locks.
        with _mine_lock:
            _mine.discard(inode)
            os.close(opened)

    def close(self) -> None:
        """Release the database. The holder's connections must be closed before."""
        self._leave_file()
        os.close(self._beside)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a database during a block.

    Raises:
        RuntimeError: a gateway has it.
    """
    with contextlib.closing(FileLock(path)):
        yield


@contextlib.contextmanager
def _in_use() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EACCES):
            raise RuntimeError(_IN_USE) from None
        raise
