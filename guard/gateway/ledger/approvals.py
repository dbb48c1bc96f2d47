"""Approvals: a person's answer to one call, with a deadline."""

from __future__ import annotations

import hashlib
import json
from typing import Final

import msgspec

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.commands import (
    Actor,
    ApprovalNeed,
    CallRefusal,
    GateCommand,
    RequestOrigin,
)
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.ledger import audit, control, webhooks
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork

EXPIRE_MAX: Final = 100
"""Maximum approvals that one sweep ends."""
PRESENCE_MS: Final = 30_000
"""How long an approval stays open after its caller's last renewal."""
GONE: Final = "the program that asked is gone"
LEFT: Final = "the call waits no longer"
_REASONS: Final = {
    "pending": "no answer in time",
    "expired": "no answer in time",
    "used": "approved for one call, which was made",
    "withdrawn": "the call waited no longer",
}

_OTHER_CALL: Final = "approved for another call"
_LEFT: Final = "left:"


def required(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand, need: ApprovalNeed
) -> wire.GateReply | CallRefusal | None:
    """Return ``None`` when a person has approved this very call, else the answer to the caller."""
    call, own = command.call, org.organisation_id
    # An approval is for this very call: a call with the same id, but other than what the operator
    # was shown, must not use it.
    subject = json.dumps([call.kind, call.function, need.tool_name, call.workflow_id])
    # 1. What was asked for this call before.
    found = unit.approval_of_call(own, command.request.key_id, call.call_id)
    # 2. What was asked for the same call before, by a caller that has left.
    if found is None:
        found = _taken_over(unit, command, subject)
    # 3. Neither: a new question.
    if found is None:
        return _request(unit, own, command, need, subject)
    known, known_subject = found
    is_same = known_subject == subject and _shown_caller(known) == _shown_caller(call)
    if is_same:
        if known.status == "approved":
            return None
        if known.status == "pending" and unit.now_ms < known.deadline_ms:
            return _pending(call.call_id, known)
    return CallRefusal(
        status=403,
        error_code="GD-X001",
        title="Not approved",
        reason=_reason(known) if is_same else _OTHER_CALL,
        action="approval",
        workflow_id=call.workflow_id,
        tool_name=need.tool_name,
        details={"approval_id": known.approval_id},
    )


def renew(unit: UnitOfWork, request: RequestOrigin, approval_id: str) -> wire.LeaseState | None:
    """Renew an approval that its caller still waits for; ``None`` if it asked for no such one."""
    asked = _own(unit, request.organisation_id, request.key_id, approval_id)
    if asked is None:
        return None
    left_ms = 0
    if asked.status == "pending" and unit.now_ms < asked.deadline_ms:
        left_ms = PRESENCE_MS
        unit.save_approval(
            msgspec.structs.replace(asked, present_until_ms=unit.now_ms + PRESENCE_MS)
        )
    return wire.LeaseState(approval_id, asked.status, 0, left_ms)


def resume(unit: UnitOfWork) -> None:
    """Renew all approvals, as after an outage in which no caller could renew its own."""
    unit.extend_presence(unit.now_ms + PRESENCE_MS)


def _own(
    unit: UnitOfWork, organisation_id: str, key_id: str, approval_id: str
) -> records.Approval | None:
    asked = unit.approval(approval_id)
    if asked is None or asked.organisation_id != organisation_id:
        return None
    return asked if unit.approval_key(approval_id) == key_id else None


def _shown_caller(asked: records.Approval | wire.GateRequest) -> tuple[str | None, ...]:
    """Return the caller of a call and its arguments, as the operator is shown them."""
    return asked.agent, asked.user, asked.run_id, asked.arguments


def _reason(known: records.Approval) -> str:
    if known.status == "used":  # the operator's reason belongs to the call that was made
        return _REASONS["used"]
    return known.reason or _REASONS.get(known.status, "the operator refused the call")


def use(unit: UnitOfWork, organisation_id: str, key_id: str, call_id: str) -> None:
    """Use up the approval of an admitted call: it is valid for one call only.

    In the transaction that admits the call, so that two processes cannot both use it.
    """
    found = unit.approval_of_call(organisation_id, key_id, call_id)
    if found is not None and found[0].status == "approved":
        unit.save_approval(msgspec.structs.replace(found[0], status="used"))


def _request(
    unit: UnitOfWork, organisation_id: str, command: GateCommand, need: ApprovalNeed, subject: str
) -> wire.GateReply:
    call, now_ms = command.call, unit.now_ms
    note = command.note or wire.ApprovalNote()
    asked = records.Approval(
        approval_id=unit.ids.unguessable(now_ms), organisation_id=organisation_id,
        call_id=call.call_id, status="pending", tool_name=need.tool_name, function=call.function,
        workflow_id=call.workflow_id, run_id=call.run_id, agent=call.agent, user=call.user,
        requested_at_ms=now_ms, deadline_ms=now_ms + need.timeout_ms, message=note.message,
        details=note.details, arguments=call.arguments,
        present_until_ms=now_ms + PRESENCE_MS if call.renews else None,
    )  # fmt: skip
    unit.add_approval(asked, command.request.key_id, subject)
    data = {"approval_id": asked.approval_id, "tool_name": need.tool_name,
            "function": call.function, "workflow_id": call.workflow_id, "run_id": call.run_id,
            "agent": call.agent, "user": call.user, "arguments": call.arguments,
            "deadline_ms": asked.deadline_ms}  # fmt: skip
    webhooks.enqueue(unit, organisation_id, "approval.requested", data)
    return _pending(call.call_id, asked)


