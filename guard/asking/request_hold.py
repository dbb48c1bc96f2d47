"""The money set aside for one LLM request: in a lease or at the gateway, and under ceilings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from guard.breaker.exceptions import GuardBudgetError, GuardError
from guard.core import wire
from guard.core.call_options import Ceiling
from guard.core.leases import Grant, cost_of, worst_case
from guard.core.model_names import is_release_of
from guard.core.request_bound import RequestBound
from guard.delivery.unwritten import BegunRequest
from guard.scope.scope import Scope

if TYPE_CHECKING:  # pulls in every vendor's format
    from guard.core.usage import Usage

_GROWTH: Final = 1024
"""How many more output tokens a stream asks for at least."""


class Requests(Protocol):
    """What a hold needs; see ``LlmRequests``."""

    def begin(self, reservation_id: str, amount: int, model: str | None) -> BegunRequest:
        """Note that a request is about to be sent."""

    def release(self, grant: Grant) -> None:
        """Give back what a grant has set aside."""

    def lets_grow(self, scope: Scope, error: GuardError) -> bool:
        """Tell whether a stream goes on although it was refused more."""

    def rates_changed(self, scope: Scope) -> None:
        """A model has answered that leases do not know the rates of."""

    def ask_more(
        self, scope: Scope, bound: RequestBound, answered: Callable[[Grant | BaseException], None]
    ) -> None:
        """Ask for more for a request that is under way, without waiting."""


class RequestHold:
    """Money set aside for one request. Thread-safe; only the first end counts.

    Args:
        requests: gives back, and asks for more.
        scope: the scope of the request.
        bound: what it can cost at most.
        grant: what was granted.
        ceiling: the option that limits it; what was granted has been taken from it.

    Attributes:
        reservation_id: what the request's event names; None without cover.
        output_tokens: the largest output that it pays for; None if that is unknown.
        refusal: why a stream that has outgrown it may not go on; None while it may.
        cost_nanousd: what the request has cost; None while that is not known here.
        entry: notes that it is under way, until its event is delivered; None without cover.
    """

    __slots__ = (
        "_bound", "_ceiling", "_ends", "_grant", "_growing", "_more", "_requests", "_scope",
        "_taken", "cost_nanousd", "entry", "output_tokens", "refusal", "reservation_id",
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
        # What a stream was granted beside its first hold; `append` and `pop` are atomic.
        self._more: list[Grant] = []
        self.refusal: GuardError | None = None
        self.cost_nanousd: int | None = None
        self.output_tokens = grant.output_tokens
        hold, reply = grant.hold, grant.reply
        reservation_id, held = None, 0
        if hold is not None:
            reservation_id, held = hold.lease.lease_id, hold.amount
        elif reply is not None:
            reservation_id, held = reply.reservation_id, reply.reserved_nanousd
        self.reservation_id: str | None = reservation_id
        self._taken = [] if ceiling is None else [held]
        self.entry: BegunRequest | None = None
        if reservation_id is not None:
            if bound.local and held == 1:  # the least that the gateway holds: it is free
                held = 0
            self.entry = requests.begin(reservation_id, held, bound.model)

    @property
    def amount_nanousd(self) -> int | None:
        """The money that is set aside now; None without cover."""
        if self.reservation_id is None:
            return None
        return granted_nanousd(self._grant) + sum(granted_nanousd(more) for more in self._more)

    def cost_at_most(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return what the request costs at most with so many tokens; None without rates."""
        rates = self._grant.rates
        if rates is None:
            return None
        used = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        worst = worst_case(rates, msgspec.structs.replace(self._bound, **used))
        return None if worst is None else worst[0]

    def prices(self, model: str | None) -> bool:
        """Tell whether what this model answers is paid for by the rates that are known here."""
        rates = self._grant.rates
        asked = self._bound.model if rates is None else rates.answered_by or self._bound.model
        return not asked or not model or is_release_of(model, asked)

    def settle(self, usage: Usage) -> None:
        """The answer was read: pay for what it used, return the rest."""
        if not self._end():
            return
        hold, rates = self._grant.hold, self._grant.rates
        is_priced = usage.cost_nanousd is not None or self.prices(usage.model)
        if hold is not None and not is_priced:
            # What the lease has left is known to the gateway only, which prices that model.
            rates = None
            self._requests.rates_changed(self._scope)
        self.cost_nanousd = cost = None if rates is None else cost_of(rates, usage)
        if self.entry is not None and cost is not None:
            self.entry.cost(cost)
        if hold is not None:
            if cost is None:
                hold.keep()  # its price is the gateway's to know
            else:
                hold.settle(cost)
        if self._ceiling is not None:
            self._settle_ceiling(cost)
        if self._more:
            self._release_more()

    def give_back(self) -> None:
        """The request cost nothing: it was not sent, or refused by the vendor."""
        if self._end():
            if self.entry is not None:
                self.entry.clear()
            self._requests.release(self._grant)
            self._settle_ceiling(0)
            self._release_more()

    def keep(self) -> None:
        """What the answer cost stays unknown: the whole amount counts as spent."""
        if not self._end():
            return
        if self._grant.hold is not None:
            self._grant.hold.keep()
        self._settle_ceiling(None)
        self._release_more()

    def grow(self, output_tokens: int) -> None:
        """A stream has come near its end at ``output_tokens``: ask for more in the background.

        ``output_tokens`` rises, or ``refusal`` is set.
        """
        paid = self.output_tokens
        if paid is None or self._growing or not self._ends:
            return
        hold, rates = self._grant.hold, self._grant.rates
        bound = self._bound
        more = max(_GROWTH, paid, 2 * (output_tokens - paid))
        if hold is not None and rates is not None:
            cost = _cost_of_more(rates, bound, paid, more)
            if cost is not None and hold.grow(cost):
                if self._take_more(cost):
                    self.output_tokens = paid + more
                    self._note_more()
                return
        if self.reservation_id is None:  # without cover from the start
            self.output_tokens = paid + more
            return
        self._growing = True
        # Without a limit, so that it gets what is left where that is less than what is assumed.
        wanted = RequestBound(
            bound.provider, bound.model, 0, None, streams=True, terms=bound.terms, local=bound.local
        )
        self._requests.ask_more(self._scope, wanted, functools.partial(self._grown, more))

    def raise_input(self, input_tokens: int) -> None:
        """The prompt may have more tokens than was known: hold that too, if there is money.

        Else the next request would take what this one turns out to have cost. What the lease has
        not is asked for in the background; a refusal ends nothing, as the request is under way.
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
                bound.provider, bound.model, tokens, 1, terms=bound.terms, local=bound.local
            )
            self._requests.ask_more(self._scope, more, self._raised)

    def _raised(self, outcome: Grant | BaseException) -> None:
        if isinstance(outcome, Grant):
            self._add(outcome)
            self._note_more()
            if not self._ends:  # it ended meanwhile
                self._release_more()

    def _add(self, more: Grant) -> None:
        first, second = self._grant.hold, more.hold
        if first is None or second is None or not first.absorb(second):
            self._more.append(more)

    def _grown(self, more: int, outcome: Grant | BaseException) -> None:
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
            if not self._ends:  # it ended meanwhile
                self._release_more()
        self._growing = False

    def _note_more(self) -> None:
        if self.entry is not None and self._ends:
            self.entry.hold(self.amount_nanousd or 0)

    def _take_more(self, amount: int) -> bool:
        """Take more from the ceiling, or set the refusal."""
        ceiling = self._ceiling
        if ceiling is None:
            return True
        if ceiling.take(amount):
            self._taken.append(amount)
            if not self._ends:  # it ended meanwhile
                self._settle_ceiling(0)
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
        """Give back what a stream was granted beside its first hold; the event names that one."""
        while self._more:
            try:
                self._requests.release(self._more.pop())
            except IndexError:  # another thread was faster
                return

    def _end(self) -> bool:
        try:
            return self._ends.pop()
        except IndexError:
            return False


class _NotGated(RequestHold):
    """The request needs no cover."""

    __slots__ = ()

    def __init__(self) -> None:
        self.reservation_id = self.entry = None
        self.output_tokens = self.cost_nanousd = None
        self.refusal = None

    @property
    def amount_nanousd(self) -> int | None:
        """Nothing is set aside."""
        return None

    def cost_at_most(self, input_tokens: int, output_tokens: int) -> int | None:
        """Nothing is known of its cost."""
        return None

    def prices(self, model: str | None) -> bool:
        """Nothing is paid for."""
        return True

    def settle(self, usage: Usage) -> None:
        """Nothing was set aside."""

    def give_back(self) -> None:
        """Nothing was set aside."""

    def keep(self) -> None:
        """Nothing was set aside."""

    def grow(self, output_tokens: int) -> None:
        """Nothing limits it."""

    def raise_input(self, input_tokens: int) -> None:
        """Nothing is set aside."""


NOT_GATED: Final = _NotGated()


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
