"""What programs do with their connections through a run's forward proxy, and what they may meet."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import sys
import threading
from pathlib import Path

import pytest

from guard.running import programs
from guard.running.processes import IS_LINUX
from tests.support.certificates import new_authority
from tests.support.forward_proxy import UsersProxy
from tests.support.runs import Runs, facts_of
from tests.system.test_run_forward import TUNNEL, program, set_by

on_linux = pytest.mark.skipif(not IS_LINUX, reason="it reads /proc")

ASK = """
host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
def asked(text, waits=True):
    peer = socket.create_connection((host, int(port)), timeout=30)
    peer.sendall(text.encode("latin-1"))
    return peer.recv(4096).split(b"\\r\\n")[0].decode() if waits else peer.close()
"""


@on_linux
def test_who_has_asked_guard_may_not_ask_others(
    guard: Runs, users: UsersProxy, vendor: str, tmp_path: Path
) -> None:
    """A program with two vendors, of which its variables lead to one."""
    code = "it = stay(); time.sleep(2.5); ask(); tunnel('api.deepseek.com:443', 2000)"
    command = program(tmp_path, "tool", code)
    done = guard("run", "--limit", "$1", "--json", "--", *command, env=set_by(users, vendor))
    assert done.returncode == 77, done.stderr
    assert "403 Forbidden" in done.stdout
    assert users.heads == []


@pytest.mark.parametrize(
    "words", [["aws"], ["/bin/amp", "-x"], ["node", "/n/node_modules/@sourcegraph/amp/a.js"]]
)
def test_what_is_never_led_reports_to_nobody(words: list[str]) -> None:
    assert programs.known_in(words) is None


@on_linux
@pytest.mark.parametrize("wall", [(), ("--wall",)])
def test_who_hangs_up_at_once_has_asked_nothing(
    guard: Runs, users: UsersProxy, tmp_path: Path, wall: tuple[str, ...]
) -> None:
    """Such as a program that ends, or a client that gives up, while it connects."""
    code = (
        ASK
        + "for _ in range(20): asked('CONNECT api.openai.com:443 HTTP/1.1\\r\\n\\r\\n', False)\n"
    )
    script = tmp_path / "leaves.py"
    script.write_text(TUNNEL + code + "time.sleep(1)")
    command = [sys.executable, "-c", f"import os; os.system({f'{sys.executable} -I {script}'!r})"]
    done = guard("run", "--limit", "$1", "--json", *wall, "--", *command, env=set_by(users))
    if wall and "there can be no wall" in done.stderr:
        pytest.skip("there are no namespaces here")
    assert done.returncode == 0, done.stderr
    assert facts_of(done)["refused"] is None
    assert users.heads == []


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".com", "\0a", ".", "\xff"])
def test_names_that_are_none_are_refused(guard: Runs, tmp_path: Path, host: str) -> None:
    script = tmp_path / "asks"
    script.write_text(
        TUNNEL + ASK + f"print(asked('CONNECT ' + {host!r} + ':443 HTTP/1.1\\r\\n\\r\\n'))"
    )
    done = guard("run", "--", sys.executable, "-I", str(script))
    assert "400 Bad Request" in done.stdout
    assert "Traceback" not in done.stderr


@on_linux
def test_a_name_in_other_letters_is_the_name_that_is_looked_up(
    guard: Runs, users: UsersProxy, tmp_path: Path
) -> None:
    """Full-width letters are those of ASCII to a look-up."""
    name = "\uff41pi.openai.com".encode().decode("latin-1")
    script = tmp_path / "asks"
    script.write_text(
        TUNNEL + ASK + f"print(asked('CONNECT ' + {name!r} + ':443 HTTP/1.1\\r\\n\\r\\n'))"
    )
    command = ["bash", "-c", f"{sys.executable} -I {script}; exit 0"]
    done = guard("run", "--limit", "$1", "--json", "--", *command, env=set_by(users))
    assert done.returncode == 77, done.stderr
    assert users.heads == []


def test_a_low_limit_of_open_files_holds_for_the_program_alone(
    guard: Runs, users: UsersProxy, tmp_path: Path
) -> None:
    code = """
import resource
peers = []
for number in range(60):
    peer = socket.create_connection((host, int(port)), timeout=20)
    peer.sendall(b"CONNECT files.example:443 HTTP/1.1\\r\\n\\r\\n")
    assert b" 200" in peer.recv(100)
    peers.append(peer)
print("open", len(peers), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    script = tmp_path / "holds"
    script.write_text(TUNNEL + ASK + code)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 1024:
        pytest.skip("this system allows no more open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        run = guard.start("run", "--", sys.executable, "-I", str(script), env=set_by(users))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    out, err = run.communicate(timeout=60)
    assert "open 60 256" in out, err


def test_behind_a_proxy_over_tls_the_end_of_a_program_is_the_end(
    guard: Runs, tmp_path: Path
) -> None:
    """TLS cannot say that one direction has ended."""
    certificate, key = new_authority(tmp_path).issue("DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    has_ended = threading.Event()

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(listening.accept()[0], True) as peer:
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while peer.recv(65536):
                pass
            has_ended.set()

    script = tmp_path / "asks"
    ask = "print(asked('CONNECT files.example:443 HTTP/1.1\\r\\n\\r\\n'), flush=True)\ninput()"
    script.write_text(TUNNEL + ASK + ask)
    with socket.create_server(("localhost", 0)) as listening:
        listening.settimeout(60)
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        env = {
            "HTTPS_PROXY": f"https://localhost:{listening.getsockname()[1]}",
            "SSL_CERT_FILE": str(tmp_path / "authority.pem"),
        }
        run = guard.start("run", "--", sys.executable, "-I", str(script), env=env)
        assert run.stdout is not None
        assert "200" in run.stdout.readline()
        assert has_ended.wait(20)
        run.communicate("\n", timeout=60)


def test_a_websocket_without_tls_is_one_to_its_server(
    guard: Runs, users: UsersProxy, tmp_path: Path
) -> None:
    text = "GET http://a.example/x HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    script = tmp_path / "asks"
    script.write_text(
        TUNNEL + ASK + f"asked({text!r})\nasked({text.replace('websocket', 'h2c')!r})"
    )
    guard(
        "run",
        "--",
        sys.executable,
        "-I",
        str(script),
        env=set_by(users) | {"HTTP_PROXY": users.url},
    )
    assert ["Connection: Upgrade" in head for head in users.heads] == [True, False]


@on_linux
def test_an_llm_host_is_one_by_its_address_too(guard: Runs, tmp_path: Path) -> None:
    """A program that looks up the name by itself, and names the address to its forward proxy."""
    script = tmp_path / "asks"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        script.write_text(TUNNEL + ASK + f"print(asked('CONNECT {place} HTTP/1.1\\r\\n\\r\\n'))")
        command = ["bash", "-c", f"{sys.executable} -I {script}; exit 0"]
        env = {"MISTRAL_BASE_URL": f"http://localhost:{listening.getsockname()[1]}/v1"}
        done = guard("run", "--limit", "$1", "--json", "--", *command, env=env)
        assert done.returncode == 77, done.stderr
        assert "403 Forbidden" in done.stdout
        listening.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listening.accept()
