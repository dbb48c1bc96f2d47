"""Organisations, operators and sessions: what rows of the table of operations do."""

from __future__ import annotations

import urllib.parse
from typing import Final

from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.operations import AdminCall, organisation_named
from guard.gateway.domain import records
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.domain.logins import GroupRule
from guard.gateway.domain.operators import Operator, SessionView
from guard.gateway.ledger import directory, logins
from guard.gateway.unit.state import NO_ORGANISATION, within

_NAME_MAX: Final = 256


async def organisations(call: AdminCall) -> list[records.Organisation]:
    found = await call.storage.organisations()
    own = call.actor.organisation_id
    return [o for o in found if own is None or o.organisation_id == own]


async def create_organisation(
    call: AdminCall, body: bodies.NewOrganisation
) -> records.Organisation:
    _require_all(call)
    return await call.storage.write(
        NO_ORGANISATION, directory.create_organisation, call.actor, body.name
    )


async def remove_organisation(call: AdminCall, organisation_id: str) -> None:
    _require_all(call)
    wanted = await organisation_named(call.storage, organisation_id)
    await call.storage.write(within(wanted), directory.remove_organisation, call.actor, wanted)


async def operators(call: AdminCall) -> list[Operator]:
    return await call.storage.operators(await _seen(call))


async def put_operator(call: AdminCall, body: bodies.OperatorBody, name: str) -> Operator:
    _require_name(name)
    own = await _seen(call)
    return await call.services.operators.put(
        call.actor, name, own, password=body.password, role=body.role
    )


async def remove_operator(call: AdminCall, name: str) -> None:
    await call.services.operators.remove(call.actor, name, await _seen(call))


async def sign_in_link(call: AdminCall, name: str) -> bodies.SignInLink:
    own = await _seen(call)
    device, ends_ms = await call.services.operators.let_device_in(call.actor, name, own)
    query = urllib.parse.urlencode({"name": name, "device": device})
    return bodies.SignInLink(path=f"/sign-in?{query}", expires_at_ms=ends_ms)


async def sessions(call: AdminCall) -> list[SessionView]:
    return await call.services.operators.sessions(await _seen(call))


async def end_session(call: AdminCall, session_id: str) -> None:
    await call.services.operators.end_session(call.actor, session_id, await _seen(call))


async def end_sessions(call: AdminCall, name: str) -> None:
    await call.services.operators.end_sessions(call.actor, name, await _seen(call))


async def sign_on_groups(call: AdminCall) -> list[GroupRule]:
    own = await _seen(call)
    found = await call.storage.sign_on_rules()
    return [each for each in found if own in (None, each.organisation_id)]


async def put_group(call: AdminCall, body: bodies.GroupBody, group: str) -> list[GroupRule]:
    _require_all(call)
    _require_name(group)
    own = await _seen(call)
    if own is None:
        known = await call.storage.organisations()
        if len(known) != 1:
            raise ValueError("name the organisation: ?organisation=ID or its name")
        own = known[0].organisation_id
    rule = GroupRule(
        group=group, organisation_id=own, team=body.team, role=body.role, models=body.models
    )
    return await call.storage.write(within(own), logins.put_rule, call.actor, rule, body.place)


async def delete_group(call: AdminCall, group: str) -> None:
    _require_all(call)
    await call.storage.write(NO_ORGANISATION, logins.delete_rule, call.actor, group)


async def _seen(call: AdminCall) -> str | None:
    """Return the organisation that the request is about; ``None``: all of them."""
    own = call.actor.organisation_id or call.organisation_id
    return None if own is None else await organisation_named(call.storage, own)


def _require_name(name: str) -> None:
    if not name.isprintable() or not 1 <= len(name) <= _NAME_MAX:
        # 404, as for any unknown path: the name is part of the URL.
        raise NotFoundError("nobody can have a name like that")


def _require_all(call: AdminCall) -> None:
    """Refuse those who may act on one organisation alone."""
    if call.actor.organisation_id is not None:
        raise ConflictError("this is for the whole gateway, and you are of one organisation")
