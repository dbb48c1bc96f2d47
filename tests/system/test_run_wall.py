"""``guard run --wall``: the program has no network but guard, and is the caller's otherwise."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import postgres
from tests.support.forward_proxy import users_proxy
from tests.support.programs import is_gone, killed_at_last
from tests.support.runs import AGENT, LIMIT, Runs, facts_of, local_directory
from tests.support.terminal import TerminalSession
from tests.support.unprivileged import NOBODY, directory_of_nobody, require_nobody
from tests.support.waiting import WAIT_S, until

COST = 512_500
"""Of one request of these programs at gpt-4o, in nano-dollars."""

BODY = '{"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}'
CURL = f"curl -s -o /dev/null -w '%{{http_code}}\\n' -d '{BODY}' $OPENAI_BASE_URL/chat/completions"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a wall needs Linux")


@functools.cache
def are_namespaces_here() -> bool:
    """Tell whether this user may have them, as the system's own command finds."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--user", "--map-current-user", "--net", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def require_namespaces() -> None:
    """Skip where there are none."""
    if not are_namespaces_here():
        pytest.skip("no namespaces here")


class Walled(Runs):
    """Runs behind a wall, of this user or of another one."""

    prefix: tuple[str, ...] = ()

    def has(self, program: str) -> bool:
        """Tell whether their user can start it: its directory may be open to root alone."""
        found = [*self.prefix, "sh", "-c", 'command -v "$0"', program]
        return subprocess.run(found, env=self.env, capture_output=True).returncode == 0

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "guard", "run", "--wall", *arguments],
            env=self.env | more.pop("env", {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **more,
        )  # fmt: skip
        return self._started.enter_context(killed_at_last(process))


@pytest.fixture(params=["own", "unprivileged"])
def walled(request: pytest.FixtureRequest, directory: Path) -> Iterator[Walled]:
    """``guard run --wall``, as the user of the tests and as one without any right."""
    require_namespaces()
    with contextlib.ExitStack() as stack:
        place = directory
        prefix: list[str] = []
        if request.param == "unprivileged":
            prefix = require_nobody()
            home = directory_of_nobody()
            stack.callback(shutil.rmtree, home)
            place = stack.enter_context(local_directory(home / "local"))
        runs = stack.enter_context(contextlib.closing(Walled(place)))
        runs.prefix = tuple(prefix)
        runs.env |= {"HOME": str(place.parent)} if prefix else {}
        yield runs


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that each user may write to."""
    path = Path(tempfile.mkdtemp(prefix="wall-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network of its own")
        return str(asked.getsockname()[0])


@contextlib.contextmanager
def answering(address: tuple[str, int], family: int = socket.AF_INET) -> Iterator[int]:
    """A server that greets each connection; gives its port."""
    with socket.create_server(address, family=family) as server:
        server.settimeout(0.05)
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                with contextlib.suppress(OSError):
                    peer, _ = server.accept()
                    with peer:
                        peer.settimeout(WAIT_S)
                        peer.recv(65536)
                        peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            is_over.set()
            thread.join()


# -- no way out ----------------------------------------------------------------------------------

TRIES = """
import os, socket, sys, urllib.request
address, port, udp_port, abstract = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def tried(name, work):
    try:
        print(name, work(), flush=True)
    except Exception as exc:
        print(name, "failed", type(exc).__name__, flush=True)

def unix():
    with socket.socket(socket.AF_UNIX) as each:
        each.connect("\\0" + abstract)

def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        each.sendto(b"x", (address, udp_port))

def by_proxy(url):
    handler = urllib.request.ProxyHandler({"http": os.environ["HTTP_PROXY"]})
    return urllib.request.build_opener(handler).open(url, timeout=60).read().decode()

tried("tcp", lambda: socket.create_connection((address, port), 5))
tried("loopback", lambda: socket.create_connection(("127.0.0.1", port), 5))
tried("udp", udp)
tried("dns", lambda: socket.getaddrinfo("example.com", 443))
tried("abstract", unix)
tried("forward", lambda: by_proxy(f"http://{address}:{port}/"))
tried("own", lambda: socket.create_server(("127.0.0.1", 0)).getsockname()[0])
"""


def test_there_is_no_way_out_but_guard(walled: Walled, folder: Path) -> None:
    (folder / "tries.py").write_text(TRIES)
    address = own_address()
    with (
        answering((address, 0)) as port,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind((address, 0))
        abstract.bind(f"\0guard-test-{os.getpid()}")
        abstract.listen()
        arguments = [address, str(port), str(udp.getsockname()[1]), f"guard-test-{os.getpid()}"]
        script = str(folder / "tries.py")
        outside = subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True,
            env={"HTTP_PROXY": "http://127.0.0.1:9"},
        )  # fmt: skip
        found = dict(line.split(" ", 1) for line in outside.stdout.splitlines())
        assert "failed" not in found["tcp"] + found["udp"] + found["abstract"], "it sees the way"
        assert udp.recv(10) == b"x"
        done = walled("--", sys.executable, "-I", script, *arguments)
        found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(10)
    assert {name for name, said in found.items() if "failed" in said} == {
        "tcp", "loopback", "udp", "dns", "abstract",
    }, done.stdout + done.stderr  # fmt: skip
    assert (found["forward"], found["own"]) == ("hello", "127.0.0.1")


BREAKS = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
outside = int(sys.argv[1])
print("setns", libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0) or "own")
for what in ("root/run", "fd/0", "ns/net", "mem"):
    try:
        path = f"/proc/{outside}/{what}"
        os.listdir(path) if what == "root/run" else os.open(path, os.O_RDONLY)
        print(what, "open")
    except OSError as exc:
        print(what, exc.strerror)
print("ptrace", libc.ptrace(16, outside, 0, 0))
for path in (b"/run", sys.argv[2].encode()):
    print("umount", libc.umount2(path, 2))
print("unshare", libc.unshare(0x10000000 | 0x20000))
print("umount", libc.umount2(sys.argv[2].encode(), 2))
"""


def test_the_program_cannot_leave_its_namespaces(walled: Walled, folder: Path) -> None:
    """Nor can one of root's: what is outside belongs to another user namespace."""
    (folder / "breaks.py").write_text(BREAKS)
    with agent_socket(folder) as path:
        outside = subprocess.Popen([*walled.prefix, "sleep", "600"])
        with killed_at_last(outside):
            done = walled("--", sys.executable, "-I", str(folder / "breaks.py"), str(outside.pid),
                          str(path), env={"SSH_AUTH_SOCK": str(path)})  # fmt: skip
    found = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [said for name, said in found if name == "umount"] == ["-1"] * 3, done.stderr
    assert not [name for name, said in found if said == "open"], found
    assert ["ptrace", "-1"] in found
    assert ["setns", "-1"] in found, "not even its own network is its to join"


@needs_curl
def test_what_names_the_vendor_itself_is_refused_under_a_limit(walled: Walled) -> None:
    """By name through the forward proxy; by its address there is no way at all."""
    ask = "curl -s -m 60 https://api.openai.com/v1/models"
    done = walled("--limit", "$1", "--", "bash", "-c", f"{ask}; {CURL}; sleep 600",
                  env={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})  # fmt: skip
    assert done.returncode == 77, done.stderr
    assert "curl talks to api.openai.com" in done.stderr


# -- agents --------------------------------------------------------------------------------------


@needs_curl
def test_a_program_in_another_language_is_charged_and_cut(walled: Walled, vendor: str) -> None:
    env = {"OPENAI_BASE_URL": f"{vendor}/v1"}
    once = walled("--limit", "$1", "--json", "--", "bash", "-c", f"{CURL}; exit 7", env=env)
    assert once.stdout.splitlines()[0] == "200", once.stderr
    assert (once.returncode, facts_of(once)["spent_nanousd"]) == (7, COST)
    loop = f"for n in 1 2 3 4 5 6; do {CURL}; done; sleep 600"
    cut = walled("--limit", LIMIT, "--json", "--", "bash", "-c", loop, env=env)
    assert (cut.returncode, facts_of(cut)["spent_nanousd"]) == (77, 3 * COST), cut.stderr


NODE = """
const body = JSON.stringify({model: "gpt-4o", max_tokens: 50,
                             messages: [{role: "user", content: "hi"}]});
fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {method: "POST", body})
  .then((reply) => console.log(reply.status));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_is_charged(walled: Walled, vendor: str, folder: Path) -> None:
    (folder / "agent.js").write_text(NODE)
    done = walled("--limit", "$1", "--json", "--", "node", str(folder / "agent.js"),
                  env={"OPENAI_BASE_URL": f"{vendor}/v1"})  # fmt: skip
    assert done.stdout.splitlines()[0] == "200", done.stderr
    assert facts_of(done)["spent_nanousd"] == COST


@pytest.mark.parametrize("way", ["forward proxy", "allowed port"])
def test_guarded_python_asks_the_vendor_itself(
    walled: Walled, vendor: str, folder: Path, way: str
) -> None:
    (folder / "agent.py").write_text(AGENT)
    port = vendor.rpartition(":")[2]
    # The first is no name of loopback to a client, and so goes to the forward proxy.
    url = f"http://127.1:{port}" if way == "forward proxy" else vendor
    options = [] if way == "forward proxy" else ["--allow-local", port]
    done = walled(*options, "--limit", LIMIT, "--json", "--",
                  sys.executable, str(folder / "agent.py"), url, "6")  # fmt: skip
    assert done.returncode == 77, done.stdout + done.stderr
    facts = facts_of(done)
    assert (facts["spent_nanousd"], facts["proxied_requests"]) == (3 * COST, 0), done.stderr


def test_children_of_guarded_python_get_the_way_out(walled: Walled, folder: Path) -> None:
    (folder / "parent.py").write_text(
        "import os, subprocess, sys\n"
        "own = {n: os.environ.get(n) for n in ('HTTPS_PROXY', 'NO_PROXY')}\n"
        "shown = subprocess.run(['env'], env={'PATH': os.environ['PATH']}, text=True,\n"
        "                       capture_output=True).stdout\n"
        "its = dict(line.split('=', 1) for line in shown.splitlines())\n"
        "assert own == {n: its.get(n) for n in own} and own['HTTPS_PROXY'], (own, its)\n"
        "print(own['NO_PROXY'])\n"
    )
    done = walled("--", sys.executable, str(folder / "parent.py"),
                  env={"NO_PROXY": "*", "HTTPS_PROXY": "http://127.0.0.1:9"})  # fmt: skip
    assert done.stdout == "127.0.0.1,localhost,::1\n", done.stderr


# -- which programs find the way -----------------------------------------------------------------

FETCH = """
fetch("https://name.test/").catch(() => {});
"""
GET = """
require("https").get("https://name.test/").on("error", () => {});
"""
JAVA = """
import java.net.URI;
import java.net.http.*;
class Asks {
  public static void main(String[] words) {
    var asked = HttpRequest.newBuilder(URI.create("https://name.test/")).build();
    try { HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString()); }
    catch (Exception e) { }
  }
}
"""
PYTHON = {
    "urllib": "import urllib.request as r; r.urlopen('https://name.test/')",
    "requests": "import requests; requests.get('https://name.test/')",
    "httpx": "import httpx; httpx.get('https://name.test/')",
    "aiohttp": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as session: await session.get('https://name.test/')
asyncio.run(main())""",
    "aiohttp, told to": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        await session.get('https://name.test/')
