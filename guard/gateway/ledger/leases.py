"""Leases: reservations that a process holds in advance and spends by itself.

A lease belongs to one lane: key, workflow, agent, chain, user and model, which together decide the
budgets over a call. Every question about a lane first gives back what its lease does not use; then
the gate decides as if the lease were new. A lease ends when its holder closes it or stops renewing
it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Final

from guard.core import wire
from guard.gateway.domain import render
from guard.gateway.domain.commands import EncodedAnswer, GateCommand, LeaseCommand, RequestOrigin
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.ledger import approvals, doubt, expiry, idempotency, rate_caps, renewals
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork

CLOSING_MS: Final = 5000
"""How long a closed lease still pays for events that are on their way."""

AGE_MAX_MS: Final = 3_600_000
"""A lease older than this is not topped up; its holder gets a new one."""

RECALL_MAX: Final = 100
"""Maximum leases in one recall; those that hold most come first."""

RECALL_FROM: Final = 256
"""How many leases of one balance a recall looks at; the next recall looks at the next ones."""


def take_back(unit: UnitOfWork, command: GateCommand, *, give_back: bool) -> Reservation | None:
    """Renew the caller's lease of this lane, give back what it does not use, and return it.

    Whatever the answer is: a holder that asks is alive, and may have requests under way that the
    lease pays for. A lease that is unknown, over, or of another key or lane counts as none.

    Args:
        unit: the unit of work.
        command: the question.
        give_back: ``False`` when the same question has given back before, or is not decided yet.
    """
    # What is unused is the holder's own figure. A wrong one harms only the holder: no more than the
    # lease holds is given back, and what events cost beyond that is charged to the same budgets.
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
    _renew(unit, lease)
    if give_back:
        expiry.give_back(unit, lease, call.lease.unused_nanousd)
        if not command.is_top_up:  # a top-up leaves the lease what it has of rate caps
            rate_caps.take_back(unit, lease, call.lease.calls_left)
    return lease


def _renew(unit: UnitOfWork, lease: Reservation) -> None:
    org = organisation(unit, lease.organisation_id)
    unit.change_reservation(lease)
    lease.expires_at_ms = unit.now_ms + expiry.lasts_ms(org, renewed=True)


def _live(
    unit: UnitOfWork, request: RequestOrigin, lease_id: str, *, also_closing: bool = False
) -> Reservation | None:
    """Return the key's own lease, unless it has ended or expired.

    Args:
        unit: the unit of work.
        request: the caller and its key.
        lease_id: of the lease.
        also_closing: whether the lease may be one that its holder has closed.
    """
    found = expiry.own_reservation(unit, request, lease_id)
    if found is None or not found.is_lease or found.state != "open":
        return None
    if found.closing and not also_closing:
        return None
    # An expired lease that no sweep has closed yet counts as over, too: whether a lease can be
    # renewed must not depend on when a sweep runs.
    return found if found.expires_at_ms > unit.now_ms else None


def grant(
    unit: UnitOfWork,
    org: OrganisationState,
    draft: Reservation,
    accounts: Sequence[BudgetBalance],
    lease: Reservation | None,
    granted: int,
) -> Reservation:
    """Add an amount that is reserved already to the lane's lease, or open a new lease with it.

    Args:
        unit: the unit of work.
        org: the organisation.
        draft: a reservation of the lane, which becomes the lease if there is none.
        accounts: what the amount is reserved on; their balances were announced to change.
        lease: the caller's current lease of this lane, which its question has renewed.
        granted: nano-dollars.
    """
    if lease is not None:
        unit.change_reservation(lease)
        lease.amount += granted
        lease.held += granted
        # All of it: what its holder gives back goes out of ``held``, and the rest is under way, or
        # may be before the gateway hears of it.
        if draft.under_way or lease.under_way:
            lease.under_way = lease.amount
        return lease
    draft.amount = draft.held = granted
    if draft.under_way:
        draft.under_way = granted
    draft.basis = "lease"
    draft.expires_at_ms = unit.now_ms + expiry.lasts_ms(org, renewed=True)
    # Counted here once, and taken off by ``ledger.release`` when the lease ends.
    for account in accounts:
        account.balance.leases += 1
    unit.add_reservation(draft)
    return draft


def current(
    unit: UnitOfWork, lease: Reservation | None, accounts: Sequence[BudgetBalance]
) -> Reservation | None:
    """Return the lease if it may be topped up: the same balances apply, and it is not too old."""
    # A new period or a new budget changes the balances. The old lease then keeps what it holds, on
    # the old balances, until its holder closes it or it expires.
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
    # A grant may be on its way to the holder while that closes the lease. The lease then still
    # holds it when it is closed, and a second close gives it back.
    lease = _live(unit, request, change.lease_id, also_closing=change.close)
    if lease is None:
        state = renewals.renew(unit, request, change)
        if state is None:
            state = approvals.renew(unit, request, change.lease_id)
        if state is not None:  # not stored for repeats: doing it twice changes nothing
            return EncodedAnswer(200, wire.encode(state))
        gone = expiry.own_reservation(unit, request, change.lease_id)
        if gone is not None and gone.is_lease and change.close:
            doubt.told(unit, gone, change.under_way_nanousd)
        return render.not_found("no such lease")
    expiry.give_back(unit, lease, change.unused_nanousd)
    if change.close or change.calls_left or change.unused_nanousd:
        rate_caps.take_back(unit, lease, change.calls_left)
    if change.close:
        doubt.told(unit, lease, change.under_way_nanousd)
    # 1. Closed, and nothing is left in it: it ends.
    if change.close and not lease.held:
        expiry.close(unit, lease, "settled" if lease.spent else "released")
    # 2. Closed, while events of its last calls are still to come. It pays for them until it
    # expires, which also covers a holder that dies before it has sent them.
    elif change.close:
        unit.change_reservation(lease)
        lease.closing = True
        # Never later than before: a repeated close must not prolong it.
        if lease.expires_at_ms > unit.now_ms + CLOSING_MS:
            unit.expire_sooner(lease, unit.now_ms + CLOSING_MS)
    # 3. Renewed.
    else:
        _renew(unit, lease)
    ttl_ms = organisation(unit, request.organisation_id).settings.lease_ttl_ms
    left_ms = min(ttl_ms, lease.expires_at_ms - unit.now_ms) if lease.state == "open" else 0
    state = wire.LeaseState(lease.reservation_id, lease.state, lease.held, left_ms)
    answer = EncodedAnswer(200, wire.encode(state), own_lease=lease.reservation_id)
    idempotency.keep(unit, request, answer)
    return answer


def resume(unit: UnitOfWork) -> int:
    """Renew all leases and renewed reservations, as after an outage; return how many there are.

    Approvals that are waiting for a person are renewed as well.

    A holder that lived through the outage has spent from its lease and reports that only now; what
    the lease holds must not have been granted to others. The lease of a holder that died ends one
    lease time later than it would have.
    """
    approvals.resume(unit)
    found = unit.all_renewed()
    for each in found:
        unit.change_reservation(each)
        org = organisation(unit, each.organisation_id)
        left_ms = CLOSING_MS if each.closing else expiry.lasts_ms(org, renewed=True)
        each.expires_at_ms = max(each.expires_at_ms, unit.now_ms + left_ms)
    return len(found)


def holders(
    unit: UnitOfWork,
    accounts: Sequence[BudgetBalance],
    needed: int,
    own: Reservation | None,
    chain_over_permille: int | None,
) -> dict[str, list[str]]:
    """Return leases, by key, that hold money where less than ``needed`` is left.

    It looks at a bounded number of leases, so that a refusal does not get slower with each lease.

    Args:
        unit: the unit of work.
        accounts: every balance over the call.
        needed: nano-dollars.
        own: the caller's lease, which has given back already.
        chain_over_permille: the allowance of an open chain, or ``None`` outside of one.
    """
    # A balance whose only lease is the caller's own has nothing to recall.
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
