"""Asks a vendor what an answer has cost that broke off: what is in doubt becomes its bill.

A stream that was dropped says nothing of its usage, and the vendor may have worked on. OpenRouter
says afterwards what a generation has cost: it is asked once, with the caller's own key. Where it
does not say, the answer costs what it would have cost without the question.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import attrs

from guard.core.usage.generations import usage_of_generation
from guard.core.vendors import VENDORS
from guard.instrumentation.background_jobs import BackgroundJobs, Key
from guard.loop.quiet import unlogged
from guard.scope.scope import OWN_TRAFFIC

logger = logging.getLogger("guard.instrumentation")

ASKS_AFTER_S: Final = 10.0
"""Seconds: the vendor has noticed by then that nobody reads, and has counted."""

_ANSWERS_WITHIN_S: Final = 10.0
_BODY_MAX: Final = 1 << 20


@attrs.frozen
class CostQuestion:
    """What a vendor is to be asked about a response.

    Attributes:
        due_s: when, by the monotonic clock.
        key: the work that waits for its word.
        provider: the vendor.
        url: where its word on the response is.
        credential: the caller's, as the request had it.
    """

    due_s: float
    key: Key
    provider: str
    url: str
    credential: str = attrs.field(repr=False)


class VendorsWord:
    """The questions of this process. Noted on any thread, asked on the background loop.

    Args:
        later: the work whose cost is asked for.
    """

    def __init__(self, later: BackgroundJobs) -> None:
        self._later = later
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's questions: the parent asks them."""
        self._questions: deque[CostQuestion] = deque()
        self._asking: set[asyncio.Task[None]] = set()

    def note(
        self, key: Key, provider: str, response_id: str, credential: str, now_s: float
    ) -> None:
        """Ask for the cost of a response, when the vendor can know it."""
        where = VENDORS[provider].bill
        if where is not None:
            url, due_s = where.format(quote(response_id, safe="")), now_s + ASKS_AFTER_S
            self._questions.append(CostQuestion(due_s, key, provider, url, credential))

    def ask(self, now_s: float) -> None:
        """Ask what is due; on the background loop."""
        while self._questions and self._questions[0].due_s <= now_s:
            task = asyncio.get_running_loop().create_task(self._ask(self._questions.popleft()))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, question: CostQuestion) -> None:
        usage = None
        try:
            body = await _told(question)
            usage = None if body is None else usage_of_generation(question.provider, body)
        except Exception as exc:  # noqa: BLE001  # its class alone: the text may hold the key
            logger.debug("%s does not say what an answer cost: %s", question.provider, type(exc))
        finally:  # also at the end of the loop
            self._later.end(question.key, usage)


async def _told(question: CostQuestion) -> bytes | None:
    from guard.transport.own_httpx import httpx

    with unlogged():
        async with (
            httpx.AsyncClient(timeout=_ANSWERS_WITHIN_S) as client,
            asyncio.timeout(_ANSWERS_WITHIN_S),
            client.stream(
                "GET", question.url, headers={"authorization": question.credential},
                extensions={OWN_TRAFFIC: True},
            ) as answer,
        ):  # fmt: skip
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _BODY_MAX:
                    return None
            return bytes(body) if answer.status_code == httpx.codes.OK else None


def credential_for(provider: str, headers: Callable[[], Mapping[str, Any]]) -> str | None:
    """Return a request's credential where its vendor can be asked afterwards; else None."""
    vendor = VENDORS.get(provider)
    if vendor is None or vendor.bill is None:
        return None
    for name, value in headers().items():
        if str(name).lower() == "authorization":
            return value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return None