asyncio.run(main())""",
    "boto3": """
import boto3
boto3.client('s3', region_name='x', endpoint_url='https://name.test', aws_access_key_id='a',
             aws_secret_access_key='b').list_buckets()""",
    "websockets": """
import asyncio, websockets
asyncio.run(websockets.connect('wss://name.test/').__aenter__())""",
    "grpc": """
import grpc
grpc.channel_ready_future(grpc.secure_channel('name.test:443',
                          grpc.ssl_channel_credentials())).result(3)""",
    "pycurl": """
import pycurl
c = pycurl.Curl(); c.setopt(c.URL, 'https://name.test/'); c.perform()""",
}
PROGRAMS: dict[str, tuple[list[str], bool]] = {
    "curl": (["curl", "-s", "-m", "10", "https://name.test/"], True),
    "wget": (["wget", "-q", "-T", "10", "-t", "1", "https://name.test/"], True),
    "git over https": (["git", "ls-remote", "https://name.test/x.git"], True),
    "git over ssh": (["git", "ls-remote", "git@name.test:x.git"], False),
    "ssh": (["ssh", "-o", "BatchMode=yes", "name.test"], False),
    "npm": (["npm", "view", "x", "--registry", "https://name.test/", "--fetch-retries", "0"], True),
    "pip": ([sys.executable, "-m", "pip", "download", "--no-cache-dir", "--retries", "0",
             "--index-url", "https://name.test/", "nothing"], True),
    "uv": (["uv", "pip", "install", "--no-cache", "--target", "target", "--index-url",
            "https://name.test/", "nothing"], True),
    "node fetch": (["node", "-e", FETCH], False),
    "node https": (["node", "-e", GET], False),
    "java": (["java", "Asks.java"], False),
    **{name: ([sys.executable, "-I", "-c", script], name != "aiohttp")
       for name, script in PYTHON.items()},
}  # fmt: skip
"""Each with whether it asks the forward proxy that the variables name."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_which_programs_find_the_way_out(walled: Walled, folder: Path, name: str) -> None:
    command, finds = PROGRAMS[name]
    if not walled.has(command[0]):
        pytest.skip(f"{command[0]} is not installed for this user")
    if name.startswith("node"):
        major = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
        finds = int(major[1:].split(".")[0]) >= 24  # of these, `NODE_USE_ENV_PROXY` is heeded
    (folder / "Asks.java").write_text(JAVA)
    with users_proxy() as users:
        walled("--", *command, cwd=folder,
               env={"HTTPS_PROXY": users.url, "GIT_TERMINAL_PROMPT": "0"})  # fmt: skip
        assert ("CONNECT name.test:443 HTTP/1.1" in users.lines()) == finds, users.lines()


