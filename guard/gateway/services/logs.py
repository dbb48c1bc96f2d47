"""The gateway's log: text or JSON lines, without secrets, with the organisation where known."""

from __future__ import annotations

import datetime
import json
import logging
import re
from contextvars import ContextVar
from typing import Final, Literal

from guard.core.visible import visible

Format = Literal["text", "json"]
_REQUEST_ID_MAX: Final = 128
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

_SECRETS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\b(gd[a-z]_|whsec_)[\w+/=-]+"), r"\1..."),
    (re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/@]+@"), r"\1:...@"),
)

_request: ContextVar[tuple[str | None, bytes | None]] = ContextVar(
    "guard_gateway_request", default=(None, None)
)


def note_request(organisation_id: str | None, request_id: bytes | None) -> None:
    """Note whose request this task serves, for its log lines.

    Args:
        organisation_id: of the key; ``None``: of all.
        request_id: the header ``X-Request-Id``, which a proxy may have set.
    """
    _request.set((organisation_id, request_id))


def redacted(text: str) -> str:
    """Return a text without keys, signing secrets and passwords in URLs.

    >>> redacted("key gdk_AbC-12 for redis://:secret@db:6379/0")
    'key gdk_... for redis://:...@db:6379/0'
    """
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and the traceback if there is one; none of its text looks like one."""
        return redacted(visible(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base's name
        """Return the line with the breaks of its text indented."""
        return super().formatMessage(record).replace("\n", "\n  ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line.

    ``time`` (RFC 3339, UTC, milliseconds), ``level``, ``logger`` and ``message``; where they are
    known ``organisation_id``, ``request_id`` and, of a failure, ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, str] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        organisation_id, raw_id = _request.get()
        request_id = None
        if raw_id is not None:
            request_id = raw_id[:_REQUEST_ID_MAX].decode("latin-1")
        for name, value in (("organisation_id", organisation_id), ("request_id", request_id)):
            known = getattr(record, name, value)  # given with the line, as ``extra``
            if known is not None:
                line[name] = str(known)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: redacted(text) for name, text in line.items()})


def configure(level: str, kind: Format) -> None:
    """Send the process's log, warnings of libraries included, to standard error.

    Args:
        level: the lowest level that is written.
        kind: ``text`` or ``json``.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    # It would write each address that it calls, and that of a channel of Slack is a secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
