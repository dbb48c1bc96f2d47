"""Handlers of the admin operations on organisations, operators and sessions."""

from __future__ import annotations

import urllib.parse
from typing import Final

import attrs

from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.operations import AdminCall, organisation_named
from guard.gateway.domain import records
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.domain.operators import Operator, SessionView
from guard.gateway.ledger import directory
from guard.gateway.ledger.state import NOTHING, within
from guard.gateway.services.operators import OperatorService
from guard.gateway.storage.port import Storage

_NAME_MAX: Final = 256


@attrs.frozen(eq=False)
class PeopleHandlers:
    """Handlers over the storage port; each returns the reply's value.

    Those that change something are for owners.
    """

    _storage: Storage
    _operators: OperatorService

    # -- organisations -------------------------------------------------------------------------

    async def organisations(self, call: AdminCall) -> list[records.Organisation]:
        found = await self._storage.organisations()
        own = call.actor.organisation_id
        return [o for o in found if own is None or o.organisation_id == own]

    async def create_organisation(self, call: AdminCall) -> records.Organisation:
        _require_all(call)
        return await self._storage.write(
            NOTHING, directory.create_organisation, call.actor, call.body.name
        )

    async def remove_organisation(self, call: AdminCall) -> None:
        _require_all(call)
        wanted = await organisation_named(self._storage, call.path["organisation_id"])
        await self._storage.write(within(wanted), directory.remove_organisation, call.actor, wanted)

    # -- operators -----------------------------------------------------------------------------

    async def operators(self, call: AdminCall) -> list[Operator]:
        return await self._storage.operators(await self._seen(call))

    async def put_operator(self, call: AdminCall) -> Operator:
        call.require("owner")
        name = call.path["name"]
        if not name.isprintable() or not 1 <= len(name) <= _NAME_MAX:
            # 404, as for any unknown path: the name is part of the URL.
            raise NotFoundError("no operator can have a name like that")
        body: bodies.OperatorBody = call.body
        own = await self._seen(call)
        return await self._operators.put(
            call.actor, name, own, password=body.password, role=body.role
        )

    async def remove_operator(self, call: AdminCall) -> None:
        call.require("owner")
        await self._operators.remove(call.actor, call.path["name"], await self._seen(call))

    async def sign_in_link(self, call: AdminCall) -> bodies.SignInLink:
        call.require("owner")
        name, own = call.path["name"], await self._seen(call)
        device, ends_ms = await self._operators.let_device_in(call.actor, name, own)
        query = urllib.parse.urlencode({"name": name, "device": device})
        return bodies.SignInLink(path=f"/sign-in?{query}", expires_at_ms=ends_ms)

    async def _seen(self, call: AdminCall) -> str | None:
        """Return the organisation that the request is about; ``None``: all of them."""
        own = call.actor.organisation_id or call.organisation_id
        return None if own is None else await organisation_named(self._storage, own)

    # -- sessions ------------------------------------------------------------------------------

    async def sessions(self, call: AdminCall) -> list[SessionView]:
        return await self._operators.sessions(await self._seen(call))

    async def end_session(self, call: AdminCall) -> None:
        call.require("owner")
        own = await self._seen(call)
        await self._operators.end_session(call.actor, call.path["session_id"], own)

    async def end_sessions(self, call: AdminCall) -> None:
        call.require("owner")
        await self._operators.end_sessions(call.actor, call.path["name"], await self._seen(call))


def _require_all(call: AdminCall) -> None:
    """Refuse those who may act on one organisation alone."""
    call.require("owner")
    if call.actor.organisation_id is not None:
        raise ConflictError("this is for the whole gateway, and you are of one organisation")
