"""Passes what instrumentation sees to the account of the caller in whose scope it happens."""

from __future__ import annotations

from types import FrameType
from typing import Any

from guard.asking.request_hold import RequestHold
from guard.control.bodies import TaskRequest
from guard.control.threads import ThreadRequest
from guard.core.request_bound import RequestBound
from guard.instrumentation.request_gate import PutLimit, takes_no_limit
from guard.runtime.account import KeyAccount, account_in
from guard.scope.scope import Scope, current_scope


class ByScope:
    """Passes each call to the same part of the account that its scope belongs to.

    It takes the place of the parts that ``Instrumentation`` is made with: ``RequestGate``,
    ``ToolGate``, and the functions that record and check.

    Args:
        own: the account for everything outside of callers' scopes.
    """

    def __init__(self, own: KeyAccount) -> None:
        self.requests = _Requests(own)
        self.tools = _Tools(own)
        self._own = own

    def record(
        self, kind: str, payload: Any, scope: Scope | None = None, at_ns: int | None = None
    ) -> int:
        """Put an event into the buffer of its account."""
        scope = current_scope.get() if scope is None else scope
        return account_in(scope, self._own).events.record(kind, payload, scope, at_ns)

    def check(self, scope: Scope) -> bool:
        """Refuse the next LLM request of a scope that is killed, paused or exhausted."""
        return account_in(scope, self._own).enforcement.check_request(scope)

    def enter(self, frame: FrameType | None, llm: bool) -> TaskRequest | ThreadRequest | None:
        """Register a request of the current scope, so that a kill can stop it."""
        account = account_in(current_scope.get(), self._own)
        return account.enforcement.enter_request(frame, llm)

    def leave(self, request: TaskRequest | ThreadRequest) -> None:
        """Report that such a request has ended."""
        # By the request's scope: the current one may be another by now.
        account_in(request.scope, self._own).enforcement.leave_request(request)


class _Requests:
    """The gate of LLM requests."""

    def __init__(self, own: KeyAccount) -> None:
        self._own = own

    def hold(self, scope: Scope, bound: RequestBound) -> RequestHold | None:
        """Cover a request from a lease, without a round trip."""
        return account_in(scope, self._own).requests.hold(scope, bound)

    def counted(self, scope: Scope, bound: RequestBound, path: str, body: bytes) -> RequestBound:
        """Return a request's bound with the digest of its prompt, where repeats are counted."""
        return account_in(scope, self._own).requests.counted(scope, bound, path, body)

    def ask(
        self, scope: Scope, bound: RequestBound, limit: PutLimit = takes_no_limit
    ) -> RequestHold:
        """Ask the gateway; blocks the calling thread."""
        return account_in(scope, self._own).requests.ask(scope, bound, limit)

    async def ask_async(
        self, scope: Scope, bound: RequestBound, limit: PutLimit = takes_no_limit
    ) -> RequestHold:
        """Like :meth:`ask`, without blocking the caller's loop."""
        return await account_in(scope, self._own).requests.ask_async(scope, bound, limit)


class _Tools:
    """The tool policy."""

    def __init__(self, own: KeyAccount) -> None:
        self._own = own

    def applies(self, scope: Scope) -> bool:
        """Return whether there are tool rules for answers in this scope."""
        return account_in(scope, self._own).tools.applies(scope)

    def results(self, body: bytes) -> None:
        """Name the tools without a check whose results a request sends to a model."""
        account_in(current_scope.get(), self._own).tools.results(body)

    def check(self, scope: Scope, names: list[str]) -> list[str]:
        """Check tools against the local rules; return those that the gateway decides about."""
        return account_in(scope, self._own).tools.check(scope, names)

    def unreadable(self, scope: Scope) -> None:
        """Refuse an answer whose tools cannot be read, if any tool might be refused."""
        account_in(scope, self._own).tools.unreadable(scope)

    def ask(self, scope: Scope, name: str) -> None:
        """Ask the gateway about a tool; blocks the calling thread."""
        account_in(scope, self._own).tools.ask(scope, name)

    async def ask_async(self, scope: Scope, name: str) -> None:
        """Like :meth:`ask`, without blocking the caller's loop."""
        await account_in(scope, self._own).tools.ask_async(scope, name)
