"""Operators, their sessions, and organisations: listed, added, changed, removed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.admin import bodies, table
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.dashboard import forms
from guard.gateway.dashboard.site import PageGroup, RequestContext, only
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.operators import Operator
from guard.gateway.services.operators import token_hash

CHANGES = ("role", "password", "sign-out", "remove")


class People(PageGroup):
    """Forms over the table of operations, for owners; others see who there is."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/people", page(self.people), methods=["GET"]),
            Route("/people", action(self.add, "owner"), methods=["POST"]),
            Route("/people/change", page(self.confirm_change), methods=["GET"]),
            Route("/people/change", action(self.change, "owner"), methods=["POST"]),
            Route("/people/sessions", action(self.end_session, "owner"), methods=["POST"]),
            Route("/organisations", action(self.create_organisation, "owner"), methods=["POST"]),
            Route("/organisations/remove", page(self.confirm_organisation), methods=["GET"]),
            Route(
                "/organisations/remove", action(self.remove_organisation, "owner"), methods=["POST"]
            ),
        ]

    async def people(self, context: RequestContext, **values: Any) -> Response:
        """List operators; for owners also sessions and organisations."""
        call = _wide(context.call())
        sessions = await table.list_sessions(call) if context.may("owner") else []
        names = {each.organisation_id: each.name for each in context.organisations}
        operators = await table.list_operators(call)
        return await self._site.render(
            context, "people.html", operators=operators,
            sessions=sessions, names=names, own_session=token_hash(context.token).hex()[:16],
            is_wide=context.session.operator.organisation_id is None, **{"error": ""} | values,
        )  # fmt: skip

    # -- operators -----------------------------------------------------------------------------

    async def add(self, context: RequestContext) -> Response:
        """Add an operator; one of this name is not changed."""
        form = context.form
        try:
            name, body = form.text("name"), forms.operator(form)
            if not name:
                raise ValueError("an operator needs a name")
            if await self._site.parts.storage.find_operator(name) is not None:
                raise ValueError("this name cannot be given, choose another")
        except ValueError as exc:
            return await self.people(context, error=f"Nobody was added: {exc}.", status=400)
        call = replace(context.call(), organisation_id=form.text("sees") or None)
        await table.put_operator(call, body, name=name)
        return self._site.done(context, "operator-added", "/people")

    async def _operator(self, context: RequestContext, name: str) -> Operator:
        return only("operator", await table.list_operators(_wide(context.call())), name=name)

    async def confirm_change(self, context: RequestContext) -> Response:
        """Ask for the change, or for a confirmation before an operator is removed."""
        change = context.query("change")
        if change not in CHANGES:
            raise NotFoundError("no such change")
        operator = await self._operator(context, context.query("name"))
        return await self._site.render(
            context, "confirm_operator.html", change=change, changed=operator
        )

    async def change(self, context: RequestContext) -> Response:
        """Change an operator's role or password, sign them out, or remove them."""
        form = context.form
        known = await self._operator(context, form.text("name"))
        call = replace(context.call(), organisation_id=known.organisation_id)
        change = form.text("change")
        is_oneself = known.operator_id == context.session.operator.operator_id
        if is_oneself and change in ("role", "remove"):
            raise ValueError("another owner has to do this for you")
        if change in ("role", "password"):
            given = form.text("role") if change == "role" else form.secret("password")
            body = forms.checked({change: given}, bodies.OperatorBody)
            await table.put_operator(call, body, name=known.name)
        elif change == "sign-out":
            await table.end_sessions(call, name=known.name)
        elif change == "remove":
            await table.remove_operator(call, name=known.name)
        else:
            raise NotFoundError("no such change")
        return self._site.done(context, f"operator-{change}", "/people")

    async def end_session(self, context: RequestContext) -> Response:
        """End one session."""
        session_id = context.form.text("session")
        await table.end_session(_wide(context.call()), session_id=session_id)
        return self._site.done(context, "session-ended", "/people")

    # -- organisations -------------------------------------------------------------------------

    async def create_organisation(self, context: RequestContext) -> Response:
        """Add an organisation."""
        body = forms.checked({"name": context.form.text("name")}, bodies.NewOrganisation)
        await table.create_organisation(context.call(), body)
        return self._site.done(context, "organisation-created", "/people")

    async def confirm_organisation(self, context: RequestContext) -> Response:
        """Ask before an organisation is removed: its name has to be typed."""
        wanted = context.query("id")
        removed = only("organisation", context.organisations, organisation_id=wanted)
        return await self._site.render(context, "confirm_organisation.html", removed=removed)

    async def remove_organisation(self, context: RequestContext) -> Response:
        """Remove an organisation."""
        wanted = context.form.text("id")
        names = {each.organisation_id: each.name for each in context.organisations}
        if context.form.text("name") != names.get(wanted):
            raise ValueError("the name that was typed is not the organisation's")
        await table.remove_organisation(context.call(), organisation_id=wanted)
        return self._site.redirect("/people?notice=organisation-removed")


def _wide(call: AdminCall) -> AdminCall:
    """Return a call about all operators that the actor may see."""
    return replace(call, organisation_id=None)
