"""The admin operation that sets an operator's password."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from guard.gateway.api.admin.bodies import Strict
from guard.gateway.api.admin.operations import AdminCall, Operation
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.operators import Operator
from guard.gateway.services.operators import (
    PASSWORD_LENGTH_MAX,
    PASSWORD_LENGTH_MIN,
    OperatorService,
)
from guard.gateway.storage.port import Storage

_NAME_MAX = 256


class PasswordBody(Strict, kw_only=True):
    """The password that an operator signs in to the dashboard with."""

    password: Annotated[str, Meta(min_length=PASSWORD_LENGTH_MIN, max_length=PASSWORD_LENGTH_MAX)]


class OperatorHandlers:
    """Handlers over the operators' use cases."""

    def __init__(self, operators: OperatorService, storage: Storage) -> None:
        self._operators = operators
        self._storage = storage

    async def put_operator(self, call: AdminCall) -> Operator:
        name = call.path["name"]
        if not name.isprintable() or not 1 <= len(name) <= _NAME_MAX:
            # 404, as for any unknown path: the name is part of the URL.
            raise NotFoundError("no operator can have a name like that")
        wanted = call.caller.bound_to or call.caller.organisation_id
        if wanted is not None:
            wanted = await self._resolve(wanted)
        return await self._operators.set_password(
            call.caller.actor, name, call.body.password, wanted
        )

    async def _resolve(self, wanted: str) -> str:
        for organisation in await self._storage.organisations():
            if wanted in (organisation.organisation_id, organisation.name):
                return organisation.organisation_id
        raise NotFoundError("no such organisation")

    def operations(self) -> list[Operation]:
        """Return the operations for the table."""
        return [
            Operation(
                "PUT",
                "/operators/{name}",
                self.put_operator,
                "Set the password of a dashboard operator",
                Operator,
                body=PasswordBody,
                wide=True,
                conflicts=True,
                tag="operators",
            )
        ]
