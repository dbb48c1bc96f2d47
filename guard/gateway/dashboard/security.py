"""The dashboard's defences: headers, host, origin, tokens, form bodies."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import urllib.parse
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from guard.core import wire
from guard.gateway.api.http import headers_of, read_body
from guard.gateway.settings import GatewaySettings

FORM_BYTES_MAX: Final = 131_072
FORM_FIELDS_MAX: Final = 400
NAME_MAX: Final = 256
_FORM: Final = b"application/x-www-form-urlencoded"

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`, with which browsers send `Origin: null` with forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}
PAGE_HEADERS: Final = HEADERS | {"Cache-Control": "no-store"}


class ForbiddenError(Exception):
    """The request did not come from a page of this dashboard."""


def csrf_of(token: str) -> str:
    """Return the CSRF token of a cookie, which forms carry."""
    return hmac.new(token.encode(), b"guard dashboard form", hashlib.sha256).hexdigest()


def is_csrf_of(claimed: str, token: str) -> bool:
    """Return whether a form's token belongs to the cookie."""
    return hmac.compare_digest(claimed.encode("utf-8", "replace"), csrf_of(token).encode())


class OriginChecks:
    """Checks of host and origin for one gateway.

    Args:
        settings: where the gateway listens and what URL it is known by.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        public = urllib.parse.urlsplit(settings.public_url or "")
        self.is_https = public.scheme == "https" or (settings.has_tls and not public.netloc)
        self._own_scheme = "https" if settings.has_tls else "http"
        self._public_origin = f"{public.scheme}://{public.netloc}" if public.netloc else None
        self._hosts: frozenset[str] | None = None
        if public.hostname:
            self._hosts = frozenset({public.hostname, settings.host, *_LOOPBACK})
        elif _is_loopback(settings.host):
            self._hosts = frozenset({settings.host, *_LOOPBACK})

    @property
    def session_cookie(self) -> str:
        """Name of the session's cookie; the prefix binds it to this host over TLS."""
        return "__Host-guard_session" if self.is_https else "guard_session"

    @property
    def sign_in_cookie(self) -> str:
        """Name of the cookie that the sign-in form's token is made for."""
        return "__Host-guard_visit" if self.is_https else "guard_visit"

    @property
    def device_cookie(self) -> str:
        """Name of the cookie of a browser that an operator has signed in with before."""
        return "__Host-guard_device" if self.is_https else "guard_device"

    @property
    def openid_cookie(self) -> str:
        """Name of the cookie of a sign-in that continues at the OpenID provider."""
        return "__Host-guard_openid" if self.is_https else "guard_openid"

    def check_host(self, request: Request) -> None:
        """Refuse host names that are not the gateway's (DNS rebinding).

        Raises:
            ForbiddenError: the gateway is not known by this name.
        """
        host = _hostname(request.headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            raise ForbiddenError("this gateway is not known by that host name")

    def check_origin(self, request: Request) -> None:
        """Refuse requests from another site's pages.

        Raises:
            ForbiddenError: ``Origin`` is missing or foreign, or the browser says cross-site.
        """
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise ForbiddenError("the request comes from another site")
        own = {f"{self._own_scheme}://{request.headers.get('host', '')}"}
        if self._public_origin is not None:
            own.add(self._public_origin)
        if request.headers.get("origin", "") not in own:
            raise ForbiddenError("the request comes from another site")


_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hostname(host: str) -> str:
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Form:
    """The fields of a posted form."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str, default: str = "") -> str:
        """Return a field's only value, without the space around it.

        Raises:
            ValueError: the field is given twice, or has text that the protocol does not take.
        """
        values = self._fields.get(name, [default])
        if len(values) != 1:
            raise ValueError(f"{name} is given twice")
        if (flaw := wire.flaw_in_text(values[0])) is not None:
            raise ValueError(f"{name} {flaw}")
        return values[0].strip()

    def secret(self, name: str) -> str:
        """Return a field's only value unchanged."""
        values = self._fields.get(name, [""])
        return values[0] if len(values) == 1 else ""

    def lines(self, name: str) -> list[str]:
        """Return the non-empty lines of a field."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]

    def has(self, name: str) -> bool:
        """Return whether a box is ticked."""
        return name in self._fields

    def rows(self, name: str) -> list[str]:
        """Return every value of a repeated field."""
        return [value.strip() for value in self._fields.get(name, [])]


async def read_form(request: Request) -> Form:
    """Read a posted form.

    Raises:
        ProblemError: too large, or the client went away.
        ValueError: not a form, or not readable as one.
    """
    headers = headers_of(request.scope)
    raw = await read_body(headers, request.receive, FORM_BYTES_MAX)
    if headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower() != _FORM:
        raise ValueError("a form is expected")
    fields = urllib.parse.parse_qs(
        raw.decode("ascii"),
        keep_blank_values=True,
        errors="strict",
        max_num_fields=FORM_FIELDS_MAX,
    )
    return Form(fields)


def local_path(path: str, default: str = "/") -> str:
    """Return a path on this site; anything that could lead elsewhere becomes the default."""
    parts = urllib.parse.urlsplit(path)
    if (
        not path.startswith("/")
        or path.startswith("//")
        or "\\" in path
        or parts.scheme
        or parts.netloc
        or any(ord(char) < 33 for char in path)
    ):
        return default
    return path


class ClientAddresses:
    """Finds a client's address and user name behind the operator's own proxies.

    Args:
        trusted: addresses and networks of the trusted proxies.
        user_header: in which they name the signed-in user; ``None``: they name none.
    """

    def __init__(self, trusted: Sequence[str], user_header: str | None = None) -> None:
        self._trusted = [_unmapped(each) for each in trusted]
        self._user_header = user_header

    def user_of(self, request: Request) -> str | None:
        """Return the user that a trusted proxy names; ``None`` without a proxy, or a name.

        Raises:
            ForbiddenError: it names several, or a name that no operator can have.
        """
        peer = request.client.host if request.client else ""
        if self._user_header is None or not self._is_trusted(peer):
            return None
        named = request.headers.getlist(self._user_header)
        if not named or named == [""]:
            return None
        try:
            name = named[0].strip().encode("latin-1").decode("utf-8")
        except UnicodeError:
            name = ""
        if len(named) > 1 or not name.isprintable() or not 1 <= len(name) <= NAME_MAX:
            raise ForbiddenError("the proxy does not say clearly who has signed in")
        return name

    def of(self, request: Request) -> str:
        """Return a client's address: the last one that is not a trusted proxy's.

        Read from the end, because only the trusted proxies' own entries can be believed.
        """
        address = request.client.host if request.client else ""
        forwarded = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        for hop in reversed(forwarded):
            if not hop.strip() or not self._is_trusted(address):
                break
            address = hop.strip()[:64]
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        # A socket for both families shows peers of IPv4 as mapped addresses.
        mapped = parsed.ipv4_mapped if parsed.version == 6 else None
        return any((mapped or parsed) in network for network in self._trusted)


def _unmapped(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network; one of mapped addresses as the network of IPv4 that it is."""
    network = ipaddress.ip_network(text)
    if network.version == 6 and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        bits = network.prefixlen - 96
        return ipaddress.ip_network(f"{network.network_address.ipv4_mapped}/{bits}")
    return network
