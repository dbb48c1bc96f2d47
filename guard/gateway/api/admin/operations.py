"""What an admin operation is: a row of the table from which routes, document and forms follow."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from types import NoneType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints
from weakref import WeakValueDictionary

import attrs
from msgspec import Struct

from guard.core.ids import IdFactory
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.operators import OperatorRole, require_role
from guard.gateway.domain.preview import RecentCalls
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.operators import OperatorService
from guard.gateway.services.subjects import Subjects
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from guard.gateway.unit.unit_of_work import UnitOfWork

P = ParamSpec("P")
R = TypeVar("R")


@attrs.frozen(eq=False)
class Services:
    """What operations work with."""

    storage: Storage
    recent: RecentCalls
    catalogue: CatalogueCache
    operators: OperatorService
    settings: GatewaySettings
    clock_ms: Callable[[], int]
    ids: IdFactory = attrs.field(factory=IdFactory, init=False)
    # Whose file of rules is being applied, by organisation; kept by those that wait for it.
    turns: WeakValueDictionary[str, asyncio.Lock] = attrs.field(
        factory=WeakValueDictionary, init=False
    )
    subjects: Subjects = attrs.field(
        init=False, default=attrs.Factory(lambda self: Subjects(self.storage), takes_self=True)
    )


class AdminCall(Struct, frozen=True):
    """Who asks for an operation, and about which organisation.

    The actor's organisation is the only one that the actor may act on; ``organisation_id`` is the
    one that the request is about. Either is None for all of them.
    """

    services: Services
    actor: Actor
    organisation_id: str | None

    @property
    def own(self) -> str:
        """The organisation that the request is about."""
        assert self.organisation_id is not None
        return self.organisation_id

    @property
    def storage(self) -> Storage:
        """The store."""
        return self.services.storage

    def write(
        self,
        use_case: Callable[Concatenate[UnitOfWork, Actor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[R]:
        """Run a use case on the organisation that the request is about, as the actor."""
        return self.storage.write(within(self.own), use_case, self.actor, *args, **kwargs)


@attrs.define(eq=False)
class Operation(Generic[P, R]):
    """One method on one path. To call it checks the role, and then does it.

    Its arguments are the request's body, by position, and by name the parameters of the path and
    the fields of the query. The types of the body and of the reply are those that ``act`` declares.

    Args:
        method: HTTP method.
        path: below ``/api/v1/admin``; ``{name}`` or ``{name:path}`` for parameters.
        role: the least role that may do it.
        summary: one line for the document.
        act: does it.
        query: a struct of the query parameters.
        status: status of success.
        gateway_wide: the request is about the whole gateway, not one organisation.
        conflicts: whether it can answer 409.
        named: the pattern of a ``{name}`` in the path that is made by it; None for any text.
    """

    method: str
    path: str
    role: OperatorRole
    summary: str
    act: Callable[Concatenate[AdminCall, P], Awaitable[R]]
    query: Any = attrs.field(default=None, kw_only=True)
    status: int = attrs.field(default=200, kw_only=True)
    gateway_wide: bool = attrs.field(default=False, kw_only=True)
    conflicts: bool = attrs.field(default=False, kw_only=True)
    named: str | None = attrs.field(default=None, kw_only=True)
    body: Any = attrs.field(init=False)
    reply: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        hints = get_type_hints(self.act, include_extras=True)
        self.body = hints.get("body")
        self.reply = hints["return"]
        if self.reply is NoneType:
            self.reply, self.status = None, 204

    async def __call__(self, call: AdminCall, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do it.

        Raises:
            RoleError: a higher role is needed.
        """
        require_role(call.actor.role, self.role)
        return await self.act(call, *args, **kwargs)

    @property
    def tag(self) -> str:
        """The heading in the document: the first part of the path."""
        return self.path.split("/")[1]


def read(
    path: str,
    summary: str,
    look_up: Callable[Concatenate[Storage, str, P], Awaitable[R]],
    query: type[Struct] | None = None,
) -> Operation[P, R]:
    """Return the operation that shows what a store's query finds in an organisation."""

    @functools.wraps(look_up)
    def act(call: AdminCall, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return look_up(call.storage, call.own, *args, **kwargs)

    return Operation("GET", path, "viewer", summary, act, query=query)


def write(
    method: str,
    path: str,
    role: OperatorRole,
    summary: str,
    use_case: Callable[Concatenate[UnitOfWork, Actor, str, P], R],
    *,
    conflicts: bool = False,
) -> Operation[P, R]:
    """Return the operation that runs a use case of the ledger on an organisation."""

    @functools.wraps(use_case)
    def act(call: AdminCall, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return call.write(use_case, call.own, *args, **kwargs)

    return Operation(method, path, role, summary, act, conflicts=conflicts)


async def organisation_named(storage: Storage, wanted: str) -> str:
    """Return the id of the organisation with this id or name.

    Raises:
        NotFoundError: there is none.
    """
    for organisation in await storage.organisations():
        if wanted in (organisation.organisation_id, organisation.name):
            return organisation.organisation_id
    raise NotFoundError("no such organisation")
