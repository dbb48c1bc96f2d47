"""``user``, ``tags``, ``ask``: the user and the purpose of the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from guard.contexts.boundary import ContextScope
from guard.core.notes import note_of
from guard.core.tags import check_tags, merged
from guard.scope.scope import Scope


class user(ContextScope):  # noqa: N801  # used like a function: `with guard.context.user("x"):`
    """Set the user of the application for whose sake the work is done.

    Budgets of users count the work for each of them, in every workflow and process; usage is
    summed by user. The id is the application's own choice: an account's number or a random id will
    do, and nothing personal is needed. It goes to the gateway with each call and event.

    Args:
        user_id: 1 to 256 characters.

    Attributes:
        user_id: the id.

    Raises:
        TypeError, ValueError: not a string, empty or too long.

    Example:
        >>> with user("account-17") as who:
        ...     who.user_id
        'account-17'
    """

    kind = "user"

    def __init__(self, user_id: str) -> None:
        if not isinstance(user_id, str):
            raise TypeError(f"a user's id is a string, not {type(user_id).__name__}")
        super().__init__(user_id)
        self.user_id = user_id

    def _again(self) -> Self:
        return type(self)(self.user_id)

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"user": self.user_id}


class tags(ContextScope):  # noqa: N801  # used like a function: `with guard.context.tags(team="x"):`
    """Tag the work: names and values that are stored with its events.

    Inner tags add to outer ones; the same name takes the inner value. At most 16 hold at once.

    Args:
        tags: names (1 to 64 characters) and values (strings, at most 256 characters).
        more: the same, for names that are Python names.

    Raises:
        TypeError, ValueError: a name or value is not a string or too long, or they are too many.

    Example:
        >>> with tags(team="billing", feature="summary"):
        ...     pass
    """

    kind = "tags"

    def __init__(self, tags: Mapping[str, str] | None = None, /, **more: str) -> None:
        if tags is not None and not isinstance(tags, Mapping):
            raise TypeError(f"tags takes names and values, not {type(tags).__name__}")
        self.tags = {**(tags or {}), **more}
        check_tags(self.tags)
        super().__init__(None)

    def _again(self) -> Self:
        return type(self)(self.tags)

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"tags": merged(outer.tags, self.tags)}


class ask(ContextScope):  # noqa: N801  # used like a function: `with guard.context.ask("Pay?"):`
    """Show something to the person who is asked to approve a call that is made inside.

    It goes to the gateway with each gated call, is stored with the approval if one is needed, and
    is shown to the operator who answers. Nothing else is shown; tool arguments only where ``show``
    names them. An inner block replaces an outer one; without arguments nothing is shown.

    Args:
        message: a sentence or two; at most 1000 characters.
        details: names and JSON values, copied; with the message at most 8192 bytes as JSON.
        show: names of arguments of the protected functions that are called inside: their values
            are shown as well, as ``arguments`` of the details.

    Raises:
        TypeError, ValueError: it has another type, is too long, or is nothing that JSON represents.

    Example:
        >>> with ask(message="Pay this invoice?", details={"to": "ACME", "amount": "12.50 EUR"}):
        ...     pass
    """

    kind = "ask"

    def __init__(
        self,
        message: str | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        show: Iterable[str] = (),
    ) -> None:
        self._note = note_of(message, details, show)
        super().__init__(None)

    def _again(self) -> Self:
        again = type(self)()
        again._note = self._note
        return again

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"note": self._note}
