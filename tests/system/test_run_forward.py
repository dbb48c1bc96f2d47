"""The forward proxy of a run: who connects where, what passes, and what ends the run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from guard.running.processes import IS_LINUX
from tests.support.forward_proxy import UsersProxy
from tests.support.runs import Runs, facts_of
from tests.support.waiting import until

on_linux = pytest.mark.skipif(not IS_LINUX, reason="it reads /proc")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="it becomes another user")

TUNNEL = """
import os, socket, sys, time, urllib.request
def tunnel(place, size, turns=1):
    host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
    peer = socket.create_connection((host, int(port)))
    peer.sendall(f"CONNECT {place} HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n".encode())
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        data = peer.recv(1)
        if not data:
            break
        head += data
    print(head.split(b"\\r\\n")[0].decode(), flush=True)
    if b" 200" not in head.split(b"\\r\\n")[0]:
        print(peer.recv(4096).decode(), flush=True)
        return
    for _ in range(turns):
        peer.sendall(b"x" * size)
        left = size
        while left:
            data = peer.recv(65536)
            if not data:
                print("cut", flush=True)
                time.sleep(60)
            left -= len(data)
    peer.shutdown(socket.SHUT_WR)
    print("rest", peer.recv(10), flush=True)
def ask():
    body = b'{"model": "gpt-4o", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}'
    headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    print(urllib.request.urlopen(urllib.request.Request(url, body, headers)).status, flush=True)
def stay():
    place = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    peer = socket.create_connection((place[0], int(place[1])))
    time.sleep(0.5)  # several looks of the watch
    return peer
"""


def program(folder: Path, name: str, code: str) -> list[str]:
    """Return the command of a program with this name, which does not load guard."""
    script = folder / name
    script.write_text(TUNNEL + code)
    # Through a shell, so that nothing of its command is known before it runs.
    return ["bash", "-c", f"{sys.executable} -I {script}; exit $?"]


def set_by(users: UsersProxy, vendor: str = "") -> dict[str, str]:
    """Return an environment with the user's forward proxy."""
    more = {"OPENAI_BASE_URL": f"{vendor}/v1"} if vendor else {}
    return {"HTTPS_PROXY": users.url.replace("//", "//me:secret@"), **more}


@on_linux
def test_what_is_no_llm_passes_and_is_counted(
    guard: Runs, users: UsersProxy, tmp_path: Path
) -> None:
    code = "tunnel('files.example:443', 3_000_000); tunnel('[2001:db8::1]:8443', 10)"
    command = program(tmp_path, "fetch", code)
    options = ("run", "--allow-unseen", "--limit", "$1", "--json", "--")
    done = guard(*options, *command, env=set_by(users))
    assert done.returncode == 0, done.stderr
    passed = "HTTP/1.1 200 Connection established\nrest b''\n"
    assert done.stdout.startswith(passed * 2)
    assert users.lines() == [
        "CONNECT files.example:443 HTTP/1.1", "CONNECT [2001:db8::1]:8443 HTTP/1.1",
    ]  # fmt: skip
    assert all("Proxy-Authorization: Basic bWU6c2VjcmV0" in head for head in users.heads)
    facts = facts_of(done)
    assert facts["unguarded_connections"] == []
    assert facts["other_hosts"] == {
        "files.example": {"connections": 1, "sent_bytes": 3_000_000, "received_bytes": 3_000_000},
        "2001:db8::1": {"connections": 1, "sent_bytes": 10, "received_bytes": 10},
    }
    assert "secret" not in done.stdout + done.stderr


ASK = """
import os, urllib.request
body = b'{"model": "gpt-4o", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}'
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions?a=%7e&b=[1]"
headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}
try:
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read()
except OSError as exc:
    print(exc, flush=True)
"""


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_runs_own_proxy_reaches_vendors_through_the_users(
    guard: Runs, users: UsersProxy, tmp_path: Path, scheme: str
) -> None:
    """The path of a request stands as it was in what a forward proxy reads itself, else nowhere."""
    (tmp_path / "ask.py").write_text(ASK)
    command = ["bash", "-c", f"{sys.executable} -I {tmp_path / 'ask.py'}; exit $?"]
    env = {f"{scheme.upper()}_PROXY": users.url, "OPENAI_BASE_URL": f"{scheme}://llm.example/v1"}
    done = guard("run", "--limit", "$1", "--json", "--", *command, env=env)
    facts = facts_of(done)
    assert facts["proxied_requests"] == 1, done.stderr
    if scheme == "https":
        assert set(users.lines()) == {"CONNECT llm.example:443 HTTP/1.1"}
        assert all(users.received.values()), "TLS has begun"
    else:
        place = "http://llm.example/v1/chat/completions?a=%7e&b=[1]"
        assert users.lines() == [f"POST {place} HTTP/1.1"]


