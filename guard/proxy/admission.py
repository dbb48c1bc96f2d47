"""Decides whose money a request spends. Here: everything is charged to the proxy's own key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from guard.core.wire import NAMED
from guard.proxy import sessions
from guard.proxy.headers import Pairs
from guard.proxy.names import RequestNames, asks_for_cost, named_by
from guard.scope.scope import current_scope


class RequestAdmission(Protocol):
    """Decides whose money a request spends."""

    def enter(
        self, headers: Pairs, key: str | None, *, asks: bool = True
    ) -> contextlib.AbstractAsyncContextManager[RequestNames]:
        """Run the block in the scope that a request is charged to.

        Args:
            headers: the headers of the request.
            key: guard's key in the path; None without one.
            asks: whether a model works for it.

        Raises:
            NameRefusedError: it names what its key may not.
            NoSessionError: it names no session, and has to.
        """


class OwnKey:
    """Charges everything to the key of this process.

    Args:
        by_tool: whether each tool is a workflow of its own, so that it can be stopped by its name.
    """

    def __init__(self, *, by_tool: bool = False) -> None:
        self._by_tool = by_tool

    @contextlib.asynccontextmanager
    async def enter(
        self, headers: Pairs, key: str | None, *, asks: bool = True
    ) -> AsyncIterator[RequestNames]:
        """Run the block with the tool as the agent, and its session as the run."""
        named = named_by(headers, NAMED, shows_cost=asks_for_cost(headers))
        outer = current_scope.get()
        agent = sessions.agent_of(headers) or outer.agent
        inner = outer.evolve(agent=agent, run_id=named.run or outer.run_id)
        workflow = named.workflow or (agent if self._by_tool else None)
        if workflow is not None:
            inner = inner.evolve(workflow_id=workflow)
        token = current_scope.set(inner)
        try:
            with named.applied():
                yield named
        finally:
            current_scope.reset(token)
