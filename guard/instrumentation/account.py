"""The account of a key, as the observation of requests uses it."""

from __future__ import annotations

from types import FrameType
from typing import Any, Protocol

from guard.core.gateway_facts import GatewayFacts
from guard.instrumentation.request_gate import RequestGate
from guard.instrumentation.tool_watch import ToolGate
from guard.scope.scope import Scope


class Account(Protocol):
    """The account that a request belongs to; see ``guard.runtime.account.KeyAccount``."""

    @property
    def request_gate(self) -> RequestGate | None:
        """Covers each LLM request before it is sent; None lets them go out as they are."""

    @property
    def tools(self) -> ToolGate | None:
        """Decides about the tools that answers ask for; None checks none."""

    @property
    def facts(self) -> GatewayFacts | None:
        """What the operators of its organisation have judged; None for nothing."""

    def record(self, kind: str, payload: Any, scope: Scope | None = None) -> int:
        """Put an event into the buffer."""

    def check_request(self, scope: Scope) -> object:
        """Refuse the next LLM request of a scope that is killed, paused or exhausted.

        Returns:
            True when it would be refused but goes out, because guard only observes. Then it needs
            no cover.

        Raises:
            Refusal: it must not go out.
            WorkflowKilledInterrupt: the workflow is killed.
        """

    def enter_request(self, frame: FrameType | None, llm: bool) -> Any:
        """Register a request, so that a kill can stop it.

        Args:
            frame: in whose thread it runs; None for the calling task.
            llm: whether it is an LLM request.

        Returns:
            The request, for :meth:`leave_request`; None where it need not be registered.
        """

    def leave_request(self, request: Any) -> None:
        """Report that such a request has ended."""
