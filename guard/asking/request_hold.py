"""The money set aside for one LLM request: in a lease or at the gateway, and under ceilings."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from guard.breaker.exceptions import GuardBudgetError, GuardError, GuardTransportError
from guard.core import wire
from guard.core.call_options import Ceiling
from guard.core.leases import Grant, cost_of, worst_case
from guard.core.model_names import is_release_of
from guard.core.request_bound import RequestBound
from guard.delivery.journal import JournalEntry
from guard.scope.scope import Scope

if TYPE_CHECKING:  # pulls in every vendor's format
    from guard.core.usage import Usage

on_cost: Final[ContextVar[Callable[[int], None] | None]] = ContextVar("guard_on_cost", default=None)
"""Called with the cost of a request, in nano-dollars, once that is known here."""

_GROWTH: Final = 1024
"""The fewest output tokens that a growing stream asks for."""


class Requests(Protocol):
    """What a hold needs from its surroundings; implemented by ``LlmRequests``."""

    def begin(self, reservation_id: str, amount: int, model: str | None) -> JournalEntry | None:
        """Note that a request is about to be sent."""

    def release(self, grant: Grant) -> None:
        """Give back what a grant has set aside."""

    def has_lapsed(self, grant: Grant) -> bool:
        """Return whether others may have the money of a grant, since it was not renewed in time."""

    def lets_grow(self, scope: Scope, error: GuardError) -> bool:
        """Return whether a stream may continue although it was refused more."""

    def rates_changed(self, scope: Scope) -> None:
        """Void the leases' rates: another model has answered than the one they are for."""

    def ask_more(
        self, scope: Scope, bound: RequestBound, answered: Callable[[Grant | BaseException], None]
    ) -> None:
        """Ask for more for a request that is under way, without waiting."""


