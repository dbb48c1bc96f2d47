"""The async client of the spam-detection service."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from spamdetect import _calls, _exchange
from spamdetect._calls import Call
from spamdetect._exchange import Clock, Pause
from spamdetect._retry import PROCESS_QUOTA, Quiet, RetryPolicy, random_chance
from spamdetect.errors import (
    SpamConfigError,
    SpamError,
    SpamTimeoutError,
    SpamTransportError,
)
from spamdetect.models import (
    Context,
    Feedback,
    ListEntry,
    PredictItem,
    PredictResult,
    PreprocessResult,
)
from spamdetect.settings import read_client_settings
from spamdetect.thresholds import Threshold, checked_threshold

if TYPE_CHECKING:
    import httpx

    from spamdetect._local import LocalBackend

R = TypeVar("R")

_LOCAL_BATCH = 64
_CLOCK = Clock(time.monotonic, time.time, random_chance)


class AsyncSpamClient:
    """Client for asyncio programs; safe to share between tasks.

    Args:
        base_url: Address of the service; else ``SPAMDETECT_BASE_URL``, else
            ``http://127.0.0.1:8789``.
        api_key: Key for the header ``x-api-key``; else ``SPAMDETECT_API_KEY``.
        timeout: Total seconds of one call from when it is first sent, retries and their pauses
            included; default 10.
        retries: Further attempts after a lost connection, 408, 429 or 5xx; default 2.
        max_connections: Maximum concurrent calls; further calls wait their turn.
        queue_timeout: Longest wait in seconds for that turn; default 60.
        threshold: Lowest ``spam_score`` that is spam, or the model's profile ``strict``,
            ``balanced`` or ``quiet``; the service's own by default.
        local: Run the engine in this process instead of asking a service; needs no key.
        transport: httpx transport to use instead of the network, for tests.

    Raises:
        SpamConfigError: A setting is missing or wrong, or ``local`` without the engine installed.

    Example:
        >>> async def check(text: str) -> bool:
        ...     async with AsyncSpamClient() as spam:
        ...         return (await spam.predict(text)).is_spam
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        *,
        max_connections: int = 100,
        queue_timeout: float | None = None,
        threshold: Threshold | None = None,
        local: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._closed = False
        self._local: LocalBackend | None = None
        self._threshold: Threshold | None = _checked(threshold)
        if local:
            from spamdetect._local import LocalBackend

            self._local = LocalBackend.load(threshold=self._threshold)
            return
        if max_connections < 1:
            raise SpamConfigError("max_connections must be at least 1.")
        from spamdetect._http import HttpTransport

        self._settings = read_client_settings(base_url, api_key, timeout, retries, queue_timeout)
        self._policy = RetryPolicy(self._settings.retries)
        self._quiet = Quiet()
        self._transport = HttpTransport(self._settings, max_connections, transport)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. As with httpx, a later call raises RuntimeError."""
        self._closed = True
        if self._local is None:
            await self._transport.aclose()

    async def predict(
        self, text: str, *, reasons: bool = False, context: Context | None = None
    ) -> PredictResult:
        """Classify one text as spam or not.

        Args:
            text: The text to analyse.
            reasons: Whether the result says what moved the verdict, as ``explain`` does.
            context: Where the text comes from, for the key's lists; ignored in local mode.

        Raises:
            SpamError: One of its subclasses, see ``spamdetect.errors``.
            RuntimeError: The client was closed.

        Source: spam detection HTTP API, part 4.
        """
        if self._local is not None:
            self._check_open()
            return await asyncio.to_thread(self._local.predict, text, reasons=reasons)
        return await self._call(_calls.predict(text, self._threshold, reasons, context))

    async def preprocess(self, text: str) -> PreprocessResult:
        """Clean one text and detect its language, without a verdict.

        Args:
            text: The text to analyse.

        Raises:
            SpamError: One of its subclasses, see ``spamdetect.errors``.
            RuntimeError: The client was closed.

        Source: spam detection HTTP API, part 4.
        """
        if self._local is not None:
            self._check_open()
            return await asyncio.to_thread(self._local.preprocess, text)
        return await self._call(_calls.preprocess(text))

    async def predict_batch(
        self,
        texts: Iterable[str | tuple[str, Context]],
        *,
        reasons: bool = False,
        context: Context | None = None,
    ) -> list[PredictItem]:
        """Classify up to 1,000 texts with one request.

        Args:
            texts: The texts, each perhaps with a context of its own.
            reasons: As in :meth:`predict`.
            context: Of the texts that have none of their own.

        Returns:
            One item per text, in input order, with its result or its error.

        Raises:
            SpamError: The whole batch failed; what fails for one text is in its item.
            RuntimeError: The client was closed.
        """
        checked = _calls.checked_batch(texts)
        if self._local is not None:
            self._check_open()
            return await asyncio.to_thread(self._local.predict_batch, checked, reasons=reasons)
        if all(error is not None for _, _, error in checked):
            self._check_open()
            return [PredictItem(at, error=error) for at, (_, _, error) in enumerate(checked)]
        return await self._call(_calls.predict_batch(checked, self._threshold, reasons, context))

    async def predict_many(
        self, texts: Iterable[str] | AsyncIterable[str], *, concurrency: int = 32
    ) -> AsyncIterator[PredictItem]:
        """Classify many texts, in order, at most ``concurrency`` at a time.

        Args:
            texts: The texts; consumed as needed, so an endless source is fine.
            concurrency: Maximum texts in progress, including finished ones not yet consumed.

        Yields:
            One item per text, in input order, with its result or its error.

        Example:
            >>> async def spam_in(spam: AsyncSpamClient, texts: list[str]) -> list[str]:
            ...     return [
            ...         texts[item.index]
            ...         async for item in spam.predict_many(texts)
            ...         if item.unwrap().is_spam
            ...     ]
        """
        _exchange.check_many(texts, concurrency)
        self._check_open()
        if self._local is not None:
            async for item in self._local_items(texts, self._local):
                yield item
            return
        source = aiter(texts) if isinstance(texts, AsyncIterable) else None
        plain = iter(texts) if not isinstance(texts, AsyncIterable) else iter(())
        window: deque[asyncio.Task[PredictItem]] = deque()
        pull: asyncio.Future[str] | None = None
        index = 0
        try:
            while True:
                for text in itertools.islice(plain, concurrency - len(window)):
                    window.append(asyncio.create_task(self._predict_item(index, text)))
                    index += 1
                if source is not None and pull is None and len(window) < concurrency:
                    pull = asyncio.ensure_future(anext(source))
                waited = {future for future in (pull, *[*window][:1]) if future is not None}
                if not waited:
                    return
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if pull is not None and pull.done():
                    try:
                        text = pull.result()
                    except StopAsyncIteration:
                        source = None
                    else:
                        window.append(asyncio.create_task(self._predict_item(index, text)))
                        index += 1
                    pull = None
                while window and window[0].done():
                    yield window.popleft().result()
        finally:
            rest: list[asyncio.Future[Any]] = [
                future for future in (pull, *window) if future is not None
            ]
            for future in rest:
                future.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def send_feedback(
        self, text: str, *, is_spam: bool, feedback_id: str | None = None
    ) -> str:
        """Report what a text is; verdicts on texts like it change at once, for this key alone.

        Args:
            text: The text.
            is_spam: Whether it is spam.
            feedback_id: Your own name for the report; the service makes one of the text.

        Returns:
            The report's id, or "" where nothing of the text could be compared with others.

        Raises:
            SpamConfigError: The client runs in local mode, where there is no service to tell.
        """
        return await self._call(_calls.send_feedback(text, is_spam, feedback_id))

    async def feedback(self) -> list[Feedback]:
        """The reports that count for this key, oldest first."""
        return await self._call(_calls.feedback())

    async def withdraw_feedback(self, feedback_id: str) -> None:
        """Take a report back; it counts no more.

        Raises:
            SpamRequestError: There is none with this id (404).
        """
        await self._call(_calls.withdraw_feedback(feedback_id))

    async def lists(self) -> list[ListEntry]:
        """The entries of this key's allow and block lists, oldest first."""
        return await self._call(_calls.lists())

    async def add_to_list(
        self,
        list_name: Literal["allow", "block"],
        kind: Literal["sender", "link", "contact", "phrase"],
        value: str,
        *,
        text_kind: str | None = None,
    ) -> ListEntry:
        """Put an entry on one of this key's lists; it decides alone from the next text on.

        Args:
            list_name: ``allow``, which goes first, or ``block``.
            kind: What is compared: the context's author and address, the links, the words.
            value: A name, an address or ``@domain``; a domain; a phrase.
            text_kind: The only kind of text that the entry is for.

        Raises:
            SpamRequestError: The value can match nothing, or the lists are full (422).
        """
        return await self._call(_calls.add_to_list(list_name, kind, value, text_kind))

    async def remove_from_list(self, entry_id: str) -> None:
        """Take an entry off its list.

        Raises:
            SpamRequestError: There is none with this id (404).
        """
        await self._call(_calls.remove_from_list(entry_id))

    async def _predict_item(self, index: int, text: str) -> PredictItem:
        try:
            return PredictItem(index, result=await self.predict(text))
        except SpamError as error:
            return PredictItem(index, error=error)

    async def _local_items(
        self, texts: Iterable[str] | AsyncIterable[str], local: LocalBackend
    ) -> AsyncIterator[PredictItem]:
        index = 0
        if isinstance(texts, AsyncIterable):
            async for text in texts:
                yield await self._predict_item(index, text)
                index += 1
            return
        source = iter(texts)
        while batch := list(itertools.islice(source, _LOCAL_BATCH)):
            for item in await asyncio.to_thread(local.predict_items, index, batch):
                yield item
            index += len(batch)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")

    async def _call(self, call: Call[R]) -> R:
        self._check_open()
        if self._local is not None:
            raise SpamConfigError("That needs a service; this client runs in local mode.")
        async with self._transport.turn():
            return await self._sent(call)

    async def _sent(self, call: Call[R]) -> R:
        timeout_s = self._settings.timeout_s
        steps = _exchange.exchange(
            call.request,
            call.parse,
            policy=self._policy,
            quota=PROCESS_QUOTA,
            quiet=self._quiet,
            clock=_CLOCK,
            deadline_s=time.monotonic() + timeout_s,
        )
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await self._drive(steps)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SpamTimeoutError(
                f"No answer from {self._settings.base_url} within {timeout_s:g} s, retries and "
                "their pauses included."
            ) from None

    async def _drive(self, steps: _exchange.Exchange[R]) -> R:
        outcome: _exchange.Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: R = stop.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.delay_s)
                outcome = None
                continue
            try:
                outcome = await self._transport.send(step)
            except SpamTransportError as error:
                outcome = error


def _checked(threshold: Threshold | None) -> Threshold | None:
    try:
        return None if threshold is None else checked_threshold(threshold)
    except ValueError as error:
        raise SpamConfigError(f"{error}.") from None
