"""Who has which end of a connection."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from guard.running import processes
from tests.support.programs import killed_at_last

CONNECTS = """
import socket, sys, time
own, port = map(int, sys.argv[1:])
with socket.socket() as each:
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    each.bind(("127.0.0.1", own))
    each.connect(("127.0.0.1", port))
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not processes.IS_LINUX, reason="it reads /proc")
def test_one_port_to_two_servers_has_two_holders() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.socket() as free,
    ):
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
        free.close()
        ports = [each.getsockname()[1] for each in (one, other)]
        started = [
            subprocess.Popen([sys.executable, "-I", "-c", CONNECTS, str(own), str(port)],
                             stdout=subprocess.PIPE, text=True)
            for port in ports
        ]  # fmt: skip
        with killed_at_last(started[0]), killed_at_last(started[1]):
            for each in started:
                assert each.stdout is not None
                assert each.stdout.readline() == "up\n"
            pids = [each.pid for each in started]
            found = [
                processes.holder((("127.0.0.1", own), ("127.0.0.1", port)), pids) for port in ports
            ]
            assert found == pids
            assert processes.holder((("127.0.0.1", own), ("127.0.0.1", 9)), pids) is None
