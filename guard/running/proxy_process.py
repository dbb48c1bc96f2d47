"""The proxy of a run: a process of its own, which is started when a program first connects to it.

The run itself owns the listening socket, and the proxy inherits it. So the address is known before
the proxy is started, a run whose programs are all guarded Python never starts one, and connections
that arrive while a dead proxy is being replaced wait in the socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from guard.local_gateway import first_report
from guard.running import plan, reports
from guard.running.processes import Address

COMMAND: Final = (sys.executable, "-P", "-m", "guard.proxy")
START_S: Final = 60.0
_END_S: Final = 15.0
"""How long it may take to deliver its events; then it is killed, and the run charges the rest."""

_BACKLOG: Final = 2048
_TRIES: Final = 3
_LOG: Final = "proxy.log"


class ProxyError(Exception):
    """The proxy has not started; the text says why."""


class ProxyProcess:
    """The proxy of one run.

    Args:
        directory: the directory of the run.
        environ: that of the run's processes; the proxy does not announce itself as one of them.
        workflow: the workflow of the run.
        upstreams: addresses that are not the vendors' own, by name.
        limited: whether requests that cannot be covered are refused.
        command: the command that starts it.

    Attributes:
        url: where it listens, once entered.
    """

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str],
        workflow: str,
        upstreams: Mapping[str, str],
        *,
        limited: bool,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._directory = directory
        self._environ = _without_hook(environ)
        self._told = {
            "directory": str(directory),
            "workflow": workflow,
            "upstreams": dict(upstreams),
            "limited": limited,
        }
        self._command = command
        # The socket while the run lasts; None before, and once the proxy has to end.
        self._listening: socket.socket | None = None
        # The newest proxy; it may have died.
        self._process: subprocess.Popen[bytes] | None = None
        # The proxy until it reports that it serves.
        self._starting: subprocess.Popen[bytes] | None = None
        # Held through a look, with the start, and through the end: one thread looks, and the main
        # thread ends it.
        self._lock = threading.Lock()
        # Whether it could not be started; the run ends then.
        self._has_failed = False
        self.url = ""

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> set[int]:
        """The proxy's process, which does not belong to the program."""
        return set() if self._process is None else {self._process.pid}

    @property
    def address(self) -> Address | None:
        """Where it listens, as the kernel lists it."""
        parts = urlsplit(self.url)
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None

    def poll(self) -> None:
        """Start the proxy if a connection waits for one; end the run if that fails.

        Blocks until the proxy serves.
        """
        with self._lock:
            self._look()

    def _look(self) -> None:
        listening = self._listening
        # 1. The run is over, or ends because of this.
        if listening is None or self._has_failed:
            return
        # 2. It runs.
        if self._process is not None and self._process.poll() is None:
            return
        # 3. No program needs it. 4. Start it: for the first time, or because it died.
        if not select.select([listening], [], [], 0)[0]:
            return
        for left in reversed(range(_TRIES)):
            try:
                self._start(listening)
            except (ProxyError, OSError) as exc:
                if self._listening is None:  # that is why: `end` waits for this look
                    return
                if left:
                    continue
                self._has_failed = True
                message = "guard's proxy cannot be started, and nothing runs without it"
                reports.refuse(self._directory, "GD-R002", str(exc), message=message)
            return

    def end(self) -> None:
        """End the proxy after it has delivered its events, within a bounded time."""
        # 1. One that is being started is killed: it has nothing to deliver, and `look` holds the
        #    lock until it serves.
        listening, self._listening = self._listening, None
        starting = self._starting
        if starting is not None:
            starting.kill()
        # 2. One that serves delivers its events.
        with self._lock:
            self._end(listening)

    def _end(self, listening: socket.socket | None) -> None:
        if listening is not None:
            listening.close()
        process, self._process = self._process, None
        if process is None:
            return
        # The end of its standard input asks it to end. It also ends so if this process is killed.
        with contextlib.suppress(OSError):
            _pipe(process.stdin).close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        _forget(process)

    def _start(self, listening: socket.socket) -> None:
        """Start it and wait until it reports that it serves.

        Raises:
            ProxyError: it does not.
        """
        descriptor = listening.fileno()
        log = self._directory / _LOG
        with open(log, "ab", opener=_private) as errors:
            process = subprocess.Popen(  # noqa: S603  # our own command
                self._command,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=(descriptor,),
                start_new_session=True,  # Ctrl-C of the terminal ends the program, not the proxy
            )
        # Before the wait: `pids` has to name it as not the program's.
        replaced, self._process = self._process, process
        self._starting = process
        if self._listening is None:  # `end` has just looked for one to kill
            process.kill()
        if replaced is not None:
            _forget(replaced)
        answer: dict[str, Any] = {}
        line = json.dumps({**self._told, "fd": descriptor}) + "\n"
        with contextlib.suppress(OSError):  # it may have ended, and its report says why
            _pipe(process.stdin).write(line.encode())
            _pipe(process.stdin).flush()
        with contextlib.suppress(OSError):
            ends_s = time.monotonic() + START_S
            answer = first_report(_pipe(process.stdout).fileno(), ends_s) or {}
        self._starting = None
        if not isinstance(answer.get("url"), str):
            process.kill()
            _forget(process)
            said = answer.get("error") or _last_line(log) or f"exit code {process.returncode}"
            raise ProxyError(str(said))


def _without_hook(environ: Mapping[str, str]) -> dict[str, str]:
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(path for path in paths if path and path != str(plan.HOOK))
    return {**environ, "PYTHONPATH": kept}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _forget(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is ending, and close the pipes to it."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            _pipe(pipe).close()


def _pipe(pipe: Any) -> Any:
    assert pipe is not None  # all are pipes here
    return pipe


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""
