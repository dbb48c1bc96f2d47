"""What every page shares: session, permissions, rendering, error pages."""

from __future__ import annotations

import asyncio
import secrets
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import jinja2
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from guard.core.wire.fields import decimal_dollars
from guard.gateway.api.admin.operations import AdminCall, Services
from guard.gateway.api.http import ProblemError, note_owner
from guard.gateway.dashboard import formatting, security
from guard.gateway.dashboard.assets import Assets
from guard.gateway.dashboard.security import ForbiddenError, Form, OriginChecks
from guard.gateway.dashboard.time_ranges import PRESETS
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError, NotFoundError, StoreError
from guard.gateway.domain.operators import (
    Joining,
    OperatorRole,
    OperatorSession,
    RoleError,
    actor_name,
    allows,
    as_role,
    require_role,
)
from guard.gateway.domain.records import Key, Organisation
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.change_watcher import ChangeWatcher
from guard.gateway.services.logins import LoginService
from guard.gateway.services.openid import OpenIdProvider
from guard.gateway.services.operators import OperatorService
from guard.gateway.services.questions import Questions
from guard.gateway.services.turns import Turns
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage

T = TypeVar("T")

TEMPLATES: Final = Path(__file__).parent / "templates"
BADGE_MAX: Final = 100
PIECES: Final = 200
"""Pieces of a page, each a text or a value, that are rendered in one step: about a millisecond."""
SIGN_IN: Final = "/sign-in"
RANGE: Final = ("range", "from", "to")
"""The fields of a query that say which time a page is about."""
OWN: Final = "/own"
"""The page of whoever is signed in, and the only one of a member."""

NOTICES: Final = {
    "kill": "Killed. Running calls are being stopped.",
    "pause": "Paused. New calls are refused until it is resumed.",
    "resume": "Resumed.",
    "revive": "Revived. The workflow may run again.",
    "approved": "Approved. The call proceeds.",
    "refused": "Refused. The call does not run.",
    "budget": "The budget is active.",
    "budget-deleted": "The budget was removed.",
    "raise-refused": "Refused. What waited for a raise has ended.",
    "budget-raised": "The budget was raised. Calls that waited for it go on.",
    "policy": "The policy is active.",
    "policy-deleted": "The policy was deactivated.",
    "alert": "The rule is active.",
    "rule-deleted": "The rule was removed.",
    "channel": "The channel is active. Send a test.",
    "channel-deleted": "The channel was removed.",
    "channel-arrived": "The test has arrived.",
    "channel-failed": "The test has not arrived: Deliveries says why.",
    "channel-test": "A test is on its way: see Deliveries.",
    "settings": "The settings are active.",
    "price": "The price is active, from the next call on.",
    "price-removed": "The price was removed.",
    "secret-revoked": "The secret was revoked. Requests with it are refused from now on.",
    "key-revoked": "The key was revoked. Requests with it are refused from now on.",
    "operator-added": "They can sign in now, at this address and with this name.",
    "operator-role": "The role was changed.",
    "operator-password": "The password was changed, and their sessions have ended.",
    "operator-sign-out": "Their sessions have ended.",
    "operator-remove": "They cannot sign in any more, and their sessions have ended.",
    "session-ended": "The session has ended.",
    "organisation-created": "The organisation was created. Make its first key next.",
    "organisation-removed": "The organisation was removed, with its keys and operators.",
    "logins-ended": "Signed out everywhere. Sign in again where you need a key.",
    "audit-ok": "The audit log is complete: every entry's hash is right.",
}
"""Texts of notices after an action; the URL carries only the name, so a link cannot plant text."""

NAVIGATION: Final = (
    ("/", "Overview"), ("/spend", "Spend"), ("/workflows", "Workflows"), ("/events", "Events"),
    ("/approvals", "Approvals"), ("/budgets", "Budgets"), ("/policies", "Policies"),
    ("/alerts", "Alerts"), ("/teams", "Teams"), ("/keys", "Keys"), ("/people", "People"),
    ("/settings", "Settings"), ("/audit", "Audit"),
)  # fmt: skip
SECTIONS: Final = {
    "/workflow": "/workflows", "/latency": "/spend", "/users": "/spend", "/user": "/spend",
    "/agent": "/spend", "/model": "/spend", "/tag": "/spend", "/own/logins": OWN,
    "/team": "/teams",
}  # fmt: skip
"""Pages that the navigation does not name, and the one that leads to them."""


