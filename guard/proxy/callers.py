"""Whose money a request spends, where many programs share a proxy: each names its own key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from guard.contexts.caller import caller, introduce
from guard.proxy import sessions
from guard.proxy.headers import OWN_KEY, Pairs, value_of


class NoKeyError(Exception):
    """A request names no key to charge."""


class CallersKeys:
    """Each request is charged to the key that it names."""

    @contextlib.asynccontextmanager
    async def enter(self, headers: Pairs, key: str | None) -> AsyncIterator[None]:
        """Run the block in the scope of the caller whose key the request names.

        The header wins over the path.

        Raises:
            NoKeyError: it names none.
            CallerRejectedError: the gateway refuses the key.
        """
        named = value_of(headers, OWN_KEY)
        api_key = key if named is None else named.decode("latin-1").strip()
        if not api_key:
            raise NoKeyError
        who = await introduce(api_key)
        run_id, agent = sessions.run_of(headers), sessions.agent_of(headers)
        with caller(who, run_id=run_id, agent=agent):
            yield
