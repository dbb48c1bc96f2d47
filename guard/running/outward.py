"""The variables that lead programs to a run's forward proxy, and the user's own behind it. Pure.

Only HTTPS is led there as long as the user has no forward proxy: vendors are asked over HTTPS.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from typing import Final, Self
from urllib.parse import unquote, urlsplit

import attrs

HERE: Final = "127.0.0.1,localhost,::1"
"""What no program asks a proxy for. The user's exceptions are kept by the run's proxy itself:
among them may be a vendor's host."""

_HTTPS: Final = ("HTTPS_PROXY", "https_proxy")
_OTHERS: Final = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_EXCEPT: Final = ("NO_PROXY", "no_proxy")
_NODE: Final = "NODE_USE_ENV_PROXY"
WALL_VARIABLE: Final = "GUARD_RUN_WALL"
"""Set if a run has no network but guard."""

_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen
class UserProxy:
    """A forward proxy of the user's.

    Attributes:
        host, port: where it listens.
        tls: whether it is spoken to over TLS.
        authorization: value of the header that it wants; None without credentials.
    """

    host: str
    port: int
    tls: bool = False
    authorization: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Read the value of a variable; None if it is no proxy that speaks HTTP.

        >>> UserProxy.of("proxy.corp:3128")
        UserProxy(host='proxy.corp', port=3128, tls=False)
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port
        except ValueError:
            return None
        if parts.scheme not in _PORTS or not parts.hostname:
            return None
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"
        return cls(
            parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", authorization
        )


@attrs.frozen
class UserProxies:
    """What the user's variables say about forward proxies.

    Attributes:
        http, https: the proxy for each scheme; None goes straight to the server.
        direct: what goes straight to it all the same.
    """

    http: UserProxy | None
    https: UserProxy | None
    direct: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """Read an environment; None if it names a proxy that is not spoken to by HTTP (SOCKS)."""
        found: list[UserProxy | None] = []
        for scheme in ("http", "https"):
            names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
            text = next((environ[name].strip() for name in names if environ.get(name)), "")
            proxy = UserProxy.of(text) if text else None
            if text and proxy is None:
                return None
            found.append(proxy)
        given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        return cls(found[0], found[1], tuple(filter(None, re.split(r"[,\s]+", given.lower()))))

    def behind(self, scheme: str, host: str, port: int) -> UserProxy | None:
        """Return the proxy that a server is reached by; None goes straight to it."""
        proxy = self.https if scheme == "https" else self.http
        if proxy is None or any(_covers(each, host.lower(), port) for each in self.direct):
            return None
        return proxy


def _covers(entry: str, host: str, port: int) -> bool:
    """Tell whether an entry of ``NO_PROXY`` is meant for a host.

    >>> [_covers(e, "a.corp", 443) for e in ("corp", ".corp", "*.corp", "a.corp:443", "orp", "*")]
    [True, True, True, True, False, True]
    >>> [_covers("10.0.0.0/8", host, 443) for host in ("10.2.3.4", "11.2.3.4", "ten")]
    [True, False, False]
    """
    if entry == "*":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass
    name, _, its_port = entry.partition(":")
    if its_port and its_port != str(port):
        return False
    name = name.removeprefix("*").removeprefix(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def variables(environ: Mapping[str, str], forward: str) -> dict[str, str]:
    """Return the variables that lead programs to the run's forward proxy.

    Args:
        environ: the caller's environment.
        forward: the URL of that proxy.
    """
    if UserProxies.of(environ) is None:
        return _past_another(environ)
    found = dict.fromkeys((*_HTTPS, *(name for name in _OTHERS if environ.get(name))), forward)
    found |= dict.fromkeys(_EXCEPT, HERE)
    if not environ.get(_NODE):
        found[_NODE] = "1"
    return found


BEHIND_WALL: Final = (*_HTTPS, *_OTHERS, *_EXCEPT, _NODE)
"""The variables that a program behind a wall needs, whatever it was started with."""


def behind_wall(forward: str) -> dict[str, str]:
    """Return the variables of a program that has no other way out than the run's forward proxy."""
    return {
        **dict.fromkeys((*_HTTPS, *_OTHERS), forward),
        **dict.fromkeys(_EXCEPT, HERE),
        _NODE: "1",
        WALL_VARIABLE: "1",
    }


def _past_another(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep requests to the run's proxy away from a forward proxy that guard cannot speak to."""
    here = HERE.partition(",")[0]
    found = {}
    for name in _EXCEPT:
        hosts = [host.strip() for host in environ.get(name, "").split(",") if host.strip()]
        if here not in hosts and "*" not in hosts:
            found[name] = ",".join([*hosts, here])
    return found
