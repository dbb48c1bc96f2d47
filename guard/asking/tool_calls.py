"""The tool calls under way: one question for each, however many watch it.

A tool call passes several watchers: the HTTP client whose answer names the tool, an adapter's
callback, wrapper or guardrail, an MCP session, and ``@protect`` on the tool's own function. The
first one asks the gateway; the others find its answer here. A watcher sees each call once, so what
it sees again is another call, which is asked about anew: one approval admits one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Final

from msgspec import Struct, field

from guard.core import wire
from guard.loop import BackgroundLoop
from guard.scope.scope import Scope

_IDLE_S: Final = 2.0
"""How long the money of an allowed tool call waits for the protected call of that tool."""

_VALID_S: Final = 120.0
"""How long after its answer a tool call may reach its next watcher."""

_KEPT: Final = 1000
"""Maximum tool calls that are remembered."""


class Checkpoint(Struct, frozen=True):
    """A place in the program that a tool call passes, and that asks about it.

    Attributes:
        kind: the kind of place; each kind sees a tool call once.
        call_id: the framework's id of the call, if it has one.
        runs_tool: whether the tool runs inside of it, so that the call is over when it ends.
    """

    kind: str
    call_id: str | None = None
    runs_tool: bool = True


FUNCTION: Final = Checkpoint("function")
"""``@protect`` on the tool's own function."""

_CLIENT: Final = "client"

ToolCallKey = tuple[str | None, str | None, str]
"""Where an allowed call was asked about: run or trace, user, tool."""


class ToolCall(Struct, eq=False):
    """A tool call that the gateway has allowed.

    Attributes:
        place: where watchers look for it.
        reply: the gateway's, until the first watcher after the asking one takes its money. It is
            taken out under the lock of :class:`ToolCalls`, so that it is used or given back once.
        approved: whether a person has allowed it.
        counted: whether it was counted by its arguments.
        until_s: the deadline for its next watcher, by the monotonic clock; never while it is
            inside of one.
        seen_by: the kinds of its watchers so far.
        ids: the ids that frameworks have given it.
    """

    place: ToolCallKey
    reply: wire.GateReply | None
    approved: bool
    until_s: float
    seen_by: set[str]
    ids: set[str] = field(default_factory=set)
    counted: bool = False

    def is_seen_by(self, watcher: Checkpoint) -> None:
        """Note a watcher."""
        self.seen_by.add(watcher.kind)
        if watcher.call_id is not None:
            self.ids.add(watcher.call_id)
        if watcher.runs_tool:
            self.until_s = float("inf")  # the watcher's own end ends this call

    def is_for(self, watcher: Checkpoint) -> bool:
        """Return whether a watcher sees this call, and not another call of the same tool."""
        # Ids decide if both have one; else a kind that has seen the call sees another one.
        if watcher.call_id is not None and self.ids:
            return watcher.call_id in self.ids
        return watcher.kind not in self.seen_by


current: Final[ContextVar[ToolCall | None]] = ContextVar("guard_tool_call", default=None)
"""The tool call in whose adapter the code runs, where the framework keeps the context."""


