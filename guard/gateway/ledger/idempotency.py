"""Repeated requests: the first answer is stored in the transaction of its effects.

So there is no moment at which a request has taken effect and a repeat of it would do so again: if
the process dies before the commit, neither exists, and a repeat is a first request.
"""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain import stored_reply
from guard.gateway.domain.commands import EncodedAnswer, RequestOrigin
from guard.gateway.domain.render import conflict
from guard.gateway.unit.state import StoredAnswer
from guard.gateway.unit.unit_of_work import UnitOfWork

UNDECIDED: Final = 0
"""Status of a stored answer whose request has given back, and is going to be decided again."""


def replay(unit: UnitOfWork, request: RequestOrigin) -> EncodedAnswer | None:
    """Return the stored answer to a repeated request, a conflict, or ``None`` for a new one."""
    lookup_key = request.lookup_key
    if lookup_key is None:
        return None
    kept = unit.stored_answer(lookup_key)
    if kept is None:
        return None
    # The same name for a different request is a bug in the client, which the old answer would hide.
    if kept.fingerprint != request.fingerprint:
        return conflict()
    return EncodedAnswer(kept.status, stored_reply.unpacked(kept.body), replay=True)


def keep_undecided(unit: UnitOfWork, request: RequestOrigin) -> None:
    """Note that a request has given back, so that no repeat of it gives back again.

    The final answer replaces this one under the same key.
    """
    keep(unit, request, EncodedAnswer(UNDECIDED, b""))


def keep(
    unit: UnitOfWork,
    request: RequestOrigin,
    answer: EncodedAnswer,
    reply: wire.GateReply | None = None,
) -> None:
    """Store an answer for repeats.

    Args:
        unit: of the request's effects.
        request: what was asked.
        answer: the answer.
        reply: its body, if that is a reply of the gate; stored in a shorter form.
    """
    lookup_key = request.lookup_key
    if lookup_key is None or not answer.kept:
        return
    body = None if reply is None else stored_reply.packed(reply)
    kept = StoredAnswer(request.fingerprint, answer.status, answer.body if body is None else body)
    unit.store_answer(lookup_key, kept)
