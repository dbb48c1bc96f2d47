"""Chains: calls that may finish together although a budget runs out in between."""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain.commands import RequestOrigin
from guard.gateway.unit.state import ChainState, OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork

FOREIGN: Final = "the chain was opened in another workflow than the key's"


def open_chain(unit: UnitOfWork, request: RequestOrigin, chain_id: str) -> ChainState | None:
    """Return a chain if it is open now, and not foreign to the caller."""
    chain = _found_open(unit, request.organisation_id, chain_id)
    return None if chain is None or _is_foreign(chain, request) else chain


def is_foreign(unit: UnitOfWork, request: RequestOrigin, chain_id: str) -> bool:
    """Return whether an open chain belongs to another workflow than the caller's key.

    For the caller, such a chain counts as none. A chain that is over can be opened again by any
    workflow.
    """
    chain = _found_open(unit, request.organisation_id, chain_id)
    return chain is not None and _is_foreign(chain, request)


def step(
    unit: UnitOfWork, org: OrganisationState, call: wire.Chain, workflow_id: str | None
) -> int | None:
    """Apply a chain operation; return the chain's allowance while it is open.

    A chain that was closed is reopened by ``start`` only.

    Args:
        unit: the unit of work.
        org: the organisation.
        call: the operation, on a chain that is not foreign to the caller.
        workflow_id: of the call; it owns the chain if this call opens it.
    """
    now_ms = unit.now_ms
    stored = unit.chains.find(org.organisation_id, call.id)
    known = stored if stored is not None and _is_open(stored, now_ms) else None
    whose = workflow_id if known is None else known.workflow_id
    # The call that ends a chain has its allowance for the last time; a second end has none.
    if call.op == "end":
        if known is None:
            return None
        changed = ChainState(known.opened_at_ms, now_ms, True, whose)
    # ``continue`` opens a chain that was never seen, since its first call may have been lost. It
    # does not reopen one that is over: its allowance would otherwise have no end.
    elif call.op == "start" or known is not None or stored is None:
        opened_at_ms = now_ms if known is None else known.opened_at_ms
        changed = ChainState(opened_at_ms, now_ms + org.settings.chain_ttl_ms, False, whose)
    else:
        return None
    unit.chains.save(org.organisation_id, call.id, changed)
    return org.settings.chain_over_permille


def _found_open(unit: UnitOfWork, organisation_id: str, chain_id: str) -> ChainState | None:
    chain = unit.chains.find(organisation_id, chain_id)
    return chain if chain is not None and _is_open(chain, unit.now_ms) else None


def _is_foreign(chain: ChainState, request: RequestOrigin) -> bool:
    return request.key_workflow_id not in (None, chain.workflow_id)


def _is_open(chain: ChainState, now_ms: int) -> bool:
    return not chain.closed and chain.expires_at_ms > now_ms
