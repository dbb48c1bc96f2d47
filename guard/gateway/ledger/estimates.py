"""Learned costs of calls by kind, from the most specific kind to the most general."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Final

import msgspec

from guard.core import wire
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.windows import HOUR_MS
from guard.gateway.unit.unit_of_work import UnitOfWork

MODEL_KNOWN_MS: Final = HOUR_MS
"""How long the model that calls of a kind used last is expected of the next one.

A refused call cannot show that its model has changed, so this has to end by itself.
"""

SUBJECT_MAX: Final = 2048
"""Longest subject, in bytes, that is not hashed: an index row of PostgreSQL has 2,704 bytes."""

GATED: Final = "gated "
"""Prefix of calls whose LLM requests are gated one by one, and hold their own costs."""


def function_of(call: wire.GateRequest) -> str:
    """Return the name under which the cost of such calls is learned."""
    return f"{GATED if call.gates_requests else ''}{call.kind}:{call.function}"


@functools.lru_cache(maxsize=4096)
def subjects(function: str, workflow_id: str | None, model: str | None) -> tuple[str, ...]:
    """Return the names under which the cost of such a call is learned, most specific first."""
    known = model if model and model != wire.UNKNOWN_MODEL else ""
    is_gated = function.startswith(GATED)
    found = [_subject("", function, known)]
    if workflow_id:  # a name made for one run never recurs, but its function does
        found.insert(0, _subject(workflow_id, function, known))
    if known and not is_gated:
        found.append(_subject("", "", known))
    return tuple(found)


def _subject(workflow_id: str, function: str, model: str) -> str:
    """Return a key of the estimates; retention reads the workflow in it."""
    found = json.dumps([workflow_id, function, model])
    if len(found) <= SUBJECT_MAX:
        return found
    rest = json.dumps([function, model]).encode()
    return json.dumps([workflow_id, "", hashlib.blake2b(rest, digest_size=16).hexdigest()])


def last_model(
    unit: UnitOfWork, organisation_id: str, function: str, workflow_id: str | None
) -> str | None:
    """Return the model that calls of a function without a named model used in the last hour."""
    for subject in subjects(function, workflow_id, None):
        known = unit.estimates.find(organisation_id, subject)
        if known is not None and unit.now_ms - known.model_at_ms < MODEL_KNOWN_MS:
            return known.model
    return None


def learn_model(unit: UnitOfWork, organisation_id: str, function: str, model: str) -> None:
    """Note the model that answers calls of a function; written when it changes or grows old."""
    # Not with every answer, which would be a write for each request.
    (subject,) = subjects(function, None, None)
    known = unit.estimates.find(organisation_id, subject)
    if (
        known is None
        or known.model != model
        or unit.now_ms - known.model_at_ms >= MODEL_KNOWN_MS // 2
    ):
        changed = Estimate() if known is None else msgspec.structs.replace(known)
        changed.model, changed.model_at_ms = model, unit.now_ms
        unit.estimates.save(organisation_id, subject, changed)


def learn(
    unit: UnitOfWork, organisation_id: str, subject: str, cost: int, model: str | None = None
) -> None:
    """Add the cost of a finished call, and the model that answered, to its estimate."""
    known = unit.estimates.find(organisation_id, subject)
    changed = Estimate() if known is None else msgspec.structs.replace(known)
    changed.learn(cost)
    if model is not None:
        changed.model, changed.model_at_ms = model, unit.now_ms
    unit.estimates.save(organisation_id, subject, changed)
