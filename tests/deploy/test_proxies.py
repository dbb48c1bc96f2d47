"""The recipes for proxies, each started as it is but for addresses, in front of a real gateway."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import httpx
import pytest

import guard
from guard.gateway.embedded import Gateway, run_gateway
from guard.runtime.runtime import GuardRuntime
from tests.support.certificates import Authority, new_authority
from tests.support.ports import free_port
from tests.support.waiting import WAIT_S, until

DEPLOY = Path(__file__).parents[2] / "deploy"
_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/proxy.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {recipe};
}}
"""


@attrs.frozen
class Proxy:
    """A proxy's program and recipe."""

    program: str
    recipe: str
    command: Callable[[Path, Path], list[str]]
    """Returns what to run for a folder and the recipe in it."""

    def __str__(self) -> str:
        return self.program


def _nginx(folder: Path, recipe: Path) -> list[str]:
    whole = folder / "nginx.whole"
    whole.write_text(_NGINX.format(folder=folder, recipe=recipe))
    return ["nginx", "-c", str(whole), "-e", str(folder / "proxy.log")]


PROXIES = [
    Proxy("nginx", "nginx.conf", _nginx),
    Proxy(
        "caddy", "Caddyfile",
        lambda _, recipe: ["caddy", "run", "--adapter", "caddyfile", "--config", str(recipe)],
    ),
    Proxy(
        "envoy", "envoy.yaml",
        lambda _, recipe: ["envoy", "--use-dynamic-base-id", "-c", str(recipe)],
    ),
]  # fmt: skip


@attrs.frozen
class Behind:
    """A gateway behind a proxy."""

    gateway: Gateway
    url: str
    authority: Authority


@pytest.fixture(params=PROXIES, ids=str)
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Behind]:
    """Start the proxy by its recipe, and a gateway with the settings that the recipe names."""
    proxy: Proxy = request.param
    if shutil.which(proxy.program) is None:
        pytest.skip(f"{proxy.program} is not installed")
    authority = new_authority(tmp_path)
    certificate, key = authority.issue("DNS:localhost")
    port = free_port()
    url = f"https://localhost:{port}"
    settings = {"public_url": url, "trusted_proxies": ("127.0.0.1", "::1")}
    with run_gateway(tmp_path / "g.sqlite3", **settings) as gateway:
        inner = gateway.base_url.rpartition(":")[2]
        text = (DEPLOY / proxy.recipe).read_text()
        for written, meant in (
            ("guard.example.com {", f"{url} {{"),  # a site of Caddy
            ("guard.example.com", "localhost"),
            ("/etc/ssl/guard/fullchain.pem", str(certificate)),
            ("/etc/ssl/guard/privkey.pem", str(key)),
            ("127.0.0.1:8787", f"127.0.0.1:{inner}"),
            ("port_value: 8787", f"port_value: {inner}"),
            ("port_value: 443", f"port_value: {port}"),
            ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ):
            text = text.replace(written, meant)
        recipe = tmp_path / proxy.recipe
        recipe.write_text(_for_tests(proxy, text))
        with running(proxy.command(tmp_path, recipe), tmp_path, port):
            yield Behind(gateway, url, authority)


def _for_tests(proxy: Proxy, text: str) -> str:
    if proxy.program == "caddy":  # else it wants port 80, an admin port and the user's files
        return "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text
    return text


@contextlib.contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    said = folder / "said.log"
    program = shutil.which(command[0])
    assert program is not None
    with said.open("wb") as output:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdout=output,
            stderr=output,
            env={"PATH": "/usr/sbin:/usr/bin:/bin:/usr/local/bin", "HOME": str(folder)},
        )
    try:

        def listens() -> bool:
            assert process.poll() is None, said.read_text()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), WAIT_S).close()
                return True
            return False

        until(listens)
        yield
    finally:
        process.terminate()
        process.wait(120)


def test_calls_kills_and_the_dashboard(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(behind.authority.certificate))
    made = behind.gateway.admin.create_key_full("w", signed=True)
    runtime = GuardRuntime(
        made["api_key"], behind.url, hmac_secret=made["hmac_secret"], timeout_ms=60_000
    ).open()
    try:

        @guard.protect
        def work() -> str:
            return "done"

        with guard.workflow("proxied"):
            assert work() == "done"
        until(lambda: runtime.status().control_channel == "websocket")
        behind.gateway.admin.kill("proxied")
        with pytest.raises(guard.WorkflowKilledInterrupt), guard.workflow("proxied"):
            until(lambda: work() != "done")
        runtime.flush(WAIT_S)
    finally:
        runtime.shutdown(2)

    with httpx.Client(base_url=behind.url) as stranger:
        assert stranger.get("/readyz").status_code == 200
        assert stranger.get("/metrics").status_code == 403

    behind.gateway.admin.set_password("admin", "a long enough password")
    with httpx.Client(base_url=behind.url, trust_env=True, follow_redirects=True) as browser:
        page = browser.get("/sign-in")
        assert page.status_code == 200
        csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
        answer = browser.post(
            "/sign-in",
            data={"name": "admin", "password": "a long enough password", "csrf": csrf},
            headers={"Origin": behind.url},
        )
        assert answer.status_code == 200
        assert "proxied" in browser.get("/workflows").text


def test_each_person_has_a_throttle_of_their_own(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client claims to be is not believed: sixty names of one address are throttled."""
    monkeypatch.setenv("SSL_CERT_FILE", str(behind.authority.certificate))
    with httpx.Client(base_url=behind.url) as http:
        csrf = http.get("/sign-in").text.partition('name="csrf" value="')[2].partition('"')[0]

        def attempt(number: int) -> int:
            body = {"name": f"n{number}", "password": "a wrong password", "csrf": csrf}
            headers = {"Origin": behind.url, "X-Forwarded-For": f"198.51.100.{number}"}
            return http.post("/sign-in", data=body, headers=headers).status_code

        assert 429 in [attempt(number) for number in range(60)]