class ToolCalls:
    """The tool calls that the gateway has allowed and that are not over.

    Args:
        background: the loop for delayed work.
        give_back: releases what a reply has set aside; called on that loop.
    """

    def __init__(
        self, background: BackgroundLoop, give_back: Callable[[wire.GateReply], None]
    ) -> None:
        self._background = background
        self._give_back = give_back
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the tool calls that the parent was allowed."""
        # By the identity of the call, oldest first; changed under the lock. Covered calls only
        # look whether it is empty, without the lock.
        self.open: OrderedDict[int, ToolCall] = OrderedDict()
        """Without any, :meth:`take` finds none."""
        # By a framework's call id, the outcome of the watcher whose turn it is: the refusal, or
        # None. Tasks of several loops wait for it; `setdefault` decides atomically whose turn it
        # is.
        self._turns: dict[str, Future[BaseException | None]] = {}
        # Held for a scan of `open`, never while waiting or calling back.
        self._lock = threading.Lock()

    # -- answers ----------------------------------------------------------------------------------

    def named(self, scope: Scope, tool_name: str, reply: wire.GateReply, *, approved: bool) -> None:
        """Keep the gateway's answer about a tool that a model has named.

        Its money waits a short time for the protected call of that tool. A framework that runs the
        tool itself never makes one, and then the money goes back.
        """
        call = self._keep(scope, tool_name, reply, approved, {_CLIENT})
        self._background.call_soon(self._give_back_later, call)

    def allowed(
        self, scope: Scope, tool_name: str, watcher: Checkpoint, *, approved: bool, counted: bool
    ) -> ToolCall:
        """Keep a call that a watcher has asked about, for the other watchers of the call."""
        call = self._keep(scope, tool_name, None, approved, set())
        call.counted = counted
        call.is_seen_by(watcher)
        return call

    def take(
        self, scope: Scope, tool_name: str, watcher: Checkpoint, *, needs_person: bool
    ) -> tuple[ToolCall, wire.GateReply | None] | None:
        """Return the call that a watcher sees, if the gateway has allowed it already.

        With it comes the gateway's reply, to the first one that takes it.

        Args:
            scope: the scope of the watcher.
            tool_name: the name of the tool.
            watcher: the watcher.
            needs_person: whether only a person's approval counts.
        """
        place = _tool_call_key(scope, tool_name)
        with self._lock:
            call = self._find(place, watcher, needs_person)
            if call is None:
                return None
            call.is_seen_by(watcher)
            reply, call.reply = call.reply, None
        return call, reply

    def _find(self, place: ToolCallKey, watcher: Checkpoint, needs_person: bool) -> ToolCall | None:
        now_s = time.monotonic()
        candidates = [call for call in self.open.values() if call.place == place]
        # The call in whose adapter this code runs comes first, even if the run is another one.
        near = current.get()
        if near is not None and near.place[1:] == place[1:] and id(near) in self.open:
            candidates.insert(0, near)
        for call in candidates:
            if now_s < call.until_s and call.is_for(watcher):
                return call if call.approved or not needs_person else None
        return None

    def _keep(
        self, scope: Scope, tool_name: str, reply: wire.GateReply | None, approved: bool,
        seen_by: set[str],
    ) -> ToolCall:  # fmt: skip
        now_s = time.monotonic()
        call = ToolCall(
            _tool_call_key(scope, tool_name), reply, approved, now_s + _VALID_S, seen_by
        )
        with self._lock:
            for key in [k for k, known in self.open.items() if known.until_s <= now_s]:
                del self.open[key]
            self.open[id(call)] = call
            crowded = len(self.open) > _KEPT
            dropped = self.open.popitem(last=False)[1] if crowded else None
        if dropped is not None and dropped.reply is not None:
            self._background.call_soon(self._give_back, dropped.reply)
        return call

    def _give_back_later(self, call: ToolCall) -> None:
        asyncio.get_running_loop().call_later(_IDLE_S, self._give_back_unused, call)

    def _give_back_unused(self, call: ToolCall) -> None:
        """Release the money of a tool call that its framework runs by itself."""
        with self._lock:
            reply, call.reply = call.reply, None
        if reply is not None:
            self._give_back(reply)

    # -- the end ----------------------------------------------------------------------------------

    def left(self, call: ToolCall, watcher: Checkpoint) -> None:
        """Note the end of a watcher around the tool: it ends the call, if no adapter will."""
        if not call.ids or watcher.call_id in call.ids:
            self._end(call)

    def ended(self, call_id: str) -> None:
        """End the call with a framework's id; nothing more is allowed for it."""
        if not self.open:
            return
        # A copy without the lock, which `_end` takes; it checks again whether the call is open.
        for call in list(self.open.values()):
            if call_id in call.ids:
                self._end(call)

    def _end(self, call: ToolCall) -> None:
        """Forget a call.

        A watcher without an id takes any of several calls of one tool in one run. The one that
        is over is then the one that most watchers have seen; the ids change places.
        """
        with self._lock:
            if id(call) not in self.open:
                return
            same = [each for each in self.open.values() if each.place == call.place]
            over = max(same, key=lambda each: (len(each.seen_by), each is call))
            if over is not call:
                call.ids = over.ids
            del self.open[id(over)]
        if over.reply is not None:
            self._background.call_soon(self._give_back, over.reply)

    # -- at the same time -------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def turn(self, watcher: Checkpoint) -> AsyncIterator[None]:
        """Let watchers of one call ask one after the other, and share a refusal.

        After an allowed question the next watcher finds the call in :meth:`take`. Without turns,
        two watchers that ask at the same time would ask a person twice.

        Raises:
            BaseException: another one was refused while this one waited for its turn.
        """
        call_id = watcher.call_id
        if call_id is None:
            yield
            return
        mine: Future[BaseException | None] = Future()
        refused: BaseException | None = None
        while (before := self._turns.setdefault(call_id, mine)) is not mine:
            # Shielded: the cancellation of this watcher must not cancel the others' future.
            refused = await asyncio.shield(asyncio.wrap_future(before))
            if refused is not None:
                raise refused
        try:
            yield
        except asyncio.CancelledError:
            raise  # the next one asks
        except BaseException as exc:
            refused = exc
            raise
        finally:
            # Pop first: those that wake up compete for the next turn, and must not find this one.
            self._turns.pop(call_id, None)
            mine.set_result(refused)
            del refused  # its traceback refers to this frame


def _tool_call_key(scope: Scope, tool_name: str) -> ToolCallKey:
    """Return where an allowed call is looked for: the run, outside of one the trace; its user."""
    return scope.run_id or scope.trace_id, scope.user, tool_name