class RequestHold:
    """Money set aside for one request. Thread-safe; only the first end counts.

    Three threads may use it: the one that reads the answer (:meth:`grow`, :meth:`settle`), the one
    that closes or abandons it (:meth:`keep`, :meth:`give_back`), and the background loop, where the
    answers to :meth:`grow` and :meth:`raise_input` arrive. There is no lock: callbacks into the
    lease book and the gate would run under it. Instead, lists are popped atomically, and a thread
    that adds to one after the end finds ``_ends`` empty and undoes the addition.

    Args:
        requests: gives money back, and asks for more.
        scope: the scope of the request.
        bound: what it can cost at most.
        grant: what was granted.
        ceiling: the option that limits it; what was granted has been taken from it.

    Attributes:
        reservation_id: what the request's event names; None without cover.
        output_tokens: the largest output that it pays for; None if that is unknown.
        refusal: why a stream that has outgrown it may not go on; None while it may.
        cost_nanousd: what the request has cost; None while that is not known here.
        entry: the journal's note that it is under way, until its event is delivered; None without
            cover.
    """

    __slots__ = (
        "_bound", "_ceiling", "_ends", "_grant", "_growing", "_more", "_requests", "_scope",
        "_taken", "_told", "cost_nanousd", "entry", "output_tokens", "refusal", "reservation_id",
    )  # fmt: skip

    def __init__(
        self,
        requests: Requests,
        scope: Scope,
        bound: RequestBound,
        grant: Grant,
        ceiling: Ceiling | None = None,
    ) -> None:
        self._requests = requests
        self._scope = scope
        self._bound = bound
        self._grant = grant
        self._ceiling = ceiling
        self._ends = [True]  # popped by the first end; `list.pop` is atomic
        # Whether more was asked for and not answered yet; set on the reader's thread, cleared on
        # the loop's. A second question meanwhile would only be granted twice.
        self._growing = False
        # What a stream was granted beside its first hold; `append` and `pop` are atomic. A
        # reservation of its own has a place in the journal, which charges nothing more for it: the
        # first one's place has all of the money.
        self._more: list[tuple[Grant, JournalEntry | None]] = []
        # Set by the reader's thread or the loop's, read by the reader's.
        self.refusal: GuardError | None = None
        # Set once, by `settle`.
        # Taken from the task that sends the request: its answer may be read in another one.
        self._told = on_cost.get()
        self.cost_nanousd: int | None = None
        # Only rises. Set by the reader's thread, or by the loop's while `_growing` is set.
        self.output_tokens = grant.output_tokens
        hold, reply = grant.hold, grant.reply
        reservation_id, held = None, 0
        if hold is not None:
            reservation_id, held = hold.lease.lease_id, hold.amount
        elif reply is not None:
            reservation_id, held = reply.reservation_id, reply.reserved_nanousd
        self.reservation_id: str | None = reservation_id
        # The amounts taken from the ceiling; each is taken out once, when it is settled there.
        self._taken = [] if ceiling is None else [held]
        self.entry: JournalEntry | None = None
        # In the journal before the request is sent: if the process dies from here on, the next one
        # finds the entry and the amount is charged.
        if reservation_id is not None:
            if bound.local and held == 1:  # the least that the gateway holds: it is free
                held = 0
            self.entry = requests.begin(reservation_id, held, bound.model)

    @property
    def amount_nanousd(self) -> int | None:
        """The money that is set aside now; None without cover."""
        if self.reservation_id is None:
            return None
        return granted_nanousd(self._grant) + sum(granted_nanousd(more) for more, _ in self._more)

    def cost_at_most(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return what the request costs at most with so many tokens; None without rates."""
        rates = self._grant.rates
        if rates is None:
            return None
        used = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        worst = worst_case(rates, msgspec.structs.replace(self._bound, **used))
        return None if worst is None else worst[0]

    def prices(self, model: str | None) -> bool:
        """Return whether the rates that are known here are those of the model that answered."""
        rates = self._grant.rates
        asked = self._bound.model if rates is None else rates.answered_by or self._bound.model
        return not asked or not model or is_release_of(model, asked)

    def has_lapsed(self) -> bool:
        """Return whether others may have its money: it was not renewed in time."""
        return self._requests.has_lapsed(self._grant)

    def settle(self, usage: Usage) -> None:
        """Pay for what the answer used and return the rest.

        The order: the journal first, so that a process that dies meanwhile is charged the cost and
        not the bound; then the lease, the ceiling, and what was granted beside the first hold.
        """
        if not self._end():
            return
        hold, rates = self._grant.hold, self._grant.rates
        is_priced = usage.cost_nanousd is not None or self.prices(usage.model)
        if hold is not None and not is_priced:
            # Another model than the one that was asked for. Only the gateway can price it, so only
            # it knows what the lease has left afterwards.
            rates = None
            self._requests.rates_changed(self._scope)
        self.cost_nanousd = cost = None if rates is None else cost_of(rates, usage)
        if cost is not None and self._told is not None:
            self._told(cost)
        if self.entry is not None and cost is not None:
            self.entry.cost(cost)
        if hold is not None:
            if cost is None:
                hold.keep()  # all of it; closing the lease releases the difference
            else:
                hold.settle(cost)
        if self._ceiling is not None:
            self._settle_ceiling(cost)
        if self._more:
            self._release_more()

    def give_back(self) -> None:
        """Return all of it: the request was not sent, or the vendor refused it."""
        if self._end():
            if self.entry is not None:
                self.entry.clear()
            self._requests.release(self._grant)
            self._settle_ceiling(0)
            self._release_more()

    def keep(self) -> None:
        """Count the whole amount as spent: what the answer cost stays unknown.

        The journal's entry stays: the event that charges the bound clears it.
        """
        if not self._end():
            return
        if self._grant.hold is not None:
            self._grant.hold.keep()
        self._settle_ceiling(None)
        self._release_more()

    def grow(self, output_tokens: int) -> None:
        """Get money for more output: the stream has come near what is paid for.

        Called by the thread that reads the stream, which must not wait. Sooner or later
        ``output_tokens`` rises, or ``refusal`` is set. The cases, in this order:

        1. The output is not limited, more was asked for already, or the request has ended.
        2. The lease has enough free money.
        3. The request has no cover (it fell back to running without the gateway): it may grow.
        4. The gateway is asked; the answer arrives in ``_grown``, on another thread.

        Args:
            output_tokens: how many the stream has so far.
        """
        # 1.
        paid = self.output_tokens
        if paid is None or self._growing or not self._ends:
            return
        hold, rates = self._grant.hold, self._grant.rates
        bound = self._bound
        # At least doubled, so that a long stream asks a few times only.
        more = max(_GROWTH, paid, 2 * (output_tokens - paid))
        # 2.
        if hold is not None and rates is not None:
            cost = _cost_of_more(rates, bound, paid, more)
            if cost is not None and hold.grow(cost):
                if self._take_more(cost):
                    self.output_tokens = paid + more
                    self._note_more()
                return
        # 3.
        if self.reservation_id is None:
            self.output_tokens = paid + more
            return
        # 4. Set before it is asked: the answer may come before `ask_more` returns.
        self._growing = True
        # Without a limit, so that it gets what is left where that is less than what is assumed.
        wanted = RequestBound(
            bound.provider,
            bound.model,
            0,
            None,
            streams=True,
            terms=bound.terms,
            local=bound.local,
            models=bound.models,
        )
        self._requests.ask_more(self._scope, wanted, functools.partial(self._grown, more))

    def raise_input(self, input_tokens: int) -> None:
        """Hold money for a longer prompt than was known, as far as there is money.

        Else the next request would take what this one turns out to have cost. What the lease does
        not have is asked for in the background. A refusal changes nothing: the request is under
        way, and its prompt is already at the vendor.
        """
        hold, rates, bound = self._grant.hold, self._grant.rates, self._bound
        if hold is None or rates is None or bound.input_tokens is None or not self._ends:
            return
        raised = msgspec.structs.replace(bound, input_tokens=input_tokens)
        before, after = worst_case(rates, bound), worst_case(rates, raised)
        if before is None or after is None or after[0] <= before[0]:
            return
        self._bound = raised
        wanted = after[0] - before[0]
        lacking = wanted - hold.grow_within(wanted)
        self._note_more()
        if lacking:
            tokens = -(-(input_tokens - bound.input_tokens) * lacking // wanted)
            more = RequestBound(
                bound.provider,
                bound.model,
                tokens,
                1,
                terms=bound.terms,
                local=bound.local,
                models=bound.models,
            )
            self._requests.ask_more(self._scope, more, self._raised)

    def _raised(self, outcome: Grant | BaseException) -> None:
        """Take the answer to :meth:`raise_input`; on any thread."""
        if isinstance(outcome, Grant):
            self._add(outcome)
            self._note_more()
            # After the addition: the end has either seen it, or is seen here. If both see it, each
            # grant is popped, and so released, once.
            if not self._ends:
                self._release_more()

    def _add(self, more: Grant) -> None:
        """Add a grant to the hold; one from the same lease becomes part of the first."""
        first, second = self._grant.hold, more.hold
        if first is None or second is None or not first.absorb(second):
            name = None if more.reply is None else more.reply.reservation_id
            begin = self._requests.begin
            entry = None if name is None or second else begin(name, 0, self._bound.model)
            self._more.append((more, entry))

    def _grown(self, more: int, outcome: Grant | BaseException) -> None:
        """Take the answer to :meth:`grow`; on any thread."""
        # Such as a thread that could not be started. A kill is no `Exception`: it reaches the
        # stream by itself.
        if isinstance(outcome, Exception) and not isinstance(outcome, GuardError):
            outcome = GuardTransportError(
                f"more money could not be asked for: {outcome}", endpoint=wire.GATE_PATH
            )
        if isinstance(outcome, GuardError):
            if self._requests.lets_grow(self._scope, outcome):
                self.output_tokens = (self.output_tokens or 0) + more
            else:
                self.refusal = outcome
        elif isinstance(outcome, Grant):
            amount = granted_nanousd(outcome)
            self._add(outcome)
            if self._take_more(amount):
                paid = more if outcome.output_tokens is None else outcome.output_tokens
                self.output_tokens = (self.output_tokens or 0) + paid
                self._note_more()
            if not self._ends:  # it ended meanwhile; as in `_raised`
                self._release_more()
        # Last: the reader may ask again from here on, and must see the new `output_tokens`.
        self._growing = False

    def _note_more(self) -> None:
        """Write the larger amount into the journal."""
        if self.entry is not None and self._ends:
            self.entry.hold(self.amount_nanousd or 0)

    def _take_more(self, amount: int) -> bool:
        """Take more from the ceiling, or set the refusal."""
        ceiling = self._ceiling
        if ceiling is None:
            return True
        if ceiling.take(amount):
            self._taken.append(amount)
            # It ended meanwhile. Only this amount is unspent: the end settles the others.
            if not self._ends:
                with contextlib.suppress(ValueError):  # the end has settled this one as well
                    self._taken.remove(amount)
                    ceiling.settle(amount, 0)
            return True
        error = over_ceiling(self._scope, ceiling, amount)
        if self._requests.lets_grow(self._scope, error):
            return True
        self.refusal = error
        return False

    def _settle_ceiling(self, cost: int | None) -> None:
        """Return what was taken from the ceiling; without a known cost all of it was spent."""
        if self._ceiling is None:
            return
        taken = 0
        while self._taken:
            try:
                taken += self._taken.pop()
            except IndexError:  # another thread was faster
                break
        self._ceiling.settle(taken, taken if cost is None else cost)

    def _release_more(self) -> None:
        """Give back what a stream was granted beside its first hold.

        The request's event names the first reservation and charges its whole cost there, so the
        others are released unspent.
        """
        while self._more:
            try:
                more, entry = self._more.pop()
            except IndexError:  # another thread was faster
                return
            self._requests.release(more)
            if entry is not None:
                entry.clear()

    def _end(self) -> bool:
        """Return True the first time only."""
        try:
            return self._ends.pop()
        except IndexError:
            return False


def _cost_of_more(rates: wire.ModelRates, bound: RequestBound, paid: int, more: int) -> int | None:
    """Return what more output costs at most, at the rates that the whole request can meet."""
    wanted = msgspec.structs.replace(bound, unnumbered="", output_tokens=paid)
    before = worst_case(rates, wanted)
    after = worst_case(rates, msgspec.structs.replace(wanted, output_tokens=paid + more))
    return None if before is None or after is None else after[0] - before[0]


def granted_nanousd(grant: Grant) -> int:
    """Return what a grant has set aside for one request."""
    if grant.hold is not None:
        return grant.hold.amount
    return 0 if grant.reply is None else grant.reply.reserved_nanousd


def over_ceiling(scope: Scope, ceiling: Ceiling, amount: int) -> GuardBudgetError:
    """Return the refusal of a request for which a call's limit leaves no room."""
    short = ceiling.short_of(amount) or ceiling
    limit = f"limit={wire.dollars(short.limit_nanousd)}"
    return GuardBudgetError(
        workflow_id=scope.workflow_id,
        reason=f"over {limit} of guard.context.options",
        action="budget",
        details={
            "option": "limit_cents",
            "requested_nanousd": amount,
            "budget": wire.Budget.of(
                limit=short.limit_nanousd,
                spent=short.spent_nanousd,
                reserved=short.held_nanousd,
                scope=limit,
            ),
        },
    )
