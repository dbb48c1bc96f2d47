"""Admin operations as data: one table feeds the router and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.operators import OperatorRole, require_role
from guard.gateway.storage.port import Storage


class AdminCall(Struct):
    """One checked admin request: the actor, its parameters, the decoded body.

    The actor's organisation is the only one that the actor may act on; ``organisation_id`` is the
    one that the request is about. Either is None for all of them.
    """

    actor: Actor
    organisation_id: str | None
    path: dict[str, str]
    query: Any
    body: Any

    def require(self, needed: OperatorRole) -> None:
        """Check the actor's role.

        Raises:
            RoleError: a higher one is needed.
        """
        require_role(self.actor.role, needed)

    @property
    def own(self) -> str:
        """The organisation that the request is about."""
        assert self.organisation_id is not None
        return self.organisation_id


async def organisation_named(storage: Storage, wanted: str) -> str:
    """Return the id of the organisation with this id or name.

    Raises:
        NotFoundError: there is none.
    """
    for organisation in await storage.organisations():
        if wanted in (organisation.organisation_id, organisation.name):
            return organisation.organisation_id
    raise NotFoundError("no such organisation")


Handler = Callable[[AdminCall], Awaitable[Any]]


class Operation(Struct):
    """One method on one path.

    Args:
        method: HTTP method.
        path: below ``/api/v1/admin``; ``{name}`` or ``{name:path}`` for parameters.
        handler: takes the checked call and returns the reply.
        summary: one line for the document and the command line.
        reply: type of the 200 (or 201) answer; ``None`` for 204.
        body: type of the request's body.
        query: a struct of the query parameters.
        status: status of success.
        wide: the request is about the whole gateway, not one organisation.
        conflicts: whether it can answer 409.
        named: the pattern of a ``{name}`` in the path that is made by it; None for any text.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    reply: Any = None
    body: Any = None
    query: Any = None
    status: int = 200
    wide: bool = False
    conflicts: bool = False
    named: str | None = None

    @property
    def tag(self) -> str:
        """The heading in the document: the first part of the path."""
        return self.path.split("/")[1]
