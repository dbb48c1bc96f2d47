"""Bodies of the admin API about alerts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from guard.gateway.api.admin.from_body import record_from
from guard.gateway.domain import alerts


class ChannelBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A channel to set under its name. Which fields it needs depends on its kind.

    A secret that is left out stays as it was: a webhook's signing secret (made by the gateway if
    there is none), Slack's webhook URL, a mail server's password, PagerDuty's routing key;
    ``signing_secret`` is a Slack app's. None of them is shown again.
    """

    kind: alerts.ChannelKind
    enabled: bool = True
    url: alerts.Address = ""
    to: Annotated[list[alerts.Mailbox], Meta(max_length=50)] = []
    sender: alerts.Mailbox | None = None
    host: alerts.Host | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] = 587
    username: Annotated[str, Meta(max_length=254)] = ""
    security: alerts.Security = "starttls"
    users: Annotated[list[alerts.RuleName], Meta(max_length=100)] = []
    answers: bool = False
    secret: alerts.Secret | None = None
    signing_secret: alerts.Secret | None = None

    def options(self) -> alerts.ChannelOptions:
        """Return what is no secret."""
        sender, host = self.sender or "", self.host or ""
        return record_from(self, alerts.ChannelOptions, sender=sender, host=host)

    def secrets(self) -> alerts.ChannelSecrets:
        """Return the secrets that are given."""
        return alerts.ChannelSecrets(secret=self.secret or "", signing=self.signing_secret or "")


class ApplyChannel(ChannelBody, kw_only=True):
    """A channel with its name."""

    name: alerts.RuleName


class CreatedChannel(Struct, kw_only=True):
    """A channel; with the signing secret of a webhook that the gateway has just made."""

    channel: alerts.Channel
    secret: str | None = None


class AlertBody(alerts.AlertTerms, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule to set under its name; an empty ``channels`` means all of them."""

    def rule(self, name: str) -> alerts.AlertRule:
        """Return the rule.

        Raises:
            ValueError: a field belongs to another kind of alert.
        """
        if self.at_percent is not None and self.on not in ("threshold", "forecast"):
            raise ValueError("at_percent belongs to threshold and forecast")
        if self.on != "refusals" and (self.count, self.within_ms) != (50, 600_000):
            raise ValueError("count and within_ms belong to refusals")
        return record_from(self, alerts.AlertRule, name=name, channels=sorted(set(self.channels)))


class ApplyAlert(AlertBody, kw_only=True):
    """A rule with its name, by default what it is told for."""

    name: alerts.RuleName | None = None


class TestSent(Struct, kw_only=True):
    """A test message, whose outcome is in the list of deliveries."""

    delivery_id: str