def _pending(call_id: str, asked: records.Approval) -> wire.GateReply:
    return wire.GateReply(
        decision="pending",
        call_id=call_id,
        approval_id=asked.approval_id,
        expires_at_ms=asked.deadline_ms,
    )


def answer(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    approval_id: str,
    *,
    approved: bool,
    reason: str,
) -> records.Approval:
    """Record a person's answer and push it.

    Raises:
        NotFoundError: no such approval.
        ConflictError: it was answered before, or its deadline has passed.
    """
    asked = unit.approval(approval_id)
    if asked is None or asked.organisation_id != organisation_id:
        raise NotFoundError("no such approval")
    if asked.status != "pending" or asked.deadline_ms <= unit.now_ms:
        raise ConflictError("the approval was answered before or has expired")
    answered = _settle(unit, asked, "approved" if approved else "refused", actor.name, reason)
    details = {"approved": approved, "reason": reason, "call_id": answered.call_id}
    audit.record(unit, actor, "approval.answer", approval_id, details, organisation_id)
    return answered


def leave(unit: UnitOfWork, request: RequestOrigin, approval_id: str, *, stays: bool) -> bool:
    """Close the approval of a call that no longer waits; only the key that asked may.

    An approval that was given meanwhile, and that no call has used, is withdrawn as well.

    Args:
        unit: the unit of work.
        request: who leaves it.
        approval_id: the approval.
        stays: keep it open for the same call, should it come again, unless another question for
            such a call is open.

    Returns:
        ``False`` if there is no such approval, or it has ended.
    """
    asked = _own(unit, request.organisation_id, request.key_id, approval_id)
    if asked is None or asked.status not in ("pending", "approved"):
        return False
    if not (stays and _is_left_open(unit, request, asked)):
        _end(unit, asked, "withdrawn", LEFT)
    return True


# A question that outlives its caller is filed under a digest of what it asks for, in place of its
# call's id: one for each key and subject. The next call that asks the same takes it over, answered
# or not.


def _is_left_open(unit: UnitOfWork, request: RequestOrigin, asked: records.Approval) -> bool:
    own, key_id = request.organisation_id, request.key_id
    found = unit.approval_of_call(own, key_id, asked.call_id)
    if found is None or asked.call_id.startswith(_LEFT):
        return False
    filed = _filed_under(found[1], _shown_caller(asked))
    other = unit.approval_of_call(own, key_id, filed)
    if other is not None:
        if _is_valid(other[0], unit.now_ms):
            return False
        # The place is taken by one that is over: that one moves to a name of its own.
        _file(unit, other[0], _LEFT + other[0].approval_id)
    _file(unit, asked, filed)
    return True


def _taken_over(
    unit: UnitOfWork, command: GateCommand, subject: str
) -> tuple[records.Approval, str] | None:
    """Take over a question that was left open for such a call, and return it."""
    call, request = command.call, command.request
    filed = _filed_under(subject, _shown_caller(call))
    found = unit.approval_of_call(request.organisation_id, request.key_id, filed)
    if found is None or not _is_valid(found[0], unit.now_ms):
        return None
    present_until_ms = unit.now_ms + PRESENCE_MS if call.renews else None
    return _file(unit, found[0], call.call_id, present_until_ms), subject


def _file(
    unit: UnitOfWork, asked: records.Approval, call_id: str, present_until_ms: int | None = None
) -> records.Approval:
    filed = msgspec.structs.replace(asked, call_id=call_id, present_until_ms=present_until_ms)
    unit.save_approval(filed)
    return filed


def _filed_under(subject: str, shown_caller: tuple[str | None, ...]) -> str:
    asked_for = json.dumps([subject, *shown_caller]).encode()
    return _LEFT + hashlib.sha256(asked_for).hexdigest()


def _is_valid(asked: records.Approval, now_ms: int) -> bool:
    """Whether it can still be answered, or its answer is younger than a question may become."""
    if asked.status == "pending":
        return now_ms < asked.deadline_ms
    if asked.status not in ("approved", "refused") or asked.answered_at_ms is None:
        return False
    return now_ms < asked.answered_at_ms + asked.deadline_ms - asked.requested_at_ms


def expire(unit: UnitOfWork) -> None:
    """Refuse approvals that were not answered in time, or whose call no longer waits."""
    for asked in unit.overdue_approvals(EXPIRE_MAX):
        in_time = unit.now_ms < asked.deadline_ms
        _end(unit, asked, "expired", GONE if in_time else _REASONS["expired"])


def _end(
    unit: UnitOfWork, asked: records.Approval, status: records.ApprovalStatus, reason: str
) -> None:
    """End an approval without a person's answer; the audit log records that, too."""
    approver = asked.answered_by if asked.status == "approved" else None
    _settle(unit, asked, status, approver, reason)
    details = {"reason": reason, "call_id": asked.call_id}
    action = "approval.withdraw" if status == "withdrawn" else "approval.expire"
    actor = Actor("agent" if status == "withdrawn" else "gateway")
    audit.record(unit, actor, action, asked.approval_id, details, asked.organisation_id)


def _settle(
    unit: UnitOfWork,
    asked: records.Approval,
    status: records.ApprovalStatus,
    who: str | None,
    reason: str,
) -> records.Approval:
    answered = msgspec.structs.replace(
        asked, status=status, answered_at_ms=unit.now_ms, answered_by=who, reason=reason
    )
    unit.save_approval(answered)
    draft = wire.ControlMessage(
        seq=0,
        type="approval",
        workflow_id=answered.workflow_id,
        run_id=answered.run_id,
        reason=reason or status,
        approval_id=answered.approval_id,
        approved=status == "approved",
    )
    control.publish(unit, organisation(unit, answered.organisation_id), draft)
    return answered
