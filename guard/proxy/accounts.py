"""Upstream accounts: the vendors' keys that a proxy holds, so that no program has to.

A file names them, never the keys themselves: a key comes from a file of its own, which is read
again when it changes, or from the environment.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import attrs

from guard.contexts.caller import Caller
from guard.core.local_address import is_local
from guard.core.vendors import VENDORS, Vendor
from guard.proxy.upstreams import ORIGINS, REGIONAL, origin_of

logger = logging.getLogger("guard.proxy")

_NAMES_IN_FACTS: Final = {"gemini": "google"}
_SIGNED_IN: Final = ("codex", "codeassist", "vertex")
"""Vendors whose tokens belong to a person who has signed in, or end after an hour."""

_SUBSCRIPTIONS: Final = (b"sk-ant-oat", b"sk-ant-ort", b"eyJ")
"""How tokens begin that a person's subscription gives; the vendors forbid that others use them."""


class AccountsError(ValueError):
    """The file of accounts cannot be used; the text says where, and what to write."""


class Credential:
    """A vendor's key. Its value is in no repr.

    Args:
        path: the file that has it; read again when it was changed.
        variable: the variable of the environment that has it, if no file does.
        environ: the environment.

    Raises:
        AccountsError: there is none, or it is a subscription's token.
    """

    def __init__(
        self, path: Path | None, variable: str = "", environ: Mapping[str, str] = os.environ
    ) -> None:
        self._path = path
        # When the file was changed last, and its size: both 0 for a variable.
        self._seen = (0, 0)
        self._value = b""
        if path is None:
            self._value = _checked(environ.get(variable, ""), variable)
            return
        try:
            self._read(path)
        except OSError as exc:
            raise AccountsError(f"{path}: {exc.strerror or exc}") from None

    def __repr__(self) -> str:
        return f"Credential({self.hint})"

    @property
    def hint(self) -> str:
        """Its last four characters, by which people tell it from another."""
        return f"...{self._value[-4:].decode()}"

    def value(self) -> bytes:
        """Return it; a file that cannot be read any more leaves the one that was read before."""
        if self._path is not None:
            try:
                self._read(self._path)
            except (OSError, AccountsError) as exc:
                logger.warning("the key that was read before is used further: %s", exc)
        return self._value

    def _read(self, path: Path) -> None:
        found = path.stat()
        if (seen := (found.st_mtime_ns, found.st_size)) != self._seen:
            self._value = _checked(path.read_text("utf-8", "replace"), str(path))
            self._seen = seen


def _checked(text: str, source: str) -> bytes:
    found = text.strip()
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise AccountsError(f"{source} has no vendor's key: one line of ASCII characters")
    if found.encode().startswith(_SUBSCRIPTIONS):
        raise AccountsError(
            f"{source} has the token of a subscription, which its vendor gives to one person; "
            "take a key of the API"
        )
    return found.encode()


@attrs.frozen
class UpstreamAccount:
    """One account at a vendor.

    Attributes:
        name: as the file has it.
        vendor: as paths of the proxy have it, such as ``openai`` or ``custom/own``.
        origins: the only addresses that its key is sent to.
        credential: its key.
        shared: whether several callers use it, who must not read each other's work.
        organisations, teams, keys: whom it serves: whoever is in one of each that is not empty.
        paths: more paths that may pass, for a vendor of which guard knows too few.
        members: members of a request that may pass although they may name stored work.
        safety_key: keys the hashes by which the vendor tells persons apart; None: it is not told.
    """

    name: str
    vendor: str
    origins: frozenset[str]
    credential: Credential
    shared: bool = True
    organisations: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    safety_key: Credential | None = None

    @property
    def facts(self) -> Vendor:
        """What is known of its vendor."""
        return VENDORS.get(_NAMES_IN_FACTS.get(self.vendor, self.vendor)) or Vendor(self.vendor)

    def serves(self, caller: Caller) -> bool:
        """Return whether a caller may use it."""
        return all(
            not wanted or has in wanted
            for wanted, has in (
                (self.organisations, caller.organisation_id),
                (self.teams, caller.team),
                (self.keys, caller.identity),
            )
        )

    def header(self) -> tuple[bytes, bytes]:
        """Return the header that carries its key."""
        name, _, value = self.facts.credential.partition(": ")
        return name.encode(), value.encode().replace(b"{}", self.credential.value())


