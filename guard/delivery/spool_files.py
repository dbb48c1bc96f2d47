"""The spool's files and their users: permissions, and which processes are alive."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def holder_of(pid: int) -> str:
    """Return a name for a process that a later one with the same pid does not have, if possible.

    Without ``/proc`` the name is the pid alone.
    """
    try:
        # After the last parenthesis: the process's name, within them, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{pid}:{fields[19]}"  # its start time, in ticks since boot
    except (OSError, IndexError):
        return f"{pid}:"


def lives(holder: str) -> bool:
    """Return whether a process that claimed events may still be alive to deliver them.

    A process that is not visible (in another container) seems dead. Then two processes may send its
    events, which does no harm: they are charged once by ``event_id``.
    """
    pid = holder.partition(":")[0]
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        pass  # another user's process
    return holder_of(int(pid)) == holder


def prepare_directory(directory: Path) -> None:
    """Create the directory, or check that no other user can read or redirect its contents.

    Raises:
        OSError: it cannot be created, or other users could.
    """
    with contextlib.suppress(FileExistsError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
    # `lstat`: a link could lead to a directory that another user controls.
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError("the spool's directory is not a directory (links are not followed)")
    if found.st_uid != os.geteuid():
        raise OSError("the spool's directory belongs to another user")
    # Open to others: made private if only the spool uses it. Never a directory like /tmp or $HOME.
    if stat.S_IMODE(found.st_mode) & 0o077:
        others = [name for name in os.listdir(directory) if not name.startswith("events-1.")]
        if others:
            raise OSError("the spool needs a directory of its own; this one is open to other users")
        directory.chmod(0o700)


def require_plain_file(path: Path) -> None:
    """Create the file if it is missing, readable only by its owner; refuse links and devices.

    An existing file is never opened here: closing it again would give up the locks that other
    connections of this process hold on it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path.name} is not a plain file of this user") from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o600)
