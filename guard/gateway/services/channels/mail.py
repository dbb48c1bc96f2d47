"""Mail over SMTP: one text message, in a thread of its own, to an address that was checked."""

from __future__ import annotations

import asyncio
import contextlib
import email.message
import email.policy
import email.utils
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Final

from guard.core.visible import one_line, visible
from guard.gateway.services.channels.message import ChannelMessage
from guard.gateway.services.egress import address_of, check_host

ANSWER_WAIT_S: Final = 10.0
"""How long the server may take for each of its replies."""

TOTAL_S: Final = 30.0
"""How long a whole delivery may take."""

_REASON_MAX: Final = 200


class MailRefusedError(Exception):
    """The server has refused a message.

    Attributes:
        code: of its reply; 5xx is permanent.
        reason: the text of its reply.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class _Pinned(smtplib.SMTP):
    """Connects to the address that was checked, and uses the host's name for TLS.

    With the name, ``smtplib`` would resolve it again, perhaps to another address.
    """

    address = ""
    _host: str

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return socket.create_connection((self.address, port), timeout)


class _PinnedTls(smtplib.SMTP_SSL, _Pinned):
    """The same with TLS from the first byte."""


def text_of(message: ChannelMessage) -> email.message.EmailMessage:
    """Return a message as mail: plain text, in which nothing that a program wrote is markup.

    Headers have only what an operator or this gateway has written.
    """
    words, question = message.said, message.question
    mail = email.message.EmailMessage(policy=email.policy.SMTP)
    mail["Subject"] = f"[guard] {words.subject}"
    mail["From"] = message.options.sender
    mail["To"] = ", ".join(message.options.to)
    mail["Date"] = email.utils.formatdate(message.due.created_at_ms / 1000)
    domain = message.options.sender.rpartition("@")[2]
    mail["Message-ID"] = f"<{message.due.delivery_id}@{domain}>"  # the same in every attempt
    mail["Auto-Submitted"] = "auto-generated"
    parts = [words.title]
    if words.lines:
        parts.append(
            "\n".join(f"{name}: {value}" if name else value for name, value in words.lines)
        )
    if question.shown:
        shown = [f"{name}: {value}" for name, value in question.shown]
        quoted = [f"  | {line}" for each in shown for line in each.splitlines()]
        parts.append("\n".join(["The agent says:", *quoted]))
    if question.state:
        parts.append(question.state)
    elif question.link:
        parts.append(
            f"Approve or refuse (opening the page decides nothing):\n{question.link}\n"
            "Whoever has this link can answer: do not pass it on."
        )
    if message.link:
        parts.append(f"Open in guard: {message.link}")
    # In base64: no line of it is anything else to a server, whatever it begins with.
    mail.set_content(visible("\n\n".join(parts)) + "\n", cte="base64")
    return mail


async def send(message: ChannelMessage, *, private: bool) -> int:
    """Send a message, and return the server's reply.

    Args:
        message: the message.
        private: whether the server may be at a loopback or private address.

    Raises:
        MailRefusedError: the server refuses it, or the password.
        OSError: it cannot be reached, or its host is not allowed.
        TimeoutError: it takes too long.
    """
    options = message.options
    check_host(options.host, private=private)
    address = await address_of(options.host, options.port, private=private)
    mail = text_of(message)
    # ``smtplib`` blocks. A daemon thread does not keep the gateway from ending; and shutting its
    # socket down ends the thread, also with a server that sends a byte at a time and so never runs
    # into ``ANSWER_WAIT_S``. The thread adds its connection here before it connects.
    opened: list[smtplib.SMTP] = []

    def work() -> int:
        with _connected(message, address, opened) as server:
            return _hand_over(server, message, mail)

    try:
        async with asyncio.timeout(TOTAL_S):
            return await _in_thread(work)
    finally:
        for server in opened:
            connected = server.sock  # read once: the thread may close it at any moment
            with contextlib.suppress(OSError):
                if connected is not None:
                    connected.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _connected(
    message: ChannelMessage, address: str, opened: list[smtplib.SMTP]
) -> Iterator[smtplib.SMTP]:
    options = message.options
    context = ssl.create_default_context()
    server: _Pinned
    if options.security == "tls":
        server = _PinnedTls(timeout=ANSWER_WAIT_S, context=context)
    else:
        server = _Pinned(timeout=ANSWER_WAIT_S)
    server.address = address
    opened.append(server)
    # For TLS; the constructor sets it only if it connects itself.
    server._host = options.host
    try:
        code, said = server.connect(options.host, options.port)
        if code != 220:
            raise MailRefusedError(code, _reason(said))
        if options.security == "starttls":
            server.starttls(context=context)
        yield server
    finally:
        server.close()


def _hand_over(
    server: smtplib.SMTP, message: ChannelMessage, mail: email.message.EmailMessage
) -> int:
    options = message.options
    try:
        if options.username:
            server.login(options.username, message.secrets.secret)
        refused = server.send_message(mail, options.sender, options.to)
    except smtplib.SMTPRecipientsRefused as exc:
        code, said = next(iter(exc.recipients.values()))
        raise MailRefusedError(code, _reason(said)) from None
    except smtplib.SMTPResponseException as exc:
        raise MailRefusedError(exc.smtp_code, _reason(exc.smtp_error)) from None
    except smtplib.SMTPNotSupportedError as exc:
        raise MailRefusedError(502, _reason(str(exc))) from None
    except smtplib.SMTPException as exc:
        raise OSError(type(exc).__name__) from None
    # The server has accepted the message: whatever fails from here on must not have it sent again.
    with contextlib.suppress(smtplib.SMTPException, OSError):
        server.quit()
    # Permanent, since some recipients have it, and would get it twice.
    if refused:
        code, said = next(iter(refused.values()))
        why = f"{len(refused)} of the recipients: {_reason(said)}"
        raise MailRefusedError(max(code, 550), why)
    return 250


def _reason(said: bytes | str) -> str:
    return one_line(
        said.decode("utf-8", "replace") if isinstance(said, bytes) else said, _REASON_MAX
    )


async def _in_thread(work: Callable[[], int]) -> int:
    """Run blocking work in a daemon thread of its own.

    ``asyncio.to_thread`` would use the loop's executor, whose threads the process waits for when it
    ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    # On the loop. The future may have been cancelled by the timeout.
    def finish(result: int | None, exc: BaseException | None) -> None:
        if done.done():
            return
        if exc is not None:
            done.set_exception(exc)
        elif result is not None:
            done.set_result(result)

    def run() -> None:
        result: int | None = None
        failure: Exception | None = None
        try:
            result = work()
        except smtplib.SMTPException as exc:
            failure = OSError(type(exc).__name__)
        except Exception as exc:  # noqa: BLE001  # the caller gets it
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name="guard-gateway-mail", daemon=True).start()
    return await done