# -- what is hidden ------------------------------------------------------------------------------

CONNECT = """
import os, socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as each:
        try:
            each.connect(path)
            print("open")
        except OSError as exc:
            print(type(exc).__name__)
print([n for n in ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "TMUX") if n in os.environ])
"""


@contextlib.contextmanager
def agent_socket(folder: Path, name: str = "agent") -> Iterator[Path]:
    """A socket that somebody listens on, for every user."""
    path = folder / name
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(str(path))
        path.chmod(0o777)
        each.listen()
        yield path


def test_sockets_that_lead_out_refuse_and_others_do_not(walled: Walled, folder: Path) -> None:
    (folder / "connect.py").write_text(CONNECT)
    runtime = folder / "runtime"
    runtime.mkdir()
    with (
        agent_socket(folder, "ssh") as ssh,
        agent_socket(folder, "tmux") as tmux,
        agent_socket(runtime, "bus") as bus,
        agent_socket(folder, "database") as database,
    ):
        paths = [str(each) for each in (ssh, tmux, bus, database)]
        script = [sys.executable, "-I", str(folder / "connect.py"), *paths]
        env = {
            "SSH_AUTH_SOCK": paths[0],
            "TMUX": f"{paths[1]},1,0",
            "XDG_RUNTIME_DIR": str(runtime),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={paths[2]},guid=1",
        }
        outside = subprocess.run(script, capture_output=True, text=True)
        assert outside.stdout.splitlines()[:4] == ["open"] * 4, outside.stderr
        done = walled("--", *script, env=env)
    refused = ["ConnectionRefusedError"] * 3
    assert done.stdout.splitlines() == [*refused, "open", "[]"], done.stderr


