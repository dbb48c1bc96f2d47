"""``caller``: work for somebody else, with a key of role ``proxy``."""

from __future__ import annotations

from typing import Any, Self

from guard.contexts.boundary import Boundary
from guard.scope.scope import Entry, Scope


class Caller:
    """Somebody for whom this process works; made by :func:`introduce`.

    Attributes:
        label: tells callers apart in logs; no key can be made of it.
        workflow: the only workflow that the caller's key is for; None when it is for all.
    """

    label: str
    workflow: str | None

    @property
    def is_rejected(self) -> bool:
        """Whether the gateway has refused the key since it was introduced."""
        raise NotImplementedError


async def introduce(api_key: str) -> Caller:
    """Return the caller with a key; asks the gateway, unless it has just said that it is valid.

    Args:
        api_key: the caller's own key.

    Raises:
        CallerRejectedError: it is unknown, revoked or expired, or not for this proxy.
        GuardAuthenticationError: the runtime's key is not a proxy's (GD-A005), or is revoked.
        GuardProtocolError: the gateway is too old for callers.
        GuardTransportError: the gateway cannot be asked, or wants to be left alone.
    """
    raise NotImplementedError


class caller(Boundary):  # noqa: N801  # used like a function: `with caller(who):`
    """Do everything inside for a caller: its money, its policies, its kills.

    What was refused inside is raised there, and not once more on leaving.

    Args:
        who: the caller.
        run_id: of the run that this belongs to; without one, of this process's for the caller.
        agent: identity of the agent.
    """

    kind = "caller"

    def __init__(
        self, who: Caller, *, run_id: str | None = None, agent: str | None = None
    ) -> None:
        super().__init__(None)
        self.who = who
        self.run_id = run_id
        self.agent = agent

    def _again(self) -> Self:
        return type(self)(self.who, run_id=self.run_id, agent=self.agent)

    def _raises(self, entry: Entry) -> bool:
        return False

    def _changes(self, outer: Scope) -> dict[str, Any]:
        raise NotImplementedError
