"""What several threads do with one call or one table at once, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx
import pytest

from guard.core.usage.ends import Ending
from guard.instrumentation import Instrumentation, patching
from guard.instrumentation.frame_session import FrameSession
from guard.instrumentation.include_usage import StreamUsage
from guard.instrumentation.method_hook import MethodHook, _held_by
from guard.instrumentation.observed_call import ObservedCall
from guard.instrumentation.output_limits import OutputLimits, _Known
from guard.instrumentation.stream_tee import SyncTee
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.interleaved import at_every_step
from tests.guard.instrumentation.standin.reply import sse

BODY: Final = b'{"model": "gpt-5", "messages": [], "stream": true, "max_completion_tokens": 99}'
CHUNK: Final = b"".join(
    sse({"model": "gpt-5", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
)


def reading(gated: Observed) -> ObservedCall:
    """Return a call whose stream is being read."""
    call = gated.instrumentation.begin("POST", "api.openai.com", CHAT, lambda: BODY)
    assert call is not None
    call.sent_s, call.tried = time.monotonic(), 0
    assert call.streaming(200, {"content-type": "text/event-stream"}.get)
    return call


class TestAnAnswerWhoseProcessEnds:
    """``Instrumentation.close`` abandons calls that other threads are reading."""

    def test_is_charged_by_its_usage_if_its_reader_has_it_all(
        self, gated: Observed, gate: FakeGate
    ) -> None:
        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            call = reading(gated)
            call.feed(CHUNK)
            return lambda: call.finish(Ending.COMPLETE), call.abandon

        codes = {ObservedCall.finish.__code__, ObservedCall._end.__code__}
        rounds = at_every_step(codes | {Instrumentation.ended.__code__}, run)
        events = gated.events
        assert {(each.output_tokens, each.estimate) for each in events} == {(4, None)}
        assert len(events) == len(gate.ends) == rounds + 1
        assert "kept" not in gate.ends
        assert gated.instrumentation.failures == 0

    def test_ends_in_one_way(self, gated: Observed) -> None:
        """A second end changes nothing, as late as it may come."""
        ended: list[tuple[ObservedCall, Ending]] = []

        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            call = reading(gated)

            def other() -> None:
                call.abandon()
                if call not in gated.instrumentation._open:
                    ended.append((call, call.ending))

            return lambda: call.finish(Ending.COMPLETE), other

        codes = {ObservedCall.finish.__code__, ObservedCall._end.__code__}
        at_every_step(codes, run)
        assert all(call.ending is ending for call, ending in ended)
        assert {ending for _, ending in ended} == {Ending.CLOSED, Ending.COMPLETE}

    def test_goes_on_to_its_reader(self, gated: Observed, gate: FakeGate) -> None:
        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            call = reading(gated)
            return lambda: call.feed(CHUNK), call.abandon

        at_every_step({ObservedCall.feed.__code__}, run)
        gated.instrumentation.close()
        assert len(gate.ends) == len(gate.holds)

    def test_goes_on_to_the_reader_of_a_client(self, gated: Observed) -> None:
        """httpx gets its wrapped stream after the call has ended."""
        from guard.instrumentation import httpx as hooks

        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            call = gated.instrumentation.begin("POST", "api.openai.com", CHAT, lambda: BODY)
            assert call is not None
            call.sent_s, call.tried = time.monotonic(), 0
            response = httpx.Response(200, stream=httpx.ByteStream(CHUNK))
            tee = type("Tee", (SyncTee, httpx.SyncByteStream), {})

            def read() -> None:
                hooks._observe(call, response, tee, {"stream": True})
                assert b"".join(response.stream) == CHUNK

            return read, call.abandon

        at_every_step({hooks._observe.__code__}, run)


class TestTables:
    """Tables that one thread looks through while another adds to them."""

    def test_of_hooks(self, observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
        class Client:
            def connect(self) -> None: ...

        original = patching._patches

        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            patches = dict(original)
            monkeypatch.setattr(patching, "_patches", patches)
            seam = MethodHook(Client, "connect", lambda method: method)
            return lambda: patching.is_hooked(Client, "connect"), lambda: patches.update(
                {(type(Client.__name__, (), {}), "connect"): seam}
            )

        at_every_step({patching.is_hooked.__code__}, run)
        monkeypatch.undo()  # before the hooks are taken out

    def test_of_clients(self, observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
        original = patching._seams

        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            seams = dict(original)
            monkeypatch.setattr(patching, "_seams", seams)
            return patching.unhooked, lambda: seams.update(other=True)

        at_every_step({patching.unhooked.__code__}, run)
        monkeypatch.undo()

    def test_of_what_an_object_over_a_hook_holds(self) -> None:
        class Patched:
            def __init__(self) -> None:
                self.original = print

            def __call__(self) -> None: ...

        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            patched = Patched()
            return lambda: list(_held_by(patched)), lambda: setattr(patched, "other", print)

        at_every_step({_held_by.__code__}, run)

    def test_of_limits_that_vendors_accept(self) -> None:
        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            limits = OutputLimits()
            for number in range(1024):
                limits._remember(("host", str(number)), _Known(most=1))
            return (
                lambda: limits._remember(("host", "one"), _Known(most=2)),
                lambda: limits._remember(("host", "500"), _Known()),
            )

        at_every_step({OutputLimits._remember.__code__}, run)

    def test_of_hosts_that_refuse_to_report_usage(self) -> None:
        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            usage = StreamUsage(is_on=True)
            for number in range(1024):
                usage._refuse(("host", str(number)))
            return (
                lambda: usage._refuse(("host", "one")),
                lambda: usage._refused.popitem(),  # what this thread does first, when it is full
            )

        at_every_step({StreamUsage._refuse.__code__}, run)

    def test_of_sessions(self, observed: Observed) -> None:
        """One begins while those before it are ended, at the end of the process."""
        import weakref

        instrumentation, sessions = observed.instrumentation, []

        def begin() -> FrameSession:
            session = instrumentation.begin_session("api.openai.com", "/v1/realtime", "model=m")
            assert session is not None
            sessions.append(session)
            return session

        def run() -> tuple[Callable[[], object], Callable[[], object]]:
            sessions.clear()
            session = begin()

            def close() -> None:
                instrumentation.close()
                assert session._ended

            return close, begin

        codes = {Instrumentation.close.__code__, weakref.WeakKeyDictionary.keyrefs.__code__}
        at_every_step(codes, run)