@pytest.mark.skipif(not os.access("/run", os.W_OK), reason="only root makes sockets in /run")
def test_a_daemon_that_starts_again_stays_hidden(walled: Walled, folder: Path) -> None:
    (folder / "connect.py").write_text("import sys; sys.stdin.readline()\n" + CONNECT)
    path = Path("/run", f"guard-test-{os.getpid()}.sock")
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(agent_socket(path.parent, path.name))
            process = walled.start("--", sys.executable, "-I", "-u", "-c",
                                   "print('up');" + (folder / "connect.py").read_text(),
                                   str(path))  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            path.unlink()
            stack.enter_context(agent_socket(path.parent, path.name))
            out, err = process.communicate("\n", timeout=WAIT_S)
    finally:
        path.unlink(missing_ok=True)
    assert out.splitlines()[0] == "FileNotFoundError", err


@pytest.mark.skipif(not os.access("/run", os.W_OK), reason="only root makes directories in /run")
def test_the_users_runtime_directory_keeps_what_is_no_socket(walled: Walled, folder: Path) -> None:
    user = NOBODY if walled.prefix else os.geteuid()
    runtime = Path(f"/run/user/{user}")
    if runtime.exists():
        pytest.skip("it is somebody's")
    try:
        for name in ("emacs", "data", "tmp"):
            (runtime / name).mkdir(parents=True)
        (runtime / "data" / "file").write_text("kept")
        for each in (runtime, *runtime.iterdir()):
            os.chown(each, user, user)
        with (
            agent_socket(runtime, "bus"),
            agent_socket(runtime / "emacs", "server"),
            agent_socket(runtime / "tmp", "needed"),
        ):
            done = walled("--", "sh", "-c", "cd $1; ls; cat data/file; ls tmp; touch tmp/new fresh",
                          "sh", str(runtime), env={"TMPDIR": str(runtime / "tmp")})  # fmt: skip
        said = done.stdout.replace("kept", "kept ").split()
        assert said[:3] == ["data", "tmp", "kept"], done.stderr
        assert "needed" in said[3:], "a directory of temporary files stays"
        assert (runtime / "tmp" / "new").exists()
        assert not (runtime / "fresh").exists(), "what is made in the directory itself is lost"
    finally:
        shutil.rmtree(runtime)


