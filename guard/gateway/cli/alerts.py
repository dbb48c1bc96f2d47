"""Commands over alerts: rules, channels, tests, deliveries."""

from __future__ import annotations

import os
import time
from typing import Any, Final, get_args

import click

from guard.gateway.admin import AdminClient
from guard.gateway.cli.choices import OneOf
from guard.gateway.cli.numbers import Finite, Whole
from guard.gateway.cli.output import limited, note, safe, show, where, with_client
from guard.gateway.domain.alerts import SAYS, AlertKind

SECRET: Final = "GUARD_CHANNEL_SECRET"  # noqa: S105  # a variable's name
SIGNING_SECRET: Final = "GUARD_CHANNEL_SIGNING_SECRET"  # noqa: S105  # the same
_OUTCOME_S: Final = 20.0
_LOOK_S: Final = 0.2


@click.group()
def alerts() -> None:
    """Configure alerts: rules say what fires, channels say where it goes.

    \b
    Examples:
      guard gateway alerts channels set ops --slack
      guard gateway alerts set exhausted --to ops
      guard gateway alerts test ops
    """


@alerts.command("list")
@with_client
def alerts_list(client: AdminClient) -> None:
    """List the rules.

    \b
    Example:
      guard gateway alerts list
    """
    rows = [{**rule, "to": ", ".join(rule["channels"]) or "all channels", "when": _when(rule)}
            for rule in client.alert_rules()]  # fmt: skip
    show(rows, ["name", "on", "when", "to", "enabled"])


def _when(rule: dict[str, Any]) -> str:
    if rule["on"] == "refusals":
        return f"{rule['count']} within {rule['within_ms'] / 60_000:g} min"
    if rule["on"] == "forecast":
        return f"{rule['at_percent'] or 100}% at the end"
    return f"from {rule['at_percent']}%" if rule["at_percent"] else ""


@alerts.command("kinds")
def alerts_kinds() -> None:
    """List what alerts there are.

    \b
    Example:
      guard gateway alerts kinds
    """
    width = max(map(len, SAYS))
    for kind, says in SAYS.items():
        click.echo(f"{kind:<{width}}  {says}")


@alerts.command("set")
@click.argument("kind", metavar="KIND", type=OneOf(get_args(AlertKind)))
@click.option("--name", help="The rule's name; by default its kind.")
@click.option("--to", "channels", multiple=True, metavar="CHANNEL",
              help="May be repeated; all channels by default.")  # fmt: skip
@click.option("--at-percent", type=Whole(1, 1000),
              help="threshold: the smallest share; forecast: the share at the end.")  # fmt: skip
@click.option("--count", type=Whole(1, 1000), help="refusals: how many calls (50).")
@click.option("--minutes", type=Finite(1 / 60, 1440), help="refusals: within so many (10).")
@click.option("--off", is_flag=True, help="Keep the rule, but send nothing.")
@with_client
def alerts_set(
    client: AdminClient,
    kind: str,
    name: str | None,
    channels: tuple[str, ...],
    at_percent: int | None,
    count: int | None,
    minutes: float | None,
    off: bool,
) -> None:
    """Set a rule. `alerts kinds` says when each kind fires.

    \b
    Examples:
      guard gateway alerts set exhausted --to ops
      guard gateway alerts set threshold --at-percent 80 --to ops
      guard gateway alerts set refusals --count 20 --minutes 5
    """
    made = client.set_alert(
        name or kind, kind, channels=list(channels), at_percent=at_percent, count=count,
        within_ms=None if minutes is None else round(minutes * 60_000), enabled=not off,
    )  # fmt: skip
    note(f"alert {made['name']} is {'off' if off else 'on'} at {where()}", made)


@alerts.command("delete")
@click.argument("name")
@with_client
def alerts_delete(client: AdminClient, name: str) -> None:
    """Remove a rule.

    \b
    Example:
      guard gateway alerts delete exhausted
    """
    client.delete_alert(name)
    note(f"removed {name} on {where()}", {"name": name})


