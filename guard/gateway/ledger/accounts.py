"""Which budgets apply to a call or an event, and their balances in the current periods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from guard.core import globs
from guard.core.model_names import family
from guard.gateway.domain import records, windows
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.key_hierarchy import lineage
from guard.gateway.domain.ledger import Balance, BudgetBalance, Reservation, open_with
from guard.gateway.domain.windows import DAY_MS
from guard.gateway.unit.state import (
    RUN,
    SCOPE_KINDS,
    AccountKeys,
    BudgetIndex,
    BudgetsOfKind,
    Meter,
    OrganisationState,
    ScopeKeys,
    run_scope,
)
from guard.gateway.unit.unit_of_work import UnitOfWork

_RUN_KEPT_MS: Final = 30 * DAY_MS
_TEAM: Final = "team"
"""The tag that a key's team is for budgets."""
_TEAMS_MAX: Final = 10_000
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


def accounts_of(unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys) -> list[BudgetBalance]:
    """Return the balances of money over a call or an event, in the current periods."""
    cached = unit.cached_accounts(org, keys)
    if cached is not None:
        return cached
    return _open(unit, org, keys, applying(_budgets_over(unit, org, keys), keys))


def metered_accounts_of(
    unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys
) -> Iterator[tuple[Meter, list[BudgetBalance]]]:
    """Yield the balances of tokens and calls over a call or an event, by what they count."""
    if org.budgets is None:
        _read_budgets(unit, org)
    if not org.is_metered:
        return
    metered = org.metered
    if org.many:
        named = unit.catalogue.budgets_for(org.organisation_id, _names(keys), _METERED)
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
    key_id: str,
    run_id: str | None,
    reservation: Reservation | None = None,
) -> tuple[str, ...]:
    """Return the tags and the run of a call or an event for :data:`ScopeKeys`; a team is a tag.

    None if no budget is of a tag or a run.

    Args:
        unit: the unit of work.
        org: whose call it is.
        tags: its own.
        key_id, run_id: its key, and its run.
        reservation: of the call; an event without tags takes those of the balances that it holds.
    """
    # Without such budgets all calls of a lane have the same keys, so that the cache of accounts
    # has one entry for them, and leases can cover them.
    if org.budgets is None:
        _read_budgets(unit, org)
    if not org.is_tagged:
        return ()
    run = () if run_id is None else (run_scope(key_id, run_id),)
    # A key's team is fixed, so no call is another team's because it says so.
    team = _team_of(unit, org, key_id)
    if tags or reservation is None:
        own = {**tags, _TEAM: team} if team else tags
        return *sorted([f"{name}={value}" for name, value in own.items()]), *run
    held = {
        *reservation.balance_ids,
        *(i for each in reservation.metered for i in each.balance_ids),
    }
    found = {f"{_TEAM}={team}"} if team else set()
    for balance in map(unit.balance, held):
        rule = unit.catalogue.budget(balance.budget_id)
        if rule is not None and rule.scope_kind == "tag":
            found.add(balance.scope_id)
    return *sorted(found), *run


def _open(
    unit: UnitOfWork,
    org: OrganisationState,
    keys: AccountKeys,
    budgets: Iterable[tuple[records.BudgetRule, str]],
) -> list[BudgetBalance]:
    """Return the balances of budgets in the current periods, and cache them."""
    accounts: list[BudgetBalance] = []
    # The cached list is right until the first of its periods ends.
    valid_until_ms = float("inf")
    for budget, scope_id in budgets:
        balance = balance_of(unit, org, budget, scope_id)
        if budget.scope_kind == "run" and budget.window == "total":
            valid_until_ms = min(valid_until_ms, unit.now_ms + DAY_MS)
            _prolong(unit, balance)
        elif balance.ends_ms is not None:
            valid_until_ms = min(valid_until_ms, balance.ends_ms)
        elif budget.window != "total":  # its first charge gives it an end
            valid_until_ms = unit.now_ms
        accounts.append(BudgetBalance(budget, balance))
    # A fixed order, in which a storage with row locks takes the locks.
    accounts.sort(key=lambda account: account.balance.balance_id)
    unit.cache_accounts(org, keys, valid_until_ms, accounts)
    return accounts


