"""The local gateway of this user: found, joined or started through files in one directory.

- ``users.lock``: every process that uses the gateway holds a shared lock on it, which the kernel
  releases however the process ends. A forked child holds its parent's lock too.
- ``gateway.lock``: held by the gateway while it lives.
- ``start.lock``: held while a gateway is being started, so that one process starts one.
- ``address.json``: where the gateway listens. The process that starts one removes the file of its
  predecessor first, so a file beside a held ``gateway.lock`` is never stale.
- ``identity.json``: its keys and its usual port; kept, as are ``gateway.sqlite3`` and
  ``gateway.log``.

Used by the SDK and by the gateway, so it imports neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

DIRECTORY_VARIABLE: Final = "GUARD_LOCAL_DIR"
START_TIMEOUT_S: Final = 30.0

_CHILD: Final = "guard.gateway.local"
_POLL_S: Final = 0.02
_LOG_BYTES_MAX: Final = 1_048_576
_REPORT_BYTES_MAX: Final = 65_536


class LocalGatewayError(Exception):
    """The local gateway cannot be used; the text says why and what to do."""


@attrs.frozen
class Files:
    """The files of one local gateway.

    Args:
        directory: holds them all; readable by its owner only.
    """

    directory: Path

    @property
    def users(self) -> Path:
        """Locked, shared, by every process that uses the gateway."""
        return self.directory / "users.lock"

    @property
    def gateway(self) -> Path:
        """Locked by the gateway."""
        return self.directory / "gateway.lock"

    @property
    def start(self) -> Path:
        """Locked by the process that starts a gateway."""
        return self.directory / "start.lock"

    @property
    def address(self) -> Path:
        """Where the gateway listens."""
        return self.directory / "address.json"

    @property
    def identity(self) -> Path:
        """Its keys and its usual port."""
        return self.directory / "identity.json"

    @property
    def database(self) -> Path:
        """Its data."""
        return self.directory / "gateway.sqlite3"

    @property
    def log(self) -> Path:
        """Its log."""
        return self.directory / "gateway.log"


@attrs.frozen
class Identity:
    """The part that stays the same when the gateway is started again.

    Args:
        port: where it listens if the port is free; 0 before the first start.
        api_key, hmac_secret: for the SDK. Requests and replies are signed, so that a program that
            takes over the port can neither allow calls nor learn a secret with which to ask.
        admin_key: for ``guard gateway`` commands.
    """

    port: int = 0
    api_key: str = attrs.field(default="", repr=False)
    hmac_secret: str = attrs.field(default="", repr=False)
    admin_key: str = attrs.field(default="", repr=False)


def directory_of(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of this user's gateway: ``GUARD_LOCAL_DIR``, else beside other data.

    Raises:
        LocalGatewayError: the user has no home directory.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(DIRECTORY_VARIABLE, "").strip()
    try:
        if given:
            return Path(given).expanduser().absolute()
        data = environ.get("XDG_DATA_HOME", "")
        base = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    except RuntimeError:
        raise LocalGatewayError(
            f"this user has no home directory; set {DIRECTORY_VARIABLE} to a directory for the "
            "local gateway"
        ) from None
    return base / "guard" / "local"


# -- files -------------------------------------------------------------------------------------


def prepare(directory: Path) -> None:
    """Create the directory, or check that no other user can read or redirect its contents.

    Raises:
        LocalGatewayError: it cannot be used.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise LocalGatewayError(_unusable(directory, "not a directory (links do not count)"))
        if found.st_uid != os.geteuid():
            raise LocalGatewayError(_unusable(directory, "it belongs to another user"))
        if stat.S_IMODE(found.st_mode) & 0o077:
            if any(directory.iterdir()):
                raise LocalGatewayError(
                    _unusable(directory, "it is open to other users and not empty")
                )
            directory.chmod(0o700)
    except OSError as exc:
        raise LocalGatewayError(_unusable(directory, exc.strerror or str(exc))) from None


