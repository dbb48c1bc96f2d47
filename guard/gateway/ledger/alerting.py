"""Alert rules and channels: setting, removing and testing them; and facts, each sent once."""

from __future__ import annotations

from typing import Any

import msgspec

from guard.core.mistaken import did_you_mean
from guard.gateway.domain import alerts
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.ledger import audit, webhooks
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.unit_of_work import UnitOfWork


def tell(unit: UnitOfWork, organisation_id: str, fact: alerts.Fact) -> bool:
    """Send a fact to the channels that want it, unless it was sent; return whether any gets it."""
    told_ms = unit.alerts.told_at(organisation_id, fact.key)
    if told_ms is not None and unit.now_ms < told_ms + fact.again_ms:
        return False
    # A fact that no channel wanted is not noted, so a rule that is added later still gets it.
    if not webhooks.enqueue(unit, organisation_id, fact.type, fact.data, fact.rule):
        return False
    unit.alerts.note_told(organisation_id, fact.key)
    return True


def tell_all(unit: UnitOfWork, organisation_id: str, facts: list[alerts.Fact]) -> int:
    """Send facts of one organisation; return how many were new and wanted."""
    if unit.organisation(organisation_id) is None:  # removed since the facts were found
        return 0
    return sum(tell(unit, organisation_id, fact) for fact in facts)


def lapse(unit: UnitOfWork) -> None:
    """Delete the notes on facts that were sent long ago."""
    unit.alerts.forget_told(unit.now_ms - alerts.FORGET_MS)


def put_rule(
    unit: UnitOfWork, actor: Actor, organisation_id: str, rule: alerts.AlertRule
) -> alerts.AlertRule:
    """Set a rule under its name.

    Raises:
        NotFoundError: no such organisation.
        ConflictError: a channel that it names does not exist, or there are too many rules.
    """
    own = organisation(unit, organisation_id).organisation_id
    known = {each.name: each for each in unit.alerts.alert_rules(own)}
    if known.get(rule.name) == rule:
        return rule
    if rule.name not in known and len(known) >= alerts.RULES_MAX:
        raise ConflictError(f"an organisation has at most {alerts.RULES_MAX} rules of alerts")
    there = {each.name for each in unit.alerts.channels(own)}
    missing = [name for name in rule.channels if name not in there]
    if missing:
        near = did_you_mean(missing[0], there)
        raise ConflictError(f"there is no channel {missing[0]}{near}")
    unit.alerts.save_alert_rule(own, rule)
    audit.record(unit, actor, "alert.put", rule.name, msgspec.to_builtins(rule), own)
    return rule


def delete_rule(unit: UnitOfWork, actor: Actor, organisation_id: str, name: str) -> None:
    """Remove a rule.

    Raises:
        NotFoundError: no such rule.
    """
    if not unit.alerts.delete_alert_rule(organisation_id, name):
        raise NotFoundError("no such rule of alerts")
    audit.record(unit, actor, "alert.delete", name, {}, organisation_id)


def put_channel(
    unit: UnitOfWork,
    actor: Actor,
    wanted: alerts.Channel,
    secrets: alerts.ChannelSecrets,
    fresh: alerts.ChannelSecrets,
) -> tuple[alerts.Channel, bool]:
    """Set a channel under its name.

    A secret that is not given stays as it is, as long as the channel leads to the same place.

    Args:
        unit: the unit of work.
        actor: who sets it.
        wanted: the channel.
        secrets: the given secrets.
        fresh: secrets that the gateway has made, used where there is none.

    Returns:
        The channel, and whether its first secret is a fresh one.

    Raises:
        NotFoundError: no such organisation.
        ConflictError: there are too many channels, or a secret is missing.
        ValueError: something is missing, or contradictory.
    """
    own = organisation(unit, wanted.organisation_id).organisation_id
    known = unit.alerts.channel(own, wanted.name)
    old, kept = (None, alerts.ChannelSecrets()) if known is None else known
    if old is None:
        webhooks.require_room(unit, own)
    lost = ""
    if old is not None and alerts.destination(old) != alerts.destination(wanted):
        # Else whoever may change a channel could send its secret to a server of their own.
        if kept.secret:
            lost = "; the stored one is for another service, address or user name"
        kept = alerts.ChannelSecrets(link_key=kept.link_key)
    merged = alerts.ChannelSecrets(
        secret=secrets.secret or kept.secret or fresh.secret,
        signing=secrets.signing or kept.signing,
        link_key=kept.link_key or fresh.link_key,
    )
    try:
        alerts.check_channel(
            wanted.kind, wanted.options, secret=bool(merged.secret), signing=bool(merged.signing)
        )
    except ConflictError as exc:
        raise ConflictError(f"{exc}{lost}") from None
    new = msgspec.structs.replace(
        wanted,
        channel_id=unit.ids.uuid7(unit.now_ms) if old is None else old.channel_id,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
    )
    if new == old and merged == kept:
        return new, False
    unit.alerts.save_channel(new, merged)
    details: dict[str, Any] = {
        "kind": new.kind, "options": msgspec.to_builtins(new.options), "enabled": new.enabled,
        "secret": "changed" if merged != kept else "kept",
    }  # fmt: skip
    audit.record(unit, actor, "channel.put", new.name, details, own)
    return new, bool(fresh.secret) and merged.secret == fresh.secret


def known_secrets(unit: UnitOfWork, organisation_id: str) -> dict[str, alerts.ChannelSecrets]:
    """Return the secrets of an organisation's channels, by name."""
    found = {}
    for each in unit.alerts.channels(organisation_id):
        known = unit.alerts.channel(organisation_id, each.name)
        if known is not None:
            found[each.name] = known[1]
    return found


def delete_channel(unit: UnitOfWork, actor: Actor, organisation_id: str, name: str) -> None:
    """Remove a channel, its queued deliveries and its place in rules.

    Raises:
        NotFoundError: no such channel.
        ConflictError: a rule is for this channel only.
    """
    known = unit.alerts.channel(organisation_id, name)
    if known is None:
        raise NotFoundError("no such channel")
    rules = [rule for rule in unit.alerts.alert_rules(organisation_id) if name in rule.channels]
    for rule in rules:
        # An empty list means every channel, which is not what is left of a rule for this one.
        if rule.channels == [name]:
            raise ConflictError(f"the rule {rule.name} is for this channel only: remove it first")
    for rule in rules:
        left = [each for each in rule.channels if each != name]
        unit.alerts.save_alert_rule(organisation_id, msgspec.structs.replace(rule, channels=left))
    unit.alerts.delete_webhook(organisation_id, known[0].channel_id)
    audit.record(unit, actor, "channel.delete", name, {}, organisation_id)


def test_channel(unit: UnitOfWork, actor: Actor, organisation_id: str, name: str) -> str:
    """Queue a test message for a channel; return the delivery's id.

    Raises:
        NotFoundError: no such channel.
    """
    known = unit.alerts.channel(organisation_id, name)
    if known is None:
        raise NotFoundError("no such channel")
    data = {"channel": name, "sent_by": actor.name}
    delivery_id = webhooks.send_to(unit, organisation_id, known[0].channel_id, "test", data)
    audit.record(unit, actor, "channel.test", name, {}, organisation_id)
    return delivery_id
