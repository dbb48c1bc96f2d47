"""Finds the tools that an answer asks for while its bytes pass, chunk by chunk.

A name is found in the chunk that completes the message which names it: no client can have read
that message before. What has passed is not kept, except for a message that is not complete yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from guard.core.usage.charsets import Utf8, plain
from guard.core.usage.decoding import Decoder, decoder_for
from guard.core.usage.framing import Framing, event_messages, framing_of, take_frames, unpacked
from guard.core.usage.message import Message, mapping, parse
from guard.core.usage.recording import DECODED_BYTES_MAX
from guard.core.usage.response_format import ToolCallReader

_CALLS_KEPT: Final = 10_000
"""How many calls of one answer are known apart; later ones count at each mention."""


class ToolScanner:
    """Takes the chunks of one answer, returns the names of the tools that each one asks for.

    Never raises: an answer that cannot be read names no tools.

    Args:
        reader: the reader of the vendor's format.
        content_type: returns the header's value; called with the first chunk.
        content_encoding: the encoding of the chunks, empty for identity.

    Attributes:
        is_blind: whether the rest cannot be read, because of its encoding or size; then it may
            name any tool.

    Example:
        >>> from guard.core.usage.tool_calls import OLLAMA
        >>> scanner = ToolScanner(OLLAMA, lambda: "application/x-ndjson")
        >>> scanner.feed(b'{"message":{"tool_calls":[{"function":{"name":"rm"')
        []
        >>> scanner.feed(b'}}]}}' + bytes([10]))
        ['rm']
    """

    __slots__ = (
        "_carry", "_content_type", "_decoder", "_event", "_framing", "_reader", "_searched",
        "_seen", "_text", "is_blind",
    )  # fmt: skip

    def __init__(
        self, reader: ToolCallReader, content_type: Callable[[], str], content_encoding: str = ""
    ) -> None:
        self._reader = reader
        self._content_type = content_type
        # Known with the first chunk.
        self._framing: Framing | None = None
        # Turns the bytes into UTF-8; None for frames, which are UTF-8.
        self._text: Utf8 | None = Utf8()
        # A message that is not complete yet.
        self._carry = bytearray()
        # The beginning of a server-sent event over several lines.
        self._event = b""
        # How much of it was searched for a marker in vain; -1 once one was found.
        self._searched = 0
        # Calls that were named before, by key and name: answers repeat them.
        self._seen: set[tuple[str, str]] = set()
        self.is_blind = False
        self._decoder: Decoder | None = None
        try:
            self._decoder = decoder_for(content_encoding) if content_encoding else None
        except Exception:  # noqa: BLE001  # no package here can decode it
            self.is_blind = True

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next chunk; return the names of the tools that it asks for, in order."""
        if self.is_blind or not chunk:
            return []
        try:
            if self._decoder is None:
                return self._found(chunk)
            names: list[str] = []
            size = 0
            for piece in self._decoder.decode(chunk):
                size += len(piece)
                if size > DECODED_BYTES_MAX:  # a few bytes that unpack to so many are no answer
                    self.is_blind = True
                    break
                names += self._found(piece)
            return names
        except Exception:  # noqa: BLE001  # whatever it is, it never breaks a user's answer
            self.is_blind = True
            return []

    def whole(self, body: bytes) -> list[str]:
        """Return the names of the tools that a whole, decoded body asks for."""
        if "amazon.eventstream" not in self._content_type():
            body = plain(body)
        if framing_of(self._content_type(), body) != "body":
            return [*self.feed(body), *self.end()]
        if not self._marked(body, 0):
            return []
        try:
            decoded = parse(body)
            self.is_blind = decoded is None
            return self._read(map(mapping, decoded if isinstance(decoded, list) else [decoded]))
        except Exception:  # noqa: BLE001  # as above
            self.is_blind = True
            return []

    def end(self) -> list[str]:
        """The answer is over: return what its last, unfinished message names."""
        if self.is_blind or not self._carry or self._framing == "aws":
            return []
        rest = bytes(self._carry)
        self._carry.clear()
        names = self._names(self._payloads(rest))
        if self._framing == "sse":
            names += self._names(self._over_lines(rest + b"\n\n"))
        return names

    def _found(self, data: bytes) -> list[str]:
        if self._framing is None:
            if "amazon.eventstream" in self._content_type():
                self._text = None
            if self._text is not None and not (data := self._text.feed(data)):
                return []  # too little to tell
            self._framing = framing_of(self._content_type(), data)
        elif self._text is not None:
            data = self._text.feed(data)
        if self._framing == "aws":
            self._carry += data
            return self._names(map(unpacked, take_frames(self._carry)))
        if self._framing == "body":
            return self._of_body(data)
        end = data.rfind(b"\n") + 1
        if not end:
            self._keep(data)
            return []
        block = bytes(self._carry) + data[:end] if self._carry else data[:end]
        self._carry[:] = data[end:]
        if self._framing != "sse":
            return self._names(self._payloads(block))
        return [*self._names(self._payloads(block)), *self._names(self._over_lines(block))]

    def _over_lines(self, block: bytes) -> Iterable[bytes]:
        """Yield the messages over several lines that are complete with these lines."""
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._event:
            block = self._event + block
        end = block.rfind(b"\n\n")
        begun = block[end + 2 :] if end >= 0 else block
        # One line that is whole was read as it came.
        self._event = begun if begun.count(b"\ndata:") or begun.rstrip()[-1:] != b"}" else b""
        if len(self._event) > DECODED_BYTES_MAX:
            self._event, self.is_blind = b"", True
        if end < 0 or not self._marked(block, 0) or b"\ndata:" not in block[:end]:
            return
        for event in block[:end].split(b"\n\n"):
            if event.count(b"data:") > 1 and len(found := event_messages(event)) == 1:
                yield found[0]

    def _of_body(self, data: bytes) -> list[str]:
        """Read one JSON object, or the elements of an array, as soon as they are complete."""
        self._keep(data)
        # A marker may lie across the border of two chunks.
        start = max(0, self._searched - 32)
        named = self._searched < 0 or self._marked(self._carry, start)
        self._searched = -1 if named else len(self._carry)
        # Decoded only where it may be complete: a large answer is not parsed with every chunk.
        if not named or data.rstrip()[-1:] not in (b"}", b"]"):
            return []
        complete = b"[" + bytes(self._carry).strip(b"[], \r\n\t") + b"]"
        messages = parse(complete)
        if messages is None:
            return []
        self._carry.clear()
        self._searched = 0
        return self._read(map(mapping, messages))

    def _keep(self, data: bytes) -> None:
        self._carry += data
        if len(self._carry) > DECODED_BYTES_MAX:
            self._carry.clear()
            self.is_blind = True

    def _payloads(self, block: bytes) -> Iterable[bytes]:
        if not self._marked(block, 0):
            return ()
        if self._framing == "sse":
            lines = block.replace(b"\r", b"\n").split(b"\n")
            return (line[5:] for line in lines if line.startswith(b"data:"))
        return block.split(b"\n") if self._framing == "lines" else (block,)

    def _marked(self, data: bytes | bytearray, start: int) -> bool:
        return any(data.find(marker, start) >= 0 for marker in self._reader.markers)

    def _names(self, payloads: Iterable[bytes]) -> list[str]:
        return self._read(
            mapping(parse(payload)) for payload in payloads if self._marked(payload, 0)
        )

    def _read(self, messages: Iterable[Message]) -> list[str]:
        names: list[str] = []
        seen = self._seen
        for message in messages:
            for call in self._reader.read(message):
                if call.key is not None:
                    mention = (call.key, call.name)
                    if mention in seen:
                        continue
                    if len(seen) < _CALLS_KEPT:
                        seen.add(mention)
                names.append(call.name)
        return names
