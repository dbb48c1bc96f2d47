"""``caller``: work on behalf of another key's owner, with a key of role ``proxy``."""

from __future__ import annotations

from typing import Any, Self

from guard.breaker.exceptions import GuardConfigError
from guard.breaker.refusals import unwrap
from guard.breaker.rejection import CallerRejectedError
from guard.contexts.boundary import ContextScope, span_below
from guard.core.wire import require_name
from guard.facade import enforcing_runtime_async
from guard.runtime.callers import CallerAccount as Caller
from guard.scope.scope import Entry, Scope

__all__ = ["Caller", "CallerRejectedError", "caller", "introduce"]


async def introduce(api_key: str) -> Caller:
    """Return the caller with a key; asks the gateway unless it has confirmed the key lately.

    Call it for each request that comes in: a known key costs nothing. An account that was not used
    for a minute is closed; this opens it again.

    Args:
        api_key: the caller's own key.

    Raises:
        CallerRejectedError: it is unknown, revoked or expired, or not for this proxy.
        GuardAuthenticationError: the runtime's key is not a proxy's (GD-A005), or is revoked.
        GuardProtocolError: the gateway is too old for callers.
        GuardTransportError: the gateway cannot be asked, or has asked for a pause.
        GuardConfigError: guard is switched off.
    """
    runtime = await enforcing_runtime_async()
    if runtime is None:
        raise GuardConfigError("guard is switched off, so no caller can be charged")
    return await runtime.callers.introduce(api_key)


class caller(ContextScope):  # noqa: N801  # used like a function: `with caller(who):`
    """Do everything inside for a caller: with its money, its policies and its kills.

    Nothing of the code around it applies inside: no workflow, call, chain, user, tag or option. A
    refusal inside is raised there, and not once more on leaving.

    Args:
        who: the caller.
        run_id: id of the run; without one, that of this process's run for the caller.
        agent: identity of the agent.
        workflow: name of the workflow; ignored if the caller's key is for one workflow alone.

    Raises:
        RuntimeError: on entering, when the account of ``who`` was closed because it was not used.
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
        self.who = who
        self.run_id = None if run_id is None else require_name("a run's id", run_id)
        self.agent = None if agent is None else require_name("an agent's name", agent)
        self.workflow = None if workflow is None else require_name("a workflow's name", workflow)
        super().__init__(None)

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
        self.who.enter(scope.entry)  # keeps the account open until `leave`

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        assert scope.entry is not None
        self.who.leave(scope.entry)

    def _at_edge(self, exc: BaseException | None, entry: Entry) -> BaseException | None:
        return None if exc is None else unwrap(exc)
