"""The gateway's endpoints for ``guard login``, as a program asks them."""

from __future__ import annotations

from typing import Any, Final

from guard.core import wire
from guard.core.mistaken import not_a_gateway, why_unreached
from guard.tls import client_context
from guard.transport.own_httpx import httpx

_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT_S: Final = 40.0
"""More than the gateway waits for its provider."""
# What a gateway's answer has, besides any JSON that another program answers with.
_HAS: Final = {wire.LOGIN_DEVICE_PATH: "device_code", wire.LOGIN_TOKEN_PATH: "access_token",
               wire.LOGIN_WORK_KEY_PATH: "access_token"}  # fmt: skip


class LoginRefusedError(Exception):
    """The gateway gives no token.

    Attributes:
        error: why, as a code of RFC 6749 or RFC 8628.
    """

    def __init__(self, error: str, says: str) -> None:
        super().__init__(says)
        self.error = error


class UnavailableError(Exception):
    """The gateway, or its provider, does not answer now; a repeat may succeed."""


class LoginClient:
    """Asks one gateway.

    Args:
        url: the address of the gateway.
        tls_fingerprint: the only certificate that is accepted; empty: authorities decide.
    """

    def __init__(self, url: str, tls_fingerprint: str = "") -> None:
        self._url = url
        self._http = httpx.Client(
            base_url=url,
            timeout=_TIMEOUT_S,
            trust_env=False,
            verify=client_context(tls_fingerprint or None) if url.startswith("https:") else False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def begin(self) -> dict[str, Any]:
        """Return a new code, as RFC 8628 (3.2) describes it."""
        return self._post(wire.LOGIN_DEVICE_PATH)

    def redeem(self, device_code: str) -> dict[str, Any]:
        """Return the tokens of a person who has signed in for a code."""
        return self._post(wire.LOGIN_TOKEN_PATH, grant_type=_DEVICE_GRANT, device_code=device_code)

    def refresh(self, refresh_token: str) -> dict[str, Any]:
        """Return the tokens that follow a refresh token."""
        return self._post(
            wire.LOGIN_TOKEN_PATH, grant_type="refresh_token", refresh_token=refresh_token
        )

    def work_key(self, access_token: str) -> str:
        """Return a key for a working day."""
        return str(self._post(wire.LOGIN_WORK_KEY_PATH, token=access_token)["access_token"])

    def revoke(self, token: str) -> None:
        """End the login that a token belongs to."""
        self._post(wire.LOGIN_REVOKE_PATH, token=token)

    def _post(self, path: str, **fields: str) -> dict[str, Any]:
        """Send a form.

        Raises:
            LoginRefusedError: the gateway says no.
            UnavailableError: it, or its provider, does not answer.
        """
        try:
            response = self._http.post(path, data=fields)
        except httpx.HTTPError as exc:
            failure = f"{type(exc).__name__}: {exc}"
            says = (
                why_unreached(self._url, failure) or f"the gateway at {self._url} does not answer"
            )
            raise UnavailableError(says) from None
        try:
            said = response.json()
        except ValueError:
            said = None
        has = _HAS.get(path) if response.is_success else None
        if not isinstance(said, dict) or not (has is None or isinstance(said.get(has), str)):
            raise UnavailableError(not_a_gateway(self._url))
        if response.is_success:
            return said
        says = said.get("error_description") or said.get("detail") or not_a_gateway(self._url)
        if "error" in said:
            raise LoginRefusedError(str(said["error"]), str(says))
        raise UnavailableError(str(says))