@on_linux
@pytest.mark.parametrize(
    "place",
    ["api.openai.com:443", "API.OpenAI.com.:443", "chatgpt.com:443", "mine.openai.azure.com:443",
     "bedrock-runtime.eu-west-9.amazonaws.com:443", "x.api.openai.com:8443"],
)  # fmt: skip
def test_an_unknown_program_never_reaches_a_vendor(
    guard: Runs, users: UsersProxy, tmp_path: Path, place: str
) -> None:
    """Also where the user's exceptions name the vendor."""
    command = program(tmp_path, "tool", f"tunnel({place!r}, 10); time.sleep(60)")
    env = set_by(users) | {"NO_PROXY": "openai.com,.amazonaws.com,chatgpt.com,*"}
    done = guard("run", "--limit", "$1", "--json", "--", *command, env=env)
    assert done.returncode == 77, done.stderr
    assert "403 Forbidden" in done.stdout
    assert "--allow-unseen" in done.stdout
    assert users.heads == []
    facts = facts_of(done)
    assert f"talks to {place.rpartition(':')[0]}" in facts["refused"]["message"]
    (past,) = facts["unguarded_connections"]
    assert (past["program"].startswith("python"), past["sent_bytes"]) == (True, 0)


@on_linux
@needs_curl
def test_without_a_limit_it_is_named_with_its_bytes(guard: Runs, users: UsersProxy) -> None:
    command = ["bash", "-c", "curl -s https://api.openai.com; echo $?"]
    done = guard("run", "--", *command, env=set_by(users))
    assert done.returncode == 0, done.stderr
    assert users.lines() == ["CONNECT api.openai.com:443 HTTP/1.1"]
    assert "not counted: curl talked to api.openai.com (1 connection, " in done.stderr


@on_linux
def test_a_known_program_may_report_to_its_vendor(
    guard: Runs, users: UsersProxy, vendor: str, tmp_path: Path
) -> None:
    code = "ask(); tunnel('api.anthropic.com:443', 5_000, 3)"
    command = program(tmp_path, "claude", code)
    done = guard("run", "--limit", "$1", "--json", "--", *command, env=set_by(users, vendor))
    assert done.returncode == 0, done.stderr
    facts = facts_of(done)
    assert facts["unguarded_connections"] == [
        {"program": "claude", "host": "api.anthropic.com", "connections": 1,
         "sent_bytes": 15_000, "received_bytes": 15_000}
    ]  # fmt: skip
    assert (facts["seen"], facts["requests"]) == (True, 1)


@on_linux
@pytest.mark.parametrize("before", ["", "it = stay()"])
def test_it_may_not_ask_it_for_an_answer(
    guard: Runs, users: UsersProxy, vendor: str, tmp_path: Path, before: str
) -> None:
    """An answer by a model, to a request that its own settings lead past guard, is cut."""
    code = f"{before}\ntunnel('api.anthropic.com:443', 100_000)"
    command = program(tmp_path, "claude", code)
    done = guard("run", "--limit", "$1", "--json", "--", *command, env=set_by(users, vendor))
    assert done.returncode == 77, done.stderr
    facts = facts_of(done)
    assert "past guard as models answer, after" in facts["refused"]["message"]
    (past,) = facts["unguarded_connections"]
    assert past["sent_bytes"] <= 100_000


@on_linux
def test_one_guarded_process_does_not_vouch_for_others(
    guard: Runs, users: UsersProxy, tmp_path: Path
) -> None:
    """A Python that has loaded guard and becomes another program is that program."""
    script = tmp_path / "claims.py"
    script.write_text(TUNNEL + "tunnel('api.openai.com:443', 10); time.sleep(60)")
    become = f"import os, sys; os.execv(sys.executable, [sys.executable, '-I', {str(script)!r}])"
    done = guard("run", "--limit", "$1", "--json", "--", sys.executable, "-c", become,
                 env=set_by(users))  # fmt: skip
    assert done.returncode == 77, done.stderr
    assert facts_of(done)["guarded_processes"] == 1
    assert users.heads == []


