"""A complete set of budgets, policies, prices, channels and alerts, and the plan to activate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from guard.gateway.domain import setting_table
from guard.gateway.domain.alerts import AlertRule, Channel, ChannelSecrets
from guard.gateway.domain.records import BudgetRule, OrganisationSettings, Policy, Price

ChangeKind = Literal["create", "update", "unchanged", "delete"]
RuleKind = Literal["budget", "policy", "price", "channel", "alert", "setting"]

_OWN_FIELDS: Final = ("budget_id", "policy_id", "price_id", "channel_id", "version",
                      "created_at_ms", "updated_at_ms", "from_file")  # fmt: skip


class Change(Struct, kw_only=True):
    """One line of the plan; ``unmatched`` where guard does not know yet what the rule is for."""

    kind: RuleKind
    name: str
    change: ChangeKind
    unmatched: bool = False


class RuleSet(Struct):
    """The rules of one organisation, and settings by name.

    ``secrets`` are those of channels, by the channels' names: the stored ones in the current rules,
    the given ones in the wanted rules. ``fresh`` are those that the gateway has made for channels
    that have none.
    """

    budgets: list[BudgetRule] = []
    policies: list[Policy] = []
    prices: list[Price] = []
    settings: dict[str, bool | int | str] = {}
    channels: list[Channel] = []
    alerts: list[AlertRule] = []
    secrets: dict[str, ChannelSecrets] = {}
    fresh: dict[str, ChannelSecrets] = {}

    def count(self) -> int:
        """Return how many records there are."""
        return len(_named(self))


Record = BudgetRule | Policy | Price | Channel | AlertRule


class PlannedStep(Struct):
    """A change with the item to put or, for a deletion, to remove."""

    change: Change
    record: Record


def plan(current: RuleSet, wanted: RuleSet, *, prune: bool) -> list[PlannedStep]:
    """Return the steps, in order, that lead from the current rules to those wanted.

    Args:
        current: the active rules.
        wanted: the rules to activate, each name once.
        prune: also remove active rules that are not wanted.

    Example:
        >>> price = Price(price_id="", organisation_id="o", provider="*", model="m", rates=None)
        >>> [step.change.change for step in plan(RuleSet(), RuleSet(prices=[price]), prune=True)]
        ['create']
        >>> plan(RuleSet(prices=[price]), RuleSet(), prune=True)[0].change.change
        'delete'
    """
    steps: list[PlannedStep] = []
    there: dict[tuple[RuleKind, str], Record] = {
        (kind, name): record for kind, name, record in _named(current)
    }
    for kind, name, record in _named(wanted):
        old = there.pop((kind, name), None)
        change: ChangeKind = "create"
        if old is not None:
            is_same = _content(old) == _content(record) and not (
                kind == "channel" and _has_new_secret(current, wanted, name)
            )
            change = "unchanged" if is_same else "update"
        steps.append(PlannedStep(Change(kind=kind, name=name, change=change), record))
    if prune:
        # Alert rules before channels: a channel that is the only one of a rule cannot be removed.
        # A file without any channel or alert rule removes neither.
        keeps = () if wanted.channels or wanted.alerts else ("channel", "alert")
        steps += [
            PlannedStep(Change(kind=kind, name=name, change="delete"), record)
            for (kind, name), record in sorted(
                there.items(), key=lambda each: each[0][0] == "channel"
            )
            if kind not in keeps
        ]
    return steps


def _has_new_secret(current: RuleSet, wanted: RuleSet, name: str) -> bool:
    given = wanted.secrets.get(name, ChannelSecrets())
    known = current.secrets.get(name, ChannelSecrets())
    return any(
        new not in ("", old)
        for new, old in ((given.secret, known.secret), (given.signing, known.signing))
    )


def plan_settings(
    known: OrganisationSettings, wanted: Mapping[str, bool | int | str], *, prune: bool
) -> tuple[list[Change], OrganisationSettings]:
    """Return the changes of settings, and the settings that result.

    Args:
        known: the current ones.
        wanted: new values, by name.
        prune: if any setting is named, those that are not named return to their defaults.

    Raises:
        ValueError: no such setting, or a value that it does not take.
    """
    start = OrganisationSettings() if prune and wanted else known
    new = setting_table.changed(start, wanted)
    named = {setting_table.setting(name).name for name in wanted}
    changes: list[Change] = []
    for name in setting_table.SETTINGS:
        is_new = getattr(known, name) != getattr(new, name)
        if is_new or name in named:
            change: ChangeKind = "update" if is_new else "unchanged"
            changes.append(Change(kind="setting", name=name, change=change))
    return changes, new


def first_named_twice(rules: RuleSet) -> str | None:
    """Return a name that the set contains twice, or ``None``."""
    seen: set[tuple[RuleKind, str]] = set()
    for kind, name, _ in _named(rules):
        if (kind, name) in seen:
            return name
        seen.add((kind, name))
    return None


def _named(rules: RuleSet) -> Sequence[tuple[RuleKind, str, Record]]:
    return [
        *(("budget", _budget_name(b), b) for b in rules.budgets),
        *(("policy", p.name, p) for p in rules.policies),
        *(("price", f"{p.provider}/{p.model}", p) for p in rules.prices),
        *(("channel", c.name, c) for c in rules.channels),
        *(("alert", a.name, a) for a in rules.alerts),
    ]


def _budget_name(budget: BudgetRule) -> str:
    unit = "" if budget.unit == "usd" else budget.unit
    counted = f"of {', '.join(budget.counts)}" if budget.counts else ""
    parts = (budget.scope_kind, budget.scope_id, budget.window, unit, counted)
    return " ".join(filter(None, parts))


def _content(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
