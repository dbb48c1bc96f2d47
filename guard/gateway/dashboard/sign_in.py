"""Signing in and out."""

from __future__ import annotations

import hmac
import urllib.parse
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.gateway.api.http import ProblemError, note_owner
from guard.gateway.dashboard import security
from guard.gateway.dashboard.device import Device
from guard.gateway.dashboard.security import ForbiddenError
from guard.gateway.dashboard.site import SIGN_IN, RequestContext, Site, new_sign_in_token
from guard.gateway.domain.errors import NotFoundError, StoreError
from guard.gateway.domain.operators import FIRST_OPERATOR, Person, UnknownPersonError
from guard.gateway.services.logins import joining_of
from guard.gateway.services.openid import (
    CALLBACK_PATH,
    FLOW_S,
    Flow,
    Known,
    OpenIdError,
    OpenIdProvider,
)
from guard.gateway.services.operators import (
    DEVICE_MS,
    SESSION_MS,
    WrongPasswordError,
)
from guard.gateway.services.sign_in_throttle import ThrottledError

OPENID: Final = "/sign-in/openid"
_BACK_MAX: Final = 1024
"""Of an address in a cookie, of which browsers keep four kilobytes."""
_EXPIRED: Final = "The link has expired. Sign in all the same, or make another."


class SignIn:
    """Serves ``/sign-in`` and ``/sign-out``."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._operators = site.parts.operators
        self._openid = site.parts.openid
        self._addresses = site.addresses
        self._device = Device(site)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(SIGN_IN, self._show, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(OPENID, self._begin_openid, methods=["GET"]),
            Route(CALLBACK_PATH, self._end_openid, methods=["GET"]),
            *self._device.routes(),
            Route("/sign-out", self._site.action(self._sign_out, "member"), methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        try:
            self._site.origin_checks.check_host(request)
            if "device" in request.query_params:
                return await self._show_linked(request)
            person = self._addresses.user_of(request)
            if person is not None and "out" not in request.query_params:
                return await self._sign_on(request, person)
            name = request.query_params.get("name", FIRST_OPERATOR)[:256]
            error = _EXPIRED if "expired" in request.query_params else ""
            return await self._form(request, 200, error, name)
        except (ForbiddenError, StoreError) as exc:
            return self._site.problem(request, exc)

    async def _sign_on(self, request: Request, person: str) -> Response:
        """Sign in the user whom a trusted proxy has authenticated."""
        return_to = security.local_path(request.query_params.get("return_to", "/"))
        try:
            token = await self._operators.signed_on(
                Person(issuer="proxy", subject=person, name=person),
                "proxy",
                self._addresses.of(request),
                self._site.joining,
            )
        except UnknownPersonError as exc:
            raise ForbiddenError(str(exc)) from None
        response = self._site.redirect(return_to)
        cookie = self._site.origin_checks.session_cookie
        self._set_cookie(response, cookie, token, SESSION_MS // 1000)
        return response

    # -- at an OpenID provider -----------------------------------------------------------------

    async def _begin_openid(self, request: Request) -> Response:
        """Send the browser to the provider."""
        try:
            self._site.origin_checks.check_host(request)
            provider = self._provider()
            back = security.local_path(request.query_params.get("return_to", "/"))
            flow = Flow.new(back if len(back) <= _BACK_MAX else "/")
            try:
                stays = self._device.code_in(back) is not None
                address = await provider.begin(flow, self._callback(request), stays=stays)
            except OpenIdError as exc:
                return await self._form(request, 502, f"Single sign-on failed: {exc}.", "")
        except (ForbiddenError, NotFoundError, StoreError) as exc:
            return self._site.problem(request, exc)
        response = self._site.redirect(address)
        # Lax: the provider's page, on another site, sends the browser back.
        cookie = self._site.origin_checks.openid_cookie
        self._set_cookie(response, cookie, flow.text(), FLOW_S, same_site="lax")
        return response

    async def _end_openid(self, request: Request) -> Response:
        """Sign in the user whom the provider has authenticated."""
        try:
            self._site.origin_checks.check_host(request)
            provider = self._provider()
            try:
                flow, known = await self._identified_at(provider, request)
                if (code := self._device.code_in(flow.return_to)) is not None:
                    response = await self._device.confirm(request, code, known)
                    self._set_cookie(response, self._site.origin_checks.openid_cookie, "", 0)
                    return response
                token = await self._signed_on(request, known.person)
            except (OpenIdError, UnknownPersonError) as exc:
                response = await self._form(request, 403, f"Single sign-on failed: {exc}.", "")
                self._set_cookie(response, self._site.origin_checks.openid_cookie, "", 0)
                return response
        except (ForbiddenError, NotFoundError, StoreError) as exc:
            return self._site.problem(request, exc)
        # A page, not a redirect: after one that began on another site, browsers would not send the
        # strict session cookie.
        back = security.local_path(flow.return_to)
        response = self._site.html(request, "signed_on.html", 200, return_to=back)
        cookies = self._site.origin_checks
        self._set_cookie(response, cookies.session_cookie, token, SESSION_MS // 1000)
        self._set_cookie(response, cookies.openid_cookie, "", 0)
        return response

    async def _identified_at(
        self, provider: OpenIdProvider, request: Request
    ) -> tuple[Flow, Known]:
        given = request.query_params
        flow = Flow.read(request.cookies.get(self._site.origin_checks.openid_cookie, ""))
        state = given.get("state", "").encode()
        if flow is None or not hmac.compare_digest(state, flow.state.encode()):
            raise OpenIdError("it was not begun in this browser, or took too long")
        if "code" not in given:
            raise OpenIdError("the provider refused")
        address = self._addresses.of(request)
        return flow, await provider.end(flow, given["code"], self._callback(request), address)

    async def _signed_on(self, request: Request, person: Person) -> str:
        """Return the token of a new session of somebody whom the provider has identified."""
        joining = await joining_of(self._site.parts.storage, person, self._site.joining)
        address = self._addresses.of(request)
        return await self._operators.signed_on(person, "openid", address, joining)

    def _provider(self) -> OpenIdProvider:
        if self._openid is None:
            raise NotFoundError("no single sign-on at this gateway")
        return self._openid

    def _callback(self, request: Request) -> str:
        return self._site.base_url(request) + CALLBACK_PATH

    async def _show_linked(self, request: Request) -> Response:
        """Remember the browser that has opened a link, and remove the token from its address."""
        name, device = (request.query_params.get(each, "") for each in ("name", "device"))
        is_known = wire.flaw_in_text(name) is None and await self._operators.knows(name, device)
        query = urllib.parse.urlencode({"name": name}) if is_known else "expired"
        response = self._site.redirect(f"{SIGN_IN}?{query}")
        if is_known:  # otherwise the browser keeps its cookie
            self._set_cookie(response, self._site.origin_checks.device_cookie, device)
        return response

    async def _form(self, request: Request, status: int, error: str, name: str) -> Response:
        cookie = self._site.origin_checks.sign_in_cookie
        token = request.cookies.get(cookie) or new_sign_in_token()
        response = self._site.html(
            request,
            "sign_in.html",
            status,
            csrf=security.csrf_of(token),
            error=error,
            name=name,
            return_to=security.local_path(request.query_params.get("return_to", "/")),
            openid="" if self._openid is None else OPENID,
            is_set_up=self._openid is not None or await self._operators.has_operators(),
            base_url=str(request.base_url).rstrip("/"),
        )
        self._set_cookie(response, cookie, token)
        return response

    async def _sign_in(self, request: Request) -> Response:
        origin_checks = self._site.origin_checks
        try:
            origin_checks.check_host(request)
            origin_checks.check_origin(request)
            form = await security.read_form(request)
            sign_in_token = request.cookies.get(origin_checks.sign_in_cookie, "")
            if not sign_in_token or not security.is_csrf_of(form.text("csrf"), sign_in_token):
                raise ForbiddenError("the form has expired; load the page again")
            name = form.text("name")[:256]
            address = self._addresses.of(request)
            try:
                device = request.cookies.get(origin_checks.device_cookie, "")
                if await self._operators.knows(name, device):
                    note_owner(request.scope, name)
                done = await self._operators.sign_in(name, form.secret("password"), address, device)
            except WrongPasswordError:
                return await self._form(request, 403, "Name or password is not right.", name)
            except ThrottledError as exc:
                wait_s = -(-exc.retry_after_ms // 1000)
                text = f"Too many attempts. Try again in {wait_s} s."
                response = await self._form(request, 429, text, name)
                response.headers["Retry-After"] = str(wait_s)
                return response
        except (ForbiddenError, ValueError, ProblemError, StoreError) as exc:
            return self._site.problem(request, exc)
        response = self._site.redirect(security.local_path(form.text("return_to")))
        self._set_cookie(response, origin_checks.session_cookie, done.token, SESSION_MS // 1000)
        self._set_cookie(response, origin_checks.device_cookie, done.device, DEVICE_MS // 1000)
        self._set_cookie(response, origin_checks.sign_in_cookie, "", 0)
        return response

    async def _sign_out(self, context: RequestContext) -> Response:
        await self._operators.sign_out(context.token)
        response = self._site.redirect(f"{SIGN_IN}?out")
        self._set_cookie(response, self._site.origin_checks.session_cookie, "", 0)
        response.headers["Clear-Site-Data"] = '"cache"'
        return response

    def _set_cookie(
        self,
        response: Response,
        name: str,
        value: str,
        max_age_s: int | None = None,
        same_site: Literal["strict", "lax"] = "strict",
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=max_age_s,
            path="/",
            httponly=True,
            secure=self._site.origin_checks.is_https,
            samesite=same_site,
        )
