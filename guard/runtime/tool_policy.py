"""The tool policy at the HTTP client: refuses or asks about the tools that a model wants."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import attrs

from guard.breaker.exceptions import GuardError, GuardToolBlockedError, WorkflowKilledInterrupt
from guard.control.bodies import require_task
from guard.control.enforcement import Enforcement, refusal_in
from guard.control.warnings import WarningLog
from guard.core import wire
from guard.core.ids import IdFactory
from guard.core.tags import tags_of
from guard.core.tool_rules import ScopeToolRules
from guard.loop import BackgroundLoop
from guard.runtime.gate import Gate
from guard.runtime.llm_requests import Observed, Report, ReportAsync
from guard.runtime.questions import Asking, Grant
from guard.scope.scope import Scope

_IDLE_S: Final = 2.0
"""How long the money of an allowed tool call waits for the protected call of that tool."""

_VALID_S: Final = 120.0
"""How long such a protected call is not asked about again."""

_KEPT: Final = 1000
"""Maximum allowed tool calls that wait for their protected calls."""

_Place = tuple[str | None, str | None, str]
"""Where an allowed call was asked about: run or trace, user, tool."""


@attrs.define(eq=False)
class _Allowed:
    """A tool call that the gateway has allowed when the model asked for it."""

    place: _Place
    reply: wire.GateReply
    until_s: float


class ToolPolicy:
    """Checks the tools that answers ask for; remembers what the gateway has allowed.

    Args:
        enforcement: holds the tool rules.
        gate: asks the gateway.
        background: its loop.
        ids: make call ids.
        gates_requests: returns whether LLM requests are covered one by one.
        warnings: returns what reports the gateway's warnings.
        report, report_async: take errors for the hooks.
        observed: takes what an answer would have been refused with, and it goes on; None refuses.
    """

    def __init__(
        self,
        enforcement: Enforcement,
        gate: Gate,
        background: BackgroundLoop,
        ids: IdFactory,
        gates_requests: Callable[[], bool],
        warnings: Callable[[], WarningLog],
        report: Report,
        report_async: ReportAsync,
        observed: Observed | None = None,
    ) -> None:
        self._observed = observed
        self._enforcement = enforcement
        self._gate = gate
        self._background = background
        self._ids = ids
        self._gates_requests = gates_requests
        self._warnings = warnings
        self._report = report
        self._report_async = report_async
        self.allowed: OrderedDict[int, _Allowed] = OrderedDict()
        """Tool calls that wait for their protected calls; without any, :meth:`take` finds none."""
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Forget what the parent's calls were allowed."""
        self.allowed = OrderedDict()
        self._lock = threading.Lock()

    # -- the answer -------------------------------------------------------------------------------

    def applies(self, scope: Scope) -> bool:
        """Tell whether there are tool rules for answers in this scope."""
        return self._enforcement.control.tools is not None and self._rules(scope) is not None

    def _rules(self, scope: Scope) -> ScopeToolRules | None:
        rules = self._enforcement.control.tools
        if rules is None or (scope.workflow_id is None and scope.call is None):
            return None
        return rules.for_scope(scope.workflow_id, scope.agent)

    def check(self, scope: Scope, names: list[str]) -> list[str]:
        """Check tools against the local rules; return those that the gateway decides about.

        Raises:
            Refusal: one of them is blocked.
        """
        rules = self._rules(scope)
        questions: list[str] = []
        for name in names if rules is not None else ():
            verdict = rules.verdict(name)  # type: ignore[union-attr]  # without rules, no names
            if verdict is None:
                continue
            if verdict.kind == "ask":
                questions.append(name)
                continue
            error = GuardToolBlockedError(
                workflow_id=scope.workflow_id,
                reason=verdict.reason,
                action="block",
                tool_name=name[: wire.NAME_LENGTH_MAX],
                details={"policy": verdict.policy, "policy_version": verdict.policy_version},
            )
            if self._observed is None:
                raise refusal_in(scope, error)
            self._observed(error, scope, name)
        return questions

    def ask(self, scope: Scope, name: str) -> None:
        """Ask the gateway about a tool; blocks the calling thread.

        Raises:
            Refusal: refused, or the gateway cannot be asked.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        request = self._request(scope, name)
        try:
            grant = self._gate.ask(Asking(request))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            self._report(exc, "gate", scope, name)
            self._refuse(scope, name, exc)
            return
        self._remember(scope, request, grant)

    async def ask_async(self, scope: Scope, name: str) -> None:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
        request = self._request(scope, name)
        try:
            require_task()
            grant = await self._gate.ask_async(Asking(request))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            await self._report_async(exc, "gate", scope, name)
            self._refuse(scope, name, exc)
            return
        self._remember(scope, request, grant)

    def _refuse(self, scope: Scope, name: str, exc: GuardError | WorkflowKilledInterrupt) -> None:
        if self._observed is None:
            raise refusal_in(scope, exc) from None
        self._observed(exc, scope, name)

    def _request(self, scope: Scope, name: str) -> wire.GateRequest:
        name = name[: wire.NAME_LENGTH_MAX]
        chain = None
        if scope.chain_id is not None:
            chain = wire.Chain(scope.chain_id, "start" if scope.chain_op == "start" else "continue")
        return wire.GateRequest(
            call_id=self._ids.uuid7(time.time_ns() // 1_000_000),
            kind="tool",
            function=name,
            model=scope.model or wire.UNKNOWN_MODEL,
            tools=list(scope.tools),
            tool_name=name,
            workflow_id=scope.workflow_id,
            run_id=scope.run_id,
            chain=chain,
            agent=scope.agent,
            user=scope.user,
            tags=tags_of(scope.tags),
            trace_id=scope.trace_id,
            span_id=scope.span_id,
            parent_span_id=scope.parent_span_id,
            gates_requests=self._gates_requests(),
        )

    # -- once -------------------------------------------------------------------------------------

    def take(self, scope: Scope, tool_name: str, *, sensitive: bool) -> wire.GateReply | None:
        """Return what the gateway has answered about the next protected call of a tool, once.

        None when it has not been asked: no answer in this run has named the tool, or an earlier
        protected call was the one.

        Args:
            scope: of the protected call.
            tool_name: of the tool.
            sensitive: whether its caller declares it as sensitive.
        """
        if not self.allowed:
            return None
        if sensitive and (rules := self._rules(scope)) is not None and rules.blocks_sensitive:
            return None
        place, now_s = _place(scope, tool_name), time.monotonic()
        with self._lock:
            for key, allowed in self.allowed.items():
                if allowed.place == place and now_s < allowed.until_s:
                    del self.allowed[key]
                    return allowed.reply
        return None

    def _remember(self, scope: Scope, request: wire.GateRequest, grant: Grant) -> None:
        reply, name = grant.reply, request.tool_name or request.function
        if reply is None:  # never without a lease, and such a question names none
            return
        self._warnings().report(reply.warnings, scope, name)
        reply.warnings = []
        now_s = time.monotonic()
        allowed = _Allowed(_place(scope, name), reply, now_s + _VALID_S)
        with self._lock:
            for key in [k for k, known in self.allowed.items() if known.until_s <= now_s]:
                del self.allowed[key]
            self.allowed[id(allowed)] = allowed
            crowded = len(self.allowed) > _KEPT
            dropped = self.allowed.popitem(last=False)[1] if crowded else None
        if dropped is not None:
            self._background.call_soon(self._give_back, dropped)
        self._background.call_soon(self._give_back_later, allowed)

    def _give_back_later(self, allowed: _Allowed) -> None:
        asyncio.get_running_loop().call_later(_IDLE_S, self._give_back_unused, allowed)

    def _give_back_unused(self, allowed: _Allowed) -> None:
        """Release the money of a tool call that its framework runs by itself."""
        with self._lock:
            if id(allowed) not in self.allowed:
                return
            reply = allowed.reply
            allowed.reply = wire.GateReply("allow", reply.call_id)
        self._gate.give_back(Grant(reply))

    def _give_back(self, allowed: _Allowed) -> None:
        self._gate.give_back(Grant(allowed.reply))


def _place(scope: Scope, tool_name: str) -> _Place:
    """Return where an allowed call is looked for: the run, outside of one the trace; its user."""
    return scope.run_id or scope.trace_id, scope.user, tool_name
