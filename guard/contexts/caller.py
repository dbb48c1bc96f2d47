"""``caller``: work for somebody else, with a key of role ``proxy``."""

from __future__ import annotations

from typing import Any, Self

from guard.breaker.exceptions import GuardConfigError
from guard.breaker.refusals import unwrap
from guard.breaker.rejection import CallerRejectedError
from guard.contexts.boundary import Boundary, span_below
from guard.core.wire import require_name
from guard.facade import enforcing_runtime_async
from guard.runtime.callers import CallerAccount as Caller
from guard.scope.scope import Entry, Scope

__all__ = ["Caller", "CallerRejectedError", "caller", "introduce"]


async def introduce(api_key: str) -> Caller:
    """Return the caller with a key; asks the gateway, unless it has just said that it is valid.

    Call it for each request that comes in: what is known costs nothing. An account that nobody has
    used for a minute is closed, and opened again by this.

    Args:
        api_key: the caller's own key.

    Raises:
        CallerRejectedError: it is unknown, revoked or expired, or not for this proxy.
        GuardAuthenticationError: the runtime's key is not a proxy's (GD-A005), or is revoked.
        GuardProtocolError: the gateway is too old for callers.
        GuardTransportError: the gateway cannot be asked, or wants to be left alone.
        GuardConfigError: guard is switched off.
    """
    runtime = await enforcing_runtime_async()
    if runtime is None:
        raise GuardConfigError("guard is switched off, so no caller can be charged")
    return await runtime.callers.introduce(api_key)


class caller(Boundary):  # noqa: N801  # used like a function: `with caller(who):`
    """Do everything inside for a caller: its money, its policies, its kills.

    Nothing of the code around it counts inside: no workflow, call, chain, user, tag or option. What
    was refused inside is raised there, and not once more on leaving.

    Args:
        who: the caller.
        run_id: of the run that this belongs to; without one, of this process's for the caller.
        agent: identity of the agent.
        workflow: that it belongs to, unless the caller's key is for one alone.

    Raises:
        RuntimeError: on entering, when ``who`` was not used for long, and was closed.
    """

    kind = "caller"

    def __init__(
        self,
        who: Caller,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        workflow: str | None = None,
    ) -> None:
        super().__init__(None)
        self.who = who
        self.run_id = None if run_id is None else require_name("a run's id", run_id)
        self.agent = None if agent is None else require_name("an agent's name", agent)
        self.workflow = None if workflow is None else require_name("a workflow's name", workflow)

    def _again(self) -> Self:
        return type(self)(self.who, run_id=self.run_id, agent=self.agent, workflow=self.workflow)

    def _changes(self, outer: Scope) -> dict[str, Any]:
        who = self.who
        return {
            **dict.fromkeys(
                ("chain_id", "chain_op", "model", "user", "tags", "note", "options", "call")
            ),
            "tools": (),
            "caller": who,
            "workflow_id": who.workflow or self.workflow or who.outside,
            "run_id": self.run_id or who.run_id,
            "agent": self.agent,
            **span_below(outer),
        }

    def _entered(self, scope: Scope) -> None:
        assert scope.entry is not None
        self.who.enter(scope.entry)

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        assert scope.entry is not None
        self.who.leave(scope.entry)

    def _at_edge(self, exc: BaseException | None, entry: Entry) -> BaseException | None:
        return None if exc is None else unwrap(exc)
