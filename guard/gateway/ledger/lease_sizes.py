"""How much a lease is granted: a share of the room that leaves a share for other holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.key_hierarchy import top_key
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.ledger.amounts import GateDecision

_LEASES_MAX: Final = 256
"""Maximum leases of a key that are summed up, so that no question takes longer with more of them.

A key with more gets no more than its call needs where room is short.
"""


def size(
    decision: GateDecision,
    accounts: Sequence[BudgetBalance],
    amount: int,
    demand: int,
    lease: Reservation | None,
) -> int:
    """Return how much to grant: the demand, within a share of the room; at least the amount.

    The share leaves as much for each other lease, and for one to come. Where it is smaller than the
    amount, exactly the amount is granted, so that the rest of a budget is decided call by call.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        amount: what the call needs, in nano-dollars.
        demand: what its holder expects to need, in nano-dollars.
        lease: the lease to top up; ``None``: a new one.
    """
    # On each balance a share for this lease, one for each other lease, and one for a lease to come.
    share = ledger.LEASE_NANOUSD_MAX
    for account in accounts:
        balance = account.balance
        others = balance.leases - (lease is not None)
        if account.rule.mode == "hard":
            room = account.room(decision.allowance)
        else:
            room = wire.NANOUSD_MAX - balance.committed - balance.reserved
        share = min(share, room // (others + 2))
    wanted = min(demand, share)
    if wanted > amount:
        wanted = _within_share_of_key(decision, accounts, wanted)
    return max(amount, wanted)


def _within_share_of_key(
    decision: GateDecision, accounts: Sequence[BudgetBalance], wanted: int
) -> int:
    """Return how much of an amount a key's lease may take, however many leases the key has.

    The key's leases together may hold at most half of the room that they and other keys share, so
    other keys can have as much. A key and the keys that belong to it count as one. A key that is
    alone in its organisation, or under a budget of its own, need not share.
    """
    root = top_key(decision.command.request.key_id)
    rooms: dict[int, int] = {}
    for account in accounts:
        rule, balance = account.rule, account.balance
        if rule.mode != "hard" or (rule.scope_kind == "key" and top_key(balance.scope_id) == root):
            continue
        room = account.room(decision.allowance)
        # With enough room even if all that is set aside were the key's own, its leases need not be
        # summed up.
        if 2 * wanted > room - balance.reserved:
            rooms[balance.balance_id] = room
    unit, organisation_id = decision.unit, decision.org.organisation_id
    if not rooms or not unit.directory.has_other_keys(organisation_id, root):
        return wanted
    own = unit.leased(organisation_id, root, _LEASES_MAX)
    if own is None:  # too many to sum up: nothing beyond what the call needs
        return 0
    return min(wanted, *((room - own.get(each, 0)) // 2 for each, room in rooms.items()))
