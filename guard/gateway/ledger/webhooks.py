"""Webhooks and other channels: which of them get a notice, and the queue of deliveries.

Every notice goes through :func:`enqueue`, in the transaction of the change that it reports: neither
exists alone. A channel that people read gets at most a few messages a minute one by one; the rest
of a storm is collected in one message, the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import alerts, records
from guard.gateway.domain.commands import Actor, PostCommitEvent
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.ledger import audit
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.state import Pace, Recipient
from guard.gateway.unit.unit_of_work import UnitOfWork

DELIVERIES_AT_ONCE: Final = 4
"""Maximum messages of one organisation in delivery at once."""

WEBHOOKS_MAX: Final = 100
"""Maximum channels of one organisation: a notice writes a row for each of them in its commit."""

ALONE_MAX: Final = 5
QUESTIONS_MAX: Final = 20
"""How many messages of a minute are sent one by one; up to the second number for questions."""

PACE_MS: Final = 60_000
STORM_MS: Final = 600_000
"""A digest is sent after a minute; while a storm lasts, every ten minutes."""

NOTICES_MAX: Final = 50
"""Notices that a digest lists; it counts the others."""

QUESTIONS: Final = frozenset({"approval.requested", "budget.asks"})


def enqueue(
    unit: UnitOfWork,
    organisation_id: str,
    kind: str,
    data: dict[str, Any],
    rule_name: str | None = None,
) -> int:
    """Queue a notice for every channel of the organisation that wants it; return their number.

    Args:
        unit: the unit of work.
        organisation_id: whose notice it is.
        kind: the notice's type.
        data: its contents.
        rule_name: the only rule that it is for; by default all.
    """
    found = unit.alerts.recipients(organisation_id, WEBHOOKS_MAX)
    if not found:
        return 0
    rules: list[alerts.AlertRule] = []
    if any(each.name for each in found):
        rules = [
            rule
            for rule in unit.alerts.alert_rules(organisation_id)
            if rule_name in (None, rule.name) and alerts.wants(rule, kind, data)
        ]
    wanted = [each for each in found if _is_for(each, kind, rules)]
    for each in wanted:
        _send(unit, organisation_id, each, kind, data)
    return len(wanted)


def _is_for(each: Recipient, kind: str, rules: list[alerts.AlertRule]) -> bool:
    # A webhook lists its own types; a channel with a name gets what the alert rules send to it.
    if not each.name:
        return not each.types or kind in each.types
    return any(not rule.channels or each.name in rule.channels for rule in rules)


def _send(
    unit: UnitOfWork, organisation_id: str, channel: Recipient, kind: str, data: dict[str, Any]
) -> None:
    """Queue a notice for one channel: by itself, or in the digest of a channel for people."""
    notice = {"type": kind, "timestamp_ms": unit.now_ms, "data": data}
    # A program gets every notice.
    if channel.kind == "webhook":
        _queue(unit, organisation_id, channel.channel_id, notice, unit.now_ms)
        return
    pace = unit.alerts.pace(channel.channel_id)
    if unit.now_ms >= pace.from_ms + PACE_MS:
        pace = pace._replace(from_ms=unit.now_ms, told=0)
    if pace.told < (QUESTIONS_MAX if kind in QUESTIONS else ALONE_MAX):
        _queue(unit, organisation_id, channel.channel_id, notice, unit.now_ms)
        pace = pace._replace(told=pace.told + 1)
    else:
        pace = _gather(unit, organisation_id, channel.channel_id, notice, pace)
    unit.alerts.save_pace(channel.channel_id, pace)


def _gather(
    unit: UnitOfWork, organisation_id: str, channel_id: str, notice: dict[str, Any], pace: Pace
) -> Pace:
    """Add a notice to the channel's digest, or begin one."""
    # A digest that is due may be on its way already, with the body as it was: it takes no more.
    body = unit.alerts.waiting_body(pace.digest_id) if unit.now_ms < pace.digest_due_ms else None
    if body is not None:
        digest = wire.decode(body, dict[str, Any])
        digest["data"]["count"] += 1
        if len(digest["data"]["notices"]) < NOTICES_MAX:
            digest["data"]["notices"].append(notice)
        unit.alerts.save_body(pace.digest_id, wire.encode(digest).decode())
        return pace
    goes_on = unit.now_ms - pace.digest_due_ms < STORM_MS
    due_ms = unit.now_ms + (STORM_MS if goes_on else PACE_MS)
    digest = {"type": "digest", "timestamp_ms": unit.now_ms,
              "data": {"count": 1, "notices": [notice]}}  # fmt: skip
    digest_id = _queue(unit, organisation_id, channel_id, digest, due_ms)
    return pace._replace(digest_id=digest_id, digest_due_ms=due_ms)


