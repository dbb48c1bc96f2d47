"""What calls of one kind have cost, from the most specific kind to the most general."""

from __future__ import annotations

import json

import msgspec

from guard.core import wire
from guard.gateway.domain.estimates import Estimate
from guard.gateway.ledger.unit_of_work import UnitOfWork


def subjects(function: str, workflow_id: str | None, model: str | None) -> list[str]:
    """Return the names under which the cost of such a call is learned, most specific first."""
    known = model if model and model != wire.UNKNOWN_MODEL else ""
    found = [json.dumps(["", function, known])]
    if workflow_id:  # a name made for one run never recurs, but its function does
        found.insert(0, json.dumps([workflow_id, function, known]))
    if known:
        found.append(json.dumps(["", "", known]))
    return found


def learn(unit: UnitOfWork, organisation_id: str, subject: str, cost: int) -> None:
    """Add the cost of a finished call to its estimate."""
    known = unit.estimate(organisation_id, subject)
    changed = Estimate() if known is None else msgspec.structs.replace(known)
    changed.learn(cost)
    unit.save_estimate(organisation_id, subject, changed)
