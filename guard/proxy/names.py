"""What a request names itself, in headers of guard's or in the vendor's own fields; no I/O."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import attrs
import msgspec
from msgspec import Struct

from guard.core import wire
from guard.core.tags import check_tags, merged
from guard.core.wire import TAGS_MAX, require_name
from guard.proxy import sessions
from guard.proxy.headers import Pairs, value_of
from guard.scope.scope import current_scope

SHOWN: Final = b"x-guard-cost"
"""Header by which a request asks for its cost at the end of a stream, and of whole answers."""

REMAINING: Final = b"x-guard-remaining"
RUN: Final = b"x-guard-run"

_VALUE: Final = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class NameRefusedError(Exception):
    """A request names what its key may not, or not as a name is written; the text says what."""


class NoSessionError(Exception):
    """A request to a model names no session, and the proxy wants one."""


@attrs.frozen
class RequestNames:
    """What a request names itself.

    Attributes:
        workflow, user: None where it names none.
        run: the one that it names, or the session that its tool does.
        tags: names and values.
        reads_user: whether a user in the vendor's own fields counts.
        shows_cost: whether its answer has what it has cost.
    """

    workflow: str | None = None
    user: str | None = None
    run: str | None = None
    tags: dict[str, str] = attrs.field(factory=dict)
    reads_user: bool = False
    shows_cost: bool = False

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Run the block for the user, and with the tags."""
        outer = current_scope.get()
        try:
            tags = merged(outer.tags, self.tags)
        except ValueError as exc:
            raise NameRefusedError(f"x-guard-tags: {exc}") from None
        token = current_scope.set(outer.evolve(user=self.user or outer.user, tags=tags))
        try:
            yield
        finally:
            current_scope.reset(token)


def named_by(
    headers: Pairs, may_name: Collection[str], *, shows_cost: bool = False
) -> RequestNames:
    """Return what a request names.

    Args:
        headers: those of the request.
        may_name: what its key may name.
        shows_cost: whether its key is told what requests have cost.

    Raises:
        NameRefusedError: it names something else, or not as a name is written.
    """
    found: dict[str, str] = {}
    for kind in wire.NAMED:
        name = f"x-guard-{kind}"
        values = [value for key, value in headers if key == name.encode()]
        if not values:
            continue
        if kind not in may_name:
            raise NameRefusedError(
                f"this key may not name its {kind}: leave {name} out, or ask who made the key for "
                f"--may-name {kind}"
            )
        if len(values) > 1 or _VALUE.fullmatch(values[0]) is None:
            raise NameRefusedError(f"{name} is given once, in characters of ASCII")
        found[kind] = values[0].decode("ascii")
        if kind != "tags":
            try:
                require_name(name, found[kind])
            except ValueError as exc:
                raise NameRefusedError(str(exc)) from None
    return RequestNames(
        found.get("workflow"),
        found.get("user"),
        found.get("run") or sessions.run_of(headers),
        _tags(found["tags"]) if "tags" in found else {},
        "user" in may_name and "user" not in found,
        shows_cost,
    )


def asks_for_cost(headers: Pairs) -> bool:
    """Return whether a request asks for its cost at the end of a stream."""
    return value_of(headers, SHOWN) is not None


def _tags(text: str) -> dict[str, str]:
    """Read tags such as ``env=prod,job=nightly``."""
    parts = text.split(",", TAGS_MAX)
    if len(parts) > TAGS_MAX:
        raise NameRefusedError(f"x-guard-tags has at most {TAGS_MAX} tags")
    found = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name.strip() in found:
            raise NameRefusedError("x-guard-tags is written env=prod,job=nightly, each name once")
        found[name.strip()] = value.strip()
    try:
        check_tags(found)
    except ValueError as exc:
        raise NameRefusedError(f"x-guard-tags: {exc}") from None
    return found


class _Metadata(Struct):
    user_id: Any = None


class _Body(Struct):
    safety_identifier: Any = None
    user: Any = None
    metadata: Any = None


def user_in(body: bytes) -> str | None:
    """Return the user that a body names in a field of its vendor's, if that can be a user's id.

    >>> user_in(b'{"model": "gpt-4o", "user": "account-17"}')
    'account-17'
    """
    try:
        read = msgspec.json.decode(body, type=_Body)
        about = msgspec.convert(read.metadata, _Metadata) if read.metadata else _Metadata()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    for found in (read.safety_identifier, read.user, about.user_id):
        if isinstance(found, str) and found:
            with contextlib.suppress(ValueError):
                return require_name("a user's id", found)
    return None
