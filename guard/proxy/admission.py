"""Decides whose money a request spends. Here: everything is charged to the proxy's own key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from guard.proxy import sessions
from guard.proxy.headers import Pairs
from guard.scope.scope import current_scope


class RequestAdmission(Protocol):
    """Decides whose money a request spends."""

    def enter(
        self, headers: Pairs, key: str | None
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Run the block in the scope that a request is charged to.

        Args:
            headers: of the request.
            key: guard's key in the path; None without one.
        """


class OwnKey:
    """Charges everything to the key of this process.

    Args:
        by_tool: whether each tool is a workflow of its own, so that it can be stopped by its name.
    """

    def __init__(self, *, by_tool: bool = False) -> None:
        self._by_tool = by_tool

    @contextlib.asynccontextmanager
    async def enter(self, headers: Pairs, key: str | None) -> AsyncIterator[None]:
        """Run the block with the tool as the agent, and its session as the run."""
        outer = current_scope.get()
        agent = sessions.agent_of(headers) or outer.agent
        inner = outer.evolve(agent=agent, run_id=sessions.run_of(headers) or outer.run_id)
        if self._by_tool and agent is not None:
            inner = inner.evolve(workflow_id=agent)
        token = current_scope.set(inner)
        try:
            yield
        finally:
            current_scope.reset(token)
