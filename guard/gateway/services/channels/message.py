"""A message to a channel, made from its delivery when it is sent. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, Final

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import alerts, records
from guard.gateway.domain.notice_text import Said, said

PERMANENT: Final[dict[str, frozenset[int]]] = {
    "webhook": frozenset({410}),
    "slack": frozenset({400, 403, 404, 410}),
    "pagerduty": frozenset({400}),
}
"""Statuses after which the same message is not sent again, by kind of channel."""

_SLACK_TEXT_MAX: Final = 2900
_SUMMARY_MAX: Final = 1024


class Button(Struct, frozen=True, kw_only=True):
    """One of the answers to a question.

    Args:
        action: ``approve`` or ``refuse``.
        label: its text.
        value: the question that it answers, as JSON, which Slack sends back.
    """

    action: str
    label: str
    value: str


class ShownQuestion(Struct, frozen=True, kw_only=True):
    """The part of a message about its question.

    Args:
        shown: names and values that the agent has written, for the person who answers.
        buttons: the answers in Slack; none when it is over, or cannot be answered there.
        link: the page on which it is answered, for mail.
        state: how it has ended meanwhile; empty while it is open.
    """

    shown: list[tuple[str, str]] = []
    buttons: list[Button] = []
    link: str = ""
    state: str = ""


class ChannelMessage(Struct, frozen=True, kw_only=True):
    """A message that is due, with its delivery decoded."""

    due: records.DueDelivery
    notice: dict[str, Any]
    said: Said
    options: alerts.ChannelOptions
    secrets: alerts.ChannelSecrets
    base_url: str = ""
    question: ShownQuestion = ShownQuestion()

    @property
    def link(self) -> str:
        """The page about it; empty when the gateway's own address is not known."""
        return self.base_url + self.said.path if self.base_url else ""


class Post(Struct, frozen=True, kw_only=True):
    """An HTTP request; its repr has no address, which may be a secret."""

    url: str
    body: bytes
    headers: dict[str, str]

    def __repr__(self) -> str:
        return "Post(...)"


def message_of(due: records.DueDelivery, base_url: str, question: ShownQuestion) -> ChannelMessage:
    """Decode a delivery.

    Raises:
        ValueError: it was stored in a form that this gateway does not know.
    """
    if due.kind == "webhook":  # the stored body is sent as it is, so it need not be decoded
        notice: dict[str, Any] = {}
        words = Said(title="")
    else:
        notice = wire.decode(due.body, dict[str, Any])
        words = said(due.type, notice["data"])
    if due.url.startswith("channel:"):
        options = wire.decode(due.options, alerts.ChannelOptions)
        secrets = wire.decode(due.secret, alerts.ChannelSecrets)
    else:
        options = alerts.ChannelOptions(url=due.url)
        secrets = alerts.ChannelSecrets(secret=due.secret)
    return ChannelMessage(
        due=due, notice=notice, said=words, options=options, secrets=secrets, base_url=base_url,
        question=question,
    )  # fmt: skip


def signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the ``webhook-signature`` header: version 1, HMAC-SHA256, base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def post_of(message: ChannelMessage, timestamp_s: int) -> Post:
    """Return the request that carries a message to a webhook, Slack or PagerDuty.

    Args:
        message: the message.
        timestamp_s: Unix seconds.

    Raises:
        ValueError: the channel is of a kind that this gateway does not know.
    """
    kind, due = message.due.kind, message.due
    if kind == "webhook":
        body = due.body.encode()
        return Post(
            url=message.options.url,
            body=body,
            headers={
                "webhook-id": due.delivery_id,
                "webhook-timestamp": str(timestamp_s),
                "webhook-signature": signature(
                    message.secrets.secret, due.delivery_id, timestamp_s, body
                ),
            },
        )
    if kind == "slack":
        answered_at = message.notice["data"].get("response_url", "")
        url = answered_at or message.secrets.secret
        return Post(url=url, body=wire.encode(_slack(message)), headers={})
    if kind == "pagerduty":
        url = message.options.url or alerts.PAGERDUTY
        return Post(url=url, body=wire.encode(_pagerduty(message)), headers={})
    raise ValueError(f"this gateway knows no channels of kind {kind}")


def _plain(text: str) -> dict[str, Any]:
    """Return text that Slack shows as it is, without formatting, links or mentions."""
    if len(text) > _SLACK_TEXT_MAX:
        text = f"{text[:_SLACK_TEXT_MAX]}… (cut: the dashboard shows all of it)"
    return {"type": "plain_text", "text": text or " ", "emoji": False}


def escaped(text: str) -> str:
    """Return text in which Slack finds no links and no mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack(message: ChannelMessage) -> dict[str, Any]:
    words, question = message.said, message.question
    blocks: list[dict[str, Any]] = [{"type": "section", "text": _plain(words.title)}]
    if words.lines:
        lines = "\n".join(f"{name}: {value}" if name else value for name, value in words.lines)
        blocks.append({"type": "section", "text": _plain(lines)})
    if question.shown:
        shown = "\n".join(f"{name}: {value}" for name, value in question.shown)
        blocks.append({"type": "section", "text": _plain(f"The agent says:\n{shown}")})
    if question.state:
        blocks.append({"type": "section", "text": _plain(question.state)})
    elif question.buttons:
        blocks.append(
            {
                "type": "actions",
                "elements": [
                    {
                        "type": "button",
                        "action_id": each.action,
                        "text": _plain(each.label),
                        "value": each.value,
                        "style": "danger" if each.action == "refuse" else "primary",
                    }
                    for each in question.buttons
                ],
            }
        )
    if message.link:
        text = f"<{message.link}|Open in guard>"
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": text}]})
    body: dict[str, Any] = {"text": escaped(words.title), "blocks": blocks}
    # Slack fetches no address that a program has put into a name, and shows nothing of it.
    body |= {"unfurl_links": False, "unfurl_media": False}
    if message.due.type == "question.answered":
        body["replace_original"] = True
    return body


def _pagerduty(message: ChannelMessage) -> dict[str, Any]:
    words, own = message.said, message.due.organisation_id
    body: dict[str, Any] = {
        "routing_key": message.secrets.secret,
        "event_action": "resolve" if words.resolved else "trigger",
        "dedup_key": hashlib.sha256(f"{own}:{words.key}".encode()).hexdigest()[:40],
        "client": "guard",
        "payload": {
            "summary": words.title[:_SUMMARY_MAX],
            "source": message.base_url or "guard gateway",
            "severity": words.severity,
            "class": message.due.type,
            "custom_details": {
                name or str(at): value for at, (name, value) in enumerate(words.lines)
            },
        },
    }
    if message.link:
        body["links"] = [{"href": message.link, "text": "Open in guard"}]
        body["client_url"] = message.base_url
    return body