def _prolong(unit: UnitOfWork, balance: Balance) -> None:
    """Let a run's balance end 30 days after its last use, or a day less."""
    # Written once a day: runs are many, and end without saying so.
    if balance.ends_ms is None or balance.ends_ms < unit.now_ms + _RUN_KEPT_MS - DAY_MS:
        unit.change_balances([balance])
        balance.ends_ms = unit.now_ms + _RUN_KEPT_MS


def _budgets_over(unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys) -> BudgetIndex:
    """Return an index with every budget that may be over a call or an event.

    A few budgets are all kept in memory. Of many, those that name a scope are looked up for each
    call.
    """
    budgets = _read_budgets(unit, org) if org.budgets is None else org.budgets
    if not org.many:
        return budgets
    index = index_of(unit.catalogue.budgets_for(org.organisation_id, _names(keys)))
    _add_several(index, budgets)
    return index


def _team_of(unit: UnitOfWork, org: OrganisationState, key_id: str) -> str:
    """Return the team of a key; empty without one."""
    team = org.teams.get(key_id)
    if team is None:
        key = unit.directory.key(key_id)
        if len(org.teams) >= _TEAMS_MAX:
            org.teams.clear()
        team = org.teams[key_id] = "" if key is None else key.team
    return team


def _read_budgets(unit: UnitOfWork, org: OrganisationState) -> BudgetIndex:
    """Read an organisation's budgets, and set all that its state says about them."""
    own = org.organisation_id
    found = unit.catalogue.few_budgets(own)
    org.many = found is None
    rules = unit.catalogue.budgets_for_several(own) if found is None else found
    org.budgets = index_of(rule for rule in rules if rule.unit == "usd")
    org.metered = metered_index(rules)
    org.is_metered = bool(org.metered) or (org.many and unit.catalogue.has_metered_budgets(own))
    org.is_tagged = (
        unit.catalogue.has_budgets_of_tags(own)
        if org.many
        else any(rule.scope_kind in ("tag", "run") for rule in rules)
    )
    return org.budgets


def _names(keys: ScopeKeys) -> dict[str, Sequence[str]]:
    """Return, by kind of scope, the ids whose own budgets are over a call."""
    names: dict[str, Sequence[str]] = {
        kind: lineage(scope_id) if kind == "key" else (scope_id,)
        for kind, scope_id in zip(SCOPE_KINDS, keys[:5], strict=True)
        if scope_id is not None
    }
    names["tag"] = [each for each in keys[5] if not each.startswith(RUN)]
    names["run"] = [name for each in keys[5] if each.startswith(RUN) for name in _run_names(each)]
    names["model"] = keys[-1]
    return names


def _run_names(run: str) -> tuple[str, str]:
    """Return the id of a run of one key, and the name that the key has given it."""
    own = run.removeprefix(RUN)
    return own, own.partition("/")[2]


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
    for tag in keys[5] if "tag" in index or "run" in index else ():
        if not tag.startswith(RUN):
            if "tag" in index:
                yield from _applying_to_one(index["tag"], (tag,), tag)
        elif "run" in index:
            names = _run_names(tag)
            for budget, name in _applying_to_one(index["run"], names, names[0]):
                # One that names a run holds for all who name it; of others, each key has its own.
                yield budget, name if name == budget.scope_id else names[0]
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
    unit: UnitOfWork, org: OrganisationState, budget: records.BudgetRule, scope_id: str
) -> Balance:
    """Return the balance of a budget in the current period; it is made where there is none."""
    last, found = _opened(unit, org, budget, scope_id)
    return found if found is last else unit.add_balance(found)


def open_used(unit: UnitOfWork, org: OrganisationState, budget: records.BudgetRule) -> None:
    """Make the balance of a budget for one id if something was used before in its period.

    So lists show at once what counts; otherwise the first call makes the balance.
    """
    if not globs.is_pattern(budget.scope_id):
        last, found = _opened(unit, org, budget, budget.scope_id)
        if found is not last and found.opening:
            unit.add_balance(found)


