"""Where messages may be sent: to public addresses, unless the gateway's operator allows others.

Addresses of channels are written by operators of single organisations, who must not reach the
network that the gateway runs in. A name is checked when it is stored, and the address that it
resolves to again before each connection, which then goes to that very address.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from typing import Final

import httpx

_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""The only IPv6 unicast addresses that IANA has assigned globally.

Translated, mapped, compatible and site-local addresses are outside of it.
"""

_SPECIAL: Final = [ipaddress.ip_network(network) for network in (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3", "2001::/23", "2001:db8::/32",
    "2002::/16", "3fff::/20",
)]  # fmt: skip
"""IANA's special-purpose addresses, 6to4 and Teredo too. ``is_global`` is another list in each
release of the interpreter: some take 192.0.0.192 for public."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_url(url: str, *, private: bool = False) -> None:
    """Refuse addresses that a message must not be sent to.

    Args:
        url: the webhook's address.
        private: whether the gateway's operator allows loopback and private networks, and plain
            ``http`` to loopback addresses.

    Raises:
        ValueError: not a URL, not ``https``, credentials in it, or a host that is not public.
    """
    try:
        parts = httpx.URL(url)
        host = parts.host.rstrip(".")
    except (httpx.InvalidURL, UnicodeError):  # IDNA raises the latter
        raise ValueError("the URL is not valid") from None
    if parts.userinfo:
        raise ValueError("the URL must not contain credentials")
    if not host:
        raise ValueError("the URL has no host")
    address = _literal(host)
    if not private:
        local = host == "localhost" or host.endswith(".localhost")
        if local or (address is not None and not is_public(address)):
            raise ValueError(
                "the host is not public; a gateway has to allow it (serve --private-webhooks)"
            )
    if parts.scheme == "https":
        return
    if parts.scheme == "http" and private and address is not None and address.is_loopback:
        return
    raise ValueError("the URL must be https")


def is_public(address: Address) -> bool:
    """Return whether an address is public; one with another address inside, by that one.

    Addresses of 6to4 and Teredo are never public.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address not in _UNICAST:
            return False
    return not any(address in network for network in _SPECIAL)


def _literal(host: str) -> Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    with contextlib.suppress(OSError, UnicodeError):  # 0x7f.1 and 2130706433 are addresses too
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


def check_host(host: str, *, private: bool = False) -> None:
    """Refuse the name or address of a server that a message must not be sent to.

    Args:
        host: its name or address.
        private: whether the gateway's operator allows loopback and private networks.

    Raises:
        ValueError: it is not public.
    """
    address = _literal(host.rstrip("."))
    local = host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost")
    if not private and (local or (address is not None and not is_public(address))):
        raise ValueError(
            "the host is not public; a gateway has to allow it (serve --private-webhooks)"
        )


async def address_of(host: str, port: int, *, private: bool = False) -> str:
    """Resolve a host to the address to connect to.

    Raises:
        OSError: it does not resolve, or one of its addresses is not allowed.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Only the first is used, but a name with any private address is refused, in whatever order the
    # resolver returns them.
    addresses = [str(entry[4][0]) for entry in found]
    allowed = private or all(is_public(ipaddress.ip_address(each)) for each in addresses)
    if not addresses or not allowed:
        raise OSError("the host is not public")
    return addresses[0]
