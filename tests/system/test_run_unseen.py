"""What guard cannot see in a run is named, and ends it where a limit could not hold."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from guard.running import processes
from guard.running.processes import IS_LINUX, _address
from tests.guard.instrumentation.test_realtime import realtime  # noqa: F401
from tests.support.llm_vendor import vendor_process
from tests.support.runs import Runs, facts_of

BODY = '{"model": "gpt-4o", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}'
CURL = f"curl -s -o /dev/null -d '{BODY}' $URL/v1/chat/completions"
UNGUARDED = """
import json, os, socket, sys
host, port = os.environ["URL"].removeprefix("http://").split(":")
peer = socket.create_connection((host, int(port)))
body = sys.argv[1].encode()
head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n"
peer.sendall(head % len(body) + body)
peer.recv(65536)
print("answered", flush=True)
"""
URLLIB = """
import sys, urllib.request
for number in range(2):
    request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", sys.argv[2].encode())
    request.add_header("Content-Type", "application/json")
    print(urllib.request.urlopen(request).status, flush=True)
"""

NATIVE = {
    "pycurl": """
import sys, pycurl
curl = pycurl.Curl()
curl.setopt(pycurl.URL, sys.argv[1] + "/v1/chat/completions")
curl.setopt(pycurl.POSTFIELDS, sys.argv[2])
curl.setopt(pycurl.WRITEFUNCTION, len)
curl.perform()
print(curl.getinfo(pycurl.RESPONSE_CODE), flush=True)
""",
    "rnet": """
import asyncio, sys, rnet
async def main():
    answer = await rnet.post(sys.argv[1] + "/v1/chat/completions", body=sys.argv[2])
    print(answer.status, flush=True)
asyncio.run(main())
""",
}
HTTPX = """
import httpx
httpx.post(sys.argv[1] + "/v1/chat/completions", content=sys.argv[2])
"""

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
on_linux = pytest.mark.skipif(not IS_LINUX, reason="it reads /proc")


@pytest.fixture(scope="module")
def _slow_vendor() -> Iterator[str]:
    with vendor_process() as url:
        yield url


@pytest.fixture
def slow_vendor(_slow_vendor: str) -> str:
    """A vendor that takes as long for an answer as slow ones do, so that its caller is seen."""
    takes(_slow_vendor, 3)
    return _slow_vendor


def takes(vendor: str, seconds: float) -> None:
    """Set how long a vendor takes for an answer."""
    httpx.get(f"{vendor}/delay/{seconds}")


def environment(url: str) -> dict[str, str]:
    return {"URL": url, "OPENAI_BASE_URL": f"{url}/v1"}


@on_linux
@needs_curl
def test_curl_is_named(guard: Runs, slow_vendor: str) -> None:
    program = ["bash", "-c", f"{CURL}; {sys.executable} -c pass; echo over"]
    done = guard("run", "--", *program, env=environment(slow_vendor))
    assert (done.stdout, done.returncode) == ("over\n", 0)
    assert "not guarded: curl" in done.stderr
    assert "not counted: curl talked to 127.0.0.1" in done.stderr


@on_linux
@needs_curl
def test_under_a_limit_curl_ends_the_run(guard: Runs, slow_vendor: str) -> None:
    takes(slow_vendor, 600)  # the run is ended before
    program = ["bash", "-c", f"{CURL}; echo got through; sleep 60"]
    done = guard("run", "--limit", "$2", "--json", "--", *program, env=environment(slow_vendor))
    facts = facts_of(done)
    assert done.returncode == 77, done.stderr
    (past,) = facts["unguarded_connections"]
    assert (past["program"], past["host"], past["sent_bytes"]) == ("curl", "127.0.0.1", 0)
    assert "curl talks to 127.0.0.1" in facts["refused"]["message"]
    assert "--allow-unseen" in facts["refused"]["reason"]
    takes(slow_vendor, 3)
    for options in (["--limit", "$2", "--allow-unseen"], ["--limit", "$2", "--dry-run"]):
        short = ["bash", "-c", f"{CURL}; echo got through"]
        allowed = guard("run", *options, "--json", "--", *short, env=environment(slow_vendor))
        assert allowed.returncode == 0
        assert allowed.stdout.startswith("got through\n")
        assert facts_of(allowed)["unguarded_programs"] == ["curl"]


@on_linux
@pytest.mark.parametrize("flag", ["-I", "-S"])
def test_python_that_does_not_load_guard(
    guard: Runs, slow_vendor: str, tmp_path: Path, flag: str
) -> None:
    takes(slow_vendor, 600)  # the run is ended before
    script = tmp_path / "agent.py"
    script.write_text(UNGUARDED)
    program = [sys.executable, flag, str(script), BODY]
    done = guard("run", "--limit", "$2", "--json", "--", *program, env=environment(slow_vendor))
    facts = facts_of(done)
    assert done.returncode == 77, done.stderr
    assert "answered" not in done.stdout
    assert facts["unguarded_connections"][0]["host"] == "127.0.0.1"


@on_linux
@needs_curl
def test_one_that_was_left_to_itself_is_still_seen(
    guard: Runs, slow_vendor: str, tmp_path: Path
) -> None:
    """A daemon's parent has ended; the run adopts it."""
    over = tmp_path / "over"
    done = guard("run", "--json", "--", "bash", "-c",
                 "(setsid bash -c '(sleep 1; eval $CURL; touch $OVER) &' &);"
                 " until [ -e $OVER ]; do sleep 0.1; done",
                 env=environment(slow_vendor) | {"CURL": CURL, "OVER": str(over)})  # fmt: skip
    assert facts_of(done)["unguarded_programs"] == ["curl"], done.stderr


