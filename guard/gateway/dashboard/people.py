"""Operators, their sessions, and organisations: listed, added, changed, removed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.dashboard import forms
from guard.gateway.dashboard.site import RequestContext, Site
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.operators import Operator
from guard.gateway.services.operators import token_hash

CHANGES = ("role", "password", "sign-out", "remove")


class People:
    """Forms over the admin handlers, for owners; others see who there is."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._people = site.parts.people

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
        sessions = await self._people.sessions(call) if context.may("owner") else []
        names = {each.organisation_id: each.name for each in context.organisations}
        return await self._site.render(
            context, "people.html", operators=await self._people.operators(call),
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
        call = context.call(body=body, name=name)
        seen = form.text("sees") or None
        await self._people.put_operator(replace(call, organisation_id=seen))
        return self._site.done(context, "operator-added", "/people")

    async def _operator(self, context: RequestContext, name: str) -> Operator:
        for operator in await self._people.operators(_wide(context.call())):
            if operator.name == name:
                return operator
        raise NotFoundError("no such operator")

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
        call = replace(context.call(name=known.name), organisation_id=known.organisation_id)
        change = form.text("change")
        is_oneself = known.operator_id == context.session.operator.operator_id
        if is_oneself and change in ("role", "remove"):
            raise ValueError("another owner has to do this for you")
        if change == "role":
            body = forms.checked({"role": form.text("role")}, bodies.OperatorBody)
            await self._people.put_operator(replace(call, body=body))
        elif change == "password":
            body = forms.checked({"password": form.secret("password")}, bodies.OperatorBody)
            await self._people.put_operator(replace(call, body=body))
        elif change == "sign-out":
            await self._people.end_sessions(call)
        elif change == "remove":
            await self._people.remove_operator(call)
        else:
            raise NotFoundError("no such change")
        return self._site.done(context, f"operator-{change}", "/people")

    async def end_session(self, context: RequestContext) -> Response:
        """End one session."""
        call = context.call(session_id=context.form.text("session"))
        await self._people.end_session(_wide(call))
        return self._site.done(context, "session-ended", "/people")

    # -- organisations -------------------------------------------------------------------------

    async def create_organisation(self, context: RequestContext) -> Response:
        """Add an organisation."""
        body = forms.checked({"name": context.form.text("name")}, bodies.NewOrganisation)
        await self._people.create_organisation(context.call(body=body))
        return self._site.done(context, "organisation-created", "/people")

    async def confirm_organisation(self, context: RequestContext) -> Response:
        """Ask before an organisation is removed: its name has to be typed."""
        for each in context.organisations:
            if each.organisation_id == context.query("id"):
                return await self._site.render(context, "confirm_organisation.html", removed=each)
        raise NotFoundError("no such organisation")

    async def remove_organisation(self, context: RequestContext) -> Response:
        """Remove an organisation."""
        wanted = context.form.text("id")
        names = {each.organisation_id: each.name for each in context.organisations}
        if context.form.text("name") != names.get(wanted):
            raise ValueError("the name that was typed is not the organisation's")
        await self._people.remove_organisation(context.call(organisation_id=wanted))
        return self._site.redirect("/people?notice=organisation-removed")


def _wide(call: AdminCall) -> AdminCall:
    """Return a call about all operators that the actor may see."""
    return replace(call, organisation_id=None)