class RequestContext(Struct):
    """One request of a signed-in operator, about one organisation."""

    services: Services
    request: Request
    token: str
    session: OperatorSession
    organisation: Organisation
    organisations: list[Organisation]
    form: Form

    def org(self) -> str:
        """Return the organisation's id."""
        return self.organisation.organisation_id

    def call(self) -> AdminCall:
        """Return this operator's call of an operation, about this organisation."""
        operator = self.session.operator
        actor = Actor(actor_name(operator), operator.organisation_id, operator.role)
        return AdminCall(self.services, actor, self.org())

    def may(self, needed: OperatorRole) -> bool:
        """Return whether the operator's role is at least this."""
        return allows(self.session.operator.role, needed)

    def kept(self) -> dict[str, str]:
        """Return the fields of a query that every link keeps: the organisation and the range."""
        found = {"organisation": self.org()} if len(self.organisations) > 1 else {}
        return found | {name: self.query(name) for name in RANGE if self.query(name)}

    def link(self, path: str, **query: Any) -> str:
        """Return a URL on this site."""
        wanted = {name: value for name, value in query.items() if value not in (None, "")}
        kept = self.kept()
        if wanted.keys() & set(RANGE):
            kept = {name: value for name, value in kept.items() if name not in RANGE}
        wanted |= kept
        return f"{path}?{urllib.parse.urlencode(wanted)}" if wanted else path

    def asked(self) -> dict[str, str]:
        """Return the page's query without its range, its place in a list, and its notice."""
        left_out = {*RANGE, "before", "offset", "notice", "organisation"}
        return {
            name: self.query(name) for name in self.request.query_params if name not in left_out
        }

    def again(self, range_name: str) -> str:
        """Return the URL of the same page with another range."""
        return self.link(self.request.url.path, **self.asked(), range=range_name)

    def query(self, name: str, default: str = "") -> str:
        """Return one query parameter."""
        return self.request.query_params.get(name, default)[:512]

    def number(self, name: str, default: int) -> int:
        """Return a query parameter that is a whole number, else the default."""
        text = self.query(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else default


View = Callable[[RequestContext], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


class Parts(Struct):
    """The dashboard's dependencies."""

    storage: Storage
    services: Services
    openid: OpenIdProvider | None
    logins: LoginService | None
    questions: Questions
    operators: OperatorService
    change_watcher: ChangeWatcher
    settings: GatewaySettings
    clock_ms: Callable[[], int]
    is_draining: Callable[[], bool]
    catalogue: CatalogueCache
    origins: Mapping[str, str]


class Site:
    """Guards and renders pages."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.origin_checks = OriginChecks(parts.settings)
        self.addresses = security.ClientAddresses(
            parts.settings.trusted_proxies, parts.settings.proxy_user_header
        )
        role, joined = as_role(parts.settings.sign_on_role), parts.settings.sign_on_organisation
        self.joining = Joining(role=role, organisation=joined) if role and joined else None
        self.assets = Assets()
        self.turns = Turns()
        # Templates that are compiled, with all that they include.
        self._compiled: set[str] = set()
        self._jinja = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=formatting.shown,
        )
        names = ("money", "amount", "count", "compact", "duration", "iso", "moment",
                 "span", "visible", "detail", "in_doubt",
                 "said", "shows", "share", "exact", "as_is")  # fmt: skip
        self._jinja.filters.update({name: getattr(formatting, name) for name in names})
        self._jinja.filters["decimal_dollars"] = decimal_dollars
        for name in ("dated", "about"):
            moment = getattr(formatting, name)
            self._jinja.filters[name] = lambda at_ms, *zone, of=moment: of(
                at_ms, parts.clock_ms(), *zone
            )
        self._jinja.globals.update(asset=self.assets.address)

    # -- guards --------------------------------------------------------------------------------

    def page(self, view: View, needed: OperatorRole = "viewer") -> Endpoint:
        """Return the endpoint of a page that needs a session.

        Args:
            view: shows it.
            needed: the least role that may see it.
        """

        async def endpoint(request: Request) -> Response:
            return await self._guarded(request, view, Form({}), needed)

        return endpoint

    def action(self, view: View, needed: OperatorRole = "operator") -> Endpoint:
        """Return the endpoint of a posted form that needs a session, its token and its origin.

        Args:
            view: handles the form.
            needed: the least role that may send it.
        """

        async def endpoint(request: Request) -> Response:
            try:
                # Each of the checks stops another attack: a rebound host name, a page of another
                # site, and a form that another session was shown.
                self.origin_checks.check_host(request)
                self.origin_checks.check_origin(request)
                form = await security.read_form(request)
                token = request.cookies.get(self.origin_checks.session_cookie, "")
                if token and not security.is_csrf_of(form.text("csrf"), token):
                    raise ForbiddenError("the form is not from this session; load the page again")
            except (ForbiddenError, ValueError, ProblemError) as exc:
                return self.problem(request, exc)
            return await self._guarded(request, view, form, needed)

        return endpoint

    async def _guarded(
        self, request: Request, view: View, form: Form, needed: OperatorRole
    ) -> Response:
        context = None
        try:
            self.origin_checks.check_host(request)
            context = await self.context(request, form)
            if context is None:
                return self._to_sign_in(request)
            require_role(context.session.operator.role, needed)
            return await view(context)
        except (ForbiddenError, RoleError, ValueError, ProblemError, NotFoundError, ConflictError,
                StoreError) as exc:  # fmt: skip
            return self.problem(request, exc, context)

    async def context(self, request: Request, form: Form) -> RequestContext | None:
        """Return the request's context; ``None`` without a valid session.

        Raises:
            NotFoundError: the operator may see no such organisation.
            ForbiddenError: a trusted proxy does not name the user clearly.
        """
        token = request.cookies.get(self.origin_checks.session_cookie, "")
        session = await self.parts.operators.session(token) if token else None
        if session is None:
            return None
        # The proxy names another user than the session's: the session is not used.
        if self.addresses.user_of(request) not in (None, session.operator.name):
            return None
        bound_to = session.operator.organisation_id
        note_owner(request.scope, bound_to or session.operator.operator_id)
        seen = [
            organisation
            for organisation in await self.parts.storage.organisations()
            if bound_to in (None, organisation.organisation_id)
        ]
        wanted = form.text("organisation") or request.query_params.get("organisation")
        if wanted is None and request.method == "POST" and len(seen) > 1:
            raise ValueError("the form does not say which organisation it is about")
        for organisation in seen:
            if wanted in (None, organisation.organisation_id):
                return RequestContext(
                    self.parts.services, request, token, session, organisation, seen, form
                )
        raise NotFoundError("no such organisation")

    def _to_sign_in(self, request: Request) -> Response:
        if request.method != "GET" or request.headers.get("x-guard-live"):
            return Response("signed out", status_code=401, headers=security.PAGE_HEADERS)
        asked = request.url.path
        if request.url.query:
            asked += f"?{request.url.query}"
        query = "" if asked == "/" else "?" + urllib.parse.urlencode({"return_to": asked})
        return self.redirect(SIGN_IN + query)

    # -- answers -------------------------------------------------------------------------------

    def base_url(self, request: Request) -> str:
        """Return the gateway's address as programs and other people reach it."""
        return (self.parts.settings.public_url or str(request.base_url)).rstrip("/")

    def redirect(self, address: str) -> Response:
        """Send the browser to another page after a form."""
        return RedirectResponse(address, status_code=303, headers=security.PAGE_HEADERS)

    def done(self, context: RequestContext, notice: str, default: str) -> Response:
        """Go back to where a form came from, with a notice."""
        back = urllib.parse.urlsplit(security.local_path(context.form.text("return_to"), default))
        query = dict(urllib.parse.parse_qsl(back.query))
        for name in ("notice", "organisation"):
            query.pop(name, None)
        return self.redirect(context.link(back.path, **(query | {"notice": notice})))

    async def render(self, context: RequestContext, template: str, **values: Any) -> Response:
        """Return a page for an operator."""
        status = values.pop("status", 200)
        is_member = not context.may("viewer")
        waiting = (
            []
            if is_member
            else await self.parts.storage.approvals(context.org(), "pending", BADGE_MAX)
        )
        healthy, trouble = self.health()
        values |= {
            "context": context,
            "presets": PRESETS,
            "link": context.link,
            "operator": context.session.operator,
            "csrf": security.csrf_of(context.token),
            "here": context.request.url.path,
            "section": SECTIONS.get(context.request.url.path, context.request.url.path),
            "return_to": _address(context.request),
            "navigation": ((OWN, "Your page"),) if is_member else NAVIGATION,
            "waiting": len(waiting),
            "notice": NOTICES.get(context.query("notice"), ""),
            "healthy": healthy,
            "trouble": trouble,
        }
        found = self._values(context.request, values)
        if template not in self._compiled:  # that takes as long as a large page
            text = await asyncio.to_thread(self._rendered, template, found)
            self._compiled.add(template)
        else:
            text = await self._in_steps(context.org(), template, found)
        return HTMLResponse(text, status_code=status, headers=security.PAGE_HEADERS)

    async def _in_steps(self, organisation_id: str, template: str, values: dict[str, Any]) -> str:
        """Render a page; small ones, which are one step, wait for nobody."""
        pieces = self._jinja.get_template(template).generate(values)
        made = list(islice(pieces, PIECES))
        while len(made) % PIECES == 0:
            await asyncio.sleep(0)  # a turn that is free is taken at once
            async with self.turns.step(organisation_id):
                found = list(islice(pieces, PIECES))
            if not found:
                break
            made += found
        return "".join(made)

    def _rendered(self, template: str, values: dict[str, Any]) -> str:
        return self._jinja.get_template(template).render(values)

    def html(self, request: Request, template: str, status: int, /, **values: Any) -> HTMLResponse:
        """Return a small page, rendered at once, with its headers."""
        text = self._rendered(template, self._values(request, values))
        return HTMLResponse(text, status_code=status, headers=security.PAGE_HEADERS)

    def _values(self, request: Request, values: dict[str, Any]) -> dict[str, Any]:
        """Return what every template needs beside the page's own values."""
        theme = request.cookies.get("guard_theme")
        now_ms = self.parts.clock_ms()
        return {
            "theme": theme if theme in ("light", "dark") else "",
            "now_ms": now_ms,
            "ago": lambda at_ms: formatting.ago(at_ms, now_ms),
            **values,
        }

    def problem(
        self, request: Request, exc: Exception, context: RequestContext | None = None
    ) -> Response:
        """Return the page of an error: what happened, and what to do."""
        status, title, detail = _explained(exc)
        is_member = context is not None and not context.may("viewer")
        return self.html(
            request, "problem.html", status, status=status, title=title, detail=detail,
            home="/" if context is None else context.link(OWN if is_member else "/"),
            home_is="your page" if is_member else "the overview",
        )  # fmt: skip

    def health(self) -> tuple[bool, str]:
        """Return whether the gateway is healthy, and if not, why."""
        if self.parts.is_draining():
            return False, "The gateway is shutting down; it takes no new calls."
        if not self.parts.storage.statistics().get("healthy", False):
            return False, "The gateway's store failed at its last write. Calls are being refused."
        if not self.parts.change_watcher.healthy:
            return False, "The gateway cannot read its store."
        return True, ""


class PageGroup:
    """Pages that belong together, and the actions on them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._storage = site.parts.storage


def only(what: str, found: Iterable[T], **named: str | bool) -> T:
    """Return the one whose fields have these values.

    Raises:
        NotFoundError: there is none.
    """
    for each in found:
        if all(getattr(each, name) == value for name, value in named.items()):
            return each
    raise NotFoundError(f"no such {what}")


def divided(keys: Iterable[Key], now_ms: int) -> tuple[list[Key], list[Key]]:
    """Return the keys that are in use, and those that were revoked or have ended."""
    found: tuple[list[Key], list[Key]] = [], []
    for key in keys:
        is_over = key.expires_at_ms is not None and key.expires_at_ms <= now_ms
        found[is_over or key.revoked_at_ms is not None].append(key)
    return found


def _address(request: Request) -> str:
    query = [(n, v) for n, v in request.query_params.multi_items() if n != "notice"]
    return request.url.path + (f"?{urllib.parse.urlencode(query)}" if query else "")


def _explained(exc: Exception) -> tuple[int, str, str]:
    if isinstance(exc, ForbiddenError | RoleError):
        return 403, "Not allowed", f"Refused: {exc}."
    if isinstance(exc, NotFoundError):
        return 404, "Not found", f"There is {exc}."
    if isinstance(exc, ConflictError):
        return 409, "Too late", f"Nothing was changed: {exc}."
    if isinstance(exc, StoreError):
        detail = (
            "Its store does not answer, so nothing can be shown and calls are being refused. "
            "Look at the gateway's log and at the disk of its database."
        )
        return 503, "The gateway is not healthy", detail
    if isinstance(exc, ProblemError):
        return exc.answer.status, "The request was refused", "It is too large or damaged."
    return 400, "That does not work", f"Nothing was changed: {exc}."


def new_sign_in_token() -> str:
    """Return a token for a browser that has not signed in."""
    return secrets.token_urlsafe(24)
