"""Commands of many people at once, each in a process of its own; one interpreter is started.

What they are started with is imported once, and forked for each: thirty ``guard login`` at the same
time would otherwise take half a minute to begin.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from tests.support.programs import environment, killed_at_last
from tests.support.waiting import until

_PROGRAM: Final = """
import json, os, signal, sys, traceback
import anthropic, httpx, openai
import guard.gateway.cli.main, guard.login.client, guard.login.command, guard.proxy.command
from guard.__main__ import main

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    words, env, folder = json.loads(line)
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor, name in ((0, os.devnull), (1, folder + "/out"), (2, folder + "/err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(env)
    code = 0
    try:
        if words[0] == "guard":
            sys.argv = words
            main()
        else:
            sys.argv = words[1:]
            exec(compile(words[1], "agent.py", "exec"), {"__name__": "__main__"})
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open(folder + "/code.part", "w") as file:
        file.write(str(code))
    os.rename(folder + "/code.part", folder + "/code")
    os._exit(code)
"""


@attrs.frozen
class Started:
    """A command that was started."""

    folder: Path

    def said(self, name: str = "out") -> str:
        """Return what it has printed so far; ``err`` for its errors."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text()
        return ""

    def has_ended(self) -> bool:
        """Tell whether it has."""
        return (self.folder / "code").exists()

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code and what it has printed."""
        until(self.has_ended)
        return int((self.folder / "code").read_text()), self.said(), self.said("err")


class Crowd:
    """Starts commands.

    Args:
        process: that forks.
        folder: for what they print.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._numbers = itertools.count(1)

    def start(self, words: list[str], env: Mapping[str, str]) -> Started:
        """Start ``guard ...``, or ``python TEXT ...`` for the text of a program."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([words, dict(env), str(folder)]) + "\n")
        self._process.stdin.flush()
        return Started(folder)


@contextlib.contextmanager
def crowd(folder: Path) -> Iterator[Crowd]:
    """Start commands until the block ends; those that go on then are killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], env=environment(), stdin=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    with killed_at_last(process):
        try:
            yield Crowd(process, folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
