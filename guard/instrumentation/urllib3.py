"""Observes the body of a urllib3 response, which requests and botocore read from.

The response object stays urllib3's own; the methods of this instance that return its body feed
every piece to the observed call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from guard.instrumentation.interruptible import llm_request
from guard.instrumentation.observed_call import ObservedCall

_ITERATING: Final = ("stream", "read_chunked")
_READING: Final = ("read", "read1")
_CLOSING: Final = ("close", "release_conn", "drain_conn")


def observe(call: ObservedCall, raw: Any) -> None:
    """Feed every piece of a response's body to the call.

    Args:
        call: the request's observed call.
        raw: a ``urllib3.HTTPResponse`` that has not been read.
    """
    body = _Body(call, raw)
    for name in _ITERATING:
        if hasattr(raw, name):
            setattr(raw, name, body.iterating(getattr(raw, name)))
    for name in _READING:
        if hasattr(raw, name):
            setattr(raw, name, body.reading(getattr(raw, name)))
    for name in _CLOSING:
        if hasattr(raw, name):
            setattr(raw, name, body.closing(getattr(raw, name)))


class _Body:
    """The methods call each other; only what the outermost one returns is fed."""

    def __init__(self, call: ObservedCall, raw: Any) -> None:
        self._call = call
        self._raw = raw
        # How many of these methods are running inside each other.
        self._depth = 0
        # Whether a piece was fed: whether urllib3 decodes is known from the first call that reads.
        self._started = False

    def iterating(self, original: Any) -> Any:
        def iterate(*args: Any, **options: Any) -> Iterator[bytes]:
            chunks = original(*args, **options)
            outermost = self._depth == 0
            try:
                while True:
                    self._depth += 1
                    try:
                        chunk = llm_request(next, chunks, None)
                    finally:
                        self._depth -= 1
                    if chunk is None:
                        if outermost:
                            self._call.finish(complete=True)
                            self._check(b"", last=True)
                        return
                    if outermost:
                        self._feed(chunk, args, options)
                        self._check(chunk)
                    yield chunk
            finally:
                if outermost:
                    self._call.finish()

        return iterate

    def reading(self, original: Any) -> Any:
        def read(*args: Any, **options: Any) -> Any:
            if self._depth:
                return original(*args, **options)
            self._depth += 1
            try:
                data = llm_request(original, *args, **options)
            except BaseException:
                self._call.finish()
                raise
            finally:
                self._depth -= 1
            if data:
                self._feed(data, args, options)
            # The end: all was asked for, nothing came, or urllib3 has closed the response.
            asked = args[0] if args else options.get("amt")
            last = bool(asked is None or (not data and asked) or self._ended())
            if last:
                self._call.finish(complete=True)
            self._check(data, last=last)
            return data

        return read

    def closing(self, original: Any) -> Any:
        def close(*args: Any, **options: Any) -> Any:
            try:
                return original(*args, **options)
            finally:
                if not self._depth:  # while reading, it releases a connection that is at its end
                    self._call.finish()

        return close

    def _feed(self, data: bytes, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not self._started:
            self._started = True
            decoded = args[1] if len(args) > 1 else options.get("decode_content")
            if decoded is None:
                decoded = getattr(self._raw, "decode_content", False)
            headers = self._raw.headers
            self._call.streaming(self._raw.status, headers.get, "" if decoded else None)
        self._call.feed(data)

    def _check(self, data: bytes, *, last: bool = False) -> None:
        """Check the tools that the body asks for before its reader gets ``data``."""
        watch = self._call.tool_watch
        if watch is not None:
            try:
                watch.check(data, last=last)
            except BaseException:
                self._call.finish()
                raise

    def _ended(self) -> bool:
        raw = self._raw
        return raw.isclosed() and not len(getattr(raw, "_decoded_buffer", b""))
