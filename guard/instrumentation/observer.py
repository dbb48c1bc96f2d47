"""What all transports share: check before a request, observe its response, report once."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from guard.core.usage import ResponseFormat, Usage, find_format
from guard.core.wire import NAME_LENGTH_MAX, UNKNOWN_MODEL, LlmData
from guard.scope import Scope, current_scope

logger = logging.getLogger("guard.instrumentation")

_HEAD_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 64 * 1024
_BODY_BYTES_MAX: Final = 16 * 1024 * 1024
_UNSEEN_HOSTS_MAX: Final = 100


class Record(Protocol):
    """Takes an event; see ``GuardRuntime.record``."""

    def __call__(self, kind: str, payload: Any, scope: Scope | None = None) -> int:
        """Put an event into the buffer."""


class Instrumentation:
    """The process's HTTP clients under observation; installs and removes the hooks.

    Args:
        record: takes an ``llm`` event.
        check: raises when the scope's next LLM request must not go out.
    """

    def __init__(self, record: Record, check: Callable[[Scope], None]) -> None:
        self._record = record
        self._check = check
        self._unseen: dict[str, None] = {}

    def install(self) -> None:
        """Instrument the supported transports, now or when they are imported. Idempotent."""
        from guard.instrumentation import httpx

        httpx.install(self)

    def uninstall(self) -> None:
        """Take the hooks out again. Idempotent."""
        from guard.instrumentation import httpx

        httpx.uninstall(self)

    def unseen_hosts(self) -> tuple[str, ...]:
        """Return the LLM hosts whose answers held no usage."""
        return tuple(self._unseen)

    def begin(self, host: str, path: str, body: Callable[[], bytes]) -> Exchange | None:
        """Check and start to observe a request; None when it is not an LLM call.

        Args:
            host, path: of the URL.
            body: returns the request's body; asked only when it is needed.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        response_format = find_format(host, path)
        if response_format is None:
            return None
        scope = current_scope.get()
        self._check(scope)
        return Exchange(self, response_format, scope, host, body)

    def report(self, exchange: Exchange, usage: Usage | None, *, streamed: bool) -> None:
        """Record what a call used, or that its host did not say."""
        if usage is None:
            if len(self._unseen) < _UNSEEN_HOSTS_MAX and exchange.host not in self._unseen:
                self._unseen[exchange.host] = None
                logger.warning(
                    "an LLM answer of %s held no usage; it is not charged", exchange.host
                )
            return
        model = (usage.model or UNKNOWN_MODEL)[:NAME_LENGTH_MAX]
        data = LlmData(
            model=model,
            provider=exchange.format.provider,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            audio_tokens=usage.audio_tokens,
            cost_nanousd=usage.cost_nanousd,
            latency_ms=(time.monotonic() - exchange.started_s) * 1000,
            streamed=streamed,
            estimated=usage.estimated,
            source="auto",
            response_id=usage.response_id,
        )
        call = exchange.scope.call
        if call is not None:
            call.llm_events += 1
        self._record("llm", data, exchange.scope)


class Exchange:
    """One LLM call under observation. Nothing that goes wrong here reaches the user."""

    __slots__ = (
        "_body",
        "_chunks",
        "_decoder",
        "_done",
        "_head",
        "_owner",
        "_size",
        "_sse",
        "_tail",
        "_undecodable",
        "format",
        "host",
        "scope",
        "started_s",
    )

    def __init__(
        self,
        owner: Instrumentation,
        response_format: ResponseFormat,
        scope: Scope,
        host: str,
        body: Callable[[], bytes],
    ) -> None:
        self._owner = owner
        self.format = response_format
        self.scope = scope
        self.host = host
        self.started_s = time.monotonic()
        self._body = body
        self._done = False
        self._sse = False
        self._decoder: Any = None
        self._undecodable = False
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._chunks = 0

    def whole(self, status: int, body: bytes) -> None:
        """The response was read whole; ``body`` is decoded."""
        if self._done or status >= 400:
            return
        self._done = True
        try:
            self._owner.report(self, self.format.from_body(body), streamed=False)
        except Exception:
            logger.debug("usage could not be read", exc_info=True)

    def streaming(self, status: int, content_type: str, content_encoding: str) -> bool:
        """The response is about to be read by the user; False when there is nothing to observe."""
        if status >= 400:
            self._done = True
            return False
        self._sse = "event-stream" in content_type
        encoding = content_encoding.strip().lower()
        if encoding == "gzip":
            self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        elif encoding == "deflate":
            self._decoder = zlib.decompressobj()
        elif encoding not in ("", "identity"):
            self._undecodable = True
        return True

    def feed(self, chunk: bytes) -> None:
        """Take a look at a chunk as it passes by."""
        try:
            if self._undecodable:
                return
            if self._decoder is not None:
                chunk = self._decoder.decompress(chunk, _BODY_BYTES_MAX)
            self._size += len(chunk)
            if not self._sse:
                if self._size <= _BODY_BYTES_MAX:
                    self._head += chunk
                return
            self._chunks += chunk.count(b"data:")
            room = _HEAD_BYTES - len(self._head)
            if room > 0:
                self._head += chunk[:room]
                chunk = chunk[room:]
            if chunk:
                self._tail += chunk
                if len(self._tail) > 2 * _TAIL_BYTES:
                    del self._tail[:-_TAIL_BYTES]
        except Exception:
            self._undecodable = True
            logger.debug("a chunk could not be observed", exc_info=True)

    def finish(self) -> None:
        """The stream ended, was abandoned, or broke: settle what it used. Idempotent."""
        if self._done:
            return
        self._done = True
        try:
            if self._undecodable:
                usage = None
            elif self._sse:
                head, tail = bytes(self._head), bytes(self._tail)
                if self._size == len(head) + len(tail):  # nothing in between was let go
                    head, tail = head + tail, b""
                usage = self.format.from_stream(head, tail, self._chunks, self._body())
            else:
                usage = self.format.from_body(bytes(self._head))
            self._owner.report(self, usage, streamed=self._sse)
        except Exception:
            logger.debug("usage could not be read", exc_info=True)
