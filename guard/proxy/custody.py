"""What passes where the proxy holds the vendor's key.

A request upstream is built from a list of what may pass: nothing in it chooses where the key goes,
no other credential goes beside it, and nothing that is stored at the vendor can be named.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import attrs
import msgspec

from guard.contexts.caller import Caller
from guard.core.usage.request_body import UnreadableError
from guard.gateway.services.keys import SDK_PREFIX
from guard.proxy.accounts import UpstreamAccount, UpstreamAccounts
from guard.proxy.headers import OWN_KEY, Pairs, value_of
from guard.proxy.stored_work import stored_work
from guard.proxy.upstreams import Destination

_KEY_HEADERS: Final = (b"x-api-key", b"x-goog-api-key", b"api-key")
"""Where vendors' clients put a key, beside ``Authorization``."""

_BEARER: Final = re.compile(rb"(?i)bearer +(.*)")

_SENT: Final = frozenset({
    b"accept", b"accept-encoding", b"accept-language", b"content-type", b"content-length",
    b"user-agent", b"anthropic-version", b"anthropic-beta", b"openai-beta", b"originator",
    b"anthropic-dangerous-direct-browser-access", b"x-app", b"x-goog-api-client", b"http-referer",
    b"x-title",
})  # fmt: skip
"""Headers of a request that pass. Not ``Idempotency-Key``: who guesses another caller's key would
get the answer to that."""

_SENT_BEGINNING: Final = b"x-stainless-"

_ANSWERED: Final = frozenset({
    b"content-type", b"content-length", b"content-encoding", b"date", b"cache-control",
    b"retry-after", b"retry-after-ms", b"x-should-retry", b"request-id", b"x-request-id",
    b"x-amzn-requestid", b"openai-processing-ms", b"openai-version", b"x-accel-buffering",
})  # fmt: skip
"""Headers of an answer that pass. Others say how much of the account is used, or whose it is."""

_QUERY: Final = frozenset({b"alt", b"beta", b"api-version"})
_DROPPED_QUERY: Final = frozenset({b"key", b"api_key", b"access_token"})

_PART: Final = r"[A-Za-z0-9_.~-]+(?:(?::|%3[Aa])[0-9]+k?)*"
"""A part of a path that names a model: with a version such as ``:0``, but no further operation."""

_JSON: Final = frozenset({
    b"application/json", b"application/json;charset=utf-8", b'application/json;charset="utf-8"',
})  # fmt: skip
"""Not with another charset, by which the vendor could read other names than are read here."""

_SAFETY: Final = {
    "openai": "safety_identifier", "azure": "safety_identifier", "anthropic": "metadata.user_id",
}  # fmt: skip
"""Where a vendor takes the identifier of a person."""

_SMALL: Final = 32 << 10
"""Bytes of a body that is checked at once, at most some 15 ms; meanwhile nothing else moves."""

_CHECKS: Final = ThreadPoolExecutor(1, "guard-proxy-check")
"""One thread: more would take turns from the server's loop, and be no faster."""


class NotPassedError(Exception):
    """A request that does not pass; the text says what, and what to do."""


class TwoKeysError(Exception):
    """A request names two different guard keys."""


@attrs.frozen
class Passage:
    """What goes upstream in place of a request.

    Attributes:
        account: that pays.
        destination: with the query that passes.
        headers: with exactly one credential.
    """

    account: UpstreamAccount
    destination: Destination
    headers: Pairs = attrs.field(repr=False)


def guard_key(headers: Pairs, destination: Destination) -> str | None:
    """Return the guard key that a request names, wherever its client has put it.

    Raises:
        TwoKeysError: it names two.
    """
    given = [value for name, value in headers if name == OWN_KEY or name in _KEY_HEADERS]
    for name, value in headers:
        if name == b"authorization" and (found := _BEARER.fullmatch(value)) is not None:
            given.append(found[1])
    given += [value for _, name, value in _query(destination) if name in _DROPPED_QUERY]
    keys = {value.strip() for value in given if value.strip().startswith(SDK_PREFIX.encode())}
    if destination.key:
        keys.add(destination.key.encode())
    if len(keys) > 1:
        raise TwoKeysError
    return next((key.decode("latin-1") for key in keys), None)


def without_own_key(headers: Pairs) -> Pairs:
    """Return the headers without guard's own one."""
    return [pair for pair in headers if pair[0] != OWN_KEY]


