"""Streams of bytes that record what passes, for httpx and httpcore."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from guard.core.usage import Recording
from guard.core.usage.ends import Ending
from guard.core.usage.recording import PENDING_BYTES
from guard.instrumentation.interruptible import chunks_of, chunks_of_async
from guard.instrumentation.observed_call import ObservedCall
from guard.instrumentation.tool_watch import checked, checked_async


class _Tee:
    """What both have: the stream, its call, and where its bytes are recorded."""

    def __init__(self, stream: Any, call: ObservedCall, recording: Recording) -> None:
        self._stream = stream
        self._call = call
        self._recording = recording

    def __del__(self) -> None:  # dropped without being closed
        self._call.finish(Ending.CLOSED)


class SyncTee(_Tee):
    """A blocking stream."""

    def __iter__(self) -> Iterator[bytes]:
        call, recording = self._call, self._recording
        hide = call.filter
        chunks = checked(chunks_of(self._stream), call)
        pend, room = recording.pending.append, PENDING_BYTES
        call.is_read_here()  # this runs with the first read, in the reader's own context
        try:
            # 1. The common case, without a function call for each chunk: this is
            #    `call.feed` and `recording.feed` written out.
            if hide is None and call.watch is None:
                for chunk in chunks:
                    pend(chunk)
                    room -= len(chunk)
                    if room < 0:
                        recording.settle()
                        room = PENDING_BYTES
                    yield chunk
                call.finish(Ending.COMPLETE)
                return
            # 2. The usage chunk is hidden, or the stream may outgrow its cover.
            for chunk in chunks:
                call.feed(chunk)
                if shown := chunk if hide is None else hide.feed(chunk):
                    yield shown
            if hide is not None and (shown := hide.rest()):
                yield shown
            call.finish(Ending.COMPLETE)
        # A transport's error is an `Exception`. Kills, refusals, cancellation and the
        # `GeneratorExit` of a reader that leaves early are not: then the stream was closed
        # here. Only the first `finish` counts.
        except Exception:
            call.finish(Ending.LOST)
            raise
        finally:
            call.finish(Ending.CLOSED)

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._call.finish(Ending.CLOSED)


class AsyncTee(_Tee):
    """The same, step by step, for an asynchronous stream."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call, recording = self._call, self._recording
        hide = call.filter
        chunks = checked_async(chunks_of_async(self._stream), call)
        pend, room = recording.pending.append, PENDING_BYTES
        call.is_read_here()  # this runs with the first read, in the reader's own context
        try:
            if hide is None and call.watch is None:
                async for chunk in chunks:
                    pend(chunk)
                    room -= len(chunk)
                    if room < 0:
                        recording.settle()
                        room = PENDING_BYTES
                    yield chunk
                call.finish(Ending.COMPLETE)
                return
            async for chunk in chunks:
                call.feed(chunk)
                if shown := chunk if hide is None else hide.feed(chunk):
                    yield shown
            if hide is not None and (shown := hide.rest()):
                yield shown
            call.finish(Ending.COMPLETE)
        except Exception:
            call.finish(Ending.LOST)
            raise
        finally:
            call.finish(Ending.CLOSED)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._call.finish(Ending.CLOSED)
