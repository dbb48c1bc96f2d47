"""``api_url="local"``: one gateway of this user, started by whoever needs it first."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from guard.local_gateway import Files, LocalGatewayError, join, read_json, try_lock
from tests.support.programs import environment, is_gone, killed_at_last
from tests.support.waiting import WAIT_S, until
from tests.system.conftest import Run

AGENT = """
import sys, guard

runtime = guard.init(api_url="local")

@guard.protect
def work():
    return guard.status().api_url

with guard.workflow("alone"):
    print(work(), flush=True)
    if sys.argv[1:] == ["stay"]:
        for line in sys.stdin:
            try:
                print(work(), flush=True)
            except guard.GuardError as exc:
                print(type(exc).__name__, flush=True)
guard.shutdown()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory of a local gateway, which does not outlive the test."""
    directory = tmp_path / "local"
    yield directory
    files = Files(directory)
    with contextlib.suppress(ProcessLookupError, KeyError):
        os.kill(read_json(files.address)["pid"], signal.SIGKILL)
    until(
        lambda: not directory.is_dir() or ((lock := try_lock(files.gateway)) and not os.close(lock))
    )


def pid_of(directory: Path) -> int:
    return int(read_json(Files(directory).address)["pid"])


@pytest.fixture
def agent(directory: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start programs that use the local gateway."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, program: str = AGENT, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=environment({"GUARD_LOCAL_DIR": str(directory), **env}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise AssertionError(process.communicate()[1])
    return line


def again(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("again\n")
    process.stdin.flush()
    return line_of(process)


def end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert errors == ""


def test_no_server_no_key_and_the_data_stays(
    agent: Any, directory: Path, run: Run, tmp_path: Path
) -> None:
    # A key and a secret of the environment are another gateway's; settings of a server are no
    # settings of this one.
    first = agent(
        "stay",
        GUARD_API_KEY="of-another-gateway",
        GUARD_HMAC_SECRET="of-another-gateway",
        GUARD_GATEWAY_HOST="0.0.0.0",
    )
    url = line_of(first)
    gateway = psutil.Process(pid_of(directory))
    listening = [c.laddr for c in gateway.net_connections() if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening] == ["127.0.0.1"]
    assert url == f"http://127.0.0.1:{listening[0].port}"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = set()
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # such as one that is just renamed
            modes.add(stat.S_IMODE(path.stat().st_mode))
    assert modes == {0o600}
    assert gateway.pid not in {child.pid for child in psutil.Process(first.pid).children()}

    second = agent(program=AGENT.replace('api_url="local"', ""), GUARD_API_URL="local")
    assert line_of(second) == url
    end(second)
    assert again(first) == url
    end(first)
    until(lambda: is_gone(gateway.pid))
    assert not Files(directory).address.exists()

    env = {"GUARD_LOCAL_DIR": str(directory), "GUARD_API_URL": "local"}
    done = run("-m", "guard", "gateway", "workflows", "--json", env=env)
    assert done.returncode == 0, done.stderr
    [workflow] = json.loads(done.stdout)
    assert (workflow["workflow_id"], workflow["calls"]) == ("alone", 3)
    assert str(read_json(Files(directory).address)["url"]) == url, "its usual port"
    assert (directory / "gateway.log").read_text() == ""


def test_many_processes_at_once_start_one_gateway(agent: Any, directory: Path) -> None:
    processes = [agent("stay") for _ in range(10)]
    urls = {line_of(process) for process in processes}
    assert len(urls) == 1
    running = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(directory) in (process.info["cmdline"] or [])
    ]
    assert running == [pid_of(directory)]
    for process in processes:
        end(process)


def test_programs_that_come_and_go_always_find_one(directory: Path, agent: Any) -> None:
    """Joining while the gateway looks whether it has users, or is ending, is no error."""
    looping = """
import sys, time
from pathlib import Path
from guard.local_gateway import join
for _ in range(150):
    gateway = join(Path(sys.argv[1]))
    assert gateway.is_running()
    gateway.leave()
    time.sleep(0.01)
"""
    processes = [agent(str(directory), program=looping) for _ in range(3)]
    for process in processes:
        end(process)


def test_a_crashed_gateway_is_replaced(agent: Any, directory: Path) -> None:
    first = agent("stay")
    url = line_of(first)
    pid = pid_of(directory)
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid))
    until(lambda: read_json(Files(directory).address).get("pid", pid) != pid)
    until(lambda: again(first) == url)

    newer = pid_of(directory)
    os.kill(newer, signal.SIGKILL)  # and a program that meets nothing but the remains
    until(lambda: is_gone(newer))
    second = agent()
    assert line_of(second) == url
    end(second)
    until(lambda: again(first) == url)
    errors = first.communicate()[1]
    assert first.returncode == 0, errors


CRASHED = """
import os, sys, guard

