"""Budgets, policies and prices: data that operators write, versioned and audited."""

from __future__ import annotations

from typing import Any

import msgspec

from guard.gateway.domain import records
from guard.gateway.domain.alerts import AlertRule, Channel, ChannelSecrets
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.rulesets import Change, PlannedStep, RuleSet, plan, plan_settings
from guard.gateway.ledger import alerting, audit, control, directory
from guard.gateway.ledger.accounts import organisation
from guard.gateway.ledger.unit_of_work import UnitOfWork


def put_budget(unit: UnitOfWork, actor: Actor, wanted: records.BudgetRule) -> records.BudgetRule:
    """Create a budget, or change the one of the same scope and window.

    Raises:
        NotFoundError: no such organisation.
    """
    org = organisation(unit, wanted.organisation_id)
    old = unit.find_budget(wanted)
    new = msgspec.structs.replace(
        wanted,
        budget_id=unit.ids.uuid7(unit.now_ms) if old is None else old.budget_id,
        version=1 if old is None else old.version + 1,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
        updated_at_ms=unit.now_ms,
    )
    if old is not None and _same(old, new):
        return old
    unit.save_budget(new)
    control.budget_changed(unit, org, old or new, new)
    audit.record(
        unit, actor, "budget.put", new.budget_id, msgspec.to_builtins(new), new.organisation_id
    )
    _announce(unit, new)
    return new


def _announce(unit: UnitOfWork, budget: records.BudgetRule) -> None:
    """Notify SDKs; a limit of calls also changes which tools they have to ask about."""
    tell = control.announce_catalogue if budget.unit == "calls" else control.announce_rules
    tell(unit, budget.organisation_id, "budget changed")


def _same(old: Any, new: Any) -> bool:
    neutral = {"version": 0, "updated_at_ms": 0}
    return bool(msgspec.structs.replace(old, **neutral) == msgspec.structs.replace(new, **neutral))


def delete_budget(unit: UnitOfWork, actor: Actor, organisation_id: str, budget_id: str) -> None:
    """Remove a budget; its balances stay stored.

    Raises:
        NotFoundError: no such budget.
    """
    old = unit.budget(budget_id)
    if old is None or old.organisation_id != organisation_id:
        raise NotFoundError("no such budget")
    unit.delete_budget(old)
    control.budget_changed(unit, organisation(unit, organisation_id), old, None)
    audit.record(unit, actor, "budget.delete", budget_id, {}, organisation_id)
    _announce(unit, old)


def put_policy(unit: UnitOfWork, actor: Actor, wanted: records.Policy) -> records.Policy:
    """Create a policy, or add a version to the one of the same name.

    Raises:
        NotFoundError: no such organisation.
    """
    organisation(unit, wanted.organisation_id)
    old = unit.policy(wanted.organisation_id, wanted.name)
    new = msgspec.structs.replace(
        wanted,
        policy_id=unit.ids.uuid7(unit.now_ms) if old is None else old.policy_id,
        version=1 if old is None else old.version + 1,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
        updated_at_ms=unit.now_ms,
    )
    if old is not None and _same(old, new):
        return old
    unit.add_policy_version(new)
    details = {"version": new.version, "document": msgspec.to_builtins(new.document)}
    audit.record(unit, actor, "policy.put", new.name, details, new.organisation_id)
    control.announce_catalogue(
        unit, new.organisation_id, f"policy {new.name} version {new.version}"
    )
    return new


def delete_policy(unit: UnitOfWork, actor: Actor, organisation_id: str, name: str) -> None:
    """Deactivate a policy; its versions stay readable.

    Raises:
        NotFoundError: no such policy.
    """
    old = unit.policy(organisation_id, name)
    if old is None:
        raise NotFoundError("no such policy")
    unit.retire_policy(old)
    audit.record(unit, actor, "policy.delete", name, {}, organisation_id)
    control.announce_catalogue(unit, organisation_id, f"policy {name} removed")


def put_price(unit: UnitOfWork, actor: Actor, wanted: records.Price) -> records.Price:
    """Create an operator's price, or change the one for the same provider and model.

    Raises:
        NotFoundError: no such organisation.
    """
    organisation(unit, wanted.organisation_id)
    old = unit.price(wanted.organisation_id, wanted.provider, wanted.model)
    new = msgspec.structs.replace(
        wanted,
        price_id=unit.ids.uuid7(unit.now_ms) if old is None else old.price_id,
        version=1 if old is None else old.version + 1,
        updated_at_ms=unit.now_ms,
    )
    if old is not None and _same(old, new):
        return old
    unit.save_price(new)
    audit.record(
        unit, actor, "price.put", new.price_id, msgspec.to_builtins(new), new.organisation_id
    )
    control.announce_catalogue(unit, new.organisation_id, "price changed")
    return new


def delete_price(unit: UnitOfWork, actor: Actor, organisation_id: str, price_id: str) -> None:
    """Remove an operator's price.

    Raises:
        NotFoundError: no such price.
    """
    if not unit.delete_price(organisation_id, price_id):
        raise NotFoundError("no such price")
    audit.record(unit, actor, "price.delete", price_id, {}, organisation_id)
    control.announce_catalogue(unit, organisation_id, "price changed")


def apply(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    wanted: RuleSet,
    *,
    dry_run: bool,
    prune: bool,
) -> list[Change]:
    """Compare the wanted rules with the current ones, and activate them unless it is a dry run.

    Raises:
        NotFoundError: no such organisation.
        ValueError: no such setting, or a value that it does not take.
    """
    known = organisation(unit, organisation_id).settings
    current = RuleSet(
        unit.budgets(organisation_id),
        unit.policies(organisation_id),
        unit.prices(organisation_id),
        channels=unit.channels(organisation_id),
        alerts=unit.alert_rules(organisation_id),
        secrets=alerting.known_secrets(unit, organisation_id) if wanted.secrets else {},
    )
    steps = plan(current, wanted, prune=prune)
    changes, settings = plan_settings(known, wanted.settings, prune=prune)
    if not dry_run:
        for step in steps:
            _take(unit, actor, organisation_id, step, wanted)
        if settings != known:
            directory.update_organisation(unit, actor, organisation_id, settings)
    return [*(step.change for step in steps), *changes]


def _take(
    unit: UnitOfWork, actor: Actor, organisation_id: str, step: PlannedStep, wanted: RuleSet
) -> None:
    change, record = step.change.change, step.record
    if change == "unchanged":
        return
    if isinstance(record, records.BudgetRule):
        if change == "delete":
            delete_budget(unit, actor, organisation_id, record.budget_id)
        else:
            put_budget(unit, actor, record)
    elif isinstance(record, records.Policy):
        if change == "delete":
            delete_policy(unit, actor, organisation_id, record.name)
        else:
            put_policy(unit, actor, record)
    elif isinstance(record, Channel):
        if change == "delete":
            alerting.delete_channel(unit, actor, organisation_id, record.name)
        else:
            given = wanted.secrets.get(record.name, ChannelSecrets())
            alerting.put_channel(unit, actor, record, given, wanted.fresh[record.name])
    elif isinstance(record, AlertRule):
        if change == "delete":
            alerting.delete_rule(unit, actor, organisation_id, record.name)
        else:
            alerting.put_rule(unit, actor, organisation_id, record)
    elif change == "delete":
        delete_price(unit, actor, organisation_id, record.price_id)
    else:
        put_price(unit, actor, msgspec.structs.replace(record, from_file=True))
