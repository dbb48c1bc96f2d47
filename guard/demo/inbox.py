"""Read an inbox: one message per line, ``.eml``, ``.mbox``, or standard input."""

from __future__ import annotations

import email
import email.policy
import mailbox
import sys
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import attrs

MESSAGES_MAX: Final = 200
_BYTES_MAX: Final = 64 * 1024 * 1024
_TEXT_MAX: Final = 20_000


class InboxError(Exception):
    """The inbox cannot be read; the message says why and what to do."""


@attrs.frozen
class Message:
    """One message of an inbox."""

    subject: str
    text: str


def read_inbox(source: str | None) -> list[Message]:
    """Read the messages of a file, of standard input (``-``), or the built-in ones (None).

    Raises:
        InboxError: it cannot be read or contains no message.
    """
    if source is None:
        return [_line(text) for text in BUILT_IN]
    data = _bytes(source)
    if b"\0" in data[:4096]:
        raise InboxError(f"{source}: not a text, an .eml or an .mbox file")
    suffix = "" if source == "-" else Path(source).suffix.lower()
    if suffix == ".mbox" or data.startswith(b"From "):
        messages = _mbox(source, data)
    elif suffix == ".eml" or _looks_like_mail(data):
        messages = [_mail(data)]
    else:
        text = data.decode("utf-8", "replace")
        messages = [_line(line.strip()) for line in text.splitlines() if line.strip()]
    messages = [message for message in messages if message.text]
    if not messages:
        raise InboxError(f"{source}: contains no message (one per line, .eml or .mbox)")
    return messages


def _bytes(source: str) -> bytes:
    try:
        if source == "-":
            data = sys.stdin.buffer.read(_BYTES_MAX + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
    except OSError as exc:
        raise InboxError(f"cannot read the inbox {source}: {exc.strerror or exc}") from None
    if len(data) > _BYTES_MAX:
        raise InboxError(f"{source}: larger than {_BYTES_MAX // 2**20} MiB; give a smaller inbox")
    return data


def _looks_like_mail(data: bytes) -> bool:
    first = data.split(b"\n", 1)[0]
    name, colon, _ = first.partition(b":")
    return bool(colon) and name.lower() in (
        b"from", b"to", b"subject", b"received", b"date", b"return-path", b"delivered-to",
        b"message-id", b"mime-version",
    )  # fmt: skip


def _mbox(source: str, data: bytes) -> list[Message]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:  # `mailbox` reads from a path only
        path = Path(folder) / "inbox.mbox"
        path.write_bytes(data)
        box = mailbox.mbox(path, create=False)
        try:
            return [_mail(box.get_bytes(key)) for key in box.keys()]  # noqa: SIM118  # not a dict
        except (mailbox.Error, ValueError) as exc:
            raise InboxError(f"{source}: not an mbox file: {exc}") from None
        finally:
            box.close()


def _mail(data: bytes) -> Message:
    parsed = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(parsed, EmailMessage)
    try:
        subject = str(parsed["subject"] or "")
    except Exception:  # noqa: BLE001  # a broken header must not lose the message
        subject = ""
    text = ""
    try:
        body = parsed.get_body(("plain", "html"))
        if body is not None:
            text = str(body.get_content())
            if body.get_content_subtype() == "html":
                text = _plain(text)
    except Exception:  # noqa: BLE001  # unknown charset or a broken part: take what is there
        payload = parsed.get_payload()
        text = payload if isinstance(payload, str) else ""
    subject = " ".join(subject.split())
    whole = f"{subject}\n\n{text.strip()}".strip()
    return Message(subject or _title(text), whole[:_TEXT_MAX])


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def handle_data(self, data: str) -> None:
        """Keep the text between the tags."""
        self.pieces.append(data)


def _plain(html: str) -> str:
    parser = _Text()
    parser.feed(html)
    return " ".join("".join(parser.pieces).split())


def _line(text: str) -> Message:
    return Message(_title(text), text[:_TEXT_MAX])


def _title(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else words[:59] + "…"


BUILT_IN: Final = (
    "Hi Anna, the supplier confirmed Thursday for the delivery. Can you book the loading bay?",
    "CONGRATULATIONS!!! You have WON a 1000 EUR gift card. Claim now at http://win-prize.example/x",
    "Minutes of Monday's planning meeting are in the shared folder. Please correct them by noon.",
    "Your invoice 2291 for October is attached. Payment is due within 30 days. Kind regards, Petra",
    "URGENT: your account will be suspended. Verify your password within 24 hours: bit.ly/3xverify",
    "Could you review the draft of the maintenance contract before the call with Jonas tomorrow?",
    "Make $5000 a week from home!!! No experience needed. Reply YES or call 0900-555-123 now",
    "Lunch on Friday? The new place by the canal has a table for six at half past twelve.",
    "Hot crypto signals, 300% guaranteed profit, join our Telegram group t.me/fastgains today!",
    "The test server is back. The disk was full; I removed last year's logs and set up rotation.",
    "FREE entry in a weekly draw to win tickets. Text WIN to 80086 now! T&Cs apply, 18+",
    "Reminder: the fire drill is on Wednesday at 10. Please leave by the stairs, not the lift.",
)
