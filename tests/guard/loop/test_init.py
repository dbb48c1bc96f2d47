"""What ``guard.init`` waits for, in fresh processes."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

BESIDE_THE_PROBE = """
import sys, threading, time
import guard
thread = threading.Thread(target=lambda: guard.init({key!r}, {url!r}), daemon=True)
thread.start()
ends = time.monotonic() + 60
wanted = {{"wrapt", "guard.instrumentation.httpx"}}
while time.monotonic() < ends and not wanted <= sys.modules.keys():
    time.sleep(0.01)
print(wanted <= sys.modules.keys(), thread.is_alive(), flush=True)
import os; os._exit(0)
"""

AFTER_INIT = """
import sys
import guard
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "websockets.asyncio.client":
            early.append(name)
early = []
sys.meta_path.insert(0, Finder())
guard.init({key!r}, {url!r})
print(not early, flush=True)
import os; os._exit(0)
"""

BOUNDS = """
import sys, time
import guard
guard.init, guard.protect
early = "guard.core.bounds" in sys.modules
guard.init({key!r}, {url!r})
ends = time.monotonic() + 60
while time.monotonic() < ends and "guard.core.bounds" not in sys.modules:
    time.sleep(0.01)
print(early, "guard.core.bounds" in sys.modules, flush=True)
import os; os._exit(0)
"""

FORK_DURING_THE_IMPORT = """
import importlib.machinery, os, signal, sys, threading, time
import guard
class SlowLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        inside.set()
        time.sleep(1)
        super().exec_module(module)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "websockets.asyncio.connection":
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.loader = SlowLoader(name, spec.origin)
            return spec
inside = threading.Event()
sys.meta_path.insert(0, Finder())
guard.init({key!r}, {url!r})
assert inside.wait(120)
pid = os.fork()
if pid == 0:
    signal.alarm(120)
    from websockets.asyncio.client import connect
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
os._exit(0)
"""


def run(program: str, key: str, url: str) -> str:
    source = program.format(key=key, url=url)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=300, check=True,
        env={"GUARD_TIMEOUT_MS": "100000", "PATH": ""},
    )  # fmt: skip
    return done.stdout.strip()


def test_what_the_hooks_need_is_loaded_while_the_probe_is_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert run(BESIDE_THE_PROBE, "k" * 24, url) == "True True"


def test_nothing_is_loaded_for_the_socket_before_init_returns(tenant: Any) -> None:
    """It takes its pause; on a machine under load one of a few processes shows it."""
    assert "True" in {run(AFTER_INIT, tenant.key, tenant.url) for _ in range(5)}


def test_what_bounds_a_request_is_loaded_after_init_without_a_request(tenant: Any) -> None:
    assert run(BOUNDS, tenant.key, tenant.url) == "False True"


def test_a_fork_waits_until_the_sockets_library_is_loaded(tenant: Any) -> None:
    assert run(FORK_DURING_THE_IMPORT, tenant.key, tenant.url) == "0"
