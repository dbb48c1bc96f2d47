"""Alerts, their channels and tests: what rows of the table of operations do."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any, Final

from guard.core import wire
from guard.gateway.api.admin import alert_bodies as bodies
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.api.http import fail
from guard.gateway.domain import alerts
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.rulesets import RuleSet
from guard.gateway.ledger import alerting
from guard.gateway.services.egress import check_host, check_url
from guard.gateway.settings import GatewaySettings

_WEBHOOK_SECRET: Final = "whsec_"  # noqa: S105  # a prefix


async def put_rule(call: AdminCall, body: bodies.AlertBody, name: str) -> alerts.AlertRule:
    return await call.write(alerting.put_rule, call.own, body.rule(named(name)))


async def put_channel(
    call: AdminCall, body: bodies.ChannelBody, name: str
) -> bodies.CreatedChannel:
    channel, given = checked(call.services.settings, call.own, named(name), body)
    fresh = fresh_secrets(body.kind)
    stored, took_fresh = await call.write(alerting.put_channel, channel, given, fresh)
    return bodies.CreatedChannel(channel=stored, secret=fresh.secret if took_fresh else None)


async def test_channel(call: AdminCall, name: str) -> bodies.TestSent:
    sent = await call.write(alerting.test_channel, call.own, name)
    return bodies.TestSent(delivery_id=sent)


def checked(
    settings: GatewaySettings, organisation_id: str, name: str, body: bodies.ChannelBody
) -> tuple[alerts.Channel, alerts.ChannelSecrets]:
    """Return a channel and the secrets that are given for it.

    Raises:
        ProblemError: its address is not allowed.
        ConflictError: the gateway has no address of its own for links.
        ValueError: something is contradictory.
    """
    options, given = body.options(), body.secrets()
    private = settings.private_webhooks
    try:
        for url in (options.url, given.secret if body.kind == "slack" else ""):
            if url:
                check_url(url, private=private)
        if options.host:
            check_host(options.host, private=private)
    except ValueError as exc:  # well-formed, and yet not an address for this gateway
        raise fail(403, "GD-X001", "Address refused", str(exc)) from None
    if body.kind == "email" and options.answers and not settings.public_url:
        raise ConflictError("links in mail need the gateway's address: serve --public-url")
    if body.kind == "webhook" and given.secret:
        _require_signing_secret(given.secret)
    channel = alerts.Channel(
        channel_id="", organisation_id=organisation_id, name=name, kind=body.kind,
        options=options, enabled=body.enabled,
    )  # fmt: skip
    return channel, given


def add_to(
    rules: RuleSet,
    settings: GatewaySettings,
    organisation_id: str,
    channels: list[bodies.ApplyChannel],
    wanted: list[bodies.ApplyAlert],
) -> None:
    """Add the channels and alerts of a file to the rules to activate.

    Raises:
        ProblemError, ValueError: as :func:`checked`.
    """
    for body in channels:
        channel, given = checked(settings, organisation_id, named(body.name), body)
        rules.channels.append(channel)
        rules.secrets[channel.name] = given
        rules.fresh[channel.name] = fresh_secrets(channel.kind)
    for each in wanted:
        rules.alerts.append(each.rule(each.name or each.on))


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
