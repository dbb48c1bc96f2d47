"""An organisation's own facts about requests: changed as a whole, audited, sent to its programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from guard.core import wire
from guard.gateway.domain import facts
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.facts import FactsChanged, OwnFact
from guard.gateway.ledger import audit, control
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.unit_of_work import UnitOfWork

Mode = Literal["add", "replace", "remove"]


def change_facts(
    unit: UnitOfWork, actor: Actor, organisation_id: str, given: Sequence[OwnFact], mode: Mode
) -> FactsChanged:
    """Add facts to those of an organisation, put them in their place, or remove them.

    Raises:
        NotFoundError: no such organisation.
        ValueError: there would be too many.
    """
    organisation(unit, organisation_id)
    old = {fact.subject: fact for fact in unit.catalogue.facts(organisation_id)}
    wanted = {fact.subject: fact for fact in facts.distinct(given)}
    if mode == "remove":
        new = {subject: fact for subject, fact in old.items() if subject not in wanted}
    else:
        new = wanted if mode == "replace" else {**old, **wanted}
    kept = facts.distinct(new.values())
    if len(kept) > facts.FACTS_MAX:
        raise ValueError(f"an organisation has at most {facts.FACTS_MAX} facts, not {len(kept)}")
    if (size := len(wire.encode(facts.message_of(kept)))) > facts.BYTES_MAX:
        raise ValueError(
            f"an organisation's facts have at most {facts.BYTES_MAX} bytes, not {size}"
        )
    put = [fact for fact in kept if old.get(fact.subject) != fact]
    gone = [fact for subject, fact in old.items() if subject not in new]
    added = sum(fact.subject not in old for fact in put)
    if put or gone:
        unit.catalogue.save_facts(organisation_id, kept)
        details = {"put": put, "removed": gone}
        audit.record(
            unit, actor, "facts.change", organisation_id, msgspec.to_builtins(details),
            organisation_id,
        )  # fmt: skip
        control.announce_catalogue(unit, organisation_id, "facts changed")
    return FactsChanged(added=added, changed=len(put) - added, removed=len(gone), total=len(kept))
