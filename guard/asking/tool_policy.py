"""The tool policy at the HTTP client: refuses or asks about the tools that a model wants."""

from __future__ import annotations

import time
from collections.abc import Callable

from guard.asking.gate import Gate
from guard.asking.reports import Reports
from guard.asking.tool_calls import Checkpoint, ToolCall, ToolCalls
from guard.asking.unchecked_tools import UncheckedTools
from guard.breaker.exceptions import GuardError, GuardToolBlockedError, WorkflowKilledInterrupt
from guard.control.bodies import require_task
from guard.control.enforcement import Enforcement, refusal_in
from guard.control.warnings import WarningLog
from guard.core import wire
from guard.core.ids import IdFactory
from guard.core.leases import Grant, Question
from guard.core.tool_rules import Counting, ScopeToolRules, ToolVerdict
from guard.loop import BackgroundLoop
from guard.scope.scope import Scope


class ToolPolicy:
    """Checks the tools that answers ask for; remembers those that the gateway has allowed.

    Besides ``calls`` and ``unchecked`` it has no state; any thread may use it.

    Args:
        enforcement: holds the tool rules.
        gate: asks the gateway.
        background: its loop.
        ids: makes call ids.
        gates_requests: returns whether LLM requests are covered one by one.
        warnings: returns the log of the gateway's warnings.
        reports: takes errors; where it does not enforce, a refused answer is passed on.
        unchecked: called with the name of a tool that has run without a check.

    Attributes:
        calls: the tool calls that the gateway has allowed.
        unchecked: finds the tools that have run without a check.
    """

    def __init__(
        self,
        enforcement: Enforcement,
        gate: Gate,
        background: BackgroundLoop,
        ids: IdFactory,
        gates_requests: Callable[[], bool],
        warnings: Callable[[], WarningLog],
        reports: Reports,
        unchecked: Callable[[str], None],
    ) -> None:
        self._enforcement = enforcement
        self._gate = gate
        self._ids = ids
        self._gates_requests = gates_requests
        self._warnings = warnings
        self._reports = reports
        self.unchecked = UncheckedTools(unchecked)
        self.calls = ToolCalls(background, lambda reply: gate.give_back(Grant(reply)))

    def after_fork(self) -> None:
        """Forget the tool calls that the parent was allowed."""
        self.calls.after_fork()

    # -- the answer -------------------------------------------------------------------------------

    def applies(self, scope: Scope) -> bool:
        """Return whether there are tool rules for answers in this scope."""
        return self._enforcement.control.tools is not None and self._rules(scope) is not None

    def _rules(self, scope: Scope) -> ScopeToolRules | None:
        rules = self._enforcement.control.tools
        if rules is None or (scope.workflow_id is None and scope.call is None):
            return None
        return rules.for_scope(scope.workflow_id, scope.agent)

    def asks_about(self, scope: Scope, name: str) -> bool:
        """Return whether the gateway may ask a person about a tool."""
        rules = self._rules(scope)
        verdict = None if rules is None else rules.verdict(name)
        return verdict is not None and verdict.kind == "ask"

    # -- repeats ----------------------------------------------------------------------------------

    def counts_call(self, scope: Scope, name: str) -> Counting:
        """Return how repeats of a tool's calls are counted in the run of a scope; "" if not."""
        rules = self._rules(scope) if scope.run_id is not None else None
        return "" if rules is None else rules.counts_tool(name)

    def results(self, body: bytes) -> None:
        """Report the unchecked tools whose results a request sends to a model."""
        self.unchecked.sent(body)

    def check(self, scope: Scope, names: list[str]) -> list[str]:
        """Check tools against the local rules; return those that the gateway decides about.

        Raises:
            Refusal: one of them is blocked.
        """
        rules = self._rules(scope)
        # First: a tool that is refused below was checked, too.
        self.unchecked.checked(names)
        questions: list[str] = []
        for name in names if rules is not None else ():
            verdict = rules.verdict(name)  # type: ignore[union-attr]  # without rules, no names
            if verdict is None:
                continue
            if verdict.kind == "ask":
                questions.append(name)
                continue
            self._block(scope, verdict, wire.truncated(name))
        return questions

    def unreadable(self, scope: Scope) -> None:
        """Refuse an answer whose tools cannot be read, if any tool might be refused.

        Raises:
            Refusal: one might be.
        """
        rules = self._rules(scope)
        if rules is not None and rules.unreadable is not None:
            self._block(scope, rules.unreadable, None)

    def _block(self, scope: Scope, verdict: ToolVerdict, name: str | None) -> None:
        error = GuardToolBlockedError(
            workflow_id=scope.workflow_id,
            reason=verdict.reason,
            action="block",
            tool_name=name,
            details={"policy": verdict.policy, "policy_version": verdict.policy_version},
        )
        if self._reports.enforces:
            raise refusal_in(scope, error)
        self._reports.observed(error, scope, name)

    def ask(self, scope: Scope, name: str) -> None:
        """Ask the gateway about a tool; blocks the calling thread.

        Raises:
            Refusal: refused, or the gateway cannot be asked.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        request = self._request(scope, name)
        try:
            grant = self._gate.ask(Question(request))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            self._reports.error(exc, "gate", scope, name)
            self._refuse(scope, name, exc)
            return
        self._remember(scope, request, grant)

    async def ask_async(self, scope: Scope, name: str) -> None:
        """Like :meth:`ask`, for async code; the caller's loop keeps running."""
        request = self._request(scope, name)
        try:
            require_task()
            grant = await self._gate.ask_async(Question(request))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            await self._reports.error_async(exc, "gate", scope, name)
            self._refuse(scope, name, exc)
            return
        self._remember(scope, request, grant)

    def _refuse(self, scope: Scope, name: str, exc: GuardError | WorkflowKilledInterrupt) -> None:
        if self._reports.enforces:
            raise refusal_in(scope, exc) from None
        self._reports.observed(exc, scope, name)

    def _request(self, scope: Scope, name: str) -> wire.GateRequest:
        name = wire.truncated(name)
        return scope.question(
            self._ids.uuid7(time.time_ns() // 1_000_000),
            "tool",
            name,
            tools=list(scope.tools),
            tool_name=name,
            note=None if scope.note is None else scope.note.sent(),
            gates_requests=self._gates_requests(),
        )

    # -- once -------------------------------------------------------------------------------------

    def take(
        self, scope: Scope, tool_name: str, watcher: Checkpoint, *, sensitive: bool
    ) -> tuple[ToolCall, wire.GateReply | None] | None:
        """Return the tool call that a watcher sees, if the gateway has allowed it already.

        Args:
            scope: the scope of the watcher.
            tool_name: the name of the tool.
            watcher: the watcher.
            sensitive: whether the tool is declared as sensitive; then only an approval counts.
        """
        if sensitive and (rules := self._rules(scope)) is not None and rules.blocks_sensitive:
            return None
        return self.calls.take(scope, tool_name, watcher, needs_person=sensitive)

    def _remember(self, scope: Scope, request: wire.GateRequest, grant: Grant) -> None:
        reply, name = grant.reply, request.tool_name or request.function
        if reply is None:  # only a lease grants without a reply, and these questions name none
            return
        self._warnings().report(reply.warnings, scope, name)
        reply.warnings = []
        self.calls.named(scope, name, reply, approved=grant.approved)
