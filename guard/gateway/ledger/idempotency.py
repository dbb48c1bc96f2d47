"""Repeated requests: the first answer is stored in the transaction of its effects."""

from __future__ import annotations

from guard.gateway.domain.commands import Answer, Request
from guard.gateway.domain.render import conflict
from guard.gateway.ledger.state import StoredAnswer
from guard.gateway.ledger.unit_of_work import UnitOfWork


def lookup_key(request: Request) -> str | None:
    """Return the name under which a request's answer is stored; ``None`` if it is not."""
    if request.idempotency_key is None:
        return None
    return f"{request.key_id}/{request.idempotency_key}"


def replay(unit: UnitOfWork, request: Request) -> Answer | None:
    """Return the stored answer to a repeated request, a conflict, or ``None`` for a new one."""
    if request.idempotency_key is None:
        return None
    kept = unit.stored_answer(f"{request.key_id}/{request.idempotency_key}")
    if kept is None:
        return None
    if kept.fingerprint != request.fingerprint:
        return conflict()
    return Answer(kept.status, kept.body, replay=True)


def keep(unit: UnitOfWork, request: Request, answer: Answer) -> None:
    """Store an answer for repeats."""
    if request.idempotency_key is not None and answer.kept:
        unit.store_answer(
            f"{request.key_id}/{request.idempotency_key}",
            StoredAnswer(request.fingerprint, answer.status, answer.body),
        )
