"""Standing orders, approvals and the messages that charges cause, on the writer's working set."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import ledger, records
from guard.gateway.domain.commands import GateCommand, Refusal
from guard.gateway.domain.ledger import Account
from guard.gateway.storage.port import Announcement, ConflictError, NotFoundError
from guard.gateway.storage.sqlite.books import Books, OrgState
from guard.gateway.storage.sqlite.rows import budget_from_row

CONTROL_KEEP: Final = 5000


def stopped(
    books: Books, org: OrgState, workflow_id: str | None, run_id: str | None
) -> Refusal | None:
    """Return the refusal of a killed or paused workflow, or ``None`` when it may run."""
    standing = org.control.standing(workflow_id, run_id, books.now)
    if standing.state == "active":
        return None
    killed = standing.state == "killed"
    resume_after_ms = None
    if standing.resume_at_ms is not None:
        resume_after_ms = max(0, standing.resume_at_ms - books.now)
    subject = "run" if standing.by_run else "workflow"
    return Refusal(
        status=403,
        error_code="GD-W002" if killed else "GD-W003",
        title=f"{subject.capitalize()} {standing.state}",
        reason=standing.reason or f"the {subject} is {standing.state}",
        action="kill" if killed else "pause",
        workflow_id=workflow_id,
        resume_after_ms=resume_after_ms,
    )


def publish(
    books: Books, organisation_id: str, draft: wire.ControlMessage, key_id: str | None = None
) -> wire.ControlMessage:
    """Number a message, keep it for replay, apply it, and announce it after the commit."""
    org = books.orgs[organisation_id]
    org.control_seq += 1
    message = msgspec.structs.replace(
        draft, seq=org.control_seq, at_ms=books.now, epoch=books.epoch
    )
    encoded = wire.encode(message).decode()
    execute = books.connection.execute
    execute(
        "UPDATE organisations SET control_seq = ? WHERE organisation_id = ?",
        (org.control_seq, organisation_id),
    )
    execute(
        "INSERT INTO control VALUES (?,?,?,?,?)",
        (organisation_id, message.seq, key_id, message.type, encoded),
    )
    for slot in _slots(message.type):
        target = "" if message.run_id is not None else message.workflow_id or "*"
        execute(
            "INSERT OR REPLACE INTO orders VALUES (?,?,?,?,?)",
            (organisation_id, target, message.run_id or "", slot, encoded),
        )
    org.control.apply(message)
    books.announcements.append(Announcement("control", organisation_id, message, key_id))
    return message


def compact(books: Books) -> None:
    """Drop old messages that no longer say anything: a replay is bounded by what still holds.

    Standing orders stay however old they are, and the newest messages of all kinds stay.
    """
    for org in books.orgs.values():
        if org.control_seq - org.compacted_seq < 2 * CONTROL_KEEP:
            continue
        org.compacted_seq = org.control_seq - CONTROL_KEEP
        books.connection.execute(
            "DELETE FROM control WHERE organisation_id = ? AND seq <= ? AND NOT EXISTS (SELECT 1"
            " FROM orders o WHERE o.organisation_id = control.organisation_id"
            " AND o.message = control.message)",
            (org.organisation_id, org.compacted_seq),
        )


def _slots(kind: str) -> tuple[str, ...]:
    return {
        "kill": ("life",),
        "revive": ("life", "flow"),
        "pause": ("flow",),
        "resume": ("flow",),
    }.get(kind, ())


# -- budgets -----------------------------------------------------------------------------------


def announce_charge(books: Books, org: OrgState, charged: ledger.Charge) -> None:
    """Tell SDKs of exhausted budgets, and webhooks of crossed thresholds."""
    for account in charged.exhausted:
        books.exhausted[account.balance.balance_id] = org.organisation_id
        announce_budget(books, org, account, exhausted=True)
    for account, share in charged.crossed:
        body = {
            "budget_id": account.rule.budget_id,
            "scope": account.label(),
            "threshold": share,
            "budget": msgspec.to_builtins(account.view()),
        }
        enqueue_webhooks(books, org.organisation_id, "budget.threshold", body)


def announce_budget(books: Books, org: OrgState, account: Account, *, exhausted: bool) -> None:
    """Push a budget's state to the workflows that it stops.

    Budgets of an agent, a chain or a model stop some calls of a workflow and not others, so they
    are left to the gate.
    """
    kind, scope_id = account.rule.scope_kind, account.balance.scope_id
    if kind not in ("organisation", "workflow", "key"):
        return
    draft = wire.ControlMessage(
        seq=0,
        type="budget",
        workflow_id=scope_id if kind == "workflow" else "*",
        reason=f"budget {'exhausted' if exhausted else 'available'}: {account.label()}",
        budget=account.view(),
        exhausted=exhausted,
    )
    publish(books, org.organisation_id, draft, scope_id if kind == "key" else None)


def reset_windows(books: Books) -> None:
    """Lift the exhaustion of windows that have ended."""
    for balance_id, organisation_id in list(books.exhausted.items()):
        balance = books.balance(balance_id)
        if balance.ends_ms is not None and balance.ends_ms <= books.now:
            org = books.orgs[organisation_id]
            rule = rule_of(books, balance.budget_id)
            _lift(books, org, None if rule is None else Account(rule, balance), balance)


def _lift(books: Books, org: OrgState, account: Account | None, balance: ledger.Balance) -> None:
    balance.exhausted = False
    books.touch_balances([balance])
    books.exhausted.pop(balance.balance_id, None)
    if account is not None:
        announce_budget(books, org, account, exhausted=False)


def rule_of(books: Books, budget_id: str) -> records.Budget | None:
    """Return a budget as stored now."""
    row = books.connection.execute(
        "SELECT * FROM budgets WHERE budget_id = ?", (budget_id,)
    ).fetchone()
    return None if row is None else budget_from_row(row)


def budget_changed(books: Books, old: records.Budget | None, new: records.Budget | None) -> None:
    """Bring the open epochs of a budget in line with a change of its limit or mode.

    The caller has the organisation read again.
    """
    rule = new or old
    assert rule is not None
    org = books.orgs[rule.organisation_id]
    rows = books.connection.execute(
        "SELECT balance_id FROM balances WHERE budget_id = ? AND coalesce(ends_ms, ?) > ?",
        (rule.budget_id, 2**62, books.now),
    ).fetchall()
    for (balance_id,) in rows:
        balance = books.balance(balance_id)
        account = Account(rule, balance)
        spent_up = (
            new is not None and new.mode == "hard" and (balance.committed >= new.limit_nanousd)
        )
        # A limit that goes down cannot take back what was granted under the old one.
        balance.bound = max(balance.bound, rule.limit_nanousd)
        books.touch_balances([balance])
        if balance.exhausted and not spent_up:
            _lift(books, org, account, balance)
        elif spent_up and not balance.exhausted:
            balance.exhausted = True
            books.exhausted[balance_id] = org.organisation_id
            announce_budget(books, org, account, exhausted=True)


# -- webhooks ----------------------------------------------------------------------------------


def enqueue_webhooks(books: Books, organisation_id: str, kind: str, data: dict[str, Any]) -> None:
    """Queue a notice for every webhook of the organisation that wants its type."""
    rows = books.connection.execute(
        "SELECT webhook_id, types FROM webhooks WHERE organisation_id = ? AND enabled = 1",
        (organisation_id,),
    ).fetchall()
    for webhook_id, types in rows:
        wanted = json.loads(types)
        if wanted and kind not in wanted:
            continue
        delivery_id = books.ids.uuid7(books.now)
        body = wire.encode(
            {"type": kind, "timestamp_ms": books.now, "organisation_id": organisation_id,
             "data": data}
        )  # fmt: skip
        books.connection.execute(
            "INSERT INTO deliveries VALUES (?,?,?,?,?,?,?,0,NULL,0,NULL)",
            (delivery_id, webhook_id, organisation_id, kind, body.decode(), books.now, books.now),
        )
        books.announcements.append(Announcement("webhooks", organisation_id))


# -- approvals ---------------------------------------------------------------------------------


def approval(books: Books, org: OrgState, command: GateCommand) -> wire.GateReply | Refusal | None:
    """Return ``None`` when a person has approved this very call; else what to answer."""
    call, need, now = command.call, command.approval, books.now
    assert need is not None
    subject = json.dumps([call.kind, call.function, need.tool_name, call.workflow_id])
    row = books.connection.execute(
        "SELECT approval_id, subject, status, deadline_ms, reason FROM approvals"
        " WHERE organisation_id = ? AND key_id = ? AND call_id = ?",
        (org.organisation_id, command.request.key_id, call.call_id),
    ).fetchone()
    if row is None:
        approval_id, deadline_ms = books.ids.uuid7(now), now + need.timeout_ms
        books.connection.execute(
            "INSERT INTO approvals VALUES (?,?,?,?,?,'pending',?,?,?,?,?,?,?,NULL,NULL,'')",
            (approval_id, org.organisation_id, command.request.key_id, call.call_id, subject,
             need.tool_name, call.function, call.workflow_id, call.run_id, call.agent, now,
             deadline_ms),
        )  # fmt: skip
        notice = {"approval_id": approval_id, "tool_name": need.tool_name,
                  "function": call.function, "workflow_id": call.workflow_id,
                  "deadline_ms": deadline_ms}  # fmt: skip
        enqueue_webhooks(books, org.organisation_id, "approval.requested", notice)
        return _pending(call.call_id, approval_id, deadline_ms)
    approval_id, known_subject, status, deadline_ms, reason = row
    if known_subject == subject:
        if status == "approved":
            return None
        if status == "pending" and now < deadline_ms:
            return _pending(call.call_id, approval_id, deadline_ms)
    reasons = {"pending": "no answer in time", "expired": "no answer in time",
               "approved": "approved for another call",
               "withdrawn": "the call waited no longer"}  # fmt: skip
    return Refusal(
        status=403,
        error_code="GD-X001",
        title="Not approved",
        reason=reason or reasons.get(status, "the operator refused the call"),
        action="approval",
        workflow_id=call.workflow_id,
        tool_name=need.tool_name,
        details={"approval_id": approval_id},
    )


def _pending(call_id: str, approval_id: str, deadline_ms: int) -> wire.GateReply:
    return wire.GateReply(
        decision="pending", call_id=call_id, approval_id=approval_id, expires_at_ms=deadline_ms
    )


def answer_approval(
    books: Books, organisation_id: str, approval_id: str, who: str, *, approved: bool, reason: str
) -> records.Approval:
    """Record a person's answer and push it.

    Raises:
        NotFoundError: no such approval.
        ConflictError: it was answered before, or its deadline has passed.
    """
    row = books.connection.execute(
        "SELECT status, deadline_ms FROM approvals WHERE organisation_id = ? AND approval_id = ?",
        (organisation_id, approval_id),
    ).fetchone()
    if row is None:
        raise NotFoundError("no such approval")
    if row[0] != "pending" or row[1] <= books.now:
        raise ConflictError("the approval was answered before or has expired")
    _settle_approval(books, approval_id, "approved" if approved else "refused", who, reason)
    return read_approval(books, approval_id)


def withdraw_approval(books: Books, organisation_id: str, key_id: str, approval_id: str) -> bool:
    """Close a question whose call waits no longer; only the key that asked can take it back.

    Returns:
        Whether it was pending until now.
    """
    row = books.connection.execute(
        "SELECT status FROM approvals WHERE approval_id = ? AND organisation_id = ? AND key_id = ?",
        (approval_id, organisation_id, key_id),
    ).fetchone()
    if row is None or row[0] != "pending":
        return False
    _settle_approval(books, approval_id, "withdrawn", None, "the call waits no longer")
    return True


def _settle_approval(
    books: Books, approval_id: str, status: records.ApprovalStatus, who: str | None, reason: str
) -> None:
    books.connection.execute(
        "UPDATE approvals SET status = ?, answered_at_ms = ?, answered_by = ?, reason = ?"
        " WHERE approval_id = ?",
        (status, books.now, who, reason, approval_id),
    )
    answered = read_approval(books, approval_id)
    draft = wire.ControlMessage(
        seq=0,
        type="approval",
        workflow_id=answered.workflow_id,
        run_id=answered.run_id,
        reason=reason or status,
        approval_id=approval_id,
        approved=status == "approved",
    )
    publish(books, answered.organisation_id, draft)


def read_approval(books: Books, approval_id: str) -> records.Approval:
    """Return one approval."""
    row = books.connection.execute(
        "SELECT * FROM approvals WHERE approval_id = ?", (approval_id,)
    ).fetchone()
    return approval_from_row(row)


def approval_from_row(row: tuple[Any, ...]) -> records.Approval:
    """Build an approval from its row."""
    return records.Approval(
        approval_id=row[0], organisation_id=row[1], call_id=row[3], status=row[5],
        tool_name=row[6], function=row[7], workflow_id=row[8], run_id=row[9], agent=row[10],
        requested_at_ms=row[11], deadline_ms=row[12], answered_at_ms=row[13],
        answered_by=row[14], reason=row[15],
    )  # fmt: skip


def expire_approvals(books: Books) -> None:
    """Refuse what nobody has answered in time."""
    rows = books.connection.execute(
        "SELECT approval_id FROM approvals WHERE status = 'pending' AND deadline_ms <= ? LIMIT 500",
        (books.now,),
    ).fetchall()
    for (approval_id,) in rows:
        _settle_approval(books, approval_id, "expired", None, "no answer in time")
