"""Encodes and decodes messages as JSON."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct


class WireError(ValueError):
    """Bytes from the other side are not the message that the protocol specifies."""


T = TypeVar("T")
S = TypeVar("S", bound=Struct)

_CHOICE: Final = re.compile(r"Invalid enum value .*?(?=(?: - at `[^`]*`)?\Z)", re.DOTALL)

_encoder = msgspec.json.Encoder()
# Made on first use, kept for ever: there are as many as message types.
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
# While one is made; forks wait.
_making = threading.RLock()
os.register_at_fork(
    before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release
)


def encode(message: Any) -> bytes:
    """Encode a message (or plain JSON data) as compact UTF-8 JSON.

    Raises:
        WireError: the message holds something that JSON cannot represent.
    """
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, RecursionError) as exc:
        raise WireError(f"cannot be encoded as JSON: {type(exc).__name__}") from exc


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decode and check one message.

    Raises:
        WireError: not JSON, not UTF-8, nested too deeply, or a field is missing or mistyped.
            The text names the field and what was expected, never the value.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _made(kind)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]  # the decoder was built for kind
    except UnicodeDecodeError:
        raise WireError("not UTF-8") from None
    except RecursionError:
        raise WireError("nested too deep") from None
    except msgspec.DecodeError as exc:
        # `from None`: for an enumeration, the cause's text repeats the value that was sent.
        raise WireError(_CHOICE.sub("Expected one of the protocol's values", str(exc))) from None


def _made(kind: Any) -> msgspec.json.Decoder[Any]:
    """Make the decoder of a message, one at a time.

    msgspec notes what it has found out of a type before it has found out of the types within. A
    thread, or a child that is forked meanwhile, that decodes by the half of it crashes.
    """
    with _making:
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
        return decoder


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Check plain JSON data and make a message of it, as :func:`decode` does.

    Args:
        value: the data.
        kind: the message.
        strict: whether numbers in texts are refused.

    Raises:
        msgspec.ValidationError: a field is missing or mistyped.
    """
    if kind not in _decoders:
        _made(kind)
    return msgspec.convert(value, kind, strict=strict)


def salvage(data: bytes | str, kind: type[S]) -> S:
    """Decode a message whose fields all have defaults, leaving out missing or invalid fields.

    For documents that explain a refusal: one invalid member must not hide the others.
    """
    try:
        return decode(data, kind)
    except WireError:
        pass
    try:
        members = decode(data, dict[str, Any])
    except WireError:
        return kind()
    # Field by field: each that can be read is.
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in members:
            with contextlib.suppress(msgspec.ValidationError, RecursionError):
                kept[field.name] = msgspec.convert(members[field.encode_name], field.type)
    return kind(**kept)