def test_guarded_python_goes_its_users_way(guard: Runs, users: UsersProxy) -> None:
    show = (
        "import os, subprocess\n"
        "print(os.environ['HTTPS_PROXY'], os.environ.get('NO_PROXY'), flush=True)\n"
        "subprocess.run(['sh', '-c', 'echo $HTTPS_PROXY $NO_PROXY'])"
    )
    done = guard("run", "--", sys.executable, "-c", show, env=set_by(users))
    own, child = done.stdout.splitlines()[:2]
    assert own == f"{users.url.replace('//', '//me:secret@')} None"
    assert child.startswith("http://127.0.0.1:")
    assert child.endswith("127.0.0.1,localhost,::1")
    assert users.url not in child


@needs_curl
def test_plain_http_goes_there_only_behind_the_users_proxy(guard: Runs, users: UsersProxy) -> None:
    command = ["curl", "-s", "http://files.example/a?b=c", "http://other.example:81"]
    env = {"http_proxy": users.url, "NO_PROXY": "nothing"}
    done = guard("run", "--json", "--", *command, env=env)
    assert users.lines() == [
        "GET http://files.example:80/a?b=c HTTP/1.1", "GET http://other.example:81/ HTTP/1.1",
    ]  # fmt: skip
    assert "you asked GET http://files.example:80/a?b=c" in done.stdout
    assert facts_of(done)["other_hosts"].keys() == {"files.example", "other.example"}


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("GET / HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("CONNECT nowhere HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("CONNECT a:99999 HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("\x16\x03\x01 no HTTP\r\n\r\n", "400 Bad Request"),
        ("CONNECT x:1 HTTP/1.1\r\nA: " + "a" * 300_000, "431 Request Header Fields Too Large"),
        ("CONNECT files.example:443 HTTP/1.1\r\n\r\n", "502 Bad Gateway"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_it_says(
    guard: Runs, users: UsersProxy, tmp_path: Path, said: str, answer: str
) -> None:
    users.status = "407 Proxy Authentication Required"
    script = tmp_path / "raw"
    script.write_text(
        TUNNEL
        + f"""
host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
peer = socket.create_connection((host, int(port)))
try:
    peer.sendall({said!r}.encode("latin-1"))
    while data := peer.recv(4096):
        print(data.decode(), flush=True)
except ConnectionError:
    print("reset", flush=True)
"""
    )
    done = guard("run", "--", sys.executable, "-I", str(script), env=set_by(users))
    assert done.returncode == 0, done.stderr
    # What is still on its way when the other end has closed may be lost with the answer.
    assert answer in done.stdout or (answer.startswith("431") and "reset" in done.stdout)
    if answer.startswith("502"):
        assert "does not lead to files.example: 407" in done.stdout


def test_open_connections_end_with_the_run(guard: Runs, users: UsersProxy, tmp_path: Path) -> None:
    """Also where it is killed: nothing of it is left."""
    code = """
import os, socket, time
host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
peer = socket.create_connection((host, int(port)))
peer.sendall(b"CONNECT files.example:443 HTTP/1.1\\r\\n\\r\\n")
peer.recv(100)
print(port, flush=True)
peer.recv(100)
print("closed", flush=True)
time.sleep(60)
"""
    script = tmp_path / "holds"
    script.write_text(code)
    run = guard.start("run", "--", sys.executable, "-I", str(script), env=set_by(users))
    assert run.stdout is not None
    port = int(run.stdout.readline())
    run.send_signal(signal.SIGKILL)
    assert run.stdout.readline() == "closed\n"
    until(lambda: is_refused(port))  # the kernel closes one socket after the other
    subprocess.run(["pkill", "-f", str(script)], check=False)


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@on_linux
@needs_root
def test_other_users_of_the_machine_are_not_served(
    guard: Runs, users: UsersProxy, tmp_path: Path
) -> None:
    code = """
import os, socket
port = int(os.environ["HTTPS_PROXY"].rpartition(":")[2])
"x".encode("idna")  # the other user may not be able to load it
for user in (65534, 0):
    if os.fork():
        os.wait()
        continue
    os.setuid(user)
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(b"CONNECT files.example:443 HTTP/1.1\\r\\n\\r\\n")
    try:
        print(user, peer.recv(100), flush=True)
    except ConnectionError:
        print(user, "reset", flush=True)
    os._exit(0)
"""
    script = tmp_path / "asks"
    script.write_text(code)
    done = guard("run", "--", sys.executable, "-I", str(script), env=set_by(users))
    assert "0 b'HTTP/1.1 200" in done.stdout, done.stderr
    assert "65534 reset" in done.stdout or "65534 b''" in done.stdout
