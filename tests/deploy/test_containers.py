"""The image and the compose file, where Docker or Podman can build and run containers.

``GUARD_TEST_IMAGE_IS_BUILT=1`` takes the image ``guard-gateway`` as it is.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
IMAGE = "guard-gateway"  # as the compose file names it
AGENT = """
import http.server, json, sys, threading, time, httpx

class Vendor(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"prompt_tokens": 5, "completion_tokens": 50, "total_tokens": 55}
        message = {"role": "assistant", "content": "ok"}
        body = json.dumps({"id": "c", "object": "chat.completion", "model": "gpt-4o",
                           "choices": [{"index": 0, "message": message}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
for number in range(int(sys.argv[1])):
    body = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    print(number, httpx.post(url, json=body).status_code, flush=True)
    time.sleep(float(sys.argv[2]))
"""


_UNABLE = re.compile(
    r"creating container|create message from subprocess|OCI runtime"  # it cannot run anything
    r"|short-name|no such host|dial tcp|i/o timeout|TLS handshake|x509|toomanyrequests"  # no base
    r"|CERTIFICATE_VERIFY_FAILED|NewConnectionError"  # no package index
)


@attrs.frozen
class Engine:
    """A container engine and its compose command."""

    command: str
    compose: tuple[str, ...]

    def __call__(self, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
        return _run((self.command, *arguments), **more)


def _run(command: tuple[str, ...], **more: object) -> subprocess.CompletedProcess[str]:
    options: dict[str, object] = {"cwd": ROOT, "timeout": 120, "check": False, **more}
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


def _works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and _run(command).returncode == 0


@functools.cache
def _compose(engine: str) -> tuple[str, ...] | None:
    if engine == "docker":
        ways: list[tuple[str, ...]] = [("docker", "compose"), ("docker-compose",)]
    else:
        ways = [("podman-compose", "--in-pod", "false")]
    return next((way for way in ways if _works(*way, "version")), None)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """An engine with the image, built from this checkout."""
    found = next((name for name in ("docker", "podman") if _works(name, "info")), None)
    if found is None:
        pytest.skip("neither Docker nor Podman runs here")
    if not os.environ.get("GUARD_TEST_IMAGE_IS_BUILT"):
        _build(found)
    tried = _run((found, "run", "--rm", "--read-only", IMAGE, "serve", "--help"))
    if "OCI" in tried.stderr:
        pytest.skip(f"{found} cannot run containers here: {' '.join(tried.stderr.split())[-300:]}")
    assert "--tls-self-signed" in tried.stdout, tried.stderr
    return Engine(found, _compose(found) or ())


def _build(found: str) -> None:
    build = (found, "build", "-f", "deploy/Dockerfile", "-t", IMAGE, ".")
    built = _run(build, timeout=800)
    if _UNABLE.search(built.stderr):
        pytest.skip(f"{found} cannot build here: {' '.join(built.stderr.split())[-300:]}")
    assert built.returncode == 0, built.stderr[-3000:]


@pytest.fixture
def named(engine: Engine) -> Iterator[str]:
    """A name for a container, which is removed afterwards."""
    name = f"guard-test-{secrets.token_hex(4)}"
    yield name
    engine("rm", "--force", name)


def test_the_image_serves_as_nobody_on_a_read_only_root(engine: Engine, named: str) -> None:
    started = engine(
        "run", "--detach", "--name", named, "--read-only", "--cap-drop", "ALL",
        "--volume", "/var/lib/guard", IMAGE, "serve", "--tls-self-signed",
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    until(lambda: "Dashboard:" in engine("logs", named).stdout)
    shown = engine("logs", named).stdout
    assert shown.startswith("guard gateway on https://")
    assert "GUARD_TLS_FINGERPRINT=sha256:" in shown
    assert engine("exec", named, "id", "-u").stdout == "65532\n"
    assert engine("exec", named, "touch", "/var/file").returncode != 0
    assert engine("stop", "--time", "20", named).returncode == 0
    assert engine("wait", named).stdout == "0\n"


@pytest.fixture
def compose(engine: Engine) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs commands of the compose file, in a project of its own."""
    if not engine.compose:
        pytest.skip(f"{engine.command} has no compose command here")
    project = f"guardtest{secrets.token_hex(4)}"
    before = (*engine.compose, "-p", project, "-f", "deploy/compose.yaml", "--profile", "agent")

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return _run((*before, *arguments), env={**os.environ, **env})

    yield run
    run("down", "--volumes")


Compose = Callable[..., subprocess.CompletedProcess[str]]


def test_an_agent_reaches_its_gateway_by_name(compose: Compose) -> None:
    up = compose("up", "--detach", "gateway")
    assert up.returncode == 0, up.stderr
    until(lambda: "GUARD_API_KEY=" in compose("logs", "gateway").stdout)
    found = re.search(r"GUARD_API_KEY=([\w.-]+)", compose("logs", "gateway").stdout)
    assert found is not None
    done = compose("run", "--rm", "-T", "agent", GUARD_API_KEY=found[1])
    assert re.search(r"^state +ok$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert re.search(r"^control channel +websocket$", done.stdout, re.MULTILINE)


@pytest.fixture
def mounted(tmp_path: Path) -> str:
    """The option that puts the agent into its container."""
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    agent.chmod(0o644)
    tmp_path.chmod(0o755)
    return f"{agent}:/agent.py:ro"


def test_an_agent_is_limited_in_its_container(compose: Compose, mounted: str) -> None:
    program = ("python", "/agent.py", "9", "0")
    done = compose("run", "--rm", "-T", "-v", mounted, "run", *program, AGENT_LIMIT_USD="0.002")
    assert done.stdout.replace("\r", "").startswith("0 200\n1 200\n2 200\n"), done.stderr
    assert "3 LLM requests, $0.001538 of $0.002" in done.stderr
    assert "stopped: this run's --limit of $0.002 is reached" in done.stderr
    assert done.returncode == 77


def test_an_agent_is_killed_in_its_container(
    engine: Engine, compose: Compose, mounted: str, named: str
) -> None:
    program = ("python", "/agent.py", "1", "300")
    started = compose("run", "--detach", "--name", named, "-v", mounted, "run", *program)
    assert started.returncode == 0, started.stderr
    until(lambda: "0 200" in engine("logs", named).stdout)
    killed = engine(
        "exec", named, "guard", "gateway", "kill", "agent", "--local", "--reason", "why"
    )
    assert killed.returncode == 0, killed.stderr
    assert engine("wait", named).stdout == "77\n"
    logs = engine("logs", named)
    assert "of $2.00" in logs.stdout + logs.stderr
    assert "why" in logs.stdout + logs.stderr
