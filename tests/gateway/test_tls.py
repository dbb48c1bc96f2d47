"""The gateway serves TLS itself; the SDK trusts an authority, or one pinned certificate."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import guard
from guard.breaker.exceptions import InsecureTransportError
from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.settings import GatewaySettings
from guard.gateway.tls import TlsError, files_of, fingerprint
from guard.runtime.runtime import GuardRuntime
from guard.tls import client_context
from tests.support.certificates import Authority, new_authority
from tests.support.waiting import WAIT_S, until

Certify = Callable[..., tuple[Path, Path]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority of the test."""
    return new_authority(tmp_path)


@pytest.fixture
def certify(authority: Authority) -> Certify:
    """Issue a certificate for a name."""
    return authority.issue


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., GuardRuntime]]:
    """Open runtimes with settings of the environment."""
    runtimes: list[GuardRuntime] = []

    def opened(url: str, key: str, **environ: str) -> GuardRuntime:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        runtime = GuardRuntime(key, url, timeout_ms=60_000)
        runtimes.append(runtime)
        return runtime.open()

    yield opened
    for runtime in runtimes:
        runtime.shutdown(0.5, flush=False)


@guard.protect
def work() -> str:
    return "done"


def uses_the_socket(runtime: GuardRuntime) -> bool:
    return until(lambda: runtime.status().control_channel == "websocket")


@pytest.fixture
def pinned(tmp_path: Path) -> Iterator[tuple[Gateway, str]]:
    """A gateway with a certificate of its own, and the fingerprint."""
    database = tmp_path / "gateway.sqlite3"
    with run_gateway(database, tls_self_signed=True) as gateway:
        yield gateway, fingerprint(tmp_path / "gateway.tls.pem")


@pytest.mark.parametrize("signed", [False, True])
def test_a_pinned_certificate(pinned: Any, start: Any, tmp_path: Path, signed: bool) -> None:
    gateway, digest = pinned
    assert gateway.base_url.startswith("https://")
    made = gateway.admin.create_key_full("w", signed=signed)
    secret = {"GUARD_HMAC_SECRET": made["hmac_secret"]} if signed else {}
    runtime = start(gateway.base_url, made["api_key"], GUARD_TLS_FINGERPRINT=digest, **secret)
    with guard.workflow("tls"):
        assert work() == "done"
    assert uses_the_socket(runtime)
    gateway.admin.kill("tls")
    with pytest.raises(guard.WorkflowKilledInterrupt), guard.workflow("tls"):
        work()
    assert (tmp_path / "gateway.tls.pem").stat().st_mode & 0o777 == 0o600


def test_the_certificate_is_kept(tmp_path: Path) -> None:
    settings = GatewaySettings(database=tmp_path / "g.sqlite3", tls_self_signed=True)
    both = files_of(settings)
    assert both is not None
    assert fingerprint(both[0]) == fingerprint((files_of(settings) or both)[0])
    assert [path.name for path in tmp_path.iterdir()] == ["g.tls.pem"]


class Impostor:
    """A TLS server with a certificate of its own, that notes what it is told."""

    def __init__(self, files: tuple[Path, Path]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*files)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.port = self._listening.getsockname()[1]
        self.connections = 0
        self.heard = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            self.connections += 1
            try:
                connection.settimeout(WAIT_S)
                with self._context.wrap_socket(connection, server_side=True) as wrapped:
                    self.heard += wrapped.recv(65536)
            except OSError:
                connection.close()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listening.close()


