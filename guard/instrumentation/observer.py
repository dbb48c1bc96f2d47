"""The interface between the transport hooks and the instrumentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from guard.instrumentation.account import Account
from guard.instrumentation.frame_session import FrameSession
from guard.instrumentation.include_usage import StreamUsage
from guard.instrumentation.observed_call import ObservedCall
from guard.scope.scope import Scope


class Observer(Protocol):
    """Sees the requests of this process's HTTP clients.

    Attributes:
        stream_usage: asks streams for their usage.
        refuse_unseen: refuses what cannot be covered; None where that may go.
    """

    stream_usage: StreamUsage
    refuse_unseen: Callable[[str, Scope], None] | None

    def begin(
        self,
        method: str,
        host: str,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None = None,
        headers: Callable[[], Mapping[str, Any]] = ...,
    ) -> ObservedCall | None:
        """Check a request and start observing it; None when it is not an LLM call."""

    def begin_session(self, host: str, path: str, query: str) -> FrameSession | None:
        """Check a WebSocket and start observing it; None when it does not lead to an LLM."""

    def unmetered(self, host: str, path: str, why: str, by: str = "") -> None:
        """Report an LLM request that can be neither held nor metered.

        Args:
            host, path: those of its URL.
            why: the reason.
            by: the native client that sends it, if it is one.

        Raises:
            Refusal: such requests are refused here.
        """

    def read_answers(self) -> None:
        """Read the answers that were recorded unread: what they have cost is known then."""

    def unknown_path(self, host: str, path: str) -> None:
        """Report a request to a path of a vendor's of which it is not known what it costs.

        Raises:
            GuardBlockedException: such requests are refused here.
        """

    def account(self, scope: Scope) -> Account:
        """Return the account that requests of a scope belong to."""
