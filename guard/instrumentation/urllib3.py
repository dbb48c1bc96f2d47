"""Hooks urllib3's pools, and observes the body of its responses, also for requests and botocore.

The response object stays urllib3's own; the methods of this instance that return its body feed
every piece to the observed call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import attrs

from guard.core.usage.ends import Ending
from guard.instrumentation import patching
from guard.instrumentation.interruptible import llm_request
from guard.instrumentation.observed_call import ObservedCall, call_being_sent
from guard.instrumentation.prepared_request import begin
from guard.instrumentation.tool_watch import check_answer

_ITERATING: Final = ("stream", "read_chunked")
_READING: Final = ("read", "read1")
_CLOSING: Final = {
    "close": Ending.CLOSED, "release_conn": Ending.LOST, "drain_conn": Ending.LOST,
}  # fmt: skip
"""Methods that end the body. Only ``close`` closes the connection: the vendor may notice that."""


def patch(module: ModuleType) -> None:
    """Hook the pools of ``urllib3``; what is sent through requests or botocore has a call."""
    patching.replace(module.HTTPConnectionPool, "urlopen", _urlopen)


def _urlopen(original: Any) -> Any:
    @functools.wraps(original)
    def urlopen(
        self: Any, method: str, url: str, body: Any = None, headers: Any = None,
        *args: Any, **options: Any,
    ) -> Any:  # fmt: skip
        if call_being_sent() is not None or patching.active() is None:  # also its own retries
            return original(self, method, url, body, headers, *args, **options)
        whole = url if "://" in url else f"{self.scheme}://{self.host}:{self.port}{url}"
        # A copy, since a caller may use theirs again.
        asked = _Asked(method, whole, body, dict(self.headers if headers is None else headers))
        call = begin(asked)
        if call is None:
            return original(self, method, url, body, headers, *args, **options)
        patching.rehook()  # puts an upper hook back, for the next request
        if call.uncovered:
            call.ask()
        with call.sending():
            call.watched = call.in_memory = patching.is_seen("http.client")
            response = llm_request(
                original, self, method, url, asked.body, asked.headers, *args, **options
            )
        if options.get("preload_content", True):
            call.whole(response.status, response.headers.get, response.data)
            check_answer(call)
        elif call.streaming(response.status, response.headers.get):
            observe(call, response)
        return response

    return urlopen


@attrs.define(eq=False)
class _Asked:
    """A request to a pool, as :func:`begin` reads one."""

    method: str
    url: str
    body: Any
    headers: dict[str, Any]


def observe(call: ObservedCall, raw: Any) -> None:
    """Feed every piece of a response's body to the call.

    By attributes of the instance, which hide the class's methods: the user's reader keeps the type
    that it expects.

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
    for name, ending in _CLOSING.items():
        if hasattr(raw, name):
            setattr(raw, name, body.closing(getattr(raw, name), ending))


class _Body:
    """The body of one response. Used by its reader alone.

    urllib3's methods call each other (``stream`` calls ``read``), and all of them are wrapped. Only
    what the outermost one returns is fed, so that no byte counts twice.
    """

    def __init__(self, call: ObservedCall, raw: Any) -> None:
        self._call = call
        self._raw = raw
        # How many of these methods are running inside each other.
        self._depth = 0
        # Whether a piece was fed. Only the arguments of the first read show whether urllib3 decodes
        # the body, so the recording is set up again then.
        self._started = False
        # Bytes that may be shown, and were more than the reader asked for.
        self._waiting = b""

    def _shown(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the part of the body that its reader may see."""
        hide = self._call.filter
        if hide is None:
            return data
        shown = hide.feed(data)
        return shown + hide.rest() if last else shown

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
                        # The end first: the check may raise, which must not look like an early one.
                        if outermost:
                            self._call.finish(self._at_end())
                            self._check(b"", last=True)
                            if rest := self._shown(b"", last=True):
                                yield rest
                        return
                    if outermost:
                        self._feed(chunk, args, options)
                        self._check(chunk)
                        chunk = self._shown(chunk)
                    if chunk:
                        yield chunk
            except Exception:
                if outermost:
                    self._call.finish(Ending.LOST)
                raise
            finally:
                if outermost:
                    self._call.finish(Ending.CLOSED)

        return iterate

    def reading(self, original: Any) -> Any:
        def read(*args: Any, **options: Any) -> Any:
            if self._depth:
                return original(*args, **options)
            data = once(*args, **options)
            asked = args[0] if args else options.get("amt")
            if self._call.filter is None and not self._waiting:
                return data
            shown = self._waiting + self._shown(data, last=not data or asked is None)
            while not shown and data:  # empty bytes would mean the end to the reader
                data = once(*args, **options)
                shown = self._shown(data, last=not data)
            end = len(shown) if asked is None else asked
            self._waiting = shown[end:]
            return shown[:end]

        def once(*args: Any, **options: Any) -> Any:
            self._depth += 1
            try:
                data = llm_request(original, *args, **options)
            except Exception:
                self._call.finish(Ending.LOST)
                raise
            except BaseException:  # killed, or interrupted
                self._call.finish(Ending.CLOSED)
                raise
            finally:
                self._depth -= 1
            if data:
                self._feed(data, args, options)
            # The end: everything was asked for, nothing came, or urllib3 has closed the response.
            asked = args[0] if args else options.get("amt")
            last = bool(asked is None or (not data and asked) or self._ended())
            if last:
                self._call.finish(self._at_end())
            self._check(data, last=last)
            return data

        return read

    def closing(self, original: Any, ending: Ending) -> Any:
        def close(*args: Any, **options: Any) -> Any:
            try:
                return original(*args, **options)
            finally:
                if not self._depth:  # while reading, it releases a connection that is at its end
                    self._call.finish(ending)

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
                self._call.finish(Ending.CLOSED)
                raise

    def _at_end(self) -> Ending:
        # To some readers a connection that was closed early looks like any other end; only the
        # content's length shows what is missing.
        lacking = getattr(self._raw, "length_remaining", None)
        return Ending.LOST if lacking else Ending.COMPLETE

    def _ended(self) -> bool:
        raw = self._raw
        return raw.isclosed() and not len(getattr(raw, "_decoded_buffer", b""))
