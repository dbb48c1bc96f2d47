"""Budgets, policies and prices: what rows of the table of operations do."""

from __future__ import annotations

import asyncio
from typing import Final

from guard.gateway.api.admin import alert_handlers, bodies
from guard.gateway.api.admin.from_body import record_from
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.domain import acceleration, records, repeats
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.preview import EXAMPLES_MAX, Difference, compare, replaced
from guard.gateway.domain.rulesets import Change, RuleSet, first_named_twice, plan
from guard.gateway.domain.windows import checked_window
from guard.gateway.ledger import asks, catalogue
from guard.gateway.ledger.logins import policy_name
from guard.gateway.services.subjects import RuleSubject, Scoped, subject_of
from guard.gateway.unit.state import within

PART_RULES: Final = 50
"""Changes of a file of rules that one unit of work makes."""

ASKS_MAX: Final = 1000
"""How many calls that wait for a raise are read."""


# -- budgets ---------------------------------------------------------------------------------------


async def budget_of(call: AdminCall, body: bodies.BudgetBody) -> records.BudgetRule:
    """Return the budget that a body means.

    Raises:
        ConflictError: it is for something that does not exist.
        ValueError: the limit or the scope is contradictory.
    """
    budget = as_budget(call.own, body)
    prices = await call.storage.prices(call.own)
    await call.services.subjects.resolve(call.own, [(budget, body.anyway)], prices)
    return budget


async def list_budgets(call: AdminCall) -> list[bodies.BudgetReply]:
    return [record_from(e, bodies.BudgetReply) for e in await call.storage.budgets(call.own)]


async def put_budget(call: AdminCall, body: bodies.BudgetBody) -> bodies.BudgetReply:
    made = await call.write(catalogue.put_budget, await budget_of(call, body))
    return record_from(made, bodies.BudgetReply)


async def raise_budget(call: AdminCall, body: bodies.RaiseBody, budget_id: str) -> records.Raised:
    unit, by = body.amount()
    return await call.write(
        asks.raise_budget, call.own, budget_id,
        by=by, raise_key=body.key, counted_in=unit,
    )  # fmt: skip


async def refuse_raise(
    call: AdminCall, body: bodies.RefusalBody, budget_id: str
) -> list[records.BudgetAsk]:
    waiting = [
        ask
        for ask in await call.storage.budget_asks(call.own, ASKS_MAX)
        if ask.budget_id == budget_id and body.call_id in (None, ask.call_id)
    ]
    return await call.write(asks.refuse_all, call.own, budget_id, waiting, body.reason)


def as_budget(organisation_id: str, body: bodies.BudgetBody) -> records.BudgetRule:
    """Build a budget from its body.

    Raises:
        ValueError: the limit, the scope or the window is contradictory.
    """
    return record_from(
        body, records.BudgetRule, budget_id="", organisation_id=organisation_id,
        limit=body.limit(), window=checked_window(body.window),
        counts=sorted(set(body.counts)),
    )  # fmt: skip


# -- policies and prices ---------------------------------------------------------------------------


async def put_policy(call: AdminCall, body: bodies.PolicyBody, name: str) -> records.Policy:
    policy = as_policy(call.own, name, body)
    await call.services.subjects.resolve(call.own, [(policy, body.anyway)])
    return await call.write(catalogue.put_policy, policy)


async def preview(call: AdminCall, body: bodies.PreviewBody) -> bodies.Preview:
    own = call.own
    calls = call.services.recent.newest(own, body.calls)
    current = await call.storage.policies(own)
    changed = as_policy(own, body.name, body.policy)
    # Off the loop, here and below: it judges a thousand calls by a thousand policies, twice.
    found = await asyncio.to_thread(compare, calls, current, replaced(current, changed))
    accelerated = None
    if changed.document.on_accelerating_spend is not None:
        runs = await call.storage.spend_by_minute(own)
        accelerated = await asyncio.to_thread(acceleration.preview, changed, runs)
    return bodies.Preview(
        calls=len(calls),
        changed=len(found),
        newly_refused=sum(d.after.startswith("refuse") for d in found),
        newly_allowed=sum(d.after == "allow" for d in found),
        newly_pending=sum(d.after == "pending" for d in found),
        examples=[_previewed(d) for d in found[-EXAMPLES_MAX:]],
        repeats=(
            repeats.preview(changed, await call.storage.repeat_counts(own))
            if changed.document.repeat_caps
            else None
        ),
        acceleration=accelerated,
    )


