"""A whole set of budgets, policies and prices brought into force idempotently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from guard.gateway.domain.records import Budget, Policy, Price
from guard.gateway.storage.base import Actor, ConflictError, Storage

ChangeKind = Literal["create", "update", "unchanged", "delete"]


class Change(Struct, kw_only=True):
    """One line of the plan."""

    kind: Literal["budget", "policy", "price"]
    name: str
    change: ChangeKind


class Wanted(Struct):
    """What is to be in force."""

    budgets: list[Budget]
    policies: list[Policy]
    prices: list[Price]


async def apply(
    storage: Storage,
    actor: Actor,
    organisation_id: str,
    wanted: Wanted,
    *,
    dry_run: bool,
    prune: bool,
) -> list[Change]:
    """Compare what is wanted with what is there, and make it so.

    Args:
        dry_run: only say what would change.
        prune: also remove what is there and not wanted.

    Returns:
        The plan. Applying the same thing again changes nothing, and finishes what a crash cut
        short.
    """
    plan: list[Change] = []
    current_budgets = {_budget_name(b): b for b in await storage.budgets(organisation_id)}
    current_policies = {p.name: p for p in await storage.policies(organisation_id)}
    current_prices = {_price_name(p): p for p in await storage.prices(organisation_id)}
    for budget in wanted.budgets:
        name = _budget_name(budget)
        change = _change(current_budgets.pop(name, None), budget)
        plan.append(Change(kind="budget", name=name, change=change))
        if not dry_run and change != "unchanged":
            await storage.put_budget(actor, budget)
    for policy in wanted.policies:
        change = _change(current_policies.pop(policy.name, None), policy)
        plan.append(Change(kind="policy", name=policy.name, change=change))
        if not dry_run and change != "unchanged":
            await storage.put_policy(actor, policy)
    for price in wanted.prices:
        name = _price_name(price)
        change = _change(current_prices.pop(name, None), price)
        plan.append(Change(kind="price", name=name, change=change))
        if not dry_run and change != "unchanged":
            await storage.put_price(actor, price)
    if prune:
        for name, old_budget in current_budgets.items():
            plan.append(Change(kind="budget", name=name, change="delete"))
            if not dry_run:
                await storage.delete_budget(actor, organisation_id, old_budget.budget_id)
        for name in current_policies:
            plan.append(Change(kind="policy", name=name, change="delete"))
            if not dry_run:
                await storage.delete_policy(actor, organisation_id, name)
        for name, old_price in current_prices.items():
            plan.append(Change(kind="price", name=name, change="delete"))
            if not dry_run:
                await storage.delete_price(actor, organisation_id, old_price.price_id)
    return plan


def check_distinct(wanted: Wanted) -> None:
    """Refuse a set that says two things about one name.

    Raises:
        ConflictError: something is named twice.
    """
    for names in (
        [_budget_name(b) for b in wanted.budgets],
        [p.name for p in wanted.policies],
        [_price_name(p) for p in wanted.prices],
    ):
        twice = _first_twice(names)
        if twice is not None:
            raise ConflictError(f"named twice: {twice}")


def _first_twice(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _budget_name(budget: Budget) -> str:
    return " ".join(filter(None, (budget.scope_kind, budget.scope_id, budget.window)))


def _price_name(price: Price) -> str:
    return f"{price.provider}/{price.model}"


_OWN_FIELDS = ("budget_id", "policy_id", "price_id", "version", "created_at_ms", "updated_at_ms")


def _change(old: Any, new: Any) -> ChangeKind:
    if old is None:
        return "create"
    return "unchanged" if _content(old) == _content(new) else "update"


def _content(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
