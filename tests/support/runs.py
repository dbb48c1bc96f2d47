"""``guard`` commands in processes of their own, beside one local gateway."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard.gateway.admin import AdminClient
from guard.local_gateway import Files, join, read_json, try_lock
from tests.support.programs import environment, killed_at_last

AGENT = """
import sys, httpx
for number in range(int(sys.argv[2])):
    body = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    try:
        reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
    except Exception:  # what careless agents do
        continue
    print(number, reply.status_code, flush=True)
"""
"""A request costs 512 500 nano-dollars."""

LIMIT = "$0.002"
"""Enough for three of its requests."""


class Runs:
    """Starts ``guard`` commands beside the local gateway; none outlives ``close``.

    Attributes:
        env: of the commands.
    """

    def __init__(self, directory: Path) -> None:
        self.env = environment({"GUARD_LOCAL_DIR": str(directory)})
        self._directory = directory
        self._started = contextlib.ExitStack()

    def close(self) -> None:
        self._started.close()

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "guard", *arguments],
            env=self.env | more.pop("env", {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            **more,
        )  # fmt: skip
        return self._started.enter_context(killed_at_last(process))

    def __call__(
        self, *arguments: str, stdin: str = "", **more: Any
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **more)
        out, err = process.communicate(stdin, timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @contextlib.contextmanager
    def operator(self) -> Iterator[AdminClient]:
        """Reach the gateway as its operators do, from here: a command each would take longer."""
        gateway = join(self._directory)
        admin = AdminClient(gateway.url, gateway.identity.admin_key)
        try:
            yield admin
        finally:
            admin.close()
            gateway.leave()


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the report of a run with ``--json``."""
    return dict(json.loads(done.stdout.splitlines()[-1]))


def wait_for_end(directory: Path) -> None:
    """Wait until no gateway runs; one that is killed still listens while its threads die."""
    while (lock := try_lock(Files(directory).gateway)) is None:
        time.sleep(0.02)
    os.close(lock)


@contextlib.contextmanager
def local_directory(directory: Path) -> Iterator[Path]:
    """The directory of a local gateway, which does not outlive the block."""
    try:
        yield directory
    finally:
        files = Files(directory)
        if directory.exists():
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(read_json(files.address)["pid"], signal.SIGKILL)
            wait_for_end(directory)
