"""Chains: calls that may finish together although a budget runs out in between."""

from __future__ import annotations

from guard.core import wire
from guard.gateway.ledger.state import ChainState, OrganisationState
from guard.gateway.ledger.unit_of_work import UnitOfWork


def open_chain(unit: UnitOfWork, organisation_id: str, chain_id: str) -> ChainState | None:
    """Return a chain if it is open now."""
    chain = unit.chain(organisation_id, chain_id)
    return chain if chain is not None and _is_open(chain, unit.now_ms) else None


def step(unit: UnitOfWork, org: OrganisationState, call: wire.Chain) -> int | None:
    """Apply a chain operation; return the chain's allowance while it is open.

    Only ``start`` opens a chain again that was closed.
    """
    now_ms = unit.now_ms
    stored = unit.chain(org.organisation_id, call.id)
    known = stored if stored is not None and _is_open(stored, now_ms) else None
    if call.op == "end":
        if known is None:
            return None
        changed = ChainState(known.opened_at_ms, now_ms, True)
    # ``continue`` opens a chain that was never seen: its first call may have been lost.
    elif call.op == "start" or known is not None or stored is None:
        opened_at_ms = now_ms if known is None else known.opened_at_ms
        changed = ChainState(opened_at_ms, now_ms + org.settings.chain_ttl_ms, False)
    else:
        return None
    unit.save_chain(org.organisation_id, call.id, changed)
    return org.settings.chain_over_permille


def _is_open(chain: ChainState, now_ms: int) -> bool:
    return not chain.closed and chain.expires_at_ms > now_ms
