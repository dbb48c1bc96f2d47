"""Which budgets apply to a call or an event, and their balances in the current periods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from guard.core import globs
from guard.core.model_names import family
from guard.gateway.domain import records, windows
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.ledger import Balance, BudgetAccount, Reservation
from guard.gateway.domain.lineage import lineage
from guard.gateway.ledger.state import (
    SCOPE_KINDS,
    AccountKeys,
    BudgetIndex,
    BudgetsOfKind,
    Meter,
    OrganisationState,
    ScopeKeys,
)
from guard.gateway.ledger.unit_of_work import UnitOfWork

_METERED: Final[tuple[records.BudgetUnit, ...]] = ("tokens", "calls")


def organisation(unit: UnitOfWork, organisation_id: str) -> OrganisationState:
    """Return an organisation's state.

    Raises:
        NotFoundError: no such organisation.
    """
    org = unit.organisation(organisation_id)
    if org is None:
        raise NotFoundError("no such organisation")
    return org


def accounts_of(unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys) -> list[BudgetAccount]:
    """Return the balances of money over a call or an event, in the current periods."""
    cached = unit.cached_accounts(org, keys)
    if cached is not None:
        return cached
    return _open(unit, org, keys, applying(_budgets_over(unit, org, keys), keys))


def metered_accounts_of(
    unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys
) -> Iterator[tuple[Meter, list[BudgetAccount]]]:
    """Yield the balances of tokens and calls over a call or an event, by what they count."""
    if org.budgets is None:
        _read_budgets(unit, org)
    if not org.is_metered:
        return
    metered = org.metered
    if org.many:
        named = unit.budgets_for(org.organisation_id, _names(keys), _METERED)
        metered = _with_several(metered_index(named), metered)
    for meter, index in metered.items():
        own = meter, keys
        cached = unit.cached_accounts(org, own)
        found = _open(unit, org, own, applying(index, keys)) if cached is None else cached
        if found:
            yield meter, found


def tags_over(
    unit: UnitOfWork,
    org: OrganisationState,
    tags: Mapping[str, str],
    reservation: Reservation | None = None,
) -> tuple[str, ...]:
    """Return the tags of a call or an event for :data:`ScopeKeys`; none if no budget has a tag.

    Args:
        unit: the unit of work.
        org: whose call it is.
        tags: its own.
        reservation: of the call; an event without tags takes those of the balances that it holds.
    """
    # Without budgets of tags all calls of a lane have the same keys, so that the cache of accounts
    # has one entry for them, and leases can cover them.
    if org.budgets is None:
        _read_budgets(unit, org)
    if not org.is_tagged:
        return ()
    if tags or reservation is None:
        return tuple(sorted([f"{name}={value}" for name, value in tags.items()]))
    held = {
        *reservation.balance_ids,
        *(i for each in reservation.metered for i in each.balance_ids),
    }
    found = set()
    for balance in map(unit.balance, held):
        rule = unit.budget(balance.budget_id)
        if rule is not None and rule.scope_kind == "tag":
            found.add(balance.scope_id)
    return tuple(sorted(found))


def _open(
    unit: UnitOfWork,
    org: OrganisationState,
    keys: AccountKeys,
    budgets: Iterable[tuple[records.BudgetRule, str]],
) -> list[BudgetAccount]:
    """Return the balances of budgets in the current periods, and cache them."""
    accounts: list[BudgetAccount] = []
    # The cached list is right until the first of its periods ends.
    valid_until_ms = float("inf")
    for budget, scope_id in budgets:
        start_ms, end_ms = windows.period_of(budget.window, unit.now_ms)
        if end_ms is not None:
            valid_until_ms = min(valid_until_ms, end_ms)
        accounts.append(BudgetAccount(budget, balance_of(unit, budget, scope_id, start_ms, end_ms)))
    # A fixed order, in which a storage with row locks takes the locks.
    accounts.sort(key=lambda account: account.balance.balance_id)
    unit.cache_accounts(org, keys, valid_until_ms, accounts)
    return accounts


def _budgets_over(unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys) -> BudgetIndex:
    """Return an index with every budget that may be over a call or an event.

    A few budgets are all kept in memory. Of many, those that name a scope are looked up for each
    call.
    """
    budgets = _read_budgets(unit, org) if org.budgets is None else org.budgets
    if not org.many:
        return budgets
    index = index_of(unit.budgets_for(org.organisation_id, _names(keys)))
    _add_several(index, budgets)
    return index


def _read_budgets(unit: UnitOfWork, org: OrganisationState) -> BudgetIndex:
    """Read an organisation's budgets, and set all that its state says about them."""
    own = org.organisation_id
    found = unit.few_budgets(own)
    org.many = found is None
    rules = unit.budgets_for_several(own) if found is None else found
    org.budgets = index_of(rule for rule in rules if rule.unit == "usd")
    org.metered = metered_index(rules)
    org.is_metered = bool(org.metered) or (org.many and unit.has_metered_budgets(own))
    org.is_tagged = (
        unit.has_budgets_of_tags(own)
        if org.many
        else any(rule.scope_kind == "tag" for rule in rules)
    )
    return org.budgets


