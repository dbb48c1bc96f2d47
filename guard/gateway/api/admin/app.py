"""Serves the table of admin operations with Starlette: authentication, decoding, problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.core.mistaken import OWN_ANSWER
from guard.gateway.api.admin.operations import (
    AdminCall,
    Operation,
    Services,
    organisation_named,
)
from guard.gateway.api.admin.table import OPERATIONS
from guard.gateway.api.decisions import bad_text, parse
from guard.gateway.api.http import (
    ProblemError,
    decoded,
    fail,
    headers_of,
    note_owner,
    read_body,
    store_failed,
)
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError, NotFoundError, StoreError
from guard.gateway.services.keys import KeyRing
from guard.gateway.services.logs import note_request

ADMIN_PATH: Final = "/api/v1/admin"
BODY_MAX: Final = 1_048_576
_NAMED: Final = 10  # organisations that an answer names to who has named none
_JSON: Final = "application/json"


@attrs.frozen(eq=False)
class AdminApp:
    """Turns the table of operations into routes.

    Args:
        services: what they work with.
        keys: looks admin keys up.
    """

    _services: Services
    _keys: KeyRing

    def routes(self) -> list[BaseRoute]:
        """Return the routes, fixed paths before those with parameters."""
        ordered = sorted(OPERATIONS, key=lambda op: "{" in op.path)
        by_path: dict[str, dict[str, Operation[..., Any]]] = {}
        for operation in ordered:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        return [
            Route(ADMIN_PATH + path, self._endpoint(methods), methods=sorted(methods))
            for path, methods in by_path.items()
        ]

    def _endpoint(self, methods: dict[str, Operation[..., Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            operation = methods[method]
            headers = headers_of(request.scope)
            # Before the body is read: a client without a key costs a look-up only.
            actor, organisation_id = await self._caller(
                headers, request, gateway_wide=operation.gateway_wide
            )
            raw = await read_body(headers, request.receive, BODY_MAX)
            body = []
            if operation.body is not None:
                body.append(parse(decoded(headers, raw, BODY_MAX), operation.body))
            named = {name: str(value) for name, value in request.path_params.items()}
            _require_text([*named.items(), *request.query_params.multi_items()])
            query = _query(request, operation.query)
            call = AdminCall(self._services, actor, organisation_id)
            try:
                reply = await operation(call, *body, **named, **query)
            except ValueError as exc:
                raise fail(400, "GD-P002", "Bad request", str(exc)) from None
            out, kind = (None, None) if operation.reply is None else (wire.encode(reply), _JSON)
            return Response(out, operation.status, {OWN_ANSWER: "admin"}, kind)

        return endpoint

    async def _caller(
        self, headers: dict[bytes, bytes], request: Request, *, gateway_wide: bool
    ) -> tuple[Actor, str | None]:
        """Return the actor, and the organisation that the request is about."""
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        found = None
        if scheme.lower() == "bearer" and token.strip():
            found = await self._keys.find(token.strip(), "admin")
        if found is None:
            raise fail(
                401,
                "GD-A003",
                "Key rejected",
                "this admin key is unknown, revoked or expired"
                if token.strip()
                else "an admin key is required: Authorization: Bearer gda_...",
                headers=[(b"www-authenticate", b'Bearer realm="guard admin"')],
            )
        bound_to = found.key.organisation_id
        note_owner(request.scope, bound_to or found.key.key_id)
        note_request(bound_to, headers.get(b"x-request-id"))
        wanted = request.query_params.get("organisation")
        if wanted is not None and bound_to is not None and wanted != bound_to:
            raise fail(403, "GD-W004", "Other tenant", "the admin key is for another organisation")
        organisation_id = wanted or bound_to
        if not gateway_wide:
            organisation_id = await self._organisation(organisation_id)
        elif bound_to is not None and request.url.path.endswith(("/verify", "/head")):
            raise fail(403, "GD-W004", "Other tenant", "the admin key is for one organisation")
        return Actor(found.key.prefix, bound_to), organisation_id

    async def _organisation(self, wanted: str | None) -> str:
        if wanted is not None:
            return await organisation_named(self._services.storage, wanted)
        known = await self._services.storage.organisations()
        if len(known) != 1:
            names = ", ".join(
                [each.name for each in known[:_NAMED]] + ["..."] * (len(known) > _NAMED)
            )
            says = f"name the organisation: ?organisation=ID or its name, one of {names}"
            raise fail(400, "GD-P002", "Bad request", says)
        return known[0].organisation_id


def _require_text(given: Iterable[tuple[str, str]]) -> None:
    for name, value in given:
        if (flaw := wire.flaw_in_text(value)) is not None:
            raise bad_text(f"{name}: {flaw}")


def _query(request: Request, kind: type[msgspec.Struct] | None) -> dict[str, Any]:
    """Return the parameters of the query by the names of the fields that they fill."""
    if kind is None:
        return {}
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name == "organisation" or name not in kind.__struct_encode_fields__:
            continue
        if name in given:
            raise fail(400, "GD-P002", "Bad request", f"{name} is given twice")
        given[name] = value
    try:
        return msgspec.structs.asdict(wire.convert(given, kind, strict=False))
    except msgspec.ValidationError as exc:
        raise fail(400, "GD-P002", "Bad request", str(exc)) from None


def starlette_app(routes: Sequence[BaseRoute]) -> Starlette:
    """Return the application for everything that is not hot, with problems for every error."""
    app = Starlette(
        routes=list(routes),
        exception_handlers={
            HTTPException: _http_error,
            ProblemError: _problem,
            NotFoundError: _not_found,
            ConflictError: _conflict,
            StoreError: _store_error,
        },
    )
    app.router.redirect_slashes = False
    return app


def _respond(problem: ProblemError, headers: dict[str, str] | None = None) -> Response:
    answer = problem.answer
    sent = {name.decode(): value.decode() for name, value in problem.headers} | (headers or {})
    if answer.retry_after_ms is not None:
        sent["retry-after"] = str(-(-answer.retry_after_ms // 1000))
    return Response(
        answer.body,
        status_code=answer.status,
        media_type="application/problem+json",
        headers=sent,
    )


async def _problem(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, ProblemError)
    return _respond(exc)


async def _http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    code = {404: "GD-N001", 405: "GD-P005"}.get(exc.status_code, "GD-P002")
    title = {404: "Not found", 405: "Method not allowed"}.get(exc.status_code, "Bad request")
    return _respond(fail(exc.status_code, code, title), dict(exc.headers or {}))


async def _not_found(_: Request, exc: Exception) -> Response:
    return _respond(fail(404, "GD-N001", "Not found", str(exc)))


async def _conflict(_: Request, exc: Exception) -> Response:
    return _respond(fail(409, "GD-N002", "Conflict", str(exc)))


async def _store_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, StoreError)
    return _respond(store_failed(exc))
