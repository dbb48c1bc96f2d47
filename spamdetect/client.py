"""The async client of the spam-detection service."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from spamdetect import _exchange
from spamdetect._exchange import ApiRequest, ApiResponse, Clock, Pause
from spamdetect._retry import PROCESS_QUOTA, Quiet, RetryPolicy, random_chance
from spamdetect.errors import (
    SpamConfigError,
    SpamError,
    SpamTimeoutError,
    SpamTransportError,
)
from spamdetect.models import PredictItem, PredictResult, PreprocessResult
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
            ``http://127.0.0.1:8788``.
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
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._local is None:
            await self._transport.aclose()

    async def predict(self, text: str) -> PredictResult:
        """Classify one text as spam or not.

        Args:
            text: The text to analyse.

        Raises:
            SpamError: One of its subclasses, see ``spamdetect.errors``.

        Source: spam detection HTTP API, part 4.
        """
        if self._local is not None:
            return await asyncio.to_thread(self._local.predict, text)
        request = _exchange.text_request(_exchange.PREDICT_PATH, text, self._threshold)
        asked = self._threshold is not None
        parse = _exchange.parse_predict_at if asked else _exchange.parse_predict
        return await self._call(request, parse)

    async def preprocess(self, text: str) -> PreprocessResult:
        """Clean one text and detect its language, without a verdict.

        Args:
            text: The text to analyse.

        Raises:
            SpamError: One of its subclasses, see ``spamdetect.errors``.

        Source: spam detection HTTP API, part 4.
        """
        if self._local is not None:
            return await asyncio.to_thread(self._local.preprocess, text)
        request = _exchange.text_request(_exchange.PREPROCESS_PATH, text)
        return await self._call(request, _exchange.parse_preprocess)

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

    async def send_feedback(self, text: str, *, is_spam: bool) -> None:
        """Report a text's correct label, if the service's operator collects such reports.

        Args:
            text: The text whose verdict was wrong.
            is_spam: Whether it is spam.

        Raises:
            SpamRequestError: The service does not collect feedback (404).
            SpamConfigError: The client runs in local mode, where there is no service to tell.
        """
        if self._local is not None:
            raise SpamConfigError("Feedback goes to a service; this client runs in local mode.")
        # The identifier makes a retry harmless: the service stores each one once.
        request = _exchange.feedback_request(text, is_spam, uuid.uuid4().hex)
        await self._call(request, _exchange.parse_acknowledgement)

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

    async def _call(self, request: ApiRequest, parse: Callable[[ApiResponse], R]) -> R:
        async with self._transport.turn():
            return await self._sent(request, parse)

    async def _sent(self, request: ApiRequest, parse: Callable[[ApiResponse], R]) -> R:
        timeout_s = self._settings.timeout_s
        steps = _exchange.exchange(
            request,
            parse,
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
