"""Receivers of alerts: HTTP servers that note what they get, and a real SMTP server."""

from __future__ import annotations

import contextlib
import email
import email.policy
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        receiver.got.append(Got(self.path, dict(self.headers), body))
        try:  # in one step: another thread may take the last one
            status = receiver.answers.pop(0)
        except IndexError:
            status = receiver.status
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@attrs.frozen
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


@attrs.define
class Receiver:
    """An HTTP server.

    Attributes:
        url: of it.
        got: what it was sent.
        answers: the next statuses; after them ``status``.
    """

    url: str
    got: list[Got] = attrs.field(factory=list)
    answers: list[int] = attrs.field(factory=list)
    status: int = 200


@contextlib.contextmanager
def http_receiver() -> Iterator[Receiver]:
    """Run an HTTP server on a loopback address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
    server.receiver = receiver  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


@attrs.define
class Mailbox:
    """An SMTP server.

    Attributes:
        port: of it.
        got: messages, with who they were for.
        logins: names and passwords that were tried.
        refuses: recipients that it refuses for good.
    """

    port: int = 0
    got: list[tuple[list[str], email.message.EmailMessage]] = attrs.field(factory=list)
    logins: list[tuple[str, str]] = attrs.field(factory=list)
    refuses: set[str] = attrs.field(factory=set)

    async def handle_RCPT(
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if address in self.refuses:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        made = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.got.append((envelope.rcpt_tos, made))
        return "250 OK"

    def authenticate(self, *arguments: Any) -> Any:
        data = arguments[-1]
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)


class _Server(Controller):
    """A server at a port that the machine chooses."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextlib.contextmanager
def mail_server(certificate: tuple[Path, Path] | None = None) -> Iterator[Mailbox]:
    """Run an SMTP server on a loopback address; with a certificate, STARTTLS and logins."""
    box = Mailbox()
    options: dict[str, Any] = {}
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*map(str, certificate))
        options = {"tls_context": context, "authenticator": box.authenticate,
                   "auth_required": True, "auth_require_tls": True}  # fmt: skip
    controller = _Server(box, hostname="127.0.0.1", port=0, **options)
    controller.start()
    box.port = controller.port
    try:
        yield box
    finally:
        controller.stop()
