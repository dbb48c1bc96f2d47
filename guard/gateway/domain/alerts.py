"""Alerts: the notices that operators want (rules), and where they are sent (channels). Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from guard.gateway.domain.errors import ConflictError

AlertKind = Literal[
    "threshold", "forecast", "exhausted", "refusals", "kill", "approval", "unseen",
    "fallback_price", "unhealthy", "loop",
]  # fmt: skip
ChannelKind = Literal["webhook", "slack", "email", "pagerduty"]
Security = Literal["starttls", "tls", "none"]

RULE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
RuleName = Annotated[str, Meta(min_length=1, max_length=64, pattern=RULE_NAME)]
Mailbox = Annotated[str, Meta(max_length=254, pattern=r"^[!-;=?A-~]{1,64}@[A-Za-z0-9.-]{1,189}$")]
Host = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.:-]+$")]
Address = Annotated[str, Meta(max_length=2048)]
Secret = Annotated[str, Meta(min_length=1, max_length=4096)]

PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
RULES_MAX: Final = 100

TYPES: Final[dict[AlertKind, tuple[str, ...]]] = {
    "threshold": ("budget.threshold",),
    "forecast": ("budget.forecast",),
    "exhausted": ("budget.exhausted",),
    "refusals": ("calls.refused",),
    "kill": ("workflow.kill",),
    "approval": ("approval.requested", "budget.asks"),
    "unseen": ("traffic.unseen",),
    "fallback_price": ("price.fallback",),
    "unhealthy": ("gateway.unhealthy", "gateway.healthy"),
    "loop": ("run.loop",),
}
"""The types of notices that an alert of a kind is about."""

SAYS: Final[dict[AlertKind, str]] = {
    "threshold": "A budget has reached a share of its limit.",
    "forecast": "A budget will reach its limit before its window ends, at the pace so far.",
    "exhausted": "A budget is exhausted: calls are refused, or ask.",
    "refusals": "Many calls were refused within a short time.",
    "kill": "Somebody has killed a workflow, a run or everything.",
    "approval": "A call waits for a person: an approval, or a budget that asks for a raise.",
    "unseen": "A program sends LLM requests that guard cannot meter.",
    "fallback_price": "A model without a known price is charged at fallback prices.",
    "unhealthy": "The gateway's store has failed, and works again.",
    "loop": "A run repeats the same call or prompt, or spends faster and faster.",
}
"""Each kind of alert in a sentence, for pages and help."""


class AlertTerms(Struct, kw_only=True):
    """What an alert has beside its name: as operators set it, and as it is."""

    on: AlertKind
    channels: Annotated[list[RuleName], Meta(max_length=100)] = []
    at_percent: Annotated[int, Meta(ge=1, le=1000)] | None = None
    count: Annotated[int, Meta(ge=1, le=1000)] = 50
    within_ms: Annotated[int, Meta(ge=1000, le=86_400_000)] = 600_000
    enabled: bool = True


class AlertRule(AlertTerms, kw_only=True):
    """One alert: which notices are sent, and to which channels.

    Args:
        name: of the rule.
        on: what causes a notice.
        channels: names of channels; empty: all that have a name.
        at_percent: for ``threshold``, the least share of the limit that causes a notice; for
            ``forecast``, the share that a budget will reach at the end of its window.
        count, within_ms: for ``refusals``: this many refused calls within this time.
        enabled: whether it sends anything.
    """

    name: RuleName


class ChannelOptions(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of a channel, without its secrets.

    Args:
        url: of a webhook; of PagerDuty, where events are sent (by default the service in the US).
        to, sender: recipients and sender of mail.
        host, port: of the mail server.
        username: signs in to the mail server, over TLS only.
        security: ``starttls``, ``tls`` from the first byte, or ``none``.
        users: ids of the Slack users who may answer; empty: everyone who sees the message.
        answers: whether a message about a question lets people answer it. In Slack that needs the
            app's signing secret.
    """

    url: Address = ""
    to: Annotated[list[Mailbox], Meta(max_length=50)] = []
    sender: Mailbox | Literal[""] = ""
    host: Host | Literal[""] = ""
    port: Annotated[int, Meta(ge=1, le=65535)] = 587
    username: Annotated[str, Meta(max_length=254)] = ""
    security: Security = "starttls"
    users: Annotated[list[RuleName], Meta(max_length=100)] = []
    answers: bool = False


class ChannelSecrets(Struct, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The secrets of a channel, which are never shown again.

    Args:
        secret: a webhook's signing secret, Slack's webhook URL, the password of a mail server, or
            PagerDuty's routing key.
        signing: the signing secret of a Slack app.
        link_key: signs the links in mail; the gateway makes it.
    """

    secret: str = ""
    signing: str = ""
    link_key: str = ""

    def __repr__(self) -> str:
        return "ChannelSecrets(...)"


class Channel(Struct, kw_only=True):
    """Where alerts are sent; without its secrets."""

    channel_id: str
    organisation_id: str
    name: str
    kind: ChannelKind
    options: ChannelOptions = field(default_factory=ChannelOptions)
    enabled: bool = True
    created_at_ms: int = 0


class Fact(Struct, frozen=True, kw_only=True):
    """A notice to send once.

    Args:
        type: of the notice.
        key: identifies the fact within its organisation: the same key is not sent again.
        data: of the notice.
        again_ms: how long it is not sent again.
        rule: the only rule that it is for; by default all of its kind.
    """

    type: str
    key: str
    data: dict[str, object]
    again_ms: int = 32 * 86_400_000
    rule: str | None = None


FORGET_MS: Final = 32 * 86_400_000
"""How long a fact is remembered as sent: longer than any window of a budget."""


def destination(channel: Channel) -> tuple[object, ...]:
    """Return where a channel's secret goes, and as whose: it is of no use for another one."""
    to = channel.options
    return channel.kind, to.url, to.host, to.port, to.security, to.username


def check_channel(
    kind: ChannelKind, options: ChannelOptions, *, secret: bool, signing: bool
) -> None:
    """Check that a channel has what its kind needs, and no more.

    Args:
        kind: of channel.
        options: its options.
        secret, signing: whether these secrets are known.

    Raises:
        ValueError: something is missing, or belongs to another kind.
        ConflictError: a secret is needed, and none is stored.
    """
    if kind == "webhook" and not options.url:
        raise ValueError("a webhook needs its url")
    if kind == "slack" and not secret:
        raise ConflictError("Slack needs the URL of an incoming webhook, as its secret")
    if kind == "slack" and options.answers and not signing:
        raise ConflictError("answers in Slack need the signing secret of its app")
    if kind == "pagerduty" and not secret:
        raise ConflictError("PagerDuty needs a routing key, as its secret")
    if kind == "email":
        if not (options.to and options.sender and options.host):
            raise ValueError("mail needs to, sender and host")
        if options.username and options.security == "none":
            raise ValueError("a password is sent over TLS only: security is starttls or tls")
        if options.username and not secret:
            raise ConflictError("mail with a username needs a password, as its secret")
    if kind not in ("slack", "email") and options.answers:
        raise ValueError("only Slack and mail let people answer")


def wants(rule: AlertRule, kind: str, data: dict[str, object]) -> bool:
    """Return whether a rule sends a notice."""
    if not rule.enabled or kind not in TYPES[rule.on]:
        return False
    if rule.on == "threshold" and rule.at_percent is not None:
        share = data.get("threshold")
        return isinstance(share, int | float) and round(share * 100) >= rule.at_percent
    if rule.on == "forecast":
        share = data.get("percent")
        return isinstance(share, int) and share >= (rule.at_percent or 100)
    return True