def _queue(
    unit: UnitOfWork, organisation_id: str, channel_id: str, notice: dict[str, Any], due_ms: int
) -> str:
    body = wire.encode({**notice, "organisation_id": organisation_id})
    delivery = records.Delivery(
        delivery_id=unit.ids.uuid7(unit.now_ms), webhook_id=channel_id, type=notice["type"],
        created_at_ms=unit.now_ms, attempts=0, delivered_at_ms=None, failed=False,
        last_status=None,
    )  # fmt: skip
    unit.alerts.add_delivery(delivery, organisation_id, body.decode(), due_ms)
    # Only wakes the sender. If this is lost, it finds the delivery the next time that it looks.
    unit.announce(PostCommitEvent("webhooks", organisation_id))
    return delivery.delivery_id


def send_to(
    unit: UnitOfWork, organisation_id: str, channel_id: str, kind: str, data: dict[str, Any]
) -> str:
    """Queue a message for one channel, whichever types it wants; return the delivery's id."""
    notice = {"type": kind, "timestamp_ms": unit.now_ms, "data": data}
    return _queue(unit, organisation_id, channel_id, notice, unit.now_ms)


def put(unit: UnitOfWork, actor: Actor, wanted: records.Webhook, secret: str) -> records.Webhook:
    """Create a webhook, or change the one with the same address (its secret is replaced).

    Raises:
        NotFoundError: no such organisation.
        ConflictError: it has ``WEBHOOKS_MAX`` webhooks already.
    """
    own = wanted.organisation_id
    organisation(unit, own)
    old = unit.alerts.webhook(own, wanted.url)
    if old is None:
        require_room(unit, own)
    new = msgspec.structs.replace(
        wanted,
        webhook_id=unit.ids.uuid7(unit.now_ms) if old is None else old.webhook_id,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
    )
    unit.alerts.save_webhook(new, secret)
    details = {"url": new.url, "types": new.types, "enabled": new.enabled}
    audit.record(unit, actor, "webhook.put", new.webhook_id, details, new.organisation_id)
    return new


def require_room(unit: UnitOfWork, organisation_id: str) -> None:
    """Check that an organisation may have one more channel.

    Raises:
        ConflictError: it has ``WEBHOOKS_MAX`` already.
    """
    if unit.alerts.count_webhooks(organisation_id, WEBHOOKS_MAX) >= WEBHOOKS_MAX:
        raise ConflictError(f"an organisation has at most {WEBHOOKS_MAX} webhooks and channels")


def delete(unit: UnitOfWork, actor: Actor, organisation_id: str, webhook_id: str) -> None:
    """Remove a webhook and its queued deliveries.

    Raises:
        NotFoundError: no such webhook.
    """
    if not unit.alerts.delete_webhook(organisation_id, webhook_id):
        raise NotFoundError("no such webhook")
    audit.record(unit, actor, "webhook.delete", webhook_id, {}, organisation_id)


def due(unit: UnitOfWork, limit: int, sending: Mapping[str, int]) -> list[records.DueDelivery]:
    """Return due deliveries, of every organisation in turn.

    Args:
        unit: the unit of work.
        limit: maximum deliveries to return.
        sending: how many of each organisation the caller is sending already.
    """
    return unit.alerts.due_deliveries(limit, DELIVERIES_AT_ONCE, sending)


def attempted(
    unit: UnitOfWork,
    delivery_id: str,
    *,
    status: int | None,
    delivered: bool,
    retry_in_ms: int | None,
    error: str = "",
) -> None:
    """Record one attempt; without a retry an undelivered message has failed."""
    next_attempt_ms = None if retry_in_ms is None else unit.now_ms + retry_in_ms
    unit.alerts.save_attempt(delivery_id, status, delivered, next_attempt_ms, error)