def _unusable(directory: Path, reason: str) -> str:
    return (
        f"the local gateway cannot keep its files in {directory}: {reason}. Set "
        f"{DIRECTORY_VARIABLE} to a directory of yours that can be written"
    )


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner can read; links are not followed."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one if the file is missing or incomplete."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file in one step; it is readable by its owner only."""
    # Left over if an earlier process with this pid died before the rename.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    with open(open_private(fresh, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
        json.dump(value, file)
        # On disk before it is renamed: a power failure leaves the old file or the new one.
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read_identity(files: Files) -> Identity:
    """Return the stored identity; an empty one when the gateway has never run."""
    stored = read_json(files.identity)
    known = {field.name: stored.get(field.name) for field in attrs.fields(Identity)}
    port = known.pop("port")
    texts = {name: value for name, value in known.items() if isinstance(value, str)}
    return Identity(port=port if isinstance(port, int) and 0 < port < 65536 else 0, **texts)


# -- locks -------------------------------------------------------------------------------------


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Lock a file and return its descriptor, whose closing unlocks it; None if it is locked.

    Raises:
        OSError: the file cannot be opened or locked at all.
    """
    while True:
        descriptor = open_private(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed meanwhile: its lock no longer counts


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path still names the open file."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _is_locked(path: Path) -> bool:
    """Return whether a file is locked exclusively; holds a shared lock on it only for a moment."""
    descriptor = try_lock(path, shared=True)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


# -- joining -----------------------------------------------------------------------------------


class LocalGateway:
    """The use of the local gateway by this process, from :func:`join` to :meth:`leave`.

    Attributes:
        url: where it listens, on loopback.
        identity: its keys.
        files: where it keeps everything.
    """

    def __init__(self, files: Files, users: int) -> None:
        self.files = files
        self.url = ""
        self.identity = Identity()
        # Descriptors of the shared lock on ``users``, whose closing releases it: one, two while the
        # gateway is being restored, none once it was left. Each is closed by the thread that takes
        # it out, in one step. No lock: a child forked meanwhile would never get it.
        self._users = [users]
        # Whether it was left. Set before the descriptor is closed: a thread that restores the
        # gateway at the same time then leaves it again.
        self._left = False

    def __repr__(self) -> str:
        return f"<LocalGateway {self.url} in {self.files.directory}>"

    def leave(self) -> None:
        """Stop using it; the gateway ends some seconds after its last user. Idempotent."""
        # Closed, not unlocked: a forked child shares the lock, and may still use the gateway.
        self._left = True
        while self._release():
            pass

    def _release(self) -> bool:
        """Close the oldest descriptor; return whether there was one."""
        try:
            users = self._users.pop(0)
        except IndexError:
            return False
        os.close(users)
        return True

    def is_running(self) -> bool:
        """Return whether the gateway runs; takes some microseconds and no network."""
        try:
            users = self._users[-1:]
            if not users or not is_at(users[0], self.files.users):
                return False
            return _is_locked(self.files.gateway)
        except OSError:  # such as a descriptor that another thread has just closed
            return False

    def restore(self) -> None:
        """Start the gateway again after a crash; it takes its usual port.

        Raises:
            LocalGatewayError: it cannot be started, or it listens on another port now.
        """
        # The new lock before the old one is closed: a gateway without users ends.
        again = join(self.files.directory)
        self._users.extend(again._users)
        self._release()
        if self._left:  # meanwhile, in another thread
            self.leave()
            return
        if again.url != self.url:
            raise LocalGatewayError(
                f"the local gateway was started again and listens on {again.url} now, because "
                f"{self.url} was taken; call guard.shutdown() and guard.init()"
            )


def join(directory: Path | None = None, *, timeout_s: float = START_TIMEOUT_S) -> LocalGateway:
    """Use this user's gateway; start it if it does not run. Blocks until it answers.

    Args:
        directory: its files; by default those of :func:`directory_of`.
        timeout_s: total time in seconds.

    Raises:
        LocalGatewayError: the directory cannot be used, or the gateway cannot be started.
    """
    files = Files(directory_of() if directory is None else directory)
    prepare(files.directory)
    ends_s = time.monotonic() + timeout_s
    try:
        gateway = LocalGateway(files, _become_user(files, ends_s))
        try:
            _find_or_start(gateway, ends_s)
        except BaseException:
            gateway.leave()
            raise
    except OSError as exc:
        raise LocalGatewayError(_unusable(files.directory, exc.strerror or str(exc))) from None
    return gateway


def _become_user(files: Files, ends_s: float) -> int:
    while True:
        users = try_lock(files.users, shared=True)
        if users is not None:
            return users
        # The gateway has the file locked: it is ending, or checks whether there are users.
        _wait(ends_s, files, "an earlier one did not end in time")


def _find_or_start(gateway: LocalGateway, ends_s: float) -> None:
    files = gateway.files
    while True:
        # 1. It runs. Its address may not be there yet: wait for it.
        if _is_locked(files.gateway):
            url = read_json(files.address).get("url")
            if isinstance(url, str):
                gateway.url = url
                gateway.identity = read_identity(files)
                return
        # 2. It does not run: start it, or wait for the process that does.
        else:
            starting = try_lock(files.start)
            if starting is not None:
                try:
                    # Checked again: another process may have started one in between. The old
                    # address goes first: if this process dies, no reader takes it for the new one.
                    if not _is_locked(files.gateway):
                        files.address.unlink(missing_ok=True)
                        _start(files, ends_s)
                        continue
                finally:
                    os.close(starting)
        _wait(ends_s, files, "it did not start in time")


def _wait(ends_s: float, files: Files, failure: str) -> None:
    if time.monotonic() >= ends_s:
        raise LocalGatewayError(f"the local gateway cannot be used: {failure}; see {files.log}")
    time.sleep(_POLL_S)


def _start(files: Files, ends_s: float) -> None:
    """Start a gateway in the background and wait until it reports that it serves."""
    if not sys.executable:
        raise LocalGatewayError(
            "the local gateway cannot be started: this program does not know its Python "
            "interpreter; run `guard gateway serve`"
        )
    package = str(Path(__file__).resolve().parents[1])
    # This program's settings of guard are not the gateway's.
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GUARD_")}
    paths = [package, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    log = open_private(files.log, os.O_WRONLY | os.O_APPEND)
    try:
        if os.fstat(log).st_size > _LOG_BYTES_MAX:
            os.ftruncate(log, 0)
        process = subprocess.Popen(  # noqa: S603  # our own module, by this interpreter
            [sys.executable, "-P", "-m", _CHILD, str(files.directory)],
            env={**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
            cwd=files.directory,  # the program's could not be unmounted while the gateway runs
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
    finally:
        os.close(log)
    assert process.stdout is not None
    with process.stdout as pipe:
        report = first_report(pipe.fileno(), ends_s)
        if report is None:
            process.kill()
    process.wait()  # it has left the gateway to init
    if report is None:
        raise LocalGatewayError(f"the local gateway did not start in time; see {files.log}")
    error = report.get("error", "it ended at once")
    if error is not None:
        raise LocalGatewayError(f"the local gateway cannot be started: {error}; see {files.log}")


def first_report(pipe: int, ends_s: float) -> dict[str, Any] | None:
    """Read the one line that a new process of guard's writes.

    Returns:
        The object in it; an empty one if the process ended without it, None if it is late.

    Args:
        pipe: its standard output.
        ends_s: the deadline, by ``time.monotonic()``.
    """
    said = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN | select.POLLHUP)
    while not said.endswith(b"\n") and len(said) < _REPORT_BYTES_MAX:
        if not poll.poll(max(0.0, ends_s - time.monotonic()) * 1000):
            return None
        more = os.read(pipe, _REPORT_BYTES_MAX)
        if not more:
            break
        said += more
    try:
        report = json.loads(said)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}