@pytest.mark.parametrize("mode", ["http", "websocket"])
def test_nothing_is_said_to_another_certificate(
    certify: Certify, start: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor = Impostor(certify("IP:127.0.0.1"))
    url = f"https://127.0.0.1:{impostor.port}"
    try:
        monkeypatch.setenv("GUARD_TRANSPORT_MODE", mode)
        runtime = start(url, "gdk_of_another", GUARD_TLS_FINGERPRINT="ab" * 32)
        with pytest.raises(guard.GuardError, match=r"TLS_FINGERPRINT|has been failing"):
            work()
        assert runtime.status().control_channel == "none"
        with pytest.raises(AdminError):
            AdminClient(url, "gda_of_another", tls_fingerprint="ab" * 32).budgets()
        with (
            socket.create_connection(("127.0.0.1", impostor.port)) as plain,
            pytest.raises(ssl.SSLCertVerificationError, match="shows sha256:"),
        ):
            client_context("ab" * 32).wrap_socket(plain)
        assert impostor.connections >= 3
    finally:
        impostor.close()
    assert impostor.heard == b""


def test_a_certificate_of_an_authority(
    certify: Certify, authority: Authority, start: Any, tmp_path: Path
) -> None:
    certificate, key = certify("IP:127.0.0.1")
    with run_gateway(tmp_path / "g.sqlite3", tls_cert=certificate, tls_key=key) as gateway:
        url, api_key = gateway.base_url, gateway.api_key
        runtime = start(url, api_key, SSL_CERT_FILE=str(authority.certificate))
        assert work() == "done"
        assert uses_the_socket(runtime)
        runtime.shutdown()

        another_name = url.replace("127.0.0.1", "localhost")
        runtime = start(another_name, api_key)
        assert runtime.status().state == "offline"
        with pytest.raises(guard.GuardError):
            work()


def test_files_that_do_not_fit(certify: Certify, tmp_path: Path) -> None:
    certificate, _ = certify("IP:127.0.0.1")
    _, other = certify("IP:127.0.0.1", "other")
    for chain, key in ((certificate, other), (tmp_path / "none.pem", other), (other, None)):
        settings = GatewaySettings(database=tmp_path / "g", tls_cert=chain, tls_key=key)
        with pytest.raises(TlsError, match="cannot be used"):
            files_of(settings)


def test_serve(serve: Any, certify: Certify, capfd: pytest.CaptureFixture[str]) -> None:
    """As a program: what it prints, and that SIGHUP reads the certificate anew."""
    certificate, key = certify("IP:127.0.0.1")
    served = serve("--tls-cert", str(certificate), "--tls-key", str(key))
    assert served.base_url.startswith("https://127.0.0.1:")
    port = int(served.base_url.rpartition(":")[2])

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=WAIT_S)

    said: list[str] = []

    def logged() -> str:
        said.append(capfd.readouterr().err)  # perhaps the beginning of a line
        return "".join(said)

    before = shown()
    assert before.strip() in certificate.read_text()
    newer, newer_key = certify("IP:127.0.0.1", "newer")
    key.write_text("no key at all")
    served.process.send_signal(signal.SIGHUP)
    until(lambda: "cannot be read anew" in logged())
    assert shown() == before, "files that cannot be used are not"
    certificate.write_text(newer.read_text())
    key.write_text(newer_key.read_text())
    served.process.send_signal(signal.SIGHUP)
    until(lambda: shown() != before)
    answer = httpx.get(f"{served.base_url}/sign-in", verify=False, trust_env=False)
    assert answer.status_code == 200
    [cookie] = answer.headers.get_list("set-cookie")
    assert cookie.startswith("__Host-")
    assert "secure" in cookie.lower()


def test_a_handshake_that_stalls_is_ended(tmp_path: Path) -> None:
    database = tmp_path / "g.sqlite3"
    with (
        run_gateway(database, tls_self_signed=True, request_deadline_ms=300) as gateway,
        socket.create_connection(("127.0.0.1", int(gateway.base_url.rpartition(":")[2]))) as silent,
    ):
        silent.settimeout(WAIT_S)
        assert silent.recv(1) == b""

        def serves() -> bool:  # a busy machine needs as long for others, now and then
            with contextlib.suppress(AdminError):
                return gateway.admin.budgets() == []
            return False

        until(serves)


def lines_until_dashboard(served: Any) -> list[str]:
    lines: list[str] = []
    while not lines or not lines[-1].startswith("Dashboard:"):
        lines.append(served.process.stdout.readline())
        assert lines[-1], "it ended"
    return lines


def test_serve_says_how_to_reach_it(serve: Any, capfd: pytest.CaptureFixture[str]) -> None:
    served = serve("--tls-self-signed", "--host", "0.0.0.0")
    lines = lines_until_dashboard(served)
    assert any(line.startswith("  GUARD_TLS_FINGERPRINT=sha256:") for line in lines)
    assert "not encrypted" not in capfd.readouterr().err
    served.process.terminate()
    served.process.wait(WAIT_S)
    lines_until_dashboard(serve("--host", "0.0.0.0"))
    assert "http://0.0.0.0:" in (said := capfd.readouterr().err)
    assert "--tls-self-signed" in said


def own_address() -> str:
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return str(address.address)
    pytest.skip("this machine has no address but loopback")


def test_plain_http_inside_a_network(
    tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by name; allowed where the host is named, and then past any proxy."""
    host = own_address()
    with run_gateway(tmp_path / "g.sqlite3", host=host) as gateway:
        with pytest.raises(InsecureTransportError, match="GUARD_ALLOW_PLAINTEXT_HOSTS") as caught:
            start(gateway.base_url, gateway.api_key)
        assert "GUARD_ALLOW_PLAINTEXT_HOSTS" in caught.value.user_action
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        runtime = start(gateway.base_url, gateway.api_key, GUARD_ALLOW_PLAINTEXT_HOSTS=host)
        assert work() == "done"
        assert uses_the_socket(runtime)
