"""The page of a link in mail: opening it decides nothing, its form decides once."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.http import ProblemError
from guard.gateway.dashboard import security
from guard.gateway.dashboard.security import ForbiddenError
from guard.gateway.dashboard.site import Site
from guard.gateway.domain import alerts, answer_links
from guard.gateway.domain.answer_links import AnswerLink
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError, NotFoundError, StoreError
from guard.gateway.ledger import answers
from guard.gateway.services.questions import Questions, over
from guard.gateway.unit.state import within

_GONE: Final = "no such question: the link is not complete, or its channel was removed"


class Answering:
    """Serves ``/answer``. The signed token of the link is the only credential."""

    def __init__(self, site: Site, questions: Questions) -> None:
        self._site = site
        self._questions = questions

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/answer", self._show, methods=["GET"]),
            Route("/answer", self._answer, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        try:
            self._site.origin_checks.check_host(request)
            token = request.query_params.get("token", "")
            channel, link = await self._link(token)
            return await self._page(request, token, channel, link)
        except (ForbiddenError, NotFoundError, StoreError) as exc:
            return self._site.problem(request, exc)

    async def _answer(self, request: Request) -> Response:
        try:
            self._site.origin_checks.check_host(request)
            self._site.origin_checks.check_origin(request)
            form = await security.read_form(request)
            token = form.secret("token")
            channel, link = await self._link(token)
            wanted = form.text("answer")
            if wanted not in ("approve", "refuse"):
                raise ValueError("the answer is neither approve nor refuse")
            if self._site.parts.clock_ms() >= link.ends_ms:
                raise ConflictError("the time for an answer is over")
            verdict: answers.Verdict = "approve" if wanted == "approve" else "refuse"
            own = channel.organisation_id
            actor = Actor(f"mail to {', '.join(channel.options.to)}"[:200], own)
            done = await self._site.parts.storage.write(
                within(own), answers.take, actor, own, channel.channel_id, link.subject, verdict,
                token, link.ends_ms,
            )  # fmt: skip
            return await self._page(request, token, channel, link, done=done)
        except (ForbiddenError, NotFoundError, ConflictError, ValueError, ProblemError,
                StoreError) as exc:  # fmt: skip
            return self._site.problem(request, exc)

    async def _link(self, token: str) -> tuple[alerts.Channel, AnswerLink]:
        """Return the content of a token, and the channel whose key has signed it.

        Raises:
            NotFoundError: the token was not signed by a channel that takes answers.
        """
        link = answer_links.claimed(token)
        found = None
        if link is not None:
            found = await self._site.parts.storage.find_channel(link.channel_id)
        if link is None or found is None:
            raise NotFoundError(_GONE)
        channel, secrets = found
        takes = channel.kind == "email" and channel.enabled and channel.options.answers
        if not takes or not answer_links.is_signed(token, secrets.link_key):
            raise NotFoundError(_GONE)
        return channel, link

    async def _page(
        self,
        request: Request,
        token: str,
        channel: alerts.Channel,
        link: AnswerLink,
        **values: Any,
    ) -> Response:
        own = channel.organisation_id
        asked = await self._questions.find(link.subject, own) or over(link.subject, own)
        return self._site.html(
            request, "answer.html", 200, asked=asked, token=token, **({"done": ""} | values)
        )
