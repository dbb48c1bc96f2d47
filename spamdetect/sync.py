"""The blocking client: the async client behind a loop in a background thread.

One loop and one thread serve every ``SpamClient`` of the process (anyio's portal). After a fork
the child starts its own on first use and never touches the parent's sockets.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from spamdetect._exchange import check_many
from spamdetect.client import _LOCAL_BATCH, AsyncSpamClient
from spamdetect.models import PredictItem, PredictResult, PreprocessResult
from spamdetect.thresholds import Threshold

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

_open_clients: weakref.WeakSet[SpamClient] = weakref.WeakSet()
_provider = BlockingPortalProvider()
_left_behind: list[object] = []


class SpamClient:
    """Client for programs without an event loop; safe to share between threads.

    Takes the same arguments, has the same methods and raises the same errors as
    :class:`~spamdetect.AsyncSpamClient`; Ctrl-C during a call cancels the call.

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
        >>> def check(text: str) -> bool:
        ...     with SpamClient() as spam:
        ...         return spam.predict(text).is_spam
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
        self._make: Callable[[], AsyncSpamClient] = lambda: AsyncSpamClient(
            base_url,
            api_key,
            timeout,
            retries,
            max_connections=max_connections,
            queue_timeout=queue_timeout,
            threshold=threshold,
            local=local,
            transport=transport,
        )
        self._client = self._make()
        self._local = self._client._local
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        _open_clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is None:
            return
        try:
            portal.call(self._client.aclose)
        finally:
            _provider.__exit__(None, None, None)

    def predict(self, text: str) -> PredictResult:
        """Classify one text as spam or not.

        Args:
            text: The text to analyse.

        Raises:
            SpamError: One of its subclasses, see ``spamdetect.errors``.

        Source: spam detection HTTP API, part 4.
        """
        if self._local is not None:
            return self._local.predict(text)
        return _result(self._submit(self._client.predict, text))

    def preprocess(self, text: str) -> PreprocessResult:
        """Clean one text and detect its language, without a verdict.

        Args:
            text: The text to analyse.

        Raises:
            SpamError: One of its subclasses, see ``spamdetect.errors``.

        Source: spam detection HTTP API, part 4.
        """
        if self._local is not None:
            return self._local.preprocess(text)
        return _result(self._submit(self._client.preprocess, text))

    def predict_many(self, texts: Iterable[str], *, concurrency: int = 32) -> Iterator[PredictItem]:
        """Classify many texts, in order, at most ``concurrency`` at a time.

        Args:
            texts: The texts; consumed as needed, in the calling thread.
            concurrency: Maximum texts in progress, including finished ones not yet consumed.

        Yields:
            One item per text, in input order, with its result or its error.

        Example:
            >>> def spam_in(spam: SpamClient, texts: list[str]) -> list[str]:
            ...     items = spam.predict_many(texts)
            ...     return [texts[item.index] for item in items if item.unwrap().is_spam]
        """
        check_many(texts, concurrency)
        if self._local is not None:
            source, first = iter(texts), 0
            while batch := list(itertools.islice(source, _LOCAL_BATCH)):
                yield from self._local.predict_items(first, batch)
                first += len(batch)
            return
        window: deque[Future[PredictItem]] = deque()
        try:
            for index, text in enumerate(texts):
                if len(window) == concurrency:
                    yield _result(window.popleft())
                window.append(self._submit(self._client._predict_item, index, text))
            while window:
                yield _result(window.popleft())
        finally:
            for future in window:
                future.cancel()

    def send_feedback(self, text: str, *, is_spam: bool) -> None:
        """Report a text's correct label, if the service's operator collects such reports.

        Args:
            text: The text whose verdict was wrong.
            is_spam: Whether it is spam.

        Raises:
            SpamRequestError: The service does not collect feedback (404).
            SpamConfigError: The client runs in local mode, where there is no service to tell.
        """

        async def send() -> None:
            await self._client.send_feedback(text, is_spam=is_spam)

        _result(self._submit(send))

    def _submit(self, function: Callable[..., Coroutine[Any, Any, R]], *args: object) -> Future[R]:
        with self._lock:
            if self._portal is None:
                self._portal = _provider.__enter__()
            portal = self._portal
        return portal.start_task_soon(function, *args)


def _result(future: Future[R]) -> R:
    try:
        return future.result()
    except BaseException:
        # Ctrl-C in the waiting thread must not leave the request running.
        future.cancel()
        raise


def _forget_after_fork() -> None:
    global _provider
    # Never freed: their finalizers would wait for a thread that the child does not have.
    _left_behind.append(_provider)
    _provider = BlockingPortalProvider()
    for client in list(_open_clients):
        client._lock = threading.Lock()
        _left_behind.append((client._portal, client._client))
        client._portal = None
        client._client = client._make()


def _close_at_exit() -> None:
    for client in list(_open_clients):
        client.close()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_close_at_exit)
