"""``/api/v1/login``: the device flow (RFC 8628) and refresh tokens for ``guard login``.

Public: whoever asks has no key yet. As in OAuth, bodies are forms and unknown fields are ignored;
there is no ``client_id``, as any program may ask and none is trusted by its name.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.gateway.api.http import fail, headers_of, read_body
from guard.gateway.domain.logins import CODE_MS, INTERVAL_MS, LoginError
from guard.gateway.services.logins import LoginService, TooManyError
from guard.gateway.services.openid import OpenIdError

DEVICE_PAGE: Final = "/device"
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_BODY_MAX: Final = 8192
_HEADERS: Final = {"cache-control": "no-store"}


class DeviceReply(Struct, kw_only=True, frozen=True):
    """A code for a person to enter; times are in seconds (RFC 8628, 3.2)."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class TokenReply(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An access token, which is a key of guard's; times are in seconds (RFC 6749, 5.1)."""

    access_token: str
    token_type: str
    expires_in: int
    refresh_token: str | None = None


class Ended(Struct, frozen=True):
    """The login of a token has ended, if there was one (RFC 7009, 2.2)."""


class TokenError(Struct, kw_only=True, frozen=True):
    """Why there is no token (RFC 6749, 5.2; RFC 8628, 3.5)."""

    error: str
    error_description: str


class LoginRoutes:
    """Serves them.

    Args:
        logins: does the work; ``None``: nobody signs in at this gateway.
        address_of: the address of a request's client.
        base_url: of the gateway, as people reach it.
    """

    def __init__(
        self,
        logins: LoginService | None,
        address_of: Callable[[Request], str],
        base_url: Callable[[Request], str],
    ) -> None:
        self._logins = logins
        self._address_of = address_of
        self._base_url = base_url

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(path, self._answering(serve), methods=["POST"])
            for path, serve in (
                (wire.LOGIN_DEVICE_PATH, self._device),
                (wire.LOGIN_TOKEN_PATH, self._token),
                (wire.LOGIN_WORK_KEY_PATH, self._work_key),
                (wire.LOGIN_REVOKE_PATH, self._revoke),
            )
        ]

    def _answering(
        self, serve: Callable[[LoginService, Request, dict[str, str]], Awaitable[Struct]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            body = await read_body(headers_of(request.scope), request.receive, _BODY_MAX)
            if self._logins is None:
                says = "nobody signs in at this gateway: it has no openid_issuer, or no login_key"
                raise fail(404, "GD-N001", "Not found", says)
            try:
                reply = await serve(self._logins, request, _fields(body))
            except LoginError as exc:
                refused = TokenError(error=exc.error, error_description=str(exc))
                return _answer(refused, 400)
            except (OpenIdError, TimeoutError) as exc:
                # Not `invalid_grant`: a program would forget its login.
                raise fail(503, "GD-B002", "Provider unavailable", str(exc)) from None
            except TooManyError:
                says = "too many programs wait for their persons"
                raise fail(429, "GD-R001", "Too many requests", says) from None
            return _answer(reply, 200)

        return endpoint

    async def _device(
        self, logins: LoginService, request: Request, _: dict[str, str]
    ) -> DeviceReply:
        device, code = await logins.begin(self._address_of(request))
        page = self._base_url(request) + DEVICE_PAGE
        return DeviceReply(
            device_code=device, user_code=code.user_code, verification_uri=page,
            verification_uri_complete=f"{page}?code={code.user_code}",
            expires_in=CODE_MS // 1000, interval=INTERVAL_MS // 1000,
        )  # fmt: skip

    async def _token(self, logins: LoginService, _: Request, given: dict[str, str]) -> TokenReply:
        grant = given.get("grant_type")
        if grant == DEVICE_GRANT and "device_code" in given:
            tokens = await logins.redeem(given["device_code"])
        elif grant == "refresh_token" and "refresh_token" in given:
            tokens = await logins.refresh(given["refresh_token"])
        elif grant in (DEVICE_GRANT, "refresh_token"):
            raise LoginError("invalid_request", "the token of this grant is missing")
        else:
            raise LoginError("unsupported_grant_type", "not a grant that this gateway knows")
        return TokenReply(
            access_token=tokens.access_token, token_type="Bearer",  # noqa: S106  # its kind
            expires_in=tokens.expires_in_ms // 1000, refresh_token=tokens.refresh_token,
        )  # fmt: skip

    async def _work_key(
        self, logins: LoginService, _: Request, given: dict[str, str]
    ) -> TokenReply:
        key, lasts_ms = await logins.work_key(_token_of(given))
        return TokenReply(access_token=key, token_type="Bearer", expires_in=lasts_ms // 1000)  # noqa: S106  # its kind

    async def _revoke(self, logins: LoginService, _: Request, given: dict[str, str]) -> Ended:
        await logins.revoke(_token_of(given))
        return Ended()


def _token_of(given: dict[str, str]) -> str:
    if "token" not in given:
        raise LoginError("invalid_request", "the token is missing")
    return given["token"]


def _fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        LoginError: one is given twice, or it is not a form.
    """
    try:
        found = urllib.parse.parse_qs(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError:
        raise LoginError("invalid_request", "a form is expected") from None
    if any(len(values) > 1 for values in found.values()):
        raise LoginError("invalid_request", "a field is given twice")
    return {name: values[0] for name, values in found.items()}


def _answer(reply: Struct, status: int) -> Response:
    body = wire.encode(reply)
    return Response(body, status_code=status, media_type="application/json", headers=_HEADERS)