@attrs.frozen
class Custody:
    """The rules of a proxy that holds its vendors' keys.

    Args:
        accounts: at the vendors.
    """

    accounts: UpstreamAccounts

    def passage(
        self, method: str, destination: Destination, headers: Pairs, caller: Caller
    ) -> Passage:
        """Return what goes upstream.

        Raises:
            NotPassedError: nothing does.
        """
        account = self.accounts.find(destination.vendor, destination.origin, caller)
        if account is None:
            raise NotPassedError(
                f"this proxy has no account at {destination.origin} for this key; ask who runs it"
            )
        stateless = _expression(account.facts.stateless, account.paths)
        if account.shared and not (method == "POST" and stateless.fullmatch(destination.path)):
            raise NotPassedError(
                f"{method} {destination.path} does not pass: callers share the account, and could "
                "reach each other's work; what passes is requests to models"
            )
        if value_of(headers, b"content-encoding") not in (None, b"identity"):
            raise NotPassedError("the request is compressed; send it as it is")
        sent = [pair for pair in headers if pair[0] in _SENT or pair[0].startswith(_SENT_BEGINNING)]
        # What is encoded could not be looked into for the account's names.
        kept = [pair for pair in sent if pair[0] != b"accept-encoding"]
        headers = [*kept, (b"accept-encoding", b"identity"), account.header()]
        return Passage(account, _with_query(destination, account), headers)


def with_safety_identifier(account: UpstreamAccount, body: bytes, person: str) -> bytes:
    """Return a request's body with the vendor's field for a person, where the account sets it.

    Args:
        account: that pays.
        body: the body of a request to a model, an object of JSON.
        person: whose request it is.
    """
    place = _SAFETY.get(account.vendor)
    if account.safety_key is None or place is None:
        return body
    digest = hmac.new(account.safety_key.value(), person.encode(), "sha256").hexdigest()
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    own, _, inner = place.partition(".")
    value: Any = digest
    if inner:
        value = {}
        if own in members:
            value = msgspec.json.decode(members[own], type=dict[str, msgspec.Raw] | None) or {}
        value[inner] = digest
    members[own] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(members)


async def check_body(account: UpstreamAccount, headers: Pairs, body: bytes) -> None:
    """Check that a request names nothing stored.

    Raises:
        NotPassedError: it does, or cannot be read.
    """
    if not account.shared:
        return
    kinds = [value for name, value in headers if name == b"content-type"]
    if not kinds or not all(kind.replace(b" ", b"").lower() in _JSON for kind in kinds):
        raise NotPassedError("the content type is not application/json")
    check = functools.partial(stored_work, body, account.members)
    try:
        if len(body) <= _SMALL:
            member = check()
        else:
            member = await asyncio.get_running_loop().run_in_executor(_CHECKS, check)
    except UnreadableError as exc:
        raise NotPassedError(str(exc)) from None
    if member is not None:
        raise NotPassedError(
            f"{member} may name work that is stored at the vendor, and callers share the "
            "account; send the work itself"
        )


def sent_back_under_custody(headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """Return the headers of an answer that pass."""
    return [pair for pair in headers if pair[0].lower() in _ANSWERED]


def _query(destination: Destination) -> list[tuple[bytes, bytes, bytes]]:
    """Return the parts of the query as they are written, and their decoded names and values."""
    query = destination.target.partition(b"?")[2]
    found = []
    for part in filter(None, query.split(b"&")):
        name, _, value = part.partition(b"=")
        name = unquote_to_bytes(name.replace(b"+", b" "))
        found.append((part, name, unquote_to_bytes(value)))
    return found


def _with_query(destination: Destination, account: UpstreamAccount) -> Destination:
    kept = []
    for part, name, _ in _query(destination):
        if name in _DROPPED_QUERY:
            continue
        if account.shared and name not in _QUERY:
            raise NotPassedError(
                f"the query parameter {name.decode('utf-8', 'replace')!r} does not pass"
            )
        kept.append(part)
    path = destination.target.partition(b"?")[0]
    return attrs.evolve(destination, target=path + (b"?" + b"&".join(kept) if kept else b""))


@functools.cache
def _expression(templates: str, more: frozenset[str]) -> re.Pattern[str]:
    sources = [
        "/" + re.escape(each.lstrip("/")).replace(r"\{\}", _PART)
        for each in (*templates.split(), *sorted(more))
    ]
    return re.compile("|".join(sources))
