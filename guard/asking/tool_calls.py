"""The tool calls under way: one question for each, however many watch it.

A tool call passes several watchers: the HTTP client whose answer names the tool, an adapter's
callback, wrapper or guardrail, an MCP session, and ``@protect`` on the tool's own function. The
first one asks the gateway; the others find here what it has answered. A watcher sees each call
once, so what it sees again is another call, which is asked about anew: one approval admits one.
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


class Watcher(Struct, frozen=True):
    """What asks about a tool call.

    Attributes:
        kind: of watcher; each sees a tool call once.
        call_id: the framework's id of the call, if it has one.
        surrounds: whether the tool runs inside of it, so that the call is over when it ends.
    """

    kind: str
    call_id: str | None = None
    surrounds: bool = True


FUNCTION: Final = Watcher("function")
"""``@protect`` on the tool's own function."""

_CLIENT: Final = "client"

Place = tuple[str | None, str | None, str]
"""Where an allowed call was asked about: run or trace, user, tool."""


class ToolCall(Struct, eq=False):
    """A tool call that the gateway has allowed.

    Attributes:
        place: where it is looked for.
        reply: the gateway's, until the first watcher after the asking one takes its money.
        approved: whether a person has allowed it.
        counted: whether it was counted by its arguments.
        until_s: when its next watcher has to have come, by the monotonic clock.
        seen_by: the kinds of its watchers.
        ids: that frameworks have given it.
    """

    place: Place
    reply: wire.GateReply | None
    approved: bool
    until_s: float
    seen_by: set[str]
    ids: set[str] = field(default_factory=set)
    counted: bool = False

    def is_seen_by(self, watcher: Watcher) -> None:
        """Note a watcher."""
        self.seen_by.add(watcher.kind)
        if watcher.call_id is not None:
            self.ids.add(watcher.call_id)
        if watcher.surrounds:
            self.until_s = float("inf")  # it ends this call

    def is_for(self, watcher: Watcher) -> bool:
        """Tell whether a watcher may see this call next, or sees it again."""
        if watcher.call_id is not None and self.ids:
            return watcher.call_id in self.ids
        return watcher.kind not in self.seen_by


current: Final[ContextVar[ToolCall | None]] = ContextVar("guard_tool_call", default=None)
"""The tool call in whose adapter the code runs, where the framework keeps the context."""


class ToolCalls:
    """The tool calls that the gateway has allowed and that are not over.

    Args:
        background: runs what is due later.
        give_back: releases what a reply has set aside; on that loop.
    """

    def __init__(
        self, background: BackgroundLoop, give_back: Callable[[wire.GateReply], None]
    ) -> None:
        self._background = background
        self._give_back = give_back
        self.after_fork()

    def after_fork(self) -> None:
        """Forget what the parent's calls were allowed."""
        self.open: OrderedDict[int, ToolCall] = OrderedDict()
        """Without any, :meth:`take` finds none."""
        self._turns: dict[str, Future[BaseException | None]] = {}
        self._lock = threading.Lock()

    # -- answers ----------------------------------------------------------------------------------

    def named(self, scope: Scope, tool_name: str, reply: wire.GateReply, *, approved: bool) -> None:
        """Keep what the gateway has answered about a tool that a model has named."""
        call = self._keep(scope, tool_name, reply, approved, {_CLIENT})
        self._background.call_soon(self._give_back_later, call)

    def allowed(
        self, scope: Scope, tool_name: str, watcher: Watcher, *, approved: bool, counted: bool
    ) -> ToolCall:
        """Keep what a watcher has asked about, for the other watchers of the call."""
        call = self._keep(scope, tool_name, None, approved, set())
        call.counted = counted
        call.is_seen_by(watcher)
        return call

    def take(
        self, scope: Scope, tool_name: str, watcher: Watcher, *, needs_person: bool
    ) -> tuple[ToolCall, wire.GateReply | None] | None:
        """Return the call that a watcher sees, if the gateway has allowed it already.

        With it comes the gateway's reply, to the first one that takes it.

        Args:
            scope: of the watcher.
            tool_name: of the tool.
            watcher: what sees it.
            needs_person: whether only a person's approval counts.
        """
        place = _place(scope, tool_name)
        with self._lock:
            call = self._find(place, watcher, needs_person)
            if call is None:
                return None
            call.is_seen_by(watcher)
            reply, call.reply = call.reply, None
        return call, reply

    def _find(self, place: Place, watcher: Watcher, needs_person: bool) -> ToolCall | None:
        now_s = time.monotonic()
        candidates = [call for call in self.open.values() if call.place == place]
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
        call = ToolCall(_place(scope, tool_name), reply, approved, now_s + _VALID_S, seen_by)
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

    def left(self, call: ToolCall, watcher: Watcher) -> None:
        """A watcher that surrounds the tool is left: the call is over, if no adapter ends it."""
        if not call.ids or watcher.call_id in call.ids:
            self._end(call)

    def ended(self, call_id: str) -> None:
        """The call with a framework's id is over; nothing more is allowed for it."""
        if not self.open:
            return
        for call in list(self.open.values()):
            if call_id in call.ids:
                self._end(call)

    def _end(self, call: ToolCall) -> None:
        """Forget a call.

        Of several calls of one tool in one run, a watcher without an id takes any. The one that
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
    async def turn(self, watcher: Watcher) -> AsyncIterator[None]:
        """Let watchers of one call ask one after the other, and share a refusal.

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
            self._turns.pop(call_id, None)
            mine.set_result(refused)
            del refused  # its traceback refers to this frame


def _place(scope: Scope, tool_name: str) -> Place:
    """Return where an allowed call is looked for: the run, outside of one the trace; its user."""
    return scope.run_id or scope.trace_id, scope.user, tool_name
