"""A gateway whose people sign in with ``guard login``, at a provider in a process of its own."""

from __future__ import annotations

import html
import re
import time
from typing import Any, Final

import attrs
import httpx

from guard.gateway.api.login import DEVICE_GRANT
from guard.gateway.embedded import Gateway

LOGIN_KEY: Final = "k" * 40
HOUR_MS: Final = 3_600_000


def client_of(issuer: str) -> dict[str, Any]:
    """Return the settings of a gateway that is a client of a provider."""
    return {
        "openid_issuer": issuer, "openid_client_id": "guard", "openid_client_secret": "a secret",
    }  # fmt: skip


@attrs.define
class MovedClock:
    """The machine's clock, moved by as much as a test says."""

    by_ms: int = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.by_ms


@attrs.frozen
class LoginSite:
    """The gateway and its provider.

    Attributes:
        gateway: in this process.
        issuer: the provider's address.
        clock: the gateway's.
    """

    gateway: Gateway
    issuer: str
    clock: MovedClock

    def later(self, by_ms: int) -> None:
        """Let time pass; a store's clock never goes back."""
        self.clock.by_ms += by_ms

    def post(self, path: str, **fields: str) -> httpx.Response:
        """Send a form to one of the endpoints of ``guard login``."""
        return httpx.post(f"{self.gateway.base_url}/api/v1/login/{path}", data=fields)

    def begin(self) -> dict[str, Any]:
        """Ask for a code."""
        reply = self.post("device")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def page(self, user_code: str, person: str, http: httpx.Client) -> httpx.Response:
        """Go from the page of a code to the provider and back, as a browser does."""
        start = http.get("/device", params={"code": user_code})
        link = re.search(r'href="(/sign-in/openid[^"]*)"', start.text)
        assert link is not None, start.text
        form = http.get(html.unescape(link[1]))
        assert str(form.url).startswith(self.issuer), form.text
        return http.post(form.url, data={"sub": person})

    def browse(self, user_code: str, person: str, answer: str = "allow") -> httpx.Response:
        """Sign in as a person and answer for a code; return the last page."""
        with httpx.Client(base_url=self.gateway.base_url, follow_redirects=True) as http:
            page = self.page(user_code, person, http)
            confirm = re.search(r'name="confirm" value="([^"]+)"', page.text)
            if confirm is None:
                return page
            body = {"code": user_code, "confirm": confirm[1], "answer": answer}
            return http.post("/device", data=body, headers={"Origin": self.gateway.base_url})

    def redeem(self, code: dict[str, Any]) -> httpx.Response:
        """Ask for the tokens of a code."""
        return self.post("token", grant_type=DEVICE_GRANT, device_code=code["device_code"])

    def refresh(self, tokens: dict[str, Any]) -> httpx.Response:
        """Ask for the tokens that follow."""
        return self.post("token", grant_type="refresh_token", refresh_token=tokens["refresh_token"])

    def sign_in(self, person: str) -> dict[str, Any]:
        """Return the tokens of a person who signs in."""
        code = self.begin()
        page = self.browse(code["user_code"], person)
        assert "The program is signed in" in page.text, page.text
        reply = self.redeem(code)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def works(self, tokens: dict[str, Any]) -> bool:
        """Return whether an access token is a key."""
        headers = {"X-API-Key": tokens["access_token"], "X-Guard-Protocol": "3"}
        reply = httpx.get(f"{self.gateway.base_url}/api/v1/capabilities", headers=headers)
        assert reply.status_code in (200, 401)
        return reply.status_code == 200

    def work_key(self, tokens: dict[str, Any]) -> dict[str, Any]:
        """Return a work key, in the form of tokens."""
        reply = self.post("work-key", token=tokens["access_token"])
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def says(self, person: str, **claims: Any) -> None:
        """Change what the provider says of a person."""
        assert httpx.put(f"{self.issuer}/users/{person}", json=claims).status_code == 204

    def suspend(self, person: str) -> None:
        """Make the provider forget every token of a person."""
        assert httpx.post(f"{self.issuer}/users/{person}/revoke-tokens").status_code == 204
