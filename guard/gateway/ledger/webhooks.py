"""Webhooks: subscriptions, and the queue of deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.commands import Actor, PostCommitEvent
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.ledger import audit
from guard.gateway.ledger.accounts import organisation
from guard.gateway.ledger.unit_of_work import UnitOfWork

DELIVERIES_AT_ONCE: Final = 4
"""Maximum webhook messages of one organisation in delivery at once."""

WEBHOOKS_MAX: Final = 100
"""Webhooks of one organisation. A notice writes a message for each, in the commit that it is of."""


def enqueue(unit: UnitOfWork, organisation_id: str, kind: str, data: dict[str, Any]) -> None:
    """Queue a notice for every webhook of the organisation that wants its type."""
    # One row for each webhook, in the transaction of what it reports: neither exists alone.
    for webhook_id, types in unit.enabled_webhooks(organisation_id, WEBHOOKS_MAX):
        if types and kind not in types:
            continue
        body = wire.encode(
            {"type": kind, "timestamp_ms": unit.now_ms, "organisation_id": organisation_id,
             "data": data}
        )  # fmt: skip
        delivery = records.Delivery(
            delivery_id=unit.ids.uuid7(unit.now_ms), webhook_id=webhook_id, type=kind,
            created_at_ms=unit.now_ms, attempts=0, delivered_at_ms=None, failed=False,
            last_status=None,
        )  # fmt: skip
        unit.add_delivery(delivery, organisation_id, body.decode())
        unit.announce(PostCommitEvent("webhooks", organisation_id))


def put(unit: UnitOfWork, actor: Actor, wanted: records.Webhook, secret: str) -> records.Webhook:
    """Create a webhook, or change the one with the same address (its secret is replaced).

    Raises:
        NotFoundError: no such organisation.
        ConflictError: it has ``WEBHOOKS_MAX`` webhooks already.
    """
    own = wanted.organisation_id
    organisation(unit, own)
    old = unit.webhook(own, wanted.url)
    if old is None and unit.count_webhooks(own, WEBHOOKS_MAX) >= WEBHOOKS_MAX:
        raise ConflictError(f"an organisation has at most {WEBHOOKS_MAX} webhooks")
    new = msgspec.structs.replace(
        wanted,
        webhook_id=unit.ids.uuid7(unit.now_ms) if old is None else old.webhook_id,
        created_at_ms=unit.now_ms if old is None else old.created_at_ms,
    )
    unit.save_webhook(new, secret)
    details = {"url": new.url, "types": new.types, "enabled": new.enabled}
    audit.record(unit, actor, "webhook.put", new.webhook_id, details, new.organisation_id)
    return new


def delete(unit: UnitOfWork, actor: Actor, organisation_id: str, webhook_id: str) -> None:
    """Remove a webhook and its queued deliveries.

    Raises:
        NotFoundError: no such webhook.
    """
    if not unit.delete_webhook(organisation_id, webhook_id):
        raise NotFoundError("no such webhook")
    audit.record(unit, actor, "webhook.delete", webhook_id, {}, organisation_id)


def due(unit: UnitOfWork, limit: int, sending: Mapping[str, int]) -> list[records.DueDelivery]:
    """Return due deliveries, of every organisation in turn.

    Args:
        unit: the unit of work.
        limit: deliveries at once.
        sending: how many of each organisation are being sent by who asks.
    """
    return unit.due_deliveries(limit, DELIVERIES_AT_ONCE, sending)


def attempted(
    unit: UnitOfWork,
    delivery_id: str,
    *,
    status: int | None,
    delivered: bool,
    retry_in_ms: int | None,
) -> None:
    """Record one attempt; without a retry an undelivered message has failed."""
    next_attempt_ms = None if retry_in_ms is None else unit.now_ms + retry_in_ms
    unit.save_attempt(delivery_id, status, delivered, next_attempt_ms)
