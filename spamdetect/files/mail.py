"""What a reader of a mail sees, as texts: the worst of them is the mail's verdict."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from email import policy
from email.header import decode_header
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.utils import parseaddr
from itertools import zip_longest
from typing import Any, Final

from spamdetect.files.html import html_texts

_PARSER: Final = BytesParser(policy=policy.default)
_ESCAPED_FROM: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_VIEWS_MAX: Final = 8
_READ: Final = frozenset({"plain", "html", "calendar", "vcard", "x-vcard"})
_META_CHARSET: Final = re.compile(
    rb"<meta[^>]{1,200}charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE
)
# As the programs of readers take them: a label is often that of a part of what was written in.
_WIDER: Final = {
    "us-ascii": "utf-8", "ascii": "utf-8", "iso-8859-1": "cp1252", "latin-1": "cp1252",
    "gb2312": "gb18030", "gbk": "gb18030", "ks_c_5601-1987": "cp949", "euc-kr": "cp949",
    "shift_jis": "cp932", "iso-8859-9": "cp1254",
}  # fmt: skip
_INVITED: Final = re.compile(
    r"^(?:SUMMARY|DESCRIPTION|LOCATION|COMMENT|URL|CONFERENCE|ATTACH|X-ALT-DESC"
    r"|ORGANIZER(?=[^:\n]*;CN=))(?:;([^:\n]*(?:\"[^\"\n]*\"[^:\n]*)*))?:(.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_COMMON_NAME: Final = re.compile(r"CN=(?:\"([^\"]*)\"|([^;:]*))", re.IGNORECASE)


def mail_texts(raw: bytes) -> tuple[str, ...]:
    """Everything that readers of a mail see, once for each way in which their programs show it.

    That is who sent it by name, the subject, and then the plain part, or the HTML part as shown and
    with what it hides, with where links lead, and the names of attached files. A mail that it
    forwards, and an attached text, are texts of their own. A broken mail yields as much as can be
    read.

    Args:
        raw: The mail as received (RFC 5322, MIME).
    """
    try:
        message = _PARSER.parsebytes(raw)
        assert isinstance(message, EmailMessage)
        found = _Mail(message).texts()
    except RecursionError:  # parts in parts in parts, which no program opens
        head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
        found = [_joined([_decoded(head, ""), "", _decoded(body, "")])]
    return tuple(dict.fromkeys(text for text in found if text)) or ("",)


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


class _Mail:
    """One mail: its views, the names of its files, and the texts of what is in it."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._names: list[str] = []
        self._inside: list[str] = []

    def texts(self) -> list[str]:
        """The texts of the mail and of those that it holds."""
        views = self._views(self._message) or [""]
        sender = parseaddr(_raw(self._message, "from"))[0]
        head = [_words(sender), _words(_raw(self._message, "subject"))]
        head = [line for line in head if line]
        return [_joined([*head, "", view, *self._names]) for view in views] + self._inside

    def _views(self, part: Message) -> list[str]:
        """What is seen of a part, by each kind of program."""
        kind, subtype = part.get_content_maintype(), part.get_content_subtype()
        payload: Any = part.get_payload()
        if isinstance(payload, list):
            if kind == "message":
                for inner in payload:
                    self._inside += _Mail(inner).texts()
                return []
            each = [found for inner in payload if (found := self._views(inner))]
            if subtype == "alternative":
                return _few([view for views in each for view in views])
            return [_joined(list(views)) for views in _together(each)]
        name = _words(_parameter(part.get_filename))
        if name:
            self._names.append(name)
        is_read = kind == "multipart" or (kind == "text" and (subtype in _READ or not name))
        if not is_read and subtype != "xhtml+xml":
            return []
        found = _read(part, subtype)
        if part.get_content_disposition() != "attachment":
            return found
        self._inside += found
        return []


def _together(each: list[list[str]]) -> Iterator[Sequence[str]]:
    """Parts that are seen together: of each the first view, then the next or the last one."""
    longest = max(map(len, each), default=0)
    return zip_longest(*([*views, *views[-1:] * (longest - len(views))] for views in each))


def _few(views: list[str]) -> list[str]:
    """No more views than a program could have use for; the others are one."""
    if len(views) <= _VIEWS_MAX:
        return views
    return [*views[: _VIEWS_MAX - 1], "\n".join(views[_VIEWS_MAX - 1 :])]


def _read(part: Message, subtype: str) -> list[str]:
    content: Any = part.get_payload(decode=True)
    text = _decoded(content if isinstance(content, bytes) else b"", _charset(part, content))
    if subtype in {"html", "xhtml+xml"}:
        return list(html_texts(text))
    return [_invitation(text) if subtype == "calendar" else text.strip()]


def _charset(part: Message, content: object) -> str:
    said = _parameter(part.get_content_charset)
    if not said and isinstance(content, bytes):
        meta = _META_CHARSET.search(content[:4096])
        said = meta[1].decode("ascii") if meta else ""
    return said


def _decoded(content: bytes, charset: str) -> str:
    charset = _WIDER.get(charset.lower(), charset) or "utf-8"
    try:
        codecs.lookup(charset)
        text = content.decode(charset)
    except (LookupError, ValueError):  # unknown, not for text, or not what it says
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            known = charset if charset in _WIDER.values() else "cp1252"
            text = content.decode(known, "replace")
    return text.replace("\r\n", "\n").replace("\x00", "")


def _raw(message: Message, name: str) -> str:
    """A header as sent, unfolded; bytes beyond ASCII are UTF-8."""
    for said, value in message.raw_items():
        if said.lower() == name:
            text = str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return re.sub(r"\r?\n", "", text)
    return ""


def _words(header: str) -> str:
    """A header's encoded words decoded (RFC 2047)."""
    try:
        parts = decode_header(header)
    except Exception:  # noqa: BLE001 - the standard parser fails in many ways on broken headers
        return header
    return "".join(
        part if isinstance(part, str) else _decoded(part, charset or "") for part, charset in parts
    ).strip()


def _parameter(read: Any) -> str:
    try:
        return str(read() or "")
    except Exception:  # noqa: BLE001 - as above
        return ""


def _invitation(text: str) -> str:
    """What an invitation says (RFC 5545): its lines unfolded, the properties that are shown."""
    lines: list[str] = []
    for match in _INVITED.finditer(re.sub(r"\r?\n[ \t]", "", text)):
        parameters, value = match[1] or "", match[2]
        name = _COMMON_NAME.search(parameters)
        if match[0].upper().startswith("ORGANIZER"):
            value = (name[1] or name[2]) if name else ""
        value = re.sub(r"\\([nN,;\\])", lambda one: "\n" if one[1] in "nN" else one[1], value)
        lines += [value] if "html" not in parameters.lower() else html_texts(value)
    return "\n".join(line.strip() for line in lines if line.strip())


def _joined(parts: list[str]) -> str:
    return "\n".join(parts).strip()