guard.init(api_url="local")

@guard.protect
def work():
    return "done"

print("up", flush=True)
for line in sys.stdin:
    try:
        print(work(), flush=True)
    except guard.GuardError as exc:
        print(str(exc), flush=True)
"""


def test_a_crash_is_named_and_not_left_to_the_user(agent: Any, directory: Path) -> None:
    """Nothing is to be started by hand: whoever uses it starts it again."""
    process = agent(program=CRASHED)
    assert line_of(process) == "up"
    until(lambda: again(process) == "done")
    files = Files(directory)
    starting = try_lock(files.start)  # nobody starts it again for now
    assert starting is not None
    pid = pid_of(directory)
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid))
    said: list[str] = []
    until(lambda: said.append(again(process)) or "no gateway can be reached" in said[-1])  # type: ignore[func-returns-value]
    assert "this user's local gateway has ended, and is started again by itself" in said[-1]
    assert "serve" not in said[-1]
    os.close(starting)
    until(lambda: again(process) == "done")


def test_a_forked_child_keeps_it(agent: Any, directory: Path) -> None:
    forking = AGENT.replace(
        "with guard.workflow",
        """
import os, time
if os.fork():
    print(os.getpid(), flush=True)
    os._exit(0)
time.sleep(7)  # longer than a gateway stays without a user
with guard.workflow""",
    )
    # From 3.12 on, CPython warns of a fork beside other threads.
    process = agent(program=forking, PYTHONWARNINGS="ignore::DeprecationWarning")
    line_of(process)
    pid = pid_of(directory)
    assert line_of(process).startswith("http://127.0.0.1:")
    assert pid_of(directory) == pid
    end(process)
    until(lambda: is_gone(pid))


def test_a_killed_program_does_not_keep_it(agent: Any, directory: Path) -> None:
    process = agent("stay")
    line_of(process)
    pid = pid_of(directory)
    process.kill()
    until(lambda: is_gone(pid))


UNUSABLE = """
import guard
try:
    guard.init(api_url="local")
except guard.GuardConfigError as exc:
    print(exc)
"""


def test_a_directory_that_cannot_be_used_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open" / "something").write_text("")
    for path, reason in (
        (tmp_path / "file" / "x" / "local", "Not a directory"),
        (Path("/proc/guard/local"), "No such file or directory"),
        (tmp_path / "link", "links do not count"),
        (tmp_path / "open", "open to other users"),
    ):
        done = run("-c", UNUSABLE, env={"GUARD_LOCAL_DIR": str(path)})
        assert done.returncode == 0, done.stderr
        assert reason in done.stdout
        assert str(path) in done.stdout
        assert "Set GUARD_LOCAL_DIR" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    """As another user: the superuser may write anywhere."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from guard.local_gateway import LocalGatewayError, prepare\n"
        "os.setuid(65534)\n"
        "try: prepare(Path(sys.argv[1]))\n"
        "except LocalGatewayError as exc: print(exc)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, closed / "guard" / "local"],
        env=environment(), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert "Permission denied" in done.stdout


