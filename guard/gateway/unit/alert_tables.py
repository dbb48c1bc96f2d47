"""Channels, alert rules, reported facts, and deliveries, of a unit of work over SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from guard.core import wire
from guard.gateway.domain import alerts, records
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import IS_NAMED, NAMED, WEBHOOKS, channel_from_row
from guard.gateway.unit.state import Pace, Recipient

_WAITING: Final = "delivered_at_ms IS NULL AND failed = 0"
WAITING_OWNERS: Final = (
    "owners (owner) AS (SELECT * FROM (SELECT organisation_id FROM deliveries"
    f" WHERE {_WAITING} ORDER BY organisation_id LIMIT 1) f UNION ALL SELECT (SELECT"
    f" organisation_id FROM deliveries WHERE {_WAITING} AND organisation_id > owner"
    " ORDER BY organisation_id LIMIT 1) FROM owners WHERE owner IS NOT NULL)"
)
"""The organisations with waiting messages: each is found by the index, after the one before it."""

_DUE: Final = (
    f"WITH RECURSIVE {WAITING_OWNERS} SELECT delivery_id, organisation_id, url, secret, type,"
    " body, created_at_ms, attempts, webhook_id, channel_kind, channel_options"
    " FROM (SELECT d.*, w.url, w.secret, w.channel_kind, w.channel_options, ROW_NUMBER() OVER"
    " (PARTITION BY d.organisation_id ORDER BY d.next_attempt_ms) AS place"
    " FROM owners o JOIN deliveries d ON d.delivery_id IN (SELECT delivery_id FROM deliveries"
    f" WHERE {_WAITING} AND organisation_id = o.owner AND next_attempt_ms <= ?"
    " ORDER BY next_attempt_ms LIMIT ?) JOIN webhooks w USING (webhook_id)) due"
    " ORDER BY place, next_attempt_ms LIMIT ?"
)
_SELECT: Final = WEBHOOKS.select()
_SAVE: Final = WEBHOOKS.upsert(keep=("organisation_id", "created_at_ms"))
_RULES: Final = Table("alert_rules")
_FACTS: Final = Table("sent_alerts")
_PACE: Final = Table("channel_pace")
_ADD_DELIVERY: Final = Table("deliveries").insert(
    ("delivery_id", "webhook_id", "organisation_id", "type", "body", "created_at_ms",
     "next_attempt_ms", "attempts", "failed")
)  # fmt: skip
_SAVE_BODY: Final = Table("deliveries").update(("body",))


class AlertTables(UnitPart):
    """Webhooks and other channels, alert rules, facts that were sent, and deliveries."""

    # -- channels ------------------------------------------------------------------------------

    def webhook(self, organisation_id: str, url: str) -> records.Webhook | None:
        """Return the webhook with this address."""
        row = self._unit.row(
            f"{_SELECT} WHERE organisation_id = ? AND url = ?", organisation_id, url
        )
        return None if row is None else WEBHOOKS.read(row)

    def count_webhooks(self, organisation_id: str, limit: int) -> int:
        """Return how many channels an organisation has, counted up to a limit."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM webhooks WHERE organisation_id = ? LIMIT ?) w"
        return int(self._unit.row(sql, organisation_id, limit)[0])

    def recipients(self, organisation_id: str, limit: int) -> list[Recipient]:
        """Return the enabled channels, at most the first ``limit``."""
        rows = self._unit.rows(
            "SELECT webhook_id, url, channel_kind, types FROM webhooks"
            " WHERE organisation_id = ? AND enabled = 1 ORDER BY url LIMIT ?",
            organisation_id, limit,
        )  # fmt: skip
        return [
            Recipient(
                channel_id, url.removeprefix(NAMED) if url.startswith(NAMED) else "", kind,
                json.loads(types),
            )
            for channel_id, url, kind, types in rows
        ]  # fmt: skip

    def save_webhook(self, webhook: records.Webhook, secret: str) -> None:
        """Write a webhook."""
        self._unit.write(_SAVE, WEBHOOKS.row(webhook, secret, "webhook", "{}"))

    def delete_webhook(self, organisation_id: str, webhook_id: str) -> bool:
        """Remove a channel and fail its waiting deliveries; ``False`` when there is none."""
        cursor = self._unit.write(
            WEBHOOKS.delete(("organisation_id", "webhook_id")),
            (organisation_id, webhook_id),
        )
        if cursor.rowcount == 0:
            return False
        self._unit.write(
            "UPDATE deliveries SET failed = 1 WHERE webhook_id = ? AND delivered_at_ms IS NULL",
            (webhook_id,),
        )
        self._unit.write(_PACE.delete(), (webhook_id,))
        return True

    def channel(
        self, organisation_id: str, name: str
    ) -> tuple[alerts.Channel, alerts.ChannelSecrets] | None:
        """Return the channel of this name, and its secrets."""
        row = self._unit.row(
            f"{_SELECT} WHERE organisation_id = ? AND url = ?",
            organisation_id, NAMED + name,
        )  # fmt: skip
        if row is None:
            return None
        return channel_from_row(row), wire.decode(row[WEBHOOKS.width], alerts.ChannelSecrets)

    def channels(self, organisation_id: str) -> list[alerts.Channel]:
        """Return the channels that have a name."""
        rows = self._unit.rows(
            f"{_SELECT} WHERE organisation_id = ? AND {IS_NAMED} ORDER BY url",
            organisation_id,
        )
        return [channel_from_row(row) for row in rows]

    def save_channel(self, channel: alerts.Channel, secrets: alerts.ChannelSecrets) -> None:
        """Write a channel."""
        webhook = records.Webhook(
            webhook_id=channel.channel_id,
            organisation_id=channel.organisation_id,
            url=NAMED + channel.name,
            enabled=channel.enabled,
            created_at_ms=channel.created_at_ms,
        )
        encoded = (
            wire.encode(secrets).decode(),
            channel.kind,
            wire.encode(channel.options).decode(),
        )
        self._unit.write(_SAVE, WEBHOOKS.row(webhook, *encoded))

    # -- rules, and reported facts -------------------------------------------------------------

    def alert_rules(self, organisation_id: str) -> list[alerts.AlertRule]:
        """Return the rules of an organisation."""
        rows = self._unit.rows(
            "SELECT alert_rule FROM alert_rules WHERE organisation_id = ? ORDER BY alert_name",
            organisation_id,
        )
        return [wire.decode(text, alerts.AlertRule) for (text,) in rows]

    def save_alert_rule(self, organisation_id: str, rule: alerts.AlertRule) -> None:
        """Write a rule."""
        self._unit.write(_RULES.upsert(), (organisation_id, rule.name, wire.encode(rule).decode()))

    def delete_alert_rule(self, organisation_id: str, name: str) -> bool:
        """Remove a rule; ``False`` when there is none."""
        return self._unit.write(_RULES.delete(), (organisation_id, name)).rowcount > 0

    def told_at(self, organisation_id: str, fact: str) -> int | None:
        """Return when a fact was last reported."""
        row = self._unit.row(
            "SELECT told_ms FROM sent_alerts WHERE organisation_id = ? AND fact = ?",
            organisation_id, fact,
        )  # fmt: skip
        return None if row is None else int(row[0])

    def note_told(self, organisation_id: str, fact: str) -> None:
        """Record that a fact is reported now."""
        self._unit.write(_FACTS.upsert(), (organisation_id, fact, self._unit.now_ms))

    def forget_told(self, before_ms: int) -> None:
        """Delete the facts that were reported before a time."""
        if self._unit.row("SELECT 1 FROM sent_alerts WHERE told_ms < ? LIMIT 1", before_ms):
            self._unit.write("DELETE FROM sent_alerts WHERE told_ms < ?", (before_ms,))

    def pace(self, channel_id: str) -> Pace:
        """Return how many messages a channel has got lately, and its digest."""
        row = self._unit.row(
            "SELECT pace_from_ms, pace_told, digest_id, digest_due_ms FROM channel_pace"
            " WHERE channel_id = ?",
            channel_id,
        )
        return Pace() if row is None else Pace(*row)

    def save_pace(self, channel_id: str, pace: Pace) -> None:
        """Write a channel's pace."""
        self._unit.write(_PACE.upsert(), (channel_id, *pace))

    # -- deliveries ----------------------------------------------------------------------------

    def add_delivery(
        self, delivery: records.Delivery, organisation_id: str, body: str, due_ms: int
    ) -> None:
        """Insert a delivery."""
        self._unit.write(
            _ADD_DELIVERY,
            (delivery.delivery_id, delivery.webhook_id, organisation_id, delivery.type, body,
             delivery.created_at_ms, due_ms, 0, 0),
        )  # fmt: skip

    def waiting_body(self, delivery_id: str) -> str | None:
        """Return the body of a delivery that was never tried."""
        row = self._unit.row(
            f"SELECT body FROM deliveries WHERE delivery_id = ? AND attempts = 0 AND {_WAITING}",
            delivery_id,
        )
        return None if row is None else str(row[0])

    def save_body(self, delivery_id: str, body: str) -> None:
        """Write the body of a delivery."""
        self._unit.write(_SAVE_BODY, (body, delivery_id))

    def due_deliveries(
        self, limit: int, each: int, sending: Mapping[str, int]
    ) -> list[records.DueDelivery]:
        """Return due deliveries, at most ``each`` of one organisation, in turns.

        Args:
            limit: maximum deliveries to return.
            each: maximum deliveries of one organisation, including those being sent.
            sending: how many of each organisation the caller is sending already.
        """
        rows = self._unit.rows(_DUE, self._unit.now_ms, each, limit)
        return [records.DueDelivery(*row) for row in rows]

    def save_attempt(
        self,
        delivery_id: str,
        status: int | None,
        delivered: bool,
        next_attempt_ms: int | None,
        error: str,
    ) -> None:
        """Record one attempt. If it failed and no next one is planned, the delivery has failed."""
        self._unit.write(
            "UPDATE deliveries SET attempts = attempts + 1, last_status = ?, delivered_at_ms = ?,"
            " failed = ?, next_attempt_ms = ?, delivery_error = ? WHERE delivery_id = ?",
            (status, self._unit.now_ms if delivered else None,
             not delivered and next_attempt_ms is None,
             self._unit.now_ms if next_attempt_ms is None else next_attempt_ms, error, delivery_id),
        )  # fmt: skip
