"""The text of a mail: subject and body as a reader sees them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from html.parser import HTMLParser
from typing import Final

from spamdetect.engine.links import LINK, host_of

_PARSER: Final = BytesParser(policy=policy.default)
_ESCAPED_FROM: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_HIDDEN: Final = frozenset({"script", "style", "head", "title", "template"})
_BREAKS: Final = frozenset({"br", "p", "div", "tr", "li", "table", "h1", "h2", "h3", "hr"})


def mail_text(raw: bytes) -> str:
    """Return the subject, an empty line and the body of a mail.

    Takes the plain part if there is one, otherwise the text of the HTML part, in which a link whose
    text names another host is followed by where it leads; leaves attachments out. A broken mail
    yields as much as can be read.

    Args:
        raw: The mail as received (RFC 5322, MIME).
    """
    message = _PARSER.parsebytes(raw)
    assert isinstance(message, EmailMessage)
    try:
        subject = str(message.get("subject", ""))
    except Exception:  # noqa: BLE001 - the standard parser fails in many ways on broken headers
        subject = ""
    body = _body(message)
    return f"{subject}\n\n{body}".strip() if subject else body.strip()


def split_mbox(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Split an mbox into its mails, holding one at a time (RFC 4155, mboxrd quoting undone).

    Args:
        lines: The lines of the file with their line endings.

    Yields:
        The line where a mail begins, from 1, and the mail.
    """
    begins = 0
    current: list[bytes] | None = None
    after_blank = True
    for number, line in enumerate(lines, 1):
        if after_blank and line.startswith(b"From "):
            if current is not None:
                yield begins, _unescape(current)
            current, begins = [], number
        elif current is not None:
            current.append(line)
        after_blank = line in {b"\n", b"\r\n"}
    if current is not None:
        yield begins, _unescape(current)


def _unescape(lines: list[bytes]) -> bytes:
    return _ESCAPED_FROM.sub(rb"\1", b"".join(lines))


def _body(message: EmailMessage) -> str:
    try:
        part = message.get_body(("plain", "html"))
    except Exception:  # noqa: BLE001 - as above
        part = None
    if part is None:
        part = message
    try:
        content = part.get_content()
    except Exception:  # noqa: BLE001 - an unknown charset, a broken encoding
        payload = part.get_payload(decode=True)
        content = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
    if not isinstance(content, str):
        return ""
    return _html_text(content) if part.get_content_subtype() == "html" else content


class _TextOfHtml(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0
        self._target, self._said = "", 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._target, self._said = dict(attrs).get("href") or "", len(self.parts)
        elif tag in _HIDDEN:
            self._hidden += 1
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._show_target()
        elif tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)

    def _show_target(self) -> None:
        """Write where a link leads behind its text if that names another host."""
        said = LINK.match("".join(self.parts[self._said :]).strip().lower())
        target = self._target.lower()
        elsewhere = said and said["url"] and host_of(said["url"]) != host_of(target)
        if elsewhere and target.startswith(("http://", "https://")):
            self.parts.append(f" ({self._target})")
        self._target = ""


def _html_text(html: str) -> str:
    parser = _TextOfHtml()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line)