# -- the user's services -------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_a_database_of_this_machine_is_reached_where_that_is_allowed(walled: Walled) -> None:
    dsn = postgres.server()
    if dsn is None:
        pytest.skip("no PostgreSQL server is reachable")
    ask = ["psql", "-tA", dsn, "-c", "select 6 * 7"]
    port = postgres.conninfo.conninfo_to_dict(dsn).get("port", "5432")
    assert walled("--", *ask).returncode == 2
    done = walled("--allow-local", str(port), "--", *ask)
    assert done.stdout == "42\n", done.stderr


def test_an_allowed_port_is_there_on_ipv6_too(walled: Walled, folder: Path) -> None:
    (folder / "ask.py").write_text(
        "import socket, sys\n"
        "for host in ('127.0.0.1', 'localhost', '::1'):\n"
        "    with socket.create_connection((host, int(sys.argv[1])), 60) as each:\n"
        "        each.sendall(b'hi')\n"
        "        print(each.makefile().read().split()[-1])\n"
    )
    with answering(("127.0.0.1", 0)) as port:
        done = walled("--allow-local", str(port), "--", sys.executable, "-I",
                      str(folder / "ask.py"), str(port))  # fmt: skip
    assert done.stdout.split() == ["hello"] * 3, done.stderr


# -- the program is the caller's -----------------------------------------------------------------


