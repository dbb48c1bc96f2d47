"""The reports of a run's processes to ``guard run``: files in one private directory.

Processes write and end at any moment, so each report is a file that appears in one step, or a lock
that the kernel releases with its process. Once the run is over the directory is gone, and reports
are lost.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from guard.local_gateway import open_private, read_json, try_lock, write_json
from guard.running import routes
from guard.running.routes import Changed

RUN_DIR_VARIABLE: Final = "GUARD_RUN_DIR"
REFUSED_CODE: Final = 77
"""Exit code of a run that guard has ended (``EX_NOPERM``)."""

UNSEEN_CODE: Final = 78
"""Exit code of a run with a limit of which guard has seen nothing (``EX_CONFIG``)."""

_REFUSED: Final = "refused.json"
_ACCOUNT: Final = "account.json"
_ENVIRONMENT: Final = "environment.json"
_PROCESS: Final = "process-"
_NESTED: Final = "nested-"
_UNSEEN: Final = "unseen-"
_PROXIED: Final = "proxied-"
_ROUTED: Final = "routed.json"
_PATH_BYTES_MAX: Final = 4096
SEEN_ONLY_VARIABLE: Final = "GUARD_RUN_SEEN_ONLY"
"""Set if LLM requests that cannot be covered are refused."""


@attrs.frozen
class RunPlace:
    """The gateway and the key that a run is charged to.

    Attributes:
        gateway: the directory of its local gateway.
        key_id: id of its key.
    """

    gateway: str
    key_id: str


def say_place(directory: Path, place: RunPlace) -> None:
    """Record where a run is charged, for a ``guard run`` inside of it."""
    write_json(directory / _ACCOUNT, attrs.asdict(place))


def place_around(environ: Mapping[str, str]) -> RunPlace | None:
    """Return where the run of this process is charged; None if it belongs to no run."""
    directory = environ.get(RUN_DIR_VARIABLE)
    return place_of(Path(directory)) if directory else None


def place_of(directory: Path) -> RunPlace | None:
    """Return where the run with this directory is charged; None if that is not recorded."""
    match read_json(directory / _ACCOUNT):
        case {"gateway": str(gateway), "key_id": str(key_id)}:
            return RunPlace(gateway, key_id)
    return None


def say_environment(directory: Path, environ: Mapping[str, str]) -> None:
    """Record the variables that every process of a run needs, for those that are given none."""
    own = {name: text for name, text in environ.items() if name.startswith("GUARD_")}
    write_json(directory / _ENVIRONMENT, own)


def environment(directory: Path) -> dict[str, str]:
    """Return the variables that every process of a run needs."""
    return {n: t for n, t in read_json(directory / _ENVIRONMENT).items() if isinstance(t, str)}


def announce(directory: Path) -> int | None:
    """Report that this process is guarded.

    Returns:
        Descriptor of the lock that shows it, until it is closed or the process ends.
    """
    return _appear(directory / f"{_PROCESS}{os.getpid()}")


def _appear(path: Path, content: bytes = b"") -> int | None:
    """Make a file that is locked from the moment on that it can be seen; return its descriptor.

    A reader locks each file that it sees for a moment, to learn whether it is locked. If it met one
    that its process has not locked yet, the process would not get the lock.
    """
    fresh = path.with_name(f"fresh-{path.name}")
    lock = try_lock(fresh)
    if lock is None:
        return None
    try:
        os.truncate(lock, 0)  # an earlier process with this pid may have left it
        os.write(lock, content)
        fresh.rename(path)
    except BaseException:
        os.close(lock)
        raise
    return lock


def refuse(directory: Path, code: str, reason: str, **about: Any) -> None:
    """Report why the run has to end; the first reason stays.

    Args:
        directory: the directory of the run.
        code: the code of the error.
        reason: its text; a leading code is removed, because ``code`` is reported separately.
        about: further facts: ``message``, ``budget``, ``tool_name``.
    """
    fresh = directory / f"{_REFUSED}.{os.getpid()}"
    known = {name: value for name, value in about.items() if value}
    reason = reason.removeprefix(f"[{code}]").lstrip()
    report = {"error_code": code, "reason": reason[:1000], **known}
    with contextlib.suppress(OSError):  # the run is over, and its directory gone
        with open(open_private(fresh, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            json.dump(report, file)
        # A link, not a rename: it appears in one step, and never replaces an earlier reason.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, directory / _REFUSED)
        fresh.unlink()


def refusal(directory: Path) -> dict[str, Any] | None:
    """Return why the run has to end, if it has to."""
    return read_json(directory / _REFUSED) or None


def announced(directory: Path) -> set[int]:
    """Return the processes that have reported that they are guarded, living or not."""
    return _numbers(directory, _PROCESS)


def vouches(directory: Path, pid: int) -> bool:
    """Return whether a process is guarded still: it has not ended, nor become another program."""
    path = directory / f"{_PROCESS}{pid}"
    with contextlib.suppress(OSError):
        lock = try_lock(path) if path.exists() else None
        if lock is not None:
            os.close(lock)
        return lock is None and path.exists()
    return False


def say_nested(directory: Path, own: Path) -> int | None:
    """Report that this process watches those below it by itself; return the lock that shows it.

    Args:
        directory: the directory of the run around this one.
        own: the reports of this run.
    """
    with contextlib.suppress(OSError):
        return _appear(directory / f"{_NESTED}{os.getpid()}", os.fsencode(own))
    return None


def nested(directory: Path) -> set[int]:
    """Return the processes that watch those below them by themselves."""
    return _numbers(directory, _NESTED)


def nested_in(directory: Path, pid: int) -> Path | None:
    """Return the directory of a run within a run, if its ``guard run`` has ended."""
    with contextlib.suppress(OSError):
        lock = try_lock(directory / f"{_NESTED}{pid}")
        if lock is not None:
            try:
                return Path(os.fsdecode(os.read(lock, _PATH_BYTES_MAX)))
            finally:
                os.close(lock)
    return None


def _numbers(directory: Path, head: str) -> set[int]:
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(directory) if name.startswith(head)]
        return {int(name.removeprefix(head)) for name in names if name[len(head) :].isdigit()}
    return set()


def say_unseen(directory: Path, counts: Mapping[str, int]) -> None:
    """Report which LLM requests of this process could not be metered, and how many."""
    with contextlib.suppress(OSError):
        write_json(directory / f"{_UNSEEN}{os.getpid()}", counts)


def unseen(directory: Path) -> dict[str, int]:
    """Return the LLM requests of all processes that could not be metered."""
    found: collections.Counter[str] = collections.Counter()
    for pid in _numbers(directory, _UNSEEN):
        counts = read_json(directory / f"{_UNSEEN}{pid}")
        found.update({n: c for n, c in counts.items() if isinstance(c, int)})
    return dict(found.most_common())


def say_proxied(directory: Path, requests: int) -> None:
    """Report that programs of the run have reached its proxy, and with how many requests."""
    with contextlib.suppress(OSError):  # the run is over, and its directory gone
        write_json(directory / f"{_PROXIED}{os.getpid()}", {"requests": requests})


def proxied(directory: Path) -> int:
    """Return how many requests to models have reached the run's proxy."""
    found = [
        read_json(directory / f"{_PROXIED}{pid}").get("requests")
        for pid in _numbers(directory, _PROXIED)  # also of proxies that died and were replaced
    ]
    return sum(count for count in found if isinstance(count, int))


def say_routed(directory: Path, changed: Mapping[str, Changed]) -> None:
    """Record the variables that lead the programs of a run to its proxy, and their old values."""
    write_json(directory / _ROUTED, routes.to_json(changed))


def routed(directory: Path) -> dict[str, Changed]:
    """Return the variables that lead the programs of a run to its proxy."""
    return routes.read(read_json(directory / _ROUTED))


def guarded(directory: Path) -> tuple[int, list[int]]:
    """Return how many processes were guarded, and which of them live."""
    living: list[int] = []
    paths = list(directory.glob(f"{_PROCESS}*"))
    for path in paths:
        lock = try_lock(path)
        if lock is None:  # its process holds it until it ends
            living.append(int(path.name.removeprefix(_PROCESS)))
        else:
            os.close(lock)
    return len(paths), living
