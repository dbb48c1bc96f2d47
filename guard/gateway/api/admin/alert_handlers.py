"""Admin operations about alerts: rules, channels, tests."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable
from typing import Any, Final, TypeVar

from guard.core import wire
from guard.gateway.api.admin import alert_bodies as bodies
from guard.gateway.api.admin.operations import AdminCall, Operation
from guard.gateway.api.http import fail
from guard.gateway.domain import alerts
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.rulesets import RuleSet
from guard.gateway.ledger import alerting
from guard.gateway.ledger.state import within
from guard.gateway.services.egress import check_host, check_url
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage

T = TypeVar("T")

_WEBHOOK_SECRET: Final = "whsec_"  # noqa: S105  # a prefix


class AlertHandlers:
    """Handlers of the admin API and the dashboard.

    Args:
        storage: where rules and channels are kept.
        settings: whether messages may go to private addresses, and the gateway's own address.
    """

    def __init__(self, storage: Storage, settings: GatewaySettings) -> None:
        self._storage = storage
        self._private = settings.private_webhooks
        self._has_address = bool(settings.public_url)

    async def _write(self, call: AdminCall, use_case: Callable[..., T], *args: Any) -> T:
        """Run a use case on the caller's organisation, as the caller.

        Raises:
            RoleError: the caller's role does not allow it.
        """
        call.require("operator")
        return await self._storage.write(within(call.own), use_case, call.actor, *args)

    async def rules(self, call: AdminCall) -> list[alerts.AlertRule]:
        """List the rules."""
        return await self._storage.alert_rules(call.own)

    async def put_rule(self, call: AdminCall) -> alerts.AlertRule:
        """Set a rule."""
        body: bodies.AlertBody = call.body
        rule = body.rule(named(call.path["name"]))
        return await self._write(call, alerting.put_rule, call.own, rule)

    async def delete_rule(self, call: AdminCall) -> None:
        """Remove a rule."""
        await self._write(call, alerting.delete_rule, call.own, call.path["name"])

    async def channels(self, call: AdminCall) -> list[alerts.Channel]:
        """List the channels."""
        return await self._storage.channels(call.own)

    async def put_channel(self, call: AdminCall) -> bodies.CreatedChannel:
        """Set a channel."""
        body: bodies.ChannelBody = call.body
        channel, given = self.checked(call.own, named(call.path["name"]), body)
        fresh = fresh_secrets(body.kind)
        stored, took_fresh = await self._write(call, alerting.put_channel, channel, given, fresh)
        return bodies.CreatedChannel(channel=stored, secret=fresh.secret if took_fresh else None)

    def checked(
        self, organisation_id: str, name: str, body: bodies.ChannelBody
    ) -> tuple[alerts.Channel, alerts.ChannelSecrets]:
        """Return a channel and the secrets that are given for it.

        Raises:
            ProblemError: its address is not allowed.
            ConflictError: the gateway has no address of its own for links.
            ValueError: something is contradictory.
        """
        options, given = body.options(), body.secrets()
        try:
            for url in (options.url, given.secret if body.kind == "slack" else ""):
                if url:
                    check_url(url, private=self._private)
            if options.host:
                check_host(options.host, private=self._private)
        except ValueError as exc:  # well-formed, and yet not an address for this gateway
            raise fail(403, "GD-X001", "Address refused", str(exc)) from None
        if body.kind == "email" and options.answers and not self._has_address:
            raise ConflictError("links in mail need the gateway's address: serve --public-url")
        if body.kind == "webhook" and given.secret:
            _require_signing_secret(given.secret)
        channel = alerts.Channel(
            channel_id="", organisation_id=organisation_id, name=name, kind=body.kind,
            options=options, enabled=body.enabled,
        )  # fmt: skip
        return channel, given

    def add_to(
        self,
        rules: RuleSet,
        organisation_id: str,
        channels: list[bodies.ApplyChannel],
        wanted: list[bodies.ApplyAlert],
    ) -> None:
        """Add the channels and alerts of a file to the rules to activate.

        Raises:
            ProblemError, ValueError: as :meth:`checked`.
        """
        for body in channels:
            channel, given = self.checked(organisation_id, named(body.name), body)
            rules.channels.append(channel)
            rules.secrets[channel.name] = given
            rules.fresh[channel.name] = fresh_secrets(channel.kind)
        for each in wanted:
            rules.alerts.append(each.rule(each.name or each.on))

    async def delete_channel(self, call: AdminCall) -> None:
        """Remove a channel."""
        await self._write(call, alerting.delete_channel, call.own, call.path["name"])

    async def test_channel(self, call: AdminCall) -> bodies.TestSent:
        """Send a test message."""
        sent = await self._write(call, alerting.test_channel, call.own, call.path["name"])
        return bodies.TestSent(delivery_id=sent)


def named(name: str) -> str:
    """Return the name of a rule or a channel.

    Raises:
        ValueError: it cannot be one.
    """
    kind: Any = alerts.RuleName
    try:
        return str(wire.convert(name, kind))
    except ValueError:
        raise ValueError(
            "a name has at most 64 letters, digits, dots, hyphens and underscores"
        ) from None


def fresh_secrets(kind: alerts.ChannelKind) -> alerts.ChannelSecrets:
    """Generate the secrets of a channel that the gateway makes itself."""
    made = _WEBHOOK_SECRET + base64.b64encode(secrets.token_bytes(32)).decode()
    return alerts.ChannelSecrets(
        secret=made if kind == "webhook" else "", link_key=secrets.token_hex(32)
    )


def _require_signing_secret(secret: str) -> None:
    try:
        base64.b64decode(secret.removeprefix(_WEBHOOK_SECRET), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the secret of a webhook is whsec_ and base64") from None


def alert_operations(h: AlertHandlers) -> list[Operation]:
    """Return the operations about alerts."""
    op, b, a = Operation, bodies, alerts
    return [
        op("GET", "/alerts/rules", h.rules, "List rules of alerts", list[a.AlertRule]),
        op("PUT", "/alerts/rules/{name}", h.put_rule, "Set a rule of alerts", a.AlertRule,
           body=b.AlertBody, conflicts=True, named=a.RULE_NAME),
        op("DELETE", "/alerts/rules/{name}", h.delete_rule, "Remove a rule of alerts", None,
           status=204),
        op("GET", "/alerts/channels", h.channels, "List channels, without their secrets",
           list[a.Channel]),
        op("PUT", "/alerts/channels/{name}", h.put_channel, "Set a channel of alerts",
           b.CreatedChannel, body=b.ChannelBody, conflicts=True, named=a.RULE_NAME),
        op("DELETE", "/alerts/channels/{name}", h.delete_channel, "Remove a channel", None,
           status=204, conflicts=True),
        op("POST", "/alerts/channels/{name}/test", h.test_channel, "Send a test message",
           b.TestSent, status=201),
    ]  # fmt: skip
