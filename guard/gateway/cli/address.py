"""Which gateway a command goes to: one rule for all commands.

``--local`` or ``--url``; else ``GUARD_API_URL``; else the gateway of this machine if a key is set;
else this user's local gateway. So a command goes where a program in the same shell would go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LOCAL: Final = "local"
"""The address that means this user's local gateway."""

DEFAULT_URL: Final = "http://127.0.0.1:8787"
"""Where ``guard gateway serve`` listens, and where programs with a key look for it."""

URL_VARIABLE: Final = "GUARD_API_URL"
_KEYS: Final = ("GUARD_ADMIN_KEY", "GUARD_API_KEY")

RULE: Final = (
    f"The gateway's address, or 'local'. Without it: {URL_VARIABLE}; else {DEFAULT_URL} if a key "
    f"is set (--admin-key, {' or '.join(_KEYS)}); else this user's local gateway."
)
"""The rule in words, for ``--help``."""


class AddressError(ValueError):
    """The address is contradictory; the text says how."""


def address_of(
    environ: Mapping[str, str], *, url: str | None, local: bool, admin_key: str | None
) -> str:
    """Return the address of the gateway that a command goes to, or ``local``.

    Args:
        environ: of the command.
        url, local, admin_key: the options that were given.

    Raises:
        AddressError: ``--local`` and another address, or a variable that is not read any more.
    """
    given = (url or "").strip()
    if local and given and given.lower() != LOCAL:
        raise AddressError("give --local or --url, not both")
    if local:
        return LOCAL
    known = environ.get(URL_VARIABLE, "").strip()
    if not given and not known and "GUARD_GATEWAY_URL" in environ:
        raise AddressError(f"GUARD_GATEWAY_URL is not read any more: set {URL_VARIABLE}")
    has_key = bool(admin_key) or any(environ.get(name, "").strip() for name in _KEYS)
    chosen = given or known or (DEFAULT_URL if has_key else LOCAL)
    return LOCAL if chosen.lower() == LOCAL else chosen.rstrip("/")