@alerts.command("test")
@click.argument("channel")
@with_client
def alerts_test(client: AdminClient, channel: str) -> None:
    """Send a test message and say whether it has arrived.

    \b
    Example:
      guard gateway alerts test ops
    """
    sent = client.test_channel(channel)
    ends_s = time.monotonic() + _OUTCOME_S
    while True:
        found = next((d for d in client.deliveries() if d["delivery_id"] == sent), None)
        if found is not None and (found["delivered_at_ms"] or found["attempts"]):
            break
        if time.monotonic() > ends_s:
            raise click.ClickException("no outcome yet: guard gateway alerts deliveries")
        time.sleep(_LOOK_S)
    if not found["delivered_at_ms"]:
        status = f" ({found['last_status']})" if found["last_status"] else ""
        raise click.ClickException(safe(f"not delivered to {channel}: {found['error']}{status}"))
    note(f"delivered to {channel}, from {where()}", found)


@alerts.command("deliveries")
@limited(50)
@with_client
def alerts_deliveries(client: AdminClient, limit: int) -> None:
    """List messages and how their delivery went, newest first.

    \b
    Example:
      guard gateway alerts deliveries --limit 20
    """
    rows = [{**each, "outcome": _outcome(each)} for each in client.deliveries(limit)]
    show(rows, ["created_at_ms", "channel", "kind", "type", "outcome", "attempts", "error"],
         limit=limit)  # fmt: skip


def _outcome(delivery: dict[str, Any]) -> str:
    if delivery["delivered_at_ms"]:
        return "delivered"
    return "failed" if delivery["failed"] else "waits"


@alerts.group()
def channels() -> None:
    """List, set and remove channels.

    \b
    Example:
      guard gateway alerts channels list
    """


@channels.command("list")
@with_client
def channels_list(client: AdminClient) -> None:
    """List channels, without their secrets.

    \b
    Example:
      guard gateway alerts channels list
    """
    rows = [{**each, "where": _target(each)} for each in client.channels()]
    show(rows, ["name", "kind", "where", "enabled"])


def _target(channel: dict[str, Any]) -> str:
    options = channel["options"]
    if channel["kind"] == "email":
        return f"{', '.join(options['to'])} by {options['host']}"
    return str(options.get("url", ""))


@channels.command("set")
@click.argument("name")
@click.option("--slack", "kind", flag_value="slack", help="An incoming webhook of Slack.")
@click.option("--webhook", "webhook_url", metavar="URL", help="Where signed messages go.")
@click.option("--email", "to", multiple=True, metavar="ADDRESS", help="Mail it; may be repeated.")
@click.option("--pagerduty", "kind", flag_value="pagerduty", help="Events API v2 of PagerDuty.")
@click.option("--smtp", metavar="HOST[:PORT]", help="With --email: the mail server (port 587).")
@click.option("--from", "sender", metavar="ADDRESS", help="With --email: the sender.")
@click.option("--user", "username", help="With --email: signs in to the mail server.")
@click.option("--security", type=click.Choice(["starttls", "tls", "none"]),
              help="With --email: how the mail server is reached (starttls).")  # fmt: skip
@click.option("--pagerduty-url", help="With --pagerduty: another address, such as the EU's.")
@click.option("--answers", is_flag=True, help="Approve and refuse from messages: Slack, mail.")
@click.option("--slack-user", "users", multiple=True, metavar="ID",
              help="With --answers: only these may answer; may be repeated.")  # fmt: skip
@click.option("--keep-secret", is_flag=True,
              help="Leave the channel's secret: for the same address and user.")  # fmt: skip
