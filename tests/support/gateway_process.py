"""A real gateway in a process of its own, for tests in which it must not share the interpreter."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from guard.gateway.admin import AdminClient
from tests.support.programs import environment, killed_at_last

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import json, sys
from guard.gateway.embedded import run_gateway

with run_gateway(**json.loads(sys.argv[1])) as gateway:
    print(json.dumps([gateway.base_url, gateway.api_key, gateway.admin_key]), flush=True)
    sys.stdin.read()
"""


@attrs.frozen
class GatewayProcess:
    """A gateway with one organisation."""

    url: str
    pid: int
    key: str = attrs.field(repr=False)
    admin: AdminClient


@contextlib.contextmanager
def gateway_process(**settings: Any) -> Iterator[GatewayProcess]:
    """Run a gateway with these settings until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(settings)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with killed_at_last(process):
        assert process.stdout is not None
        url, key, admin_key = json.loads(process.stdout.readline())
        admin = AdminClient(url, admin_key)
        yield GatewayProcess(url, process.pid, key, admin)
        admin.close()
        process.communicate(timeout=120)  # its input ends, and so does it
