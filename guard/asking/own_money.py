"""What the code that asks holds already: the calls around it, and the streams that it reads."""

from __future__ import annotations

from guard.core import wire
from guard.instrumentation import open_streams
from guard.scope.scope import Scope, calls_of


def note_own_money(request: wire.GateRequest, scope: Scope, *, gates_requests: bool) -> None:
    """Say in a question what is drawn on first, and what comes back to nobody while it waits.

    Args:
        request: the question.
        scope: where it is asked.
        gates_requests: whether what the calls around it are expected to cost are requests, which
            are covered themselves; what these calls have taken from leases then goes back.
    """
    for call in calls_of(scope, wire.AROUND_MAX):
        if call.hold is not None:
            if gates_requests:
                call.hold.give_back()
        elif call.reservation_id is not None:
            request.around.append(call.reservation_id)
    request.reads = open_streams.held(scope)