def _previewed(difference: Difference) -> bodies.PreviewedCall:
    call = difference.recent.call
    return record_from(
        call, bodies.PreviewedCall, at_ms=difference.recent.at_ms, before=difference.before,
        after=difference.after, reason=difference.reason,
    )  # fmt: skip


def as_policy(organisation_id: str, name: str, body: bodies.PolicyBody) -> records.Policy:
    """Build a policy from its body."""
    return record_from(
        body, records.Policy, policy_id="", organisation_id=organisation_id, name=name
    )


async def put_price(call: AdminCall, body: bodies.PriceBody) -> records.Price:
    return await call.write(catalogue.put_price, as_price(call.own, body))


def as_price(organisation_id: str, body: bodies.PriceBody) -> records.Price:
    """Build a price from its body."""
    return record_from(body, records.Price, price_id="", organisation_id=organisation_id)


# -- all of them -----------------------------------------------------------------------------------


async def unmatched(call: AdminCall) -> list[RuleSubject]:
    return await call.services.subjects.unmatched(call.own)


async def apply(call: AdminCall, body: bodies.ApplyBody) -> bodies.Plan:
    own = call.own
    rules = RuleSet(
        [as_budget(own, b) for b in body.budgets],
        [as_policy(own, p.name, p) for p in body.policies],
        [as_price(own, p) for p in body.prices],
    )
    notices = RuleSet(settings=body.settings)
    alert_handlers.add_to(notices, call.services.settings, own, body.channels, body.alerts)
    prices = [*rules.prices, *await call.storage.prices(own)]
    named: list[Scoped] = [*rules.budgets, *rules.policies]
    anyway = [body.anyway or each.anyway for each in body.budgets]
    anyway += [body.anyway or each.anyway for each in body.policies]
    await call.services.subjects.resolve(own, zip(named, anyway, strict=True), prices)
    twice = first_named_twice(rules) or first_named_twice(notices)
    if twice is not None:
        raise ConflictError(f"named twice: {twice}")
    # 1. Planned beside the writer. Files take turns: two at once would leave rules of both.
    async with call.services.turns.setdefault(own, asyncio.Lock()):
        current = RuleSet(
            await call.storage.budgets(own), _written(await call.storage.policies(own), rules),
            await call.storage.prices(own),
        )  # fmt: skip
        steps = await asyncio.to_thread(plan, current, rules, prune=body.prune)
        todo = [each for each in steps if each.change.change != "unchanged" and not body.dry_run]
        # 2. Done in parts; the first has whatever may be wrong with the file. If one fails, those
        # before it are active, and the same file sent again activates the rest.
        others: list[Change] = []
        for at in range(0, len(todo) or 1, PART_RULES):
            part = todo[at : at + PART_RULES]
            others += await call.storage.write(
                within(own, weight=1 + 2 * len(part) + notices.count()), catalogue.apply,
                call.actor, own, notices, part, dry_run=body.dry_run, prune=body.prune,
            )  # fmt: skip
            notices = RuleSet()
    changes = [*(step.change for step in steps), *others]
    # The plan begins with the wanted rules, in this order.
    subjects = [subject_of(each) for each in (*named, *rules.prices)]
    unmatched = await call.services.subjects.unknown(own, {*subjects}, {p.model for p in prices})
    for change, subject in zip(changes, subjects, strict=False):
        change.unmatched = subject in unmatched
    changed = sum(change.change != "unchanged" for change in changes)
    return bodies.Plan(dry_run=body.dry_run, changed=changed, changes=changes)


def _written(found: list[records.Policy], rules: RuleSet) -> list[records.Policy]:
    """Leave out the policies of people's groups that a file does not name: it cannot know them."""
    named = {each.name for each in rules.policies}
    return [each for each in found if each.name != policy_name(each.scope_id) or each.name in named]
