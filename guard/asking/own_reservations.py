"""The money that asking code holds already: for the calls around it and the streams it reads."""

from __future__ import annotations

from guard.core import wire
from guard.instrumentation import open_streams
from guard.scope.scope import Scope, calls_of


def attach_own_reservations(
    request: wire.GateRequest, scope: Scope, *, gates_requests: bool
) -> None:
    """Name the asking code's own reservations in its question.

    The gateway draws on those of the calls around it first. And it must not let the question wait
    for them in line: they are released only after it is answered.

    Args:
        request: the question.
        scope: where it is asked.
        gates_requests: whether LLM requests are covered one by one. Then the calls around it need
            no money of their own, and what they have taken from leases goes back.
    """
    for call in calls_of(scope, wire.AROUND_MAX):
        if call.hold is not None:  # from a lease: it can be returned without the gateway
            if gates_requests:
                call.hold.give_back()
        elif call.reservation_id is not None:
            request.around.append(call.reservation_id)
    request.reads = open_streams.held(scope)
