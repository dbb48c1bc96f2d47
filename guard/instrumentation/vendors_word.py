"""Asks a vendor what an answer has cost that broke off: what is in doubt becomes its bill.

A stream that was dropped says nothing of its usage, and the vendor may have worked on. Some say
afterwards what it has cost: OpenRouter of a generation, OpenAI by the response that it has stored.
They are asked once, with the caller's own key. Where they do not say, the answer costs what it
would have cost without the question.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import attrs

from guard.core.usage import Call, Endpoint, Usage
from guard.core.usage.generations import usage_of_generation, usage_of_stored
from guard.core.usage.message import mapping, parse
from guard.core.usage.response_format import replaced
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
        url: where its word on the response is.
        headers: the caller's credential, as the request had it.
        read: returns what the response has used by that word; None where it does not say.
    """

    url: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    read: Callable[[bytes], Usage | None] = attrs.field(repr=False)


@attrs.frozen
class _Due:
    at_s: float  # by the monotonic clock
    key: Key
    question: CostQuestion
    goes_on: bool


class VendorsWord:
    """The questions of this process. Noted on any thread, asked on the background loop.

    Args:
        later: the work whose cost is asked for.
        untrusted: returns what of an answer's numbers lets it cost its bound.
    """

    def __init__(
        self,
        later: BackgroundJobs,
        untrusted: Callable[[tuple[str, ...]], tuple[str, ...]],
    ) -> None:
        self._later = later
        self._untrusted = untrusted
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's questions: the parent asks them."""
        self._questions: deque[_Due] = deque()
        self._asking: set[asyncio.Task[None]] = set()

    def note(self, key: Key, question: CostQuestion, now_s: float, *, goes_on: bool) -> None:
        """Ask for the cost of a response, when the vendor can know it.

        Args:
            key: the work that waits for its word.
            question: what to ask.
            now_s: the time, by the monotonic clock.
            goes_on: whether the response is made in the background: where the vendor does not say,
                it stays held until it is polled.
        """
        self._questions.append(_Due(now_s + ASKS_AFTER_S, key, question, goes_on))

    def ask(self, now_s: float) -> None:
        """Ask what is due, unless a poll has said it; on the background loop."""
        while self._questions and self._questions[0].at_s <= now_s:
            due = self._questions.popleft()
            if due.key in self._later.works:
                task = asyncio.get_running_loop().create_task(self._ask(due))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask(self, due: _Due) -> None:
        usage = None
        try:
            usage = self._trusted(await _told(due.question))
        except Exception as exc:  # noqa: BLE001  # its class alone: the text may hold the key
            logger.debug("%s does not say what an answer cost: %s", due.key[0], type(exc))
        finally:  # also at the end of the loop
            if usage is not None or not due.goes_on:
                self._later.end(due.key, usage)

    def _trusted(self, told: Usage | None) -> Usage | None:
        """Return what the vendor has told, unless something in it may cost that nobody knows."""
        if told is None or told.cost_nanousd is not None or not told.strangers:
            return told
        return None if self._untrusted(told.strangers) else replaced(told, strangers=())


async def _told(question: CostQuestion) -> Usage | None:
    from guard.transport.own_httpx import httpx

    with unlogged():
        async with (
            httpx.AsyncClient(timeout=_ANSWERS_WITHIN_S) as client,
            asyncio.timeout(_ANSWERS_WITHIN_S),
            client.stream(
                "GET", question.url, headers=question.headers, extensions={OWN_TRAFFIC: True}
            ) as answer,
        ):
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _BODY_MAX:
                    return None
            return question.read(bytes(body)) if answer.status_code == httpx.codes.OK else None


def question_about(
    response_id: str,
    endpoint: Endpoint,
    host: str,
    asked: Call,
    headers: Callable[[], Mapping[str, Any]],
) -> CostQuestion | None:
    """Return what to ask a vendor about a response; None where it cannot be asked.

    Args:
        response_id: the vendor's id of it.
        endpoint, host, asked, headers: those of the request.
    """
    vendor = VENDORS.get(endpoint.format.provider) if endpoint.is_vendors else None
    bill = None if vendor is None else vendor.bill
    if vendor is None or bill is None or not endpoint.asks:
        return None
    if bill.paths and asked.path.strip("/") not in bill.paths.split():
        return None
    if bill.kept_unless and mapping(parse(asked.request())).get(bill.kept_unless) is False:
        return None
    repeated = bill.headers.split()
    found = {
        name.lower(): value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, value in headers().items()
        if name.lower() in repeated
    }
    if not found:
        return None
    url = bill.url.format(id=quote(response_id, safe=""), host=host, path=asked.path)
    read = functools.partial(usage_of_generation, vendor.name)
    if bill.is_answer:
        read = functools.partial(usage_of_stored, endpoint.format, asked.path)
    return CostQuestion(url, found, read)
