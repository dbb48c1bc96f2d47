"""Leases: reservations that a process holds in advance and spends by itself.

A lease belongs to one lane: key, workflow, agent, chain, user and model, which is what decides the
budgets over a call. Every ask gives back first what is unused; then the gate decides as if the
lease were new. A lease ends when its holder closes it or stops renewing it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Final

from guard.core import wire
from guard.gateway.domain import render
from guard.gateway.domain.commands import EncodedAnswer, GateCommand, LeaseCommand, RequestOrigin
from guard.gateway.domain.ledger import BudgetAccount, Reservation
from guard.gateway.ledger import approvals, expiry, idempotency, renewals
from guard.gateway.ledger.accounts import organisation
from guard.gateway.ledger.state import OrganisationState
from guard.gateway.ledger.unit_of_work import UnitOfWork

CLOSING_MS: Final = 5000
"""How long a closed lease still pays for events on their way."""

AGE_MAX_MS: Final = 3_600_000
"""An older lease is replaced when it is topped up."""

RECALL_MAX: Final = 100
"""Leases in one recall; those that hold most come first."""

RECALL_FROM: Final = 256
"""Leases of one balance among which a recall finds them; the next one looks at the next ones."""


def take_back(unit: UnitOfWork, command: GateCommand, *, give_back: bool) -> Reservation | None:
    """Return the caller's lease of this lane, after what is unused in it was given back.

    A lease that is unknown, over, or of another key or lane counts as none.

    Args:
        command: the question.
        give_back: ``False`` when the same question has given back before.
    """
    call = command.call
    if call.lease is None or call.lease.lease_id is None:
        return None
    lease = _live(unit, command.request, call.lease.lease_id)
    chain_id = None if call.chain is None else call.chain.id
    if lease is None or (
        lease.workflow_id,
        lease.agent,
        lease.chain_id,
        lease.user,
        lease.model,
    ) != (
        call.workflow_id,
        call.agent,
        chain_id,
        call.user,
        None if call.model == wire.UNKNOWN_MODEL else call.model,
    ):
        return None
    if give_back:
        expiry.give_back(unit, lease, call.lease.unused_nanousd)
    return lease


def _live(
    unit: UnitOfWork, request: RequestOrigin, lease_id: str, *, also_closing: bool = False
) -> Reservation | None:
    """Return the key's own lease, unless it is over, or its time has passed.

    Args:
        unit: the unit of work.
        request: who asks.
        lease_id: of the lease.
        also_closing: whether it may be closed, and only pay for events on their way.
    """
    found = expiry.own_reservation(unit, request, lease_id)
    if found is None or not found.is_lease or found.state != "open":
        return None
    if found.closing and not also_closing:
        return None
    # What no sweep has seen yet must not be renewed either.
    return found if found.expires_at_ms > unit.now_ms else None


def grant(
    unit: UnitOfWork,
    org: OrganisationState,
    draft: Reservation,
    accounts: Sequence[BudgetAccount],
    lease: Reservation | None,
    granted: int,
) -> Reservation:
    """Add an amount, which is reserved on the accounts, to the lane's lease, or open one.

    Args:
        draft: a reservation of the lane.
        accounts: what the amount is reserved on.
        lease: the caller's current lease of this lane.
        granted: nano-dollars.
    """
    expires_at_ms = unit.now_ms + org.settings.lease_ttl_ms
    if lease is not None:
        unit.change_reservation(lease)
        lease.amount += granted
        lease.held += granted
        lease.under_way += draft.under_way
        lease.expires_at_ms = expires_at_ms
        return lease
    draft.amount = draft.held = granted
    draft.basis = "lease"
    draft.expires_at_ms = expires_at_ms
    for account in accounts:
        account.balance.leases += 1
    unit.add_reservation(draft)
    return draft


def current(
    unit: UnitOfWork, lease: Reservation | None, accounts: Sequence[BudgetAccount]
) -> Reservation | None:
    """Return a lease that may be topped up: the same balances apply, and it is not too old."""
    if (
        lease is None
        or lease.balance_ids != tuple([account.balance.balance_id for account in accounts])
        or unit.now_ms - lease.created_at_ms >= AGE_MAX_MS
    ):
        return None
    return lease


def update(unit: UnitOfWork, command: LeaseCommand) -> EncodedAnswer:
    """Renew a lease and give back what is unused, or close it; or renew reservations."""
    request, change = command.request, command.update
    kept = idempotency.replay(unit, request)
    if kept is not None:
        return kept
    # What is granted while a lease is being closed goes back by closing it once more.
    lease = _live(unit, request, change.lease_id, also_closing=change.close)
    if lease is None:
        state = renewals.renew(unit, request, change)
        if state is None:
            state = approvals.renew(unit, request, change.lease_id)
        if state is not None:  # not kept: nothing is lost when it is done twice
            return EncodedAnswer(200, wire.encode(state))
        return render.not_found("no such lease")
    expiry.give_back(unit, lease, change.unused_nanousd)
    unit.change_reservation(lease)
    lease.under_way = change.under_way_nanousd
    if change.close and not lease.held:
        expiry.close(unit, lease, "settled" if lease.spent else "released")
    elif change.close:  # events of its last calls may be on their way, and are paid from it
        lease.closing = True
        if lease.expires_at_ms > unit.now_ms + CLOSING_MS:
            unit.expire_sooner(lease, unit.now_ms + CLOSING_MS)
    else:
        ttl_ms = organisation(unit, request.organisation_id).settings.lease_ttl_ms
        lease.expires_at_ms = unit.now_ms + ttl_ms
    left_ms = lease.expires_at_ms - unit.now_ms if lease.state == "open" else 0
    state = wire.LeaseState(lease.reservation_id, lease.state, lease.held, left_ms)
    answer = EncodedAnswer(200, wire.encode(state), own_lease=lease.reservation_id)
    idempotency.keep(unit, request, answer)
    return answer


def resume(unit: UnitOfWork) -> int:
    """Renew what holders renew after a time in which none could; return how many there are.

    What waits for a person is renewed as well.

    A holder that lives has spent from its lease meanwhile and reports it now; what it holds must
    not have been given to others. The lease of one that died ends a full time later.
    """
    approvals.resume(unit)
    found = unit.all_renewed()
    for each in found:
        unit.change_reservation(each)
        ttl_ms = organisation(unit, each.organisation_id).settings.lease_ttl_ms
        left_ms = CLOSING_MS if each.closing else ttl_ms
        each.expires_at_ms = max(each.expires_at_ms, unit.now_ms + left_ms)
    return len(found)


def holders(
    unit: UnitOfWork,
    accounts: Sequence[BudgetAccount],
    needed: int,
    own: Reservation | None,
    chain_over_permille: int | None,
) -> dict[str, list[str]]:
    """Return leases, by key, that hold money where less than ``needed`` is left.

    A refusal must not cost more where there are more leases, so it looks at a bounded number.

    Args:
        accounts: every balance over the call.
        needed: nano-dollars.
        own: the caller's lease, which has given back already.
        chain_over_permille: the allowance of an open chain, or ``None`` outside of one.
    """
    own_count = int(own is not None)
    short = [
        account.balance.balance_id
        for account in accounts
        if account.balance.leases > own_count
        and account.rule.mode == "hard"
        and account.room(chain_over_permille) < needed
    ]
    held = unit.lease_holds(short, RECALL_FROM) if short else []
    own_id = None if own is None else own.reservation_id
    # Those that hold most first: the fewest have to answer.
    held.sort(key=operator.attrgetter("held"), reverse=True)
    found: dict[str, list[str]] = {}
    for hold in itertools.islice((each for each in held if each.lease_id != own_id), RECALL_MAX):
        found.setdefault(hold.key_id, []).append(hold.lease_id)
    return found
