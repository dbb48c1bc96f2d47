"""The body of a change of facts, and what its row of the table of operations does."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from guard.gateway.api.admin.from_body import record_from
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.domain.facts import FACTS_MAX, FactsChanged, OwnFact, check
from guard.gateway.ledger.facts import Mode, change_facts


class FactBody(OwnFact, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A name, and what it is judged to be."""


class FactsBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Facts to add to those that there are, to put in their place, or to remove."""

    facts: Annotated[list[FactBody], Meta(max_length=FACTS_MAX)] = []
    mode: Mode = "add"


async def change(call: AdminCall, body: FactsBody) -> FactsChanged:
    """Change an organisation's facts.

    Raises:
        ValueError: one of them is none, or there would be too many.
    """
    given = [record_from(each, OwnFact) for each in body.facts]
    for fact in given:
        check(fact)
    return await call.write(change_facts, call.own, given, body.mode)