@on_linux
@needs_curl
def test_what_talks_to_others_goes_on(guard: Runs, vendor: str, slow_vendor: str) -> None:
    """Neither a program that talks to another address, nor the run's own gateway, is one."""
    env = {"URL": slow_vendor, "OPENAI_BASE_URL": f"{vendor}/v1"}
    done = guard("run", "--limit", "$2", "--json", "--", "bash", "-c", CURL, env=env)
    facts = facts_of(done)
    # Not ended; but its limit has stopped nothing.
    assert (done.returncode, facts["program_exit_code"]) == (78, 0)
    assert facts["unguarded_connections"] == []
    nested = [sys.executable, "-m", "guard", "run", "--limit", "$1", "--"]
    done = guard("run", "--limit", "$2", "--json", "--", *nested, sys.executable, "-c",
                 "import time; time.sleep(3)", env=env)  # fmt: skip
    facts = facts_of(done)
    assert (done.returncode, facts["unguarded_programs"]) == (0, []), done.stderr


def test_urllib_is_named_and_refused_under_a_limit(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(URLLIB)
    name = "127.0.0.1/v1/chat/completions"
    done = guard("run", "--json", "--", str(script), vendor, BODY)
    assert facts_of(done)["unmetered_requests"] == {name: 2}, done.stderr
    done = guard("run", "--", str(script), vendor, BODY)
    assert (done.stdout, done.returncode) == ("200\n200\n", 0)
    assert f"not counted: 2 requests to {name}" in done.stderr
    done = guard("run", "--limit", "$2", "--", str(script), vendor, BODY)
    assert (done.stdout, done.returncode) == ("", 77)
    assert "cannot be held: it is sent by http.client or urllib" in done.stderr
    done = guard("run", "--limit", "$2", "--allow-unseen", "--", str(script), vendor, BODY)
    assert (done.stdout, done.returncode) == ("200\n200\n", 0)


@pytest.mark.parametrize("client", NATIVE)
def test_a_native_client_is_named_and_refused_under_a_limit(
    guard: Runs, vendor: str, tmp_path: Path, client: str
) -> None:
    pytest.importorskip(client)
    script, program = tmp_path / "agent.py", [str(tmp_path / "agent.py"), vendor, BODY]
    script.write_text(NATIVE[client])
    named = f"127.0.0.1/v1/chat/completions by {client}"
    for options in ([], ["--limit", "$2", "--allow-unseen"], ["--limit", "$2", "--dry-run"]):
        done = guard("run", *options, "--json", "--", *program)
        facts = facts_of(done)
        assert (done.stdout.splitlines()[0], done.returncode) == ("200", 0), done.stderr
        assert facts["unmetered_requests"] == {named: 1}
        assert (facts["seen"], facts["guarded_processes"]) == (False, 1)
    done = guard("run", "--limit", "$2", "--", *program)
    assert (done.stdout, done.returncode) == ("", 77)
    assert f"cannot be held: it is sent by {client}" in done.stderr
    assert f"not counted: 1 request to {named}" in done.stderr
    assert "only clients that guard cannot meter" in done.stderr
    # Beside one that is metered.
    script.write_text(NATIVE[client] + HTTPX)
    facts = facts_of(guard("run", "--json", "--", *program))
    assert (facts["seen"], facts["requests"]) == (True, 1)
    assert facts["unmetered_requests"] == {named: 1}


TALKS = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1]) as session:
    session.send(json.dumps({"type": "response.create"}))
    while json.loads(session.recv())["type"] != "response.done":
        pass
"""


def test_a_realtime_session_is_held(guard: Runs, realtime: str, tmp_path: Path) -> None:  # noqa: F811
    script = tmp_path / "agent.py"
    script.write_text(TALKS)
    url = f"{realtime}?model=gpt-realtime"
    done = guard("run", "--limit", "$5", "--json", "--", str(script), url)
    facts = facts_of(done)
    assert (done.returncode, facts["unheld_sessions"]) == (0, {}), done.stderr
    assert facts["requests"] == 1
    done = guard("run", "--limit", "$0.0001", "--json", "--", str(script), url)
    assert (done.returncode, facts_of(done)["requests"]) == (77, 0), done.stderr


@on_linux
def test_the_tree_of_processes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 60; true"
        child = subprocess.Popen(["bash", "-c", command])
        try:
            accepted, _ = server.accept()
            accepted.close()
            assert child.pid in set(processes.children(os.getpid()))
            assert ("127.0.0.1", port) in processes.peers(child.pid)
        finally:
            child.kill()
        found = processes.process(child.pid)
        assert found is None or found.name == "bash"
        child.wait()
        assert processes.process(child.pid) is None


def test_addresses_of_both_families() -> None:
    if sys.byteorder != "little":
        pytest.skip("written for this order of bytes")
    assert _address("0100007F:1F90") == ("127.0.0.1", 8080)
    assert _address("0000000000000000FFFF00000100007F:01BB") == ("127.0.0.1", 443)
    assert _address("B80D01200000000067452301EFCDAB89:01BB") == (
        "2001:db8::123:4567:89ab:cdef", 443,
    )  # fmt: skip
