"""What the transport hooks need from the instrumentation."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from guard.instrumentation.observed_call import ObservedCall
from guard.instrumentation.realtime import RealtimeSession


class Observer(Protocol):
    """Sees the requests of this process's HTTP clients.

    Attributes:
        inject_stream_usage: whether streams are asked for their usage where the host is known to
            accept that.
    """

    inject_stream_usage: bool

    @property
    def limits_output(self) -> bool:
        """Whether a request that is made here may have to be given a limit."""

    def begin(
        self,
        method: str,
        host: str,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None = None,
    ) -> ObservedCall | None:
        """Check a request and start observing it; None when it is not an LLM call."""

    def begin_session(self, host: str, path: str, query: str) -> RealtimeSession | None:
        """Check a WebSocket and start observing it; None when it does not lead to an LLM."""

    def enter(self, frame: FrameType | None, llm: bool, /) -> Any:
        """Register a request so that a kill can stop it; None where that is not needed."""

    def leave(self, request: Any, /) -> None:
        """Forget what :meth:`enter` returned."""
