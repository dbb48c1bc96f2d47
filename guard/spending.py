"""``guard.spend``: what a workflow, and this run of it, have spent."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from guard.breaker.exceptions import GuardError, GuardTransportError
from guard.core import wire
from guard.core.tags import tags_of
from guard.facade import name_of, ready_runtime, ready_runtime_async
from guard.hooks import ErrorContext, fire, fire_async
from guard.runtime import active
from guard.runtime.account import KeyAccount
from guard.scope.scope import account_in, current_scope

if TYPE_CHECKING:  # the session imports httpx and websockets
    from guard.session.session import Session


@attrs.frozen
class SpendLimit:
    """One budget over a workflow, in its current period.

    Attributes:
        scope: what it is of: ``workflow support (day)``.
        limit_nanousd: the limit.
        spent_nanousd: what was charged to it.
        set_aside_nanousd: what calls and leases of all processes hold of it.
        left_nanousd: what calls still to come may cost; negative above the limit.
        resets_at_ms: when its period ends, in Unix milliseconds; None for one that never does.
        uncertain_nanousd: the part that was charged in doubt: at most so much was not billed.
        kept_nanousd: what of the limit is kept for winding down; ``left_nanousd`` has it too.
        winding_down: whether that is all that is left, or the rest was not enough for a request.
    """

    scope: str
    limit_nanousd: int
    spent_nanousd: int
    set_aside_nanousd: int
    left_nanousd: int
    resets_at_ms: int | None = None
    uncertain_nanousd: int = 0
    kept_nanousd: int = 0
    winding_down: bool = False

    @property
    def left_dollars(self) -> float:
        """What calls still to come may cost, in dollars."""
        return self.left_nanousd / wire.NANOUSD_PER_DOLLAR


@attrs.frozen
class CountedLimit:
    """One budget of tokens, or limit of calls, over a workflow, in its current period.

    Attributes:
        unit: ``tokens`` or ``calls``.
        scope: what it is of: ``workflow support (day)``.
        limit: how many.
        used: how many were used: of tokens input, output and cached ones.
        set_aside: how many the calls under way may use.
        left: how many calls still to come may use; negative above the limit.
        counts: for calls: globs of the tools and models whose calls are counted; empty for all.
        resets_at_ms: when its period ends, in Unix milliseconds; None for one that never does.
        uncertain: the part that was charged in doubt: at most so many were not used.
        kept: for tokens: how many are kept for winding down; ``left`` has them too.
        winding_down: whether these are all that is left, or the rest was not enough for a request.
    """

    unit: str
    scope: str
    limit: int
    used: int
    set_aside: int
    left: int
    counts: tuple[str, ...] = ()
    resets_at_ms: int | None = None
    uncertain: int = 0
    kept: int = 0
    winding_down: bool = False


@attrs.frozen
class Spend:
    """What a workflow has spent.

    Attributes:
        workflow_id: the workflow.
        spent_nanousd: what all of its runs have cost, as the gateway has charged it.
        run_id, run_spent_nanousd: one run, and what it has cost; None unless one was asked for.
        set_aside_nanousd: what this process holds for calls of the workflow: under way, and in
            leases. It is not spent yet.
        waiting_events: events of this process that could not be delivered, so that what they cost
            is missing here.
        is_known: whether the gateway has ever charged anything to the workflow's name.
        limits: the budgets over the workflow, the one with the least left first.
        uncertain_nanousd: the part that was charged in doubt, for answers that were lost: at most
            so much was not billed.
        run_uncertain_nanousd: the same of the run.
        counted: the budgets of tokens and the limits of calls over the workflow.
    """

    workflow_id: str
    spent_nanousd: int = 0
    run_id: str | None = None
    run_spent_nanousd: int | None = None
    set_aside_nanousd: int = 0
    waiting_events: int = 0
    is_known: bool = False
    limits: tuple[SpendLimit, ...] = ()
    uncertain_nanousd: int = 0
    run_uncertain_nanousd: int = 0
    counted: tuple[CountedLimit, ...] = ()

    @property
    def winding_down(self) -> bool:
        """Whether only what a budget keeps for winding down is left for this run."""
        of_tokens = any(limit.winding_down for limit in self.counted)
        return of_tokens or any(limit.winding_down for limit in self.limits)

    @property
    def spent_dollars(self) -> float:
        """What all runs have cost, in dollars."""
        return self.spent_nanousd / wire.NANOUSD_PER_DOLLAR

    @property
    def uncertain_dollars(self) -> float:
        """What of it was charged in doubt, in dollars."""
        return self.uncertain_nanousd / wire.NANOUSD_PER_DOLLAR

    @property
    def run_spent_dollars(self) -> float | None:
        """What the run has cost, in dollars."""
        spent = self.run_spent_nanousd
        return None if spent is None else spent / wire.NANOUSD_PER_DOLLAR

    @property
    def set_aside_dollars(self) -> float:
        """What this process holds for calls of the workflow, in dollars."""
        return self.set_aside_nanousd / wire.NANOUSD_PER_DOLLAR


def spend(workflow: str | None = None, *, run: str | None = None) -> Spend:
    """Ask the gateway what a workflow has spent; blocks (in an event loop: ``guard.aio.spend``).

    The events of this process are delivered first, so that they count. An API key reads the
    workflows of its organisation; a key for a single workflow reads only that one.

    Args:
        workflow: its id; the current workflow, and its current run, when None.
        run: one of its runs.

    Raises:
        ValueError: no workflow is open and none is named.
        GuardTransportError: no answer from the gateway, or it is too old for this question.
        GuardError: the key may not read the workflow, or guard cannot be initialised.

    Example:
        >>> with guard.workflow("support"):  # doctest: +SKIP
        ...     guard.spend().spent_dollars
        0.0031
    """
    query = _query(workflow, run)
    if active.is_off():
        return Spend(query["workflow"], run_id=query.get("run"))
    account = account_in(current_scope.get(), ready_runtime())
    try:
        reply = account.link.ask(functools.partial(_ask, query=query), account.settings.timeout_s)
    except GuardError as exc:
        fire(exc, ErrorContext("spend", query["workflow"]))
        raise
    return _spend(account, reply)


async def spend_async(workflow: str | None = None, *, run: str | None = None) -> Spend:
    """Like :func:`spend`, without blocking the running loop.

    Args:
        workflow, run: as for ``guard.spend``.

    Raises:
        ValueError, GuardError: as by ``guard.spend``.
    """
    query = _query(workflow, run)
    if active.is_off():
        return Spend(query["workflow"], run_id=query.get("run"))
    account = account_in(current_scope.get(), await ready_runtime_async())
    question = functools.partial(_ask, query=query)
    try:
        reply = await account.link.ask_async(question, account.settings.timeout_s)
    except GuardError as exc:
        await fire_async(exc, ErrorContext("spend", query["workflow"]))
        raise
    return _spend(account, reply)


def _query(workflow: str | None, run: str | None) -> dict[str, str]:
    """Return the query; for the current workflow also its run and the scopes of its budgets."""
    scope = current_scope.get()
    asked = {"workflow": None if workflow is None else name_of("workflow", workflow)}
    if run is not None:
        asked["run"] = name_of("run", run)
    if workflow is None:
        if scope.workflow_id is None:
            raise ValueError("no workflow is open here: name one, guard.spend(workflow=...)")
        asked["workflow"] = scope.workflow_id
        asked.setdefault("run", scope.run_id)
        asked.update(agent=scope.agent, chain=scope.chain_id, user=scope.user)
        if scope.tags is not None:
            asked["tags"] = "\n".join(f"{n}={v}" for n, v in tags_of(scope.tags).items())
    return {name: value for name, value in asked.items() if value is not None}


async def _ask(session: Session, query: dict[str, str]) -> wire.SpendReply:
    if session.features is not None and wire.FEATURE_SPEND not in session.features:
        raise GuardTransportError(
            "this gateway is too old to tell what a workflow has spent",
            source="GATEWAY_ERROR",
            endpoint=wire.SPEND_PATH,
            retryable=False,
        )
    return await session.client.spend(query)


def _spend(account: KeyAccount, reply: wire.SpendReply) -> Spend:
    limits = [
        SpendLimit(
            each.scope or "",
            each.limit_nanousd,
            each.spent_nanousd,
            each.reserved_nanousd,
            each.remaining_nanousd,
            each.resets_at_ms,
            each.uncertain_nanousd,
            each.kept_nanousd,
            each.winding_down,
        )
        for each in reply.budgets
    ]
    return Spend(
        reply.workflow_id,
        reply.spent_nanousd,
        reply.run_id,
        reply.run_spent_nanousd,
        account.leases.set_aside_for(reply.workflow_id),
        account.events.waiting,
        reply.is_known,
        tuple(sorted(limits, key=lambda limit: limit.left_nanousd)),
        reply.uncertain_nanousd,
        reply.run_uncertain_nanousd,
        tuple(
            CountedLimit(
                each.unit,
                each.scope or "",
                each.limit,
                each.used,
                each.set_aside,
                each.left,
                tuple(each.counts),
                each.resets_at_ms,
                each.uncertain,
                each.kept,
                each.winding_down,
            )
            for each in reply.counted
        ),
    )