def test_a_start_that_fails_says_why(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "starlette"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ModuleNotFoundError('no', name='starlette')")
    env = {
        "GUARD_LOCAL_DIR": str(tmp_path / "local"),
        "PYTHONPATH": f"{environment()['PYTHONPATH']}{os.pathsep}{tmp_path}",
    }
    done = run("-c", UNUSABLE, env=env)
    assert "needs the package 'starlette'" in done.stdout, done.stderr

    (tmp_path / "local" / "gateway.sqlite3").write_text("not a database" * 1000)
    done = run("-c", UNUSABLE, env={"GUARD_LOCAL_DIR": str(tmp_path / "local")})
    assert "cannot be started" in done.stdout
    assert "gateway.log" in done.stdout


def test_the_usual_port_is_taken(directory: Path, tmp_path: Path) -> None:
    """Another one is used; what uses the first one is told."""
    gateway = join(directory)
    try:
        assert gateway.is_running()
        pid = pid_of(directory)
        port = int(gateway.url.rpartition(":")[2])
        taker = f"""
import socket, sys, time
print("trying", flush=True)
while True:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", {port}))
        except OSError:
            time.sleep(0.001)
            continue
        other.listen()
        print("taken", flush=True)
        sys.stdin.read()
        break
"""
        other = subprocess.Popen(
            [sys.executable, "-c", taker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with killed_at_last(other):
            assert line_of(other) == "trying"
            os.kill(pid, signal.SIGKILL)
            assert line_of(other) == "taken"
            until(lambda: not gateway.is_running())  # its socket closes before its lock does
            with pytest.raises(LocalGatewayError, match="started again and listens on"):
                gateway.restore()
            other.communicate()
        later = join(directory)
        assert later.url != gateway.url
        later.leave()
    finally:
        gateway.leave()


class _AllowsAll(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        reply = json.dumps({"decision": "allow", "call_id": asked.get("call_id")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)
        self.server.asked.append(self.path)  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        pass


def test_a_program_that_takes_the_port_cannot_allow_calls(agent: Any, directory: Path) -> None:
    """Its answers are not signed."""
    sensitive = AGENT.replace("@guard.protect", "@guard.sensitive\n@guard.protect")
    process = agent("stay", program=sensitive)
    port = int(line_of(process).rpartition(":")[2])
    starting = until(lambda: try_lock(Files(directory).start))  # nobody is quicker to start it
    assert starting is not None
    os.kill(pid_of(directory), signal.SIGKILL)
    ends_s = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(OSError):
            impostor = http.server.ThreadingHTTPServer(("127.0.0.1", port), _AllowsAll)
            break
        assert time.monotonic() < ends_s
        time.sleep(0.001)
    impostor.asked = []  # type: ignore[attr-defined]
    serving = threading.Thread(target=impostor.serve_forever)
    serving.start()
    os.close(starting)
    try:
        ends_s = time.monotonic() + WAIT_S
        while "/gate" not in impostor.asked:  # type: ignore[attr-defined]
            assert not again(process).startswith("http"), "allowed"
            assert time.monotonic() < ends_s
        assert not again(process).startswith("http"), "allowed"
    finally:
        impostor.shutdown()
        impostor.server_close()
        serving.join()


def test_operators_reach_it_without_a_key(run: Run, directory: Path) -> None:
    env = {"GUARD_LOCAL_DIR": str(directory)}

    def guard(*arguments: str, **more: Any) -> str:
        done = run("-m", "guard", "gateway", *arguments, env=env, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    guard("kill", "alone", "--local", "--anyway", "--reason", "enough")
    used = join(directory)  # alone, it would end between two slow commands
    try:
        secret = "a long enough password"
        guard("password", "--local", "--password-stdin", stdin=f"{secret}\n")
        shown = guard("local", "--once")
        url = shown.splitlines()[0].split()[-1]
        assert f"Dashboard: {url}/" in shown
        assert "gda_" not in shown
        assert "GUARD_ADMIN_KEY=gda_" in guard("local", "--once", "--show-keys")
        assert json.loads(guard("local", "--json"))["url"] == used.url == url
        page = httpx.get(f"{url}/sign-in", trust_env=False, follow_redirects=True)
        assert page.status_code == 200
    finally:
        used.leave()

    done = run("-c", AGENT, env=env)
    assert done.stderr.startswith("guard: [GD-W002] enough\n"), done.stderr


def test_init_again_and_asynchronously(run: Run, directory: Path) -> None:
    program = """
import asyncio, time, guard

async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1
    ticking = asyncio.create_task(tick())
    start = time.monotonic()
    runtime = await guard.GuardRuntime.start(api_url="local")
    took = time.monotonic() - start
    ticking.cancel()
    assert ticks > 5, (ticks, took)  # starting the gateway did not block the loop
    assert guard.init(api_url="local") is runtime
    assert guard.init() is runtime
    assert guard.init(api_url=runtime.settings.api_url) is runtime
    assert runtime.settings.api_key not in repr(runtime.settings)
    assert runtime.settings.hmac_secret not in repr(runtime.settings)
    try:
        guard.init(api_url="https://another.example")
    except guard.GuardConfigError as exc:
        assert exc.error_code == "GD-C004"
    else:
        raise AssertionError
    await asyncio.to_thread(runtime.shutdown)

asyncio.run(main())
"""
    done = run("-c", program, env={"GUARD_LOCAL_DIR": str(directory)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_workflow_alone_starts_it(run: Run, directory: Path) -> None:
    """Without a key a workflow has no effect; with the local gateway none is needed."""
    program = "import guard\nwith guard.workflow('w'): print(guard.status().state)"
    env = {"GUARD_LOCAL_DIR": str(directory), "GUARD_API_URL": "local"}
    done = run("-c", program, env=env)
    assert (done.stdout in ("ok\n", "degraded\n"), done.stderr) == (True, "")
    done = run("-m", "guard", "doctor", env=env)
    assert done.returncode == 0, done.stdout
    assert "not needed by the local gateway" in done.stdout
