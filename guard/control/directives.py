"""Passes the operators' directives from the gateway to their enforcement."""

from __future__ import annotations

from guard.control.enforcement import Enforcement
from guard.core import wire
from guard.core.control import messages_of_decision


class DirectiveFeed:
    """Applies control messages and decisions of the gateway; on the background loop.

    Args:
        enforcement: holds the control state.
    """

    def __init__(self, enforcement: Enforcement) -> None:
        self._enforcement = enforcement

    def position(self) -> tuple[int, str]:
        """Return the number and the epoch of the newest control message that was applied."""
        control = self._enforcement.control
        return control.seq, control.epoch

    def known(self) -> str:
        """Return the versions of the tool rules and facts that are applied, as a query."""
        return self._enforcement.control.known

    def apply(self, *messages: wire.ControlMessage) -> None:
        """Apply control messages."""
        self._enforcement.apply(*messages)

    def decided(self, workflow_id: str | None, run_id: str | None, reply: wire.EventsReply) -> None:
        """Apply the decision in a reply to events, while no control channel delivers it."""
        if workflow_id is None:
            return
        messages = messages_of_decision(
            self._enforcement.control, workflow_id, run_id, reply.decision, reply.budget
        )
        if messages:
            self._enforcement.apply(*messages)
