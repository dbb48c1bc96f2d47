"""The debug log of decisions: each call and request, its decision, where it was made and why.

It names functions, tools, models and workflows, never an argument or a prompt.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from guard.core import wire
    from guard.core.leases import Grant
    from guard.scope.scope import Scope

_LOGGER: Final = logging.getLogger("guard.decisions")
_REQUESTS: Final = logging.getLogger("guard.requests")
_TOGETHER_S: Final = 10.0


was_on = False
"""Whether the log was on a moment ago. Asking the logger would cost a covered call 10 %."""


def is_on() -> bool:
    """Return whether the log is on, and note it in ``was_on``."""
    global was_on
    was_on = _LOGGER.isEnabledFor(logging.DEBUG)
    return was_on


def covered(what: str, workflow_id: str | None, lease_id: str) -> None:
    """Log that a lease of this process covers a call or request, without a round trip."""
    _LOGGER.debug("allow %s in %s: covered by lease %s", what, _named(workflow_id), lease_id)


def granted(request: wire.GateRequest, grant: Grant, over: str, began_s: float) -> None:
    """Log that the gateway has allowed a call or request.

    Args:
        request: the question.
        grant: the answer.
        over: how it was asked: the socket or HTTP.
        began_s: when, by the monotonic clock.
    """
    took_ms = (time.monotonic() - began_s) * 1000
    if grant.hold is not None:
        how = f"lease {grant.hold.lease.lease_id}"
    elif grant.reply is not None and grant.reply.reservation_id is not None:
        how = f"reservation {grant.reply.reservation_id}"
    else:
        how = "without a reservation"
    _LOGGER.debug(
        "allow %s in %s: by the gateway over %s in %.1f ms, %s",
        asked(request), _named(request.workflow_id), over, took_ms, how,
    )  # fmt: skip


def waits(request: wire.GateRequest, place: int) -> None:
    """Log that a call or request waits in line for money that others hold."""
    where = f"place {place}" if place else "the gateway is away"
    _LOGGER.debug("wait %s in %s: %s", asked(request), _named(request.workflow_id), where)


class BudgetWaitWarning:
    """Warns that the program stands still until an operator raises a budget."""

    def __init__(self) -> None:
        # One warning for all questions that follow each other within `_TOGETHER_S`; the time by
        # the monotonic clock. On the background loop only.
        self._until_s = -math.inf

    def note(self, request: wire.GateRequest) -> None:
        """Note that a question waits for an operator; the first one of several is logged."""
        now_s = time.monotonic()
        if now_s >= self._until_s:
            _REQUESTS.warning(
                "%s in %s waits: its budget does not pay for it, and an operator is asked to raise "
                "the limit",
                asked(request), _named(request.workflow_id),
            )  # fmt: skip
        self._until_s = now_s + _TOGETHER_S


def refused(
    exc: BaseException, scope: Scope | None, tool: str | None, verb: str = "refuse"
) -> None:
    """Log a refusal, and its reason."""
    what = "a request" if tool is None else f"call {tool}"
    where = _named(None if scope is None else scope.workflow_id)
    _LOGGER.debug("%s %s in %s: %s: %s", verb, what, where, type(exc).__name__, exc)


def fell_back(what: str, workflow_id: str | None) -> None:
    """Log that a call or request is let through although the gateway could not be asked."""
    _LOGGER.debug("allow %s in %s: GUARD_FALLBACK_MODE=open", what, _named(workflow_id))


def asked(request: wire.GateRequest) -> str:
    """Return a description of the call or request that a question is about."""
    if request.kind == "llm":
        return f"a request to {request.function} for {request.model}"
    return f"call {request.tool_name or request.function}"


def _named(workflow_id: str | None) -> str:
    return "no workflow" if workflow_id is None else f"workflow {workflow_id}"