def test_it_starts_as_it_would_without_a_wall(walled: Walled, folder: Path) -> None:
    """Descriptors, signals, ids, limits, directory; and its parent is ``guard run``."""
    script = folder / "shows.sh"
    script.write_text(
        "cd .\n"
        "pwd; umask; ulimit -a; id -u; id -g; echo $0 $1\n"
        "grep -E '^(Sig|Shd)(Blk|Ign|Cgt)' /proc/self/status\n"
        "for each in /proc/$$/fd/*; do readlink $each; done | sed 's/[0-9]*//g' | sort\n"
        "tr '\\0' '\\n' < /proc/$$/cmdline\n"
        "cat /proc/$PPID/comm\n"
    )
    command = ["--", "/bin/sh", str(script), "ab c"]
    # The same but without the first word.
    plain = [*walled.prefix, sys.executable, "-m", "guard", "run", *command]
    without = subprocess.run(plain, env=walled.env, capture_output=True, text=True, cwd=folder,
                             stdin=subprocess.PIPE)  # fmt: skip
    done = walled(*command, cwd=folder)
    assert done.returncode == without.returncode == 0, done.stderr + without.stderr
    assert done.stdout == without.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_the_programs(walled: Walled, number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 9' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    process = walled.start("--", "bash", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    program = until(lambda: psutil.Process(process.pid).children())[0]
    assert program.name() == "bash"
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert (out, process.returncode) == ("got\n", 9), err
    assert walled("--", "bash", "-c", f"kill -{number} $$").returncode in (128 + number, -number)


def test_ctrl_z_stops_both_and_fg_continues(walled: Walled, folder: Path) -> None:
    (folder / "program.py").write_text('print("ready", flush=True)\nprint("answer", input())\n')
    env = {**walled.env, "PS1": "shell> ", "HISTFILE": "/dev/null", "TERM": "dumb"}
    with TerminalSession([*walled.prefix, "bash", "--norc", "-i"], env=env, cwd=folder) as session:
        session.expect("shell> ")
        session.type(f"{sys.executable} -m guard run --wall -- program.py\n")
        session.expect("ready")
        session.type("\x1a")
        session.expect("Stopped")
        session.expect("shell> ")
        session.type("fg\n")
        session.expect("program.py")
        session.type("forty-two\n")
        session.expect("answer forty-two")
        session.expect("shell> ")
        session.type("exit 5\n")
        assert session.wait() == 5


def test_a_kill_ends_it(walled: Walled) -> None:
    process = walled.start("--workflow", "behind", "--", "bash", "-c", "echo up; sleep 600 & wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    programs = psutil.Process(process.pid).children(recursive=True)
    killing = [*walled.prefix, sys.executable, "-m", "guard", "kill", "behind", "--local"]
    subprocess.run(killing, env=walled.env, check=True, capture_output=True)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 77, out + err
    assert all(is_gone(each.pid) for each in programs)


LATE = """
import os, socket, sys, time
port = int(sys.argv[1])
socket.create_connection(("127.0.0.1", port)).close()
pid = os.fork()
if pid:
    print("up", pid, flush=True)
    time.sleep(600)
sys.stdin.read()
for _ in range(600):  # the threads of a killed process end one by one
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError as exc:
        print(type(exc).__name__, flush=True)
        break
    time.sleep(0.1)
"""


def test_nothing_goes_on_once_guard_run_is_gone(walled: Walled, folder: Path) -> None:
    (folder / "late.py").write_text(LATE)
    with answering(("127.0.0.1", 0)) as port:
        process = walled.start("--allow-local", str(port), "--", sys.executable, "-I",
                               str(folder / "late.py"), str(port))  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        word, pid = process.stdout.readline().split()
        assert word == "up"
        program, child = psutil.Process(int(pid)).parent(), psutil.Process(int(pid))
        assert program is not None
        supervisor = program.parent()
        assert supervisor is not None
        others = [each.pid for each in supervisor.children() if each != program]
        supervisor.kill()
        until(lambda: is_gone(program.pid))
        process.stdin.close()
        assert process.stdout.readline() == "ConnectionRefusedError\n", "the ports went with it"
        until(lambda: is_gone(child.pid) and all(map(is_gone, others)))


# -- a run within a run --------------------------------------------------------------------------


@needs_curl
@pytest.mark.parametrize("inner_wall", [[], ["--wall"]])
def test_a_run_within_it_goes_out_through_it(
    walled: Walled, vendor: str, inner_wall: list[str]
) -> None:
    port = vendor.rpartition(":")[2]
    inner = [sys.executable, "-m", "guard", "run", *inner_wall, "--limit", "$1", "--json"]
    inner += ["--allow-local", port] if inner_wall else []
    address = own_address()
    with answering((address, 0)) as elsewhere:
        tunnelled = f"curl -s --proxytunnel --proxy $HTTPS_PROXY http://{address}:{elsewhere}/"
        done = walled("--allow-local", port, "--limit", "$2", "--json", "--",
                      *inner, "--", "bash", "-c", f"{CURL}; {tunnelled}; echo",
                      env={"OPENAI_BASE_URL": f"{vendor}/v1"})  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line]
    assert (lines[:2], done.returncode) == (["200", "hello"], 0), done.stdout + done.stderr
    found = [json.loads(line) for line in lines[2:]]
    assert [each["spent_nanousd"] for each in found] == [COST, COST]
    assert all(address in each["other_hosts"] for each in found), "through both"


# -- where there can be none ---------------------------------------------------------------------

SECCOMP = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
# Load the number of the call; if it is unshare, EPERM; else allow.
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
code = b"".join(struct.pack("HBBI", *row) for row in rows)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(rows), ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""

NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'


@pytest.mark.parametrize(
    ("within", "said"),
    [
        ([sys.executable, "-I", "-c", SECCOMP], "this container or system allows no namespaces"),
        (["unshare", "--user", "--map-root-user", "sh", "-c", NO_NAMESPACES, "sh"],
         "sudo sysctl -w user.max_user_namespaces=15000"),
    ],
    ids=["a filter of a container", "none left"],
)  # fmt: skip
def test_where_there_is_none_the_program_does_not_start(
    directory: Path, tmp_path: Path, within: list[str], said: str
) -> None:
    if within[0] == "unshare":
        require_namespaces()
    with contextlib.closing(Walled(directory)) as walled:
        walled.prefix = tuple(within)
        done = walled("--", "touch", str(tmp_path / "started"))
    assert done.returncode == 77, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.skipif(are_namespaces_here(), reason="there are namespaces here")
def test_here_it_says_what_is_missing(directory: Path, tmp_path: Path) -> None:
    """Such as AppArmor's restriction, which no test can put up."""
    with contextlib.closing(Walled(directory)) as walled:
        done = walled("--", "touch", str(tmp_path / "started"))
    assert (done.returncode, (tmp_path / "started").exists()) == (77, False), done.stderr
    assert "there can be no wall" in done.stderr


def test_a_program_that_cannot_be_run_is_named(directory: Path, tmp_path: Path) -> None:
    require_namespaces()
    (tmp_path / "broken").write_text(f"#!{tmp_path}/missing\n")
    (tmp_path / "broken").chmod(0o755)
    with contextlib.closing(Walled(directory)) as walled:
        done = walled("--", str(tmp_path / "broken"))
    assert done.returncode == 126, done.stderr
    assert "cannot be run: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--wall", "--allow-unseen"], "--allow-unseen lets through what --wall keeps in"),
        (["--wall", "--dry-run"], "--dry-run lets through what --wall keeps in"),
        (["--allow-local", "5432"], "--allow-local is for the program behind a --wall"),
        (["--wall", "--allow-local", "0"], "--allow-local"),
        (["--wall", "--allow-local", "db:5432"], "--allow-local"),
    ],
)
def test_options_that_contradict_each_other(guard: Runs, options: list[str], said: str) -> None:
    done = guard("run", *options, "--", "true")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