def _names(keys: ScopeKeys) -> dict[str, Sequence[str]]:
    """Return, by kind of scope, the ids whose own budgets are over a call."""
    names: dict[str, Sequence[str]] = {
        kind: lineage(scope_id) if kind == "key" else (scope_id,)
        for kind, scope_id in zip(SCOPE_KINDS, keys[:5], strict=True)
        if scope_id is not None
    }
    names["tag"], names["model"] = keys[5], keys[-1]
    return names


def _add_several(index: BudgetIndex, several: BudgetIndex) -> None:
    """Add budgets for several scopes each, and those of the organisation, to an index."""
    for kind, each in several.items():
        of_kind = index.setdefault(kind, BudgetsOfKind())
        of_kind.globs, of_kind.each = each.globs, each.each
        if kind == "organisation":
            of_kind.exact = each.exact


def _with_several(
    named: dict[Meter, BudgetIndex], several: dict[Meter, BudgetIndex]
) -> dict[Meter, BudgetIndex]:
    for meter, index in several.items():
        _add_several(named.setdefault(meter, {}), index)
    return named


def metered_index(budgets: Iterable[records.BudgetRule]) -> dict[Meter, BudgetIndex]:
    """Return the budgets that are not of money, by what they count: each meter has an index."""
    found: dict[Meter, list[records.BudgetRule]] = {}
    for budget in budgets:
        if budget.unit != "usd":
            found.setdefault(Meter(budget.unit, tuple(budget.counts)), []).append(budget)
    return {meter: index_of(rules) for meter, rules in found.items()}


def index_of(budgets: Iterable[records.BudgetRule]) -> BudgetIndex:
    """Return budgets by kind of scope: exact ones, those with a pattern, and those for each id."""
    index: BudgetIndex = {}
    for budget in budgets:
        of_kind = index.setdefault(budget.scope_kind, BudgetsOfKind())
        if budget.scope_id == "*":
            of_kind.each.append(budget)
        elif globs.is_pattern(budget.scope_id):
            of_kind.globs.append(budget)
        else:
            of_kind.exact.setdefault(budget.scope_id, []).append(budget)
    return index


def applying(index: BudgetIndex, keys: ScopeKeys) -> Iterator[tuple[records.BudgetRule, str]]:
    """Yield the budgets over a call or an event, each with the id that its balance is of."""
    if "organisation" in index:
        for budget in index["organisation"].exact.get("", ()):
            yield budget, ""
    for kind, scope_id in zip(SCOPE_KINDS, keys[:5], strict=True):
        if kind in index and scope_id is not None:
            names = lineage(scope_id) if kind == "key" else (scope_id,)
            yield from _applying_to_one(index[kind], names, scope_id)
    for tag in keys[5] if "tag" in index else ():
        yield from _applying_to_one(index["tag"], (tag,), tag)
    # A budget of any of a model's names applies. One for several models has a balance for each
    # family, so that dated releases of a model share it.
    if keys[-1] and "model" in index:
        yield from _applying_to_one(index["model"], keys[-1], family(keys[-1][0]))


def _applying_to_one(
    of_kind: BudgetsOfKind, names: tuple[str, ...], own: str
) -> Iterator[tuple[records.BudgetRule, str]]:
    """Yield the most specific budgets of each window: exact, then by pattern, then for each id.

    Args:
        of_kind: the budgets.
        names: the ids whose exact budgets apply.
        own: the id that has a balance of its own where a budget is for several.
    """
    # By window: those of another window are other limits, and apply beside these.
    taken = set()
    for name in names:
        for budget in of_kind.exact.get(name, ()):
            taken.add(budget.window)
            yield budget, name
    matched = set()
    for budget in of_kind.globs:
        if budget.window not in taken:
            target = _matching(budget.scope_id, (own, *names))
            if target is not None:
                matched.add(budget.window)
                yield budget, target
    for budget in of_kind.each:
        if budget.window not in taken | matched:
            yield budget, own


def _matching(pattern: str, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if globs.matches(pattern, name)), None)


def balance_of(
    unit: UnitOfWork, budget: records.BudgetRule, scope_id: str, start_ms: int, end_ms: int | None
) -> Balance:
    """Return the balance of a budget in an open period; it is made where there is none."""
    found = unit.find_balance(budget.budget_id, scope_id, start_ms)
    if found is not None:
        return found
    # A budget that is set in the middle of a period counts what was used in it before. Tokens are
    # read in the period in which the budget was made only: in later ones nothing was used before
    # the balance. Calls are stored nowhere else; they count from the first one under their budget.
    opening = 0
    if budget.unit == "usd" or budget.opens_with_tokens(start_ms):
        scope = (budget.organisation_id, budget.scope_kind, scope_id)
        cost, tokens = unit.used_before(*scope, start_ms, end_ms)
        opening = cost if budget.unit == "usd" else tokens
    return unit.add_balance(
        Balance(
            balance_id=0,
            budget_id=budget.budget_id,
            scope_id=scope_id,
            period_start_ms=start_ms,
            ends_ms=end_ms,
            opening=opening,
            committed=opening,
            overspend=max(0, opening - budget.limit_nanousd),
            authorized_max=budget.limit_nanousd,
        )
    )