@attrs.frozen
class UpstreamAccounts:
    """All accounts of a proxy, in the order of their file."""

    accounts: tuple[UpstreamAccount, ...]

    @classmethod
    def read(cls, path: Path, environ: Mapping[str, str] = os.environ) -> Self:
        """Read a file of accounts.

        Raises:
            AccountsError: it cannot be used.
        """
        try:
            tables = tomllib.loads(path.read_text("utf-8"))
        except OSError as exc:
            raise AccountsError(f"{path}: {exc.strerror or exc}") from None
        except ValueError as exc:
            raise AccountsError(f"{path}: {exc}") from None
        found = []
        for name, table in tables.items():
            try:
                found.append(_account(name, table, path.parent, environ))
            except AccountsError as exc:
                raise AccountsError(f"{path}: [{name}]: {exc}") from None
        if not found:
            raise AccountsError(f"{path} names no account, such as [anthropic]")
        accounts = cls(tuple(found))
        accounts.upstreams()
        return accounts

    def upstreams(self) -> dict[str, str]:
        """Return the address of each vendor that has a single one.

        Raises:
            AccountsError: two accounts of such a vendor differ in it.
        """
        found: dict[str, str] = {}
        for each in self.accounts:
            if each.vendor in REGIONAL:
                continue
            origin = next(iter(each.origins))
            if len(each.origins) > 1 or found.setdefault(each.vendor, origin) != origin:
                raise AccountsError(
                    f"{each.vendor} has one address; call the other one vendor = 'custom/NAME'"
                )
        return found

    def find(self, vendor: str, origin: str, caller: Caller) -> UpstreamAccount | None:
        """Return the first account that serves a caller at an address."""
        return next(
            (
                each
                for each in self.accounts
                if each.vendor == vendor and origin.lower() in each.origins and each.serves(caller)
            ),
            None,
        )


_LISTS: Final = ("organisations", "teams", "keys", "paths", "members")
_KNOWN: Final = {
    "vendor", "origins", "credential_file", "credential_env", "shared", "safety_key_file",
    "safety_key_env", *_LISTS,
}  # fmt: skip


def _account(name: str, table: Any, folder: Path, environ: Mapping[str, str]) -> UpstreamAccount:
    if not isinstance(table, dict):
        raise AccountsError("an account is a table: [NAME], and its settings below it")
    if unknown := sorted(table.keys() - _KNOWN):
        raise AccountsError(f"{unknown[0]} is none of {', '.join(sorted(_KNOWN))}")
    vendor = table.get("vendor", name)
    if vendor in _SIGNED_IN:
        raise AccountsError(f"{vendor} takes the token of a person, and no key can stand for it")
    known = {*ORIGINS, *REGIONAL} - {*_SIGNED_IN}
    if vendor not in known and not str(vendor).startswith("custom/"):
        raise AccountsError(f"vendor is one of {', '.join(sorted(known))}, or custom/NAME")
    credential = _secret(table, "credential", folder, environ)
    if credential is None:
        raise AccountsError("credential_file or credential_env says where the vendor's key is")
    shared = table.get("shared", True)
    if not isinstance(shared, bool):
        raise AccountsError("shared is true or false")
    lists = {key: frozenset(_texts(key, table.get(key, []))) for key in _LISTS}
    if not shared and len(lists["keys"]) != 1:
        raise AccountsError("shared = false needs keys = ['ID'], with the one key whose it is")
    return UpstreamAccount(
        name=name,
        vendor=vendor,
        origins=frozenset(_origins(vendor, table.get("origins"))),
        credential=credential,
        shared=shared,
        safety_key=_secret(table, "safety_key", folder, environ),
        **lists,
    )


def _secret(
    table: dict[str, Any], name: str, folder: Path, environ: Mapping[str, str]
) -> Credential | None:
    file, variable = table.get(f"{name}_file"), table.get(f"{name}_env")
    if file is None and variable is None:
        return None
    if file is not None and variable is not None:
        raise AccountsError(f"{name}_file or {name}_env, one of them")
    return Credential(None if file is None else folder / file, variable or "", environ)


def _texts(key: str, found: Any) -> Iterable[str]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise AccountsError(f"{key} is a list of texts")
    return found


def _origins(vendor: str, given: Any) -> list[str]:
    if given is None and vendor in ORIGINS:
        return [ORIGINS[vendor]]
    found = []
    for url in _texts("origins", [] if given is None else given):
        try:
            origin = origin_of(url)
        except ValueError as exc:
            raise AccountsError(str(exc)) from None
        parts = urlsplit(url)
        if parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
            raise AccountsError(f"{url} has more than a host and a port")
        host = parts.hostname or ""
        if parts.scheme == "http" and not vendor.startswith("custom/") and not is_local(host):
            raise AccountsError(f"{url} would carry the key in the clear; begin with https://")
        found.append(origin.lower())
    if not found:
        raise AccountsError("origins says which addresses its key is sent to")
    return found
