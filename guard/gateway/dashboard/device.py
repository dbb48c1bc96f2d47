"""``/device``: a person enters the code of a program, signs in, and says whether they allow it."""

from __future__ import annotations

import urllib.parse
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.http import ProblemError
from guard.gateway.api.login import DEVICE_PAGE
from guard.gateway.dashboard import security
from guard.gateway.dashboard.security import ForbiddenError
from guard.gateway.dashboard.site import Site
from guard.gateway.domain.errors import NotFoundError, StoreError
from guard.gateway.domain.logins import LoginError, read_user_code
from guard.gateway.services.logins import LoginService
from guard.gateway.services.openid import Known

_NO_CODE: Final = "A code has eight letters, such as WDJB-MJHT. Look at the terminal again."


class Device:
    """Serves the pages. The secret in the last one is the only credential: nobody need be an
    operator to sign in a program."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(DEVICE_PAGE, self._show, methods=["GET"]),
            Route(DEVICE_PAGE, self._answer, methods=["POST"]),
        ]

    @staticmethod
    def code_in(return_to: str) -> str | None:
        """Return the code whose page a sign-in leads back to; ``None`` for other pages."""
        parts = urllib.parse.urlsplit(return_to)
        if parts.path != DEVICE_PAGE:
            return None
        return read_user_code(dict(urllib.parse.parse_qsl(parts.query)).get("code", ""))

    async def _show(self, request: Request) -> Response:
        try:
            self._site.origin_checks.check_host(request)
            self._logins()
        except (ForbiddenError, NotFoundError) as exc:
            return self._site.problem(request, exc)
        given = request.query_params.get("code", "")
        code = read_user_code(given)
        # A link to the provider, and no form: browsers refuse forms that lead to another site.
        here = urllib.parse.urlencode({"return_to": f"{DEVICE_PAGE}?code={code}"})
        return self._page(
            request, 200, "start" if code else "code", code=code or "",
            error=_NO_CODE if given and code is None else "", sign_in=f"/sign-in/openid?{here}",
        )  # fmt: skip

    async def confirm(self, request: Request, user_code: str, known: Known) -> Response:
        """Return the page that asks a person who has signed in whether they allow the program."""
        try:
            code, confirm = await self._logins().identified(user_code, known)
        except (LoginError, NotFoundError) as exc:
            return self._page(request, 403, "code", error=f"Not signed in: {exc}.")
        return self._page(
            request, 200, "confirm", code=user_code, confirm=confirm, name=known.person.name,
            address=code.address,
        )  # fmt: skip

    async def _answer(self, request: Request) -> Response:
        try:
            self._site.origin_checks.check_host(request)
            self._site.origin_checks.check_origin(request)
            form = await security.read_form(request)
            code, answer = read_user_code(form.text("code")), form.text("answer")
            if code is None or answer not in ("allow", "refuse"):
                raise ValueError("the answer is neither allow nor refuse")
            allows = answer == "allow"
            await self._logins().answer(code, form.secret("confirm"), allows=allows)
        except LoginError as exc:
            return self._page(request, 403, "code", error=f"Nothing was answered: {exc}.")
        except (ForbiddenError, NotFoundError, ValueError, ProblemError, StoreError) as exc:
            return self._site.problem(request, exc)
        return self._page(request, 200, "allowed" if allows else "refused")

    def _page(self, request: Request, status: int, step: str, **values: Any) -> Response:
        shown = {"step": step, "code": "", "error": ""} | values
        return self._site.html(request, "device.html", status, **shown)

    def _logins(self) -> LoginService:
        if self._site.parts.logins is None:
            raise NotFoundError("programs cannot be signed in at this gateway")
        return self._site.parts.logins
