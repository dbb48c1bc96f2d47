"""Answers from Slack: its signed requests when a user presses a button."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.core.visible import visible
from guard.gateway.api.http import fail, headers_of, read_body
from guard.gateway.domain import alerts
from guard.gateway.domain.answer_links import SLACK_SKEW_S, Subject, is_slack_signature
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.ledger import answers
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within

logger = logging.getLogger(__name__)

BODY_MAX: Final = 65_536
SLACK_PATH: Final = "/slack/interactions/{channel_id}"


class _User(Struct):
    id: str
    username: str = ""
    name: str = ""


class _Action(Struct):
    action_id: str
    value: str = ""


class _Pressed(Struct):
    """The fields of Slack's ``block_actions`` that are used."""

    type: str
    user: _User
    actions: list[_Action]
    response_url: str = ""


class SlackRoute:
    """Takes presses of the buttons of one channel, under its app's signing secret.

    Args:
        storage: where channels and questions are.
        clock_ms: the gateway's clock.
    """

    def __init__(self, storage: Storage, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms

    def routes(self) -> list[BaseRoute]:
        """Return the route."""
        return [Route(SLACK_PATH, self._take, methods=["POST"])]

    async def _take(self, request: Request) -> Response:
        headers = headers_of(request.scope)
        body = await read_body(headers, request.receive, BODY_MAX)
        channel = await self._channel(request, body)
        pressed = _pressed(body)
        if pressed is None:
            raise fail(400, "GD-P002", "Bad request", "no button of guard's was pressed")
        action, subject = pressed.actions[0], _subject(pressed.actions[0].value)
        if subject is None or action.action_id not in ("approve", "refuse"):
            raise fail(400, "GD-P002", "Bad request", "no button of guard's was pressed")
        if channel.options.users and pressed.user.id not in channel.options.users:
            raise fail(403, "GD-W004", "Not allowed", "this user may not answer")
        own = channel.organisation_id
        name = visible(pressed.user.username or pressed.user.name)[:64]
        actor = Actor(f"slack {name} ({visible(pressed.user.id)[:64]})", own)
        # Slack may send a request again, and so may an attacker: each signature counts once, for as
        # long as its time stamp is accepted.
        once = request.headers.get("x-slack-signature", "")
        until_ms = self._clock_ms() + 2 * SLACK_SKEW_S * 1000
        verdict: answers.Verdict = "approve" if action.action_id == "approve" else "refuse"
        try:
            text = await self._storage.write(
                within(own), answers.take, actor, own, channel.channel_id, subject, verdict,
                once, until_ms,
            )  # fmt: skip
        except (ConflictError, NotFoundError) as exc:
            text = f"Nothing was changed: {exc}."
        if pressed.response_url:
            await self._storage.write(
                within(own), answers.report, own, channel.channel_id, text, pressed.response_url
            )
        return Response(status_code=200)

    async def _channel(self, request: Request, body: bytes) -> alerts.Channel:
        """Return the channel whose app has signed the request.

        Raises:
            ProblemError: there is none, or it has not.
        """
        found = await self._storage.find_channel(str(request.path_params["channel_id"])[:64])
        if found is not None:
            channel, secrets = found
            takes = channel.kind == "slack" and channel.enabled and channel.options.answers
            signature = request.headers.get("x-slack-signature", "")
            stamp = request.headers.get("x-slack-request-timestamp", "")
            now_s = self._clock_ms() / 1000
            if takes and is_slack_signature(signature, secrets.signing, stamp, body, now_s):
                return channel
        raise fail(401, "GD-A001", "Not signed", "this request was not signed by the channel's app")


def _pressed(body: bytes) -> _Pressed | None:
    try:
        form = urllib.parse.parse_qs(body.decode("ascii"), max_num_fields=10)
        found = wire.decode(form["payload"][0], _Pressed)
    except (KeyError, ValueError, wire.WireError):
        return None
    return found if found.type == "block_actions" and found.actions else None


def _subject(value: str) -> Subject | None:
    try:
        return wire.decode(value, Subject)
    except wire.WireError:
        return None
