"""Budgets, policies and prices: data that operators write, versioned and audited."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from guard.gateway.domain import records
from guard.gateway.domain.alerts import AlertRule, Channel, ChannelSecrets
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.rulesets import Change, PlannedStep, Record, RuleSet, plan, plan_settings
from guard.gateway.ledger import alerting, audit, control, directory
from guard.gateway.ledger.accounts import catch_up, open_used, organisation
from guard.gateway.unit.unit_of_work import UnitOfWork


def put_budget(unit: UnitOfWork, actor: Actor, wanted: records.BudgetRule) -> records.BudgetRule:
    """Create a budget, or change the one of the same scope and window.

    Raises:
        NotFoundError: no such organisation.
    """
    org = organisation(unit, wanted.organisation_id)
    old = unit.catalogue.find_budget(wanted)
    new = msgspec.structs.replace(
        wanted,
        budget_id=unit.ids.uuid7(unit.now_ms) if old is None else old.budget_id,
        version=1 if old is None else old.version + 1,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
        updated_at_ms=unit.now_ms,
    )
    if old is not None and _same(old, new):
        return old
    unit.catalogue.save_budget(new)
    if old is not None:
        control.budget_changed(unit, org, old, new)
    open_used(unit, org, new)
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
    """Remove a budget; its balances stay stored, and budgets for several count in its place.

    Raises:
        NotFoundError: no such budget.
    """
    old = unit.catalogue.budget(budget_id)
    if old is None or old.organisation_id != organisation_id:
        raise NotFoundError("no such budget")
    unit.catalogue.delete_budget(old)
    org = organisation(unit, organisation_id)
    control.budget_changed(unit, org, old, None)
    for rule in unit.catalogue.budgets_for_several(organisation_id):
        is_alike = (rule.scope_kind, rule.window, rule.unit, rule.counts) == (
            old.scope_kind, old.window, old.unit, old.counts
        )  # fmt: skip
        if is_alike and catch_up(unit, rule, old):
            control.budget_changed(unit, org, rule, rule)
    audit.record(unit, actor, "budget.delete", budget_id, {}, organisation_id)
    _announce(unit, old)


def put_policy(unit: UnitOfWork, actor: Actor, wanted: records.Policy) -> records.Policy:
    """Create a policy, or add a version to the one of the same name.

    Raises:
        NotFoundError: no such organisation.
    """
    organisation(unit, wanted.organisation_id)
    old = unit.catalogue.policy(wanted.organisation_id, wanted.name)
    new = msgspec.structs.replace(
        wanted,
        policy_id=unit.ids.uuid7(unit.now_ms) if old is None else old.policy_id,
        version=1 if old is None else old.version + 1,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
        updated_at_ms=unit.now_ms,
    )
    if old is not None and _same(old, new):
        return old
    unit.catalogue.add_policy_version(new)
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
    old = unit.catalogue.policy(organisation_id, name)
    if old is None:
        raise NotFoundError("no such policy")
    unit.catalogue.retire_policy(old)
    audit.record(unit, actor, "policy.delete", name, {}, organisation_id)
    control.announce_catalogue(unit, organisation_id, f"policy {name} removed")


def put_price(unit: UnitOfWork, actor: Actor, wanted: records.Price) -> records.Price:
    """Create an operator's price, or change the one for the same provider and model.

    Raises:
        NotFoundError: no such organisation.
    """
    organisation(unit, wanted.organisation_id)
    old = unit.catalogue.price(wanted.organisation_id, wanted.provider, wanted.model)
    new = msgspec.structs.replace(
        wanted,
        price_id=unit.ids.uuid7(unit.now_ms) if old is None else old.price_id,
        version=1 if old is None else old.version + 1,
        updated_at_ms=unit.now_ms,
    )
    if old is not None and _same(old, new):
        return old
    unit.catalogue.save_price(new)
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
    if not unit.catalogue.delete_price(organisation_id, price_id):
        raise NotFoundError("no such price")
    audit.record(unit, actor, "price.delete", price_id, {}, organisation_id)
    control.announce_catalogue(unit, organisation_id, "price changed")


def apply(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    wanted: RuleSet,
    steps: Sequence[PlannedStep] = (),
    *,
    dry_run: bool,
    prune: bool,
) -> list[Change]:
    """Activate a file's settings, channels and alerts, and take some steps of its plan.

    Args:
        unit: the unit of work.
        actor: who does it.
        organisation_id: whose rules.
        wanted: the settings, channels and alerts.
        steps: that change budgets, policies and prices.
        dry_run: only compare the settings, channels and alerts.
        prune: also remove channels and alerts that are not wanted.

    Returns:
        The changes of settings, channels and alerts.

    Raises:
        NotFoundError: no such organisation.
        ConflictError, ValueError: there cannot be such settings, channels or alerts.
    """
    known = organisation(unit, organisation_id).settings
    current = RuleSet(
        channels=unit.alerts.channels(organisation_id),
        alerts=unit.alerts.alert_rules(organisation_id),
        secrets=alerting.known_secrets(unit, organisation_id) if wanted.secrets else {},
    )
    notices = plan(current, wanted, prune=prune)
    changes, settings = plan_settings(known, wanted.settings, prune=prune)
    if not dry_run:
        for step in (*notices, *steps):
            _take(unit, actor, organisation_id, step, wanted)
        if settings != known:
            directory.update_organisation(unit, actor, organisation_id, settings)
    return [*(step.change for step in notices), *changes]


def _take(
    unit: UnitOfWork, actor: Actor, organisation_id: str, step: PlannedStep, wanted: RuleSet
) -> None:
    change, record = step.change.change, step.record
    if change == "delete":
        # What somebody else has removed since it was planned need not be removed.
        with contextlib.suppress(NotFoundError):
            _remove(unit, actor, organisation_id, record)
    elif change == "unchanged":
        return
    elif isinstance(record, records.BudgetRule):
        put_budget(unit, actor, record)
    elif isinstance(record, records.Policy):
        put_policy(unit, actor, record)
    elif isinstance(record, Channel):
        given = wanted.secrets.get(record.name, ChannelSecrets())
        alerting.put_channel(unit, actor, record, given, wanted.fresh[record.name])
    elif isinstance(record, AlertRule):
        alerting.put_rule(unit, actor, organisation_id, record)
    else:
        put_price(unit, actor, msgspec.structs.replace(record, from_file=True))


def _remove(unit: UnitOfWork, actor: Actor, own: str, record: Record) -> None:
    if isinstance(record, records.BudgetRule):
        delete_budget(unit, actor, own, record.budget_id)
    elif isinstance(record, records.Policy):
        delete_policy(unit, actor, own, record.name)
    elif isinstance(record, Channel):
        alerting.delete_channel(unit, actor, own, record.name)
    elif isinstance(record, AlertRule):
        alerting.delete_rule(unit, actor, own, record.name)
    else:
        delete_price(unit, actor, own, record.price_id)
