"""The alerts' part of the unit-of-work port: channels, rules, deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from guard.gateway.domain import alerts, records


class Recipient(NamedTuple):
    """A channel that is in use.

    Args:
        channel_id: of the channel.
        name: empty for a webhook, which lists the types of notices that it gets.
        kind: of channel.
        types: the types that a webhook without a name gets; empty for all.
    """

    channel_id: str
    name: str
    kind: alerts.ChannelKind
    types: list[str]


class Pace(NamedTuple):
    """How many messages a channel has been sent lately.

    Args:
        from_ms: when the current minute began.
        told: how many messages were sent one by one in it.
        digest_id: the delivery that collects the others; empty before the first one.
        digest_due_ms: when that is sent.
    """

    from_ms: int = 0
    told: int = 0
    digest_id: str = ""
    digest_due_ms: int = 0


class AlertStore(Protocol):
    """Webhooks and other channels, alert rules, facts that were sent, and deliveries."""

    def webhook(self, organisation_id: str, url: str) -> records.Webhook | None:
        """Return the webhook with this address."""

    def count_webhooks(self, organisation_id: str, limit: int) -> int:
        """Return how many channels an organisation has, counted up to a limit."""

    def recipients(self, organisation_id: str, limit: int) -> list[Recipient]:
        """Return the channels in use; of more than ``limit`` the first."""

    def save_webhook(self, webhook: records.Webhook, secret: str) -> None:
        """Write a webhook."""

    def delete_webhook(self, organisation_id: str, webhook_id: str) -> bool:
        """Remove a channel and fail its waiting deliveries; ``False`` when there is none."""

    def channel(
        self, organisation_id: str, name: str
    ) -> tuple[alerts.Channel, alerts.ChannelSecrets] | None:
        """Return the channel of this name, and its secrets."""

    def channels(self, organisation_id: str) -> list[alerts.Channel]:
        """Return the channels that have a name."""

    def save_channel(self, channel: alerts.Channel, secrets: alerts.ChannelSecrets) -> None:
        """Write a channel."""

    def alert_rules(self, organisation_id: str) -> list[alerts.AlertRule]:
        """Return the rules of an organisation."""

    def save_alert_rule(self, organisation_id: str, rule: alerts.AlertRule) -> None:
        """Write a rule."""

    def delete_alert_rule(self, organisation_id: str, name: str) -> bool:
        """Remove a rule; ``False`` when there is none."""

    def told_at(self, organisation_id: str, fact: str) -> int | None:
        """Return when a fact was sent; ``None`` if it was not."""

    def note_told(self, organisation_id: str, fact: str) -> None:
        """Note that a fact is sent at the unit's time."""

    def forget_told(self, before_ms: int) -> None:
        """Delete the notes on facts that were sent before a time."""

    def pace(self, channel_id: str) -> Pace:
        """Return how many messages a channel has been sent lately."""

    def save_pace(self, channel_id: str, pace: Pace) -> None:
        """Write a channel's pace."""

    def add_delivery(
        self, delivery: records.Delivery, organisation_id: str, body: str, due_ms: int
    ) -> None:
        """Insert a delivery."""

    def waiting_body(self, delivery_id: str) -> str | None:
        """Return the body of a delivery that was never tried."""

    def save_body(self, delivery_id: str, body: str) -> None:
        """Write the body of a delivery."""

    def due_deliveries(
        self, limit: int, each: int, sending: Mapping[str, int]
    ) -> list[records.DueDelivery]:
        """Return due deliveries, at most ``each`` of one organisation, in turns.

        Args:
            limit: maximum deliveries to return.
            each: maximum deliveries of one organisation, including those being sent.
            sending: how many of each organisation the caller is sending already.
        """

    def save_attempt(
        self,
        delivery_id: str,
        status: int | None,
        delivered: bool,
        next_attempt_ms: int | None,
        error: str,
    ) -> None:
        """Record one attempt; without a next one an undelivered message has failed."""
