"""Whose money a request spends, where many programs share a proxy: each names its own key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from guard.contexts.caller import caller, introduce
from guard.proxy import sessions
from guard.proxy.headers import OWN_KEY, Pairs, value_of
from guard.proxy.names import NameRefusedError, NoSessionError, RequestNames, named_by


class NoKeyError(Exception):
    """A request names no key to charge."""


class CallersKeys:
    """Each request is charged to the key that it names.

    Args:
        require_session: whether requests to models have to name their session.
    """

    def __init__(self, *, require_session: bool = False) -> None:
        self._require_session = require_session

    @contextlib.asynccontextmanager
    async def enter(
        self, headers: Pairs, key: str | None, *, asks: bool = True
    ) -> AsyncIterator[RequestNames]:
        """Run the block in the scope of the caller whose key the request names.

        The header wins over the path.

        Raises:
            NoKeyError: it names none.
            CallerRejectedError: the gateway refuses the key.
            NameRefusedError: the request names what the key may not.
            NoSessionError: it names no session, and has to.
        """
        given = value_of(headers, OWN_KEY)
        api_key = key if given is None else given.decode("latin-1").strip()
        if not api_key:
            raise NoKeyError
        who = await introduce(api_key)
        named = named_by(headers, who.may_name, shows_cost=who.shows_cost)
        if None not in (who.workflow, named.workflow) and who.workflow != named.workflow:
            raise NameRefusedError("this key is for one workflow, and x-guard-workflow is another")
        if named.run is None and asks and self._require_session:
            raise NoSessionError
        agent = sessions.agent_of(headers)
        with (
            caller(who, run_id=named.run, agent=agent, workflow=named.workflow),
            named.applied(),
        ):
            yield named
