"""Fixtures: the vendors' stand-in, and an instrumentation that keeps what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from guard.asking.request_hold import RequestHold
from guard.core.events import LATER_EVENT, BegunWork, InstrumentedCall, llm_data
from guard.core.wire import LlmData
from guard.instrumentation import Instrumentation
from guard.scope.scope import Scope, current_scope
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import INSIDE
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import until


@attrs.define(eq=False)
class RecordingAccount:
    """An account without a gateway: it records, refuses nothing and registers no request."""

    record: Callable[..., int]
    check_request: Callable[[Scope], object] = lambda scope: None
    request_gate: Any = None
    tools: Any = None
    facts: Any = None
    enter_request: Callable[..., Any] = lambda frame, llm: None
    leave_request: Callable[[Any], None] = lambda request: None


@attrs.define
class Observed:
    """An active instrumentation and what it has reported."""

    instrumentation: Instrumentation
    calls: list[InstrumentedCall]
    scopes: list[Scope | None]
    account: RecordingAccount
    told: list[Any] = attrs.field(factory=list)
    begun: list[BegunWork] = attrs.field(factory=list)

    @property
    def events(self) -> list[LlmData]:
        """The payloads of the events that the calls became, read as the background loop does."""
        return [
            data
            for number, call in enumerate(self.calls)
            if (data := llm_data(call, str(number))) is not None
        ]


@pytest.fixture(scope="session")
def standin_server() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


@pytest.fixture
def standin(standin_server: StandIn) -> StandIn:
    """The vendors' stand-in, behaving well."""
    standin_server.reset()
    return standin_server


@pytest.fixture
def answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that asks for more money is read on when the answer is there.

    It is read on at once otherwise, and a busy machine may read all of it meanwhile.
    """
    grow = RequestHold.grow

    def waiting(hold: RequestHold, output_tokens: int) -> None:
        grow(hold, output_tokens)
        until(lambda: not hold._growing)

    monkeypatch.setattr(RequestHold, "grow", waiting)


def start_observing(**options: Any) -> Observed:
    calls: list[InstrumentedCall] = []
    scopes: list[Scope | None] = []
    told: list[Any] = []
    begun: list[BegunWork] = []

    def record(kind: str, payload: Any, scope: Scope | None = None) -> int:
        if kind == "sdk.unseen":
            told.append(payload)
            return 0
        if kind == LATER_EVENT:
            begun.append(payload)
            return 0
        assert kind == "llm"
        calls.append(payload)
        scopes.append(scope)
        return len(calls)

    account = RecordingAccount(record, request_gate=options.pop("request_gate", None))
    if "check" in options:
        account.check_request = options.pop("check")
    instrumentation = Instrumentation(account, **options)
    instrumentation.install()
    return Observed(instrumentation, calls, scopes, account, told, begun)


@pytest.fixture
def observed() -> Iterator[Observed]:
    """An instrumentation that keeps what it reports."""
    observing = start_observing()
    yield observing
    observing.instrumentation.uninstall()


@pytest.fixture
def gate() -> FakeGate:
    return FakeGate()


@pytest.fixture
def gated(gate: FakeGate) -> Iterator[Observed]:
    """A gated instrumentation, and the code inside a workflow."""
    observing = start_observing(request_gate=gate)
    token = current_scope.set(INSIDE)
    yield observing
    current_scope.reset(token)
    observing.instrumentation.uninstall()
