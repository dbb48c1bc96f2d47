"""Answers from messages: each is accepted once, for the question that its message was about."""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from guard.core import wire
from guard.gateway.domain.answer_links import Subject
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError
from guard.gateway.ledger import approvals, asks, webhooks
from guard.gateway.unit.unit_of_work import UnitOfWork

Verdict = Literal["approve", "refuse"]
SEEN_MS: Final = 900_000
"""Shortest time that a used answer is remembered: longer than a request of Slack is accepted."""


def take(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    channel_id: str,
    subject: Subject,
    verdict: Verdict,
    once: str,
    until_ms: int,
) -> str:
    """Accept an answer, and return its result as a sentence.

    Args:
        unit: the unit of work.
        actor: who answers.
        organisation_id: whose question it is.
        channel_id: of the message.
        subject: the question.
        verdict: the answer; a budget that asks is raised when it is ``approve``.
        once: must not be used again: the signature of a request, or a link.
        until_ms: when ``once`` becomes invalid by itself.

    Raises:
        ConflictError: it was used before, or the question was answered or has ended.
        NotFoundError: the organisation has no such question.
    """
    # If the answer fails below, this is undone with it: the person may use the message again.
    digest = hashlib.sha256(once.encode()).hexdigest()
    if not unit.directory.use_nonce(channel_id, digest, max(until_ms, unit.now_ms + SEEN_MS)):
        raise ConflictError("this was used before")
    who = actor.name
    if subject.kind == "approval":
        approved = verdict == "approve"
        found = approvals.answer(
            unit, actor, organisation_id, subject.id, approved=approved, reason=""
        )
        name = found.tool_name or found.function
        return f"{name} was {'approved' if approved else 'refused'} by {who}"
    if verdict == "refuse":
        asks.refuse(unit, actor, organisation_id, subject.balance_id, subject.id)
        return f"The raise was refused by {who}"
    # The raise is keyed by its question: a second message about the same one, such as in another
    # channel, does not raise the budget again.
    ask = asks.require_open(unit, organisation_id, subject.balance_id, subject.id)
    raised = asks.raise_budget(
        unit, actor, organisation_id, subject.budget_id, by=subject.by,
        raise_key=f"answer:{subject.balance_id}:{subject.id}", counted_in=ask.unit,
    )  # fmt: skip
    limit = wire.amount_in(ask.unit, raised.raised.limit)
    return f"The budget was raised to {limit} by {who}"


def report(
    unit: UnitOfWork, organisation_id: str, channel_id: str, text: str, response_url: str
) -> None:
    """Replace a message in Slack by the result of its answer."""
    data = {"text": text, "response_url": response_url}
    webhooks.send_to(unit, organisation_id, channel_id, "question.answered", data)