@click.option("--off", is_flag=True, help="Keep the channel, but send nothing.")
@with_client
def channels_set(client: AdminClient, name: str, keep_secret: bool, **options: Any) -> None:
    """Set a channel: one of --slack, --webhook, --email, --pagerduty.

    Its secret (Slack's webhook URL, the mail server's password, PagerDuty's routing key) is asked
    for, or taken from GUARD_CHANNEL_SECRET; a Slack app's signing secret, for --answers, from
    GUARD_CHANNEL_SIGNING_SECRET. They are never options, which other users of the machine can read.

    \b
    Examples:
      guard gateway alerts channels set ops --slack
      guard gateway alerts channels set hook --webhook https://alerts.example.com/guard
      guard gateway alerts channels set mail --email ops@example.com --from guard@example.com --smtp mail.example.com
      guard gateway alerts channels set duty --pagerduty
    """  # noqa: E501
    kind, fields = _channel(**options)
    if not keep_secret:
        fields |= _secrets(kind, fields)
    made = client.set_channel(name, kind, **fields)
    lines = [f"channel {name} on {where()}; try it: guard gateway alerts test {name}"]
    if made.get("secret"):
        lines += ["its messages are signed with this secret, shown once:", f"  {made['secret']}"]
    note("\n".join(lines), made)


def _channel(
    *,
    kind: str | None,
    webhook_url: str | None,
    to: tuple[str, ...],
    smtp: str | None,
    sender: str | None,
    username: str | None,
    security: str | None,
    pagerduty_url: str | None,
    answers: bool,
    users: tuple[str, ...],
    off: bool,
) -> tuple[str, dict[str, Any]]:
    """Return the kind of channel that the options name, and its fields."""
    named = [each for each in (kind, webhook_url and "webhook", to and "email") if each]
    if len(named) != 1:
        raise click.UsageError("give one of --slack, --webhook, --email and --pagerduty")
    found = str(named[0])
    if found != "email" and any((smtp, sender, username, security)):
        raise click.UsageError("--smtp, --from, --user and --security belong to --email")
    if found != "pagerduty" and pagerduty_url:
        raise click.UsageError("--pagerduty-url belongs to --pagerduty")
    fields: dict[str, Any] = {"answers": answers, "users": list(users), "enabled": not off}
    if found == "webhook":
        fields["url"] = webhook_url
    elif found == "pagerduty" and pagerduty_url:
        fields["url"] = pagerduty_url
    elif found == "email":
        if not smtp or not sender:
            raise click.UsageError("--email needs --smtp and --from")
        host, colon, port = smtp.rpartition(":")
        if not colon:
            host, port = smtp, "465" if security == "tls" else "587"
        if not port.isdecimal():
            raise click.UsageError("--smtp takes HOST or HOST:PORT, such as mail.example.com:587")
        fields |= {"to": list(to), "host": host, "port": int(port), "sender": sender,
                   "username": username, "security": security}  # fmt: skip
    return found, fields


_ASKED: Final = {
    "slack": "Slack's webhook URL",
    "email": "Password for the mail server",
    "pagerduty": "PagerDuty's routing key",
}


def _secrets(kind: str, fields: dict[str, Any]) -> dict[str, str]:
    """Return the secrets of a channel, from the environment or from the terminal."""
    found: dict[str, str] = {}
    needs = kind in ("slack", "pagerduty") or (kind == "email" and bool(fields.get("username")))
    given = os.environ.get(SECRET)
    if given:
        found["secret"] = given
    elif needs:
        found["secret"] = click.prompt(_ASKED[kind], hide_input=True, err=True)
    if kind == "slack" and fields["answers"]:
        signing = os.environ.get(SIGNING_SECRET)
        found["signing_secret"] = signing or click.prompt(
            "The Slack app's signing secret", hide_input=True, err=True
        )
    return found


@channels.command("delete")
@click.argument("name")
@with_client
def channels_delete(client: AdminClient, name: str) -> None:
    """Remove a channel and what waits for it.

    \b
    Example:
      guard gateway alerts channels delete ops
    """
    client.delete_channel(name)
    note(f"removed {name} on {where()}", {"name": name})
