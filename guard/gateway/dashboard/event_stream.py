"""Server-sent events: something changed, and the gateway's health."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard import security
from guard.gateway.dashboard.site import PageGroup, RequestContext
from guard.gateway.domain.errors import StoreError

BEAT_S: Final = 2.0
RECHECK_S: Final = 5.0


class Live(PageGroup):
    """Serves ``/live``.

    The messages carry no data: the script fetches the page again, so that everything shown is
    rendered, escaped and authorised in one place. So members may listen as well.
    """

    def routes(self) -> list[BaseRoute]:
        """Return the route of the stream."""
        return [Route("/live", self._site.page(self._open, "member"), methods=["GET"])]

    async def _open(self, context: RequestContext) -> Response:
        if self._site.parts.change_watcher.is_full(context.org()):
            return Response("too many streams", status_code=503, headers=security.PAGE_HEADERS)
        return StreamingResponse(
            self._messages(context),
            media_type="text/event-stream",
            headers=security.PAGE_HEADERS | {"X-Accel-Buffering": "no"},
        )

    async def _messages(self, context: RequestContext) -> AsyncIterator[str]:
        # Subscribe here, because a response that is never started would not unsubscribe.
        change_watcher = self._site.parts.change_watcher
        listener = change_watcher.subscribe(context.org())
        checked_s = time.monotonic()
        try:
            yield "retry: 1000\n\n" + self._health()
            while not change_watcher.closing:
                changed = await listener.wait(BEAT_S)
                if time.monotonic() - checked_s >= RECHECK_S:
                    checked_s = time.monotonic()
                    if not await self._still_good(context):
                        yield "event: signed-out\ndata: {}\n\n"
                        return
                yield ("event: change\ndata: {}\n\n" if changed else "") + self._health()
            yield self._health()
        finally:
            change_watcher.unsubscribe(context.org(), listener)

    async def _still_good(self, context: RequestContext) -> bool:
        try:
            return await self._site.parts.operators.session(context.token) is not None
        except StoreError:
            return True  # a store that does not answer is no reason to sign out

    def _health(self) -> str:
        healthy, trouble = self._site.health()
        return f"event: health\ndata: {json.dumps({'ok': healthy, 'text': trouble})}\n\n"
