"""Questions as messages show them: what was asked, and the answers that are still possible."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from guard.core import wire
from guard.core.visible import one_line
from guard.gateway.domain import alerts, answer_links, records
from guard.gateway.domain.answer_links import AnswerLink, Subject
from guard.gateway.services.channels.message import Button, ShownQuestion
from guard.gateway.storage.port import Storage

_DETAIL_MAX: Final = 500


class OpenQuestion(Struct, frozen=True):
    """A question as a person who may answer it sees it.

    Args:
        organisation_id: of the question.
        subject: identifies the question.
        title: its title.
        lines: names and values that the gateway vouches for.
        shown: names and values that the agent has written.
        approve: the label of the answer yes.
        deadline_ms: when it can no longer be answered.
        state: how it has ended; empty while it can be answered.
    """

    organisation_id: str
    subject: Subject
    title: str
    lines: list[tuple[str, str]]
    shown: list[tuple[str, str]]
    approve: str
    deadline_ms: int
    state: str = ""


_OVER: Final = "This question is over."


def over(subject: Subject, organisation_id: str) -> OpenQuestion:
    """Return a question that is over, since the call that asked it waits no longer."""
    return OpenQuestion(
        organisation_id=organisation_id, subject=subject,
        title="Raise a budget?" if subject.kind == "asks" else "Approve a call?",
        lines=[], shown=[], approve="", deadline_ms=0, state=_OVER,
    )  # fmt: skip


class Questions:
    """Looks questions up.

    Args:
        storage: where they are.
        base_url: of the gateway, for links.
        clock_ms: the gateway's clock.
    """

    def __init__(self, storage: Storage, base_url: str, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._base_url = base_url.rstrip("/")
        self._clock_ms = clock_ms

    async def of(self, due: records.DueDelivery) -> ShownQuestion:
        """Return what a message shows of its question: nothing unless the channel takes answers.

        It is read when the message is sent, also at a later attempt, so that no message offers an
        answer to a question that has ended.
        """
        if due.type not in ("approval.requested", "budget.asks"):
            return ShownQuestion()
        options = wire.decode(due.options, alerts.ChannelOptions)
        if not options.answers or due.kind not in ("slack", "email"):
            return ShownQuestion()
        asked = await self.find(_subject(due), due.organisation_id)
        if asked is None:
            return ShownQuestion(state=_OVER)
        if asked.state:
            return ShownQuestion(shown=asked.shown, state=asked.state)
        if due.kind == "email":
            secrets = wire.decode(due.secret, alerts.ChannelSecrets)
            link = AnswerLink(
                channel_id=due.channel_id, subject=asked.subject, ends_ms=asked.deadline_ms
            )
            token = answer_links.sign(link, secrets.link_key)
            address = f"{self._base_url}/answer?token={token}" if self._base_url else ""
            return ShownQuestion(shown=asked.shown, link=address)
        value = wire.encode(asked.subject).decode()
        buttons = [
            Button(action="approve", label=asked.approve, value=value),
            Button(action="refuse", label="Refuse", value=value),
        ]
        return ShownQuestion(shown=asked.shown, buttons=buttons)

    async def find(self, subject: Subject, organisation_id: str) -> OpenQuestion | None:
        """Return a question of an organisation, as it is now."""
        if subject.kind == "approval":
            approval = await self._storage.find_approval(subject.id)
            if approval is None or approval.organisation_id != organisation_id:
                return None
            return self._approval(approval)
        ask = await self._storage.find_budget_ask(subject.balance_id, subject.id)
        if ask is None or ask.organisation_id != organisation_id:
            return None
        return self._ask(ask, subject)

    def _approval(self, approval: records.Approval) -> OpenQuestion:
        state = ""
        if approval.status != "pending":
            by = f" by {approval.answered_by}" if approval.answered_by else ""
            state = f"Answered{by}: {'approved' if approval.status == 'used' else approval.status}"
        elif approval.deadline_ms <= self._clock_ms():
            state = "The time for an answer is over."
        shown = []
        if approval.message:
            shown.append(("Message", one_line(approval.message)))
        for name, value in approval.details.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            shown.append((one_line(name), _short(one_line(text))))
        name = approval.tool_name or approval.function
        return OpenQuestion(
            organisation_id=approval.organisation_id,
            subject=Subject(kind="approval", id=approval.approval_id),
            title=f"Approve {one_line(name)}?",
            lines=_lines(
                ("Function", approval.function), ("Workflow", approval.workflow_id),
                ("Run", approval.run_id), ("Agent", approval.agent), ("User", approval.user),
                ("Arguments", approval.arguments),
            ),
            shown=shown,
            approve="Approve",
            deadline_ms=approval.deadline_ms,
            state=state,
        )  # fmt: skip

    def _ask(self, ask: records.BudgetAsk, subject: Subject) -> OpenQuestion:
        by = subject.by or suggested_raise(ask)
        is_over = ask.deadline_ms <= self._clock_ms()
        is_money = ask.unit == "usd"
        shown = functools.partial(wire.amount_in, ask.unit)
        return OpenQuestion(
            organisation_id=ask.organisation_id,
            subject=Subject(
                kind="asks", id=ask.call_id, budget_id=ask.budget_id, balance_id=ask.balance_id,
                by=by,
            ),
            title=f"Raise the budget of {one_line(ask.scope)} by {shown(by)}?",
            lines=_lines(
                ("Call", ask.function), ("Workflow", ask.workflow_id), ("Agent", ask.agent),
                ("User", ask.user), ("Model", ask.model),
                ("May cost" if is_money else "May use", shown(ask.needed)),
                ("Spent" if is_money else "Used",
                 f"{shown(ask.spent)} of {shown(ask.limit)}"),
            ),
            shown=[],
            approve=f"Raise by {shown(by)} and go on",
            deadline_ms=ask.deadline_ms,
            state="The time for an answer is over." if is_over else "",
        )  # fmt: skip


def suggested_raise(ask: records.BudgetAsk) -> int:
    """Return by how much to raise a budget: the lacking amount, or half of the limit if larger.

    In nano-dollars, in whole cents; for a budget of tokens or calls in its unit.
    """
    step = wire.NANOUSD_PER_CENT if ask.unit == "usd" else 1
    wanted = max(ask.lacking, ask.limit // 2, 1)
    return -(-wanted // step) * step


def _subject(due: records.DueDelivery) -> Subject:
    data = wire.decode(due.body, dict[str, Any])["data"]
    if due.type == "approval.requested":
        return Subject(kind="approval", id=data["approval_id"])
    return Subject(kind="asks", id=data["call_id"], balance_id=data["balance_id"])


def _lines(*pairs: tuple[str, Any]) -> list[tuple[str, str]]:
    return [(name, one_line(str(value))) for name, value in pairs if value not in (None, "")]


def _short(text: str) -> str:
    """Return a text, cut if it is too long, with a note that it is cut."""
    if len(text) <= _DETAIL_MAX:
        return text
    return f"{text[:_DETAIL_MAX]}… (cut: the dashboard shows all of it)"
