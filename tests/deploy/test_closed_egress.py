"""The recipe that closes the way out, in network namespaces: an agent reaches guard, and no vendor.

``deploy/compose.yaml`` puts agents into an internal network, and the proxy into it and another one.
Here the same is built of namespaces: what holds an agent back is that no route leads out.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import yaml

from guard.gateway.embedded import run_gateway
from tests.proxy.test_names import settings_of
from tests.proxy.test_team import CHAT, Caller, serving
from tests.support.programs import environment, killed_at_last
from tests.support.waiting import WAIT_S

COMPOSE = Path(__file__).parents[2] / "deploy/compose.yaml"
CANARY = "canary-of-the-account-0123456789"
VENDOR = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        said = json.dumps({"id": "c", "object": "chat.completion", "model": "gpt-4o",
            "choices": [{"index": 0, "finish_reason": "stop",
                         "message": {"role": "assistant", "content": "hi"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}}).encode()
        self.send_response(200 if self.headers["authorization"] == "Bearer " + sys.argv[2] else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

server = HTTPServer((sys.argv[1], 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[3].encode(), {
    "content-type": "application/json", "authorization": "Bearer " + sys.argv[2]})
print(urllib.request.urlopen(request, timeout=60).status)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=WAIT_S)


@attrs.frozen
class Namespaces:
    """Two namespaces, each with an own link to this one, which is the proxy's."""

    agents: str
    outside: str
    network: int

    def address(self, side: int, end: int) -> str:
        """Return an address: of the agents' link (0) or the other (1), here (1) or there (2)."""
        return f"10.213.{self.network}.{4 * side + end}"


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    mark, network = secrets.token_hex(3), secrets.randbelow(255)
    found = Namespaces(f"agents-{mark}", f"outside-{mark}", network)
    made: list[str] = []
    try:
        for side, name in enumerate((found.agents, found.outside)):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as exc:
                pytest.skip(f"no network namespace can be made here: {exc.stderr.strip()}")
            made.append(name)
            here, there = f"g{side}h{mark}", f"g{side}t{mark}"
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            ip("addr", "add", f"{found.address(side, 1)}/30", "dev", here)
            ip("link", "set", here, "up")
            ip("-n", name, "addr", "add", f"{found.address(side, 2)}/30", "dev", there)
            ip("-n", name, "link", "set", there, "up")
            ip("-n", name, "link", "set", "lo", "up")
        # Answers of the vendor find their way back: what holds agents back is their side alone.
        ip("-n", found.outside, "route", "add", "default", "via", found.address(1, 1))
        yield found
    finally:
        for name in made:  # with the links
            ip("netns", "del", name)


def inside(namespace: str, script: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, sys.executable, "-c", script, *words]


@contextlib.contextmanager
def vendor_outside(spaces: Namespaces) -> Iterator[str]:
    command = inside(spaces.outside, VENDOR, spaces.address(1, 2), CANARY)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with killed_at_last(process):
        assert process.stdout is not None
        yield f"http://{spaces.address(1, 2)}:{process.stdout.readline().strip()}"


def test_the_recipe_gives_agents_no_way_out() -> None:
    recipe = yaml.safe_load(COMPOSE.read_text())
    assert recipe["networks"]["agents"] == {"internal": True}
    assert set(recipe["services"]["llm-proxy"]["networks"]) == {"agents", "outside"}


def test_an_agent_reaches_the_proxy_and_no_vendor(namespaces: Namespaces, tmp_path: Path) -> None:
    def ask(url: str, key: str) -> subprocess.CompletedProcess[str]:
        command = inside(namespaces.agents, ASK, url, key, json.dumps(CHAT))
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False,
                              env=environment())  # fmt: skip

    with vendor_outside(namespaces) as vendor, run_gateway() as gateway:
        (tmp_path / "key").write_text(CANARY)
        (tmp_path / "accounts.toml").write_text(
            f'["custom/own"]\norigins = ["{vendor}"]\ncredential_file = "key"\n'
        )
        caller = Caller.of(gateway)
        words = ("--accounts", str(tmp_path / "accounts.toml"), "--host", namespaces.address(0, 1))
        with serving(*words, **settings_of(gateway)) as (url, _):
            passed = ask(f"{url}/custom/own/v1/chat/completions", caller.key)
            assert (passed.stdout, passed.returncode) == ("200\n", 0), passed.stderr
            # Even who has found out the vendor's address and its key.
            refused = ask(f"{vendor}/v1/chat/completions", CANARY)
            assert refused.returncode != 0
            assert "unreachable" in refused.stderr
