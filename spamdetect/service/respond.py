"""Every answer of the service as bytes: the envelope ``{message, data}`` and its headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from spamdetect import _messages
from spamdetect.models import ErrorCode

if TYPE_CHECKING:
    from spamdetect.engine import Analysis, Preprocessed, Reason

Send = Any
Headers = Sequence[tuple[bytes, bytes]]
_ENCODER: Final = msgspec.json.Encoder()


class RefusalError(Exception):
    """A refused request, with the answer that says why.

    Args:
        status_code: HTTP status.
        error_code: ``data.error_code``.
        message: What happened and what to do, for a person.
        headers: Further headers, such as ``retry-after``.
        field: The field of the request that is wrong, for ``data.field``.
        close: Whether the connection closes after this answer, because the body was not read.
    """

    def __init__(
        self,
        status_code: int,
        error_code: ErrorCode,
        message: str,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        field: str = "",
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.error_code = error_code
        self.message = message
        self.headers = headers
        self.field = field
        self.close = close

    def body(self) -> bytes:
        """The envelope of the refusal."""
        data = {"error_code": self.error_code.value}
        if self.field:
            data["field"] = self.field
        return _ENCODER.encode({"message": self.message, "data": data})


def predict_body(found: Analysis, reasons: Sequence[Reason] | None = None) -> bytes:
    """The envelope of ``predict``, with ``reasons`` only where they were asked for."""
    data: dict[str, object] = {
        "input_text": found.input_text,
        "processed_text": found.processed_text,
        "text_length": found.text_length,
        "word_count": found.word_count,
        "language": _language(found),
        "prediction": {
            "is_spam": found.prediction.is_spam,
            "ham_score": found.prediction.ham_score,
            "spam_score": found.prediction.spam_score,
        },
        "error_code": found.error_code,
    }
    if reasons is not None:
        data["reasons"] = [
            {"feature": each.feature, "weight": each.weight, "explanation": each.explanation}
            for each in reasons
        ]
    message = _messages.predicted(found.prediction.is_spam, found.error_code)
    return envelope(message, data)


def preprocess_body(found: Preprocessed) -> bytes:
    """The envelope of ``preprocess``."""
    return _ENCODER.encode(
        {
            "message": _messages.PREPROCESSED,
            "data": {
                "input_text": found.input_text,
                "processed_text": found.processed_text,
                "text_length": found.text_length,
                "word_count": found.word_count,
                "language": _language(found),
            },
        }
    )


def envelope(message: str, data: dict[str, object]) -> bytes:
    """Any other envelope."""
    return _ENCODER.encode({"message": message, "data": data})


@attrs.define(slots=True)
class Reply:
    """The answer to a request for one of the routes that take texts.

    Attributes:
        status_code: HTTP status.
        body: The envelope.
        headers: Further headers, such as ``retry-after``.
        close: Whether the connection closes after this answer, because the body was not read.
    """

    status_code: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    close: bool = False

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers to send."""
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body)).encode()),
            (b"cache-control", b"no-store"),
            *self.headers,
        ]
        if self.close:
            fields.append((b"connection", b"close"))
        return fields


async def send_reply(
    send: Send, reply: Reply, drain: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Send an answer over ASGI, and read what the client still sends before the connection ends."""
    status, fields = reply.status_code, reply.all_headers()
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": reply.body, "more_body": drain is not None})
    if drain is not None:
        await drain()
        await send({"type": "http.response.body", "body": b""})


def _language(found: Analysis | Preprocessed) -> dict[str, object]:
    return {
        "language": found.language.language,
        "probability": found.language.probability,
        "is_reliable": found.language.is_reliable,
    }


def retry_after(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """The header ``Retry-After`` in whole seconds, at least 1."""
    return ((b"retry-after", str(max(1, -int(-seconds // 1))).encode()),)