def _opened(
    unit: UnitOfWork, org: OrganisationState, budget: records.BudgetRule, scope_id: str
) -> tuple[Balance | None, Balance]:
    """Return the newest balance of a budget, and that of the current period: it may be new."""
    last = unit.newest_balance(budget.budget_id, scope_id, unit.now_ms)
    found = current(last, budget, scope_id, org.settings.calendar(budget.zone), unit.now_ms)
    if found is last:
        return last, found
    if opens_with_usage(found, budget):
        scope = (budget.organisation_id, budget.scope_kind, scope_id)
        period = (found.period_start_ms, found.ends_ms)
        cost, tokens = unit.used_before(*scope, *period, budget.scope_id)
        found.opening = found.committed = cost if budget.unit == "usd" else tokens
    found.overspend = max(0, found.opening - budget.limit)
    return last, found


def current(
    last: Balance | None,
    budget: records.BudgetRule,
    scope_id: str,
    calendar: windows.Calendar,
    now_ms: int,
) -> Balance:
    """Return the last balance of a budget if its period has not ended, else a new one.

    After a change of the zone the new period begins where the last one has ended, so that each
    charge counts in one of them. Less than half a period is added to the next one, so that no limit
    is given for a few hours.
    """
    # That of a run without a window ends only so that it leaves when it is not used any more.
    if last is not None and (budget.window == "total" or last.covers(now_ms)):
        return last
    start_ms, ends_ms = windows.period_of(budget.window, now_ms, calendar)
    if ends_ms is not None and last is not None and start_ms < (last.ends_ms or 0):
        half_ms, start_ms = (ends_ms - start_ms) // 2, last.ends_ms or 0
        if ends_ms - start_ms < half_ms:
            _, ends_ms = windows.period_of(budget.window, ends_ms, calendar)
    return Balance(
        balance_id=0, budget_id=budget.budget_id, scope_id=scope_id, period_start_ms=start_ms,
        ends_ms=ends_ms, authorized_max=budget.limit, zone=calendar.zone,
    )  # fmt: skip


def opens_with_usage(balance: Balance, budget: records.BudgetRule) -> bool:
    """Return whether a new balance counts what was used in its period before.

    That of a budget which is set in the middle of a period does. Tokens are read in the period in
    which the budget was made only: in later ones nothing was used before the balance. Calls are
    stored nowhere else, and neither are runs of one key; they count from the first one under their
    budget, and so does everything in a window of a length.
    """
    if budget.scope_kind == "run" or windows.length_ms(budget.window) is not None:
        return False
    return budget.unit == "usd" or budget.opens_with_tokens(balance.period_start_ms)


def _balances_under(
    unit: UnitOfWork, budget: records.BudgetRule, removed: records.BudgetRule
) -> list[Balance]:
    """Return the balances of a budget for several that may count what a removed one has counted."""
    several = removed.scope_kind in ("key", "model") or globs.is_pattern(removed.scope_id)
    if several:
        return unit.open_balances(budget.budget_id)
    found = unit.newest_balance(budget.budget_id, removed.scope_id, unit.now_ms)
    return [] if found is None or not found.covers(unit.now_ms) else [found]


def catch_up(
    unit: UnitOfWork, budget: records.BudgetRule, removed: records.BudgetRule
) -> list[Balance]:
    """Add to a budget's balances what was used while a more specific one was in force instead.

    Returns:
        the balances that have changed. None under a budget of calls: used ones are not stored; nor
        of a length, whose window counts from its first charge only.
    """
    changed: list[Balance] = []
    if windows.length_ms(budget.window) is not None:
        return changed
    scopes = (removed.organisation_id, removed.scope_kind)
    for balance in _balances_under(unit, budget, removed) if budget.unit != "calls" else ():
        own = balance.scope_id
        names = lineage(own) if removed.scope_kind == "key" else (own,)
        # A model's balance is its family's, of which the removed budget may have named one.
        if removed.scope_kind != "model" and _matching(removed.scope_id, names) is None:
            continue
        used = unit.used_before(
            *scopes, own, balance.period_start_ms, balance.ends_ms, budget.scope_id
        )
        lacking = used[budget.unit == "tokens"] - balance.committed
        if lacking > 0:
            unit.change_balances([balance])
            open_with(BudgetBalance(budget, balance), lacking, unit.now_ms)
            changed.append(balance)
    return changed
