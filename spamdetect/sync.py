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
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from spamdetect import _calls
from spamdetect._calls import Call
from spamdetect._exchange import check_many
from spamdetect.client import _LOCAL_BATCH, AsyncSpamClient
from spamdetect.models import (
    Context,
    Feedback,
    ListEntry,
    PredictItem,
    PredictResult,
    PreprocessResult,
)
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
        self._closed = False
        self._portal: BlockingPortal | None = None
        _open_clients.add(self)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. As with httpx, a later call raises RuntimeError."""
        with self._lock:
            self._closed = True
            portal, self._portal = self._portal, None
        if portal is None:
            return
        try:
            portal.call(self._client.aclose)
        finally:
            _provider.__exit__(None, None, None)

    def predict(
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
            return self._local.predict(text, reasons=reasons)
        return self._result(self._client.predict, text, reasons=reasons, context=context)

    def preprocess(self, text: str) -> PreprocessResult:
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
            return self._local.preprocess(text)
        return self._result(self._client.preprocess, text)

    def predict_batch(
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
        if self._local is not None:
            self._check_open()
            return self._local.predict_batch(_calls.checked_batch(texts), reasons=reasons)
        return self._result(self._client.predict_batch, texts, reasons=reasons, context=context)

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
        self._check_open()
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

    def send_feedback(self, text: str, *, is_spam: bool, feedback_id: str | None = None) -> str:
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
        return self._ask(_calls.send_feedback(text, is_spam, feedback_id))

    def feedback(self) -> list[Feedback]:
        """The reports that count for this key, oldest first."""
        return self._ask(_calls.feedback())

    def withdraw_feedback(self, feedback_id: str) -> None:
        """Take a report back; it counts no more.

        Raises:
            SpamRequestError: There is none with this id (404).
        """
        self._ask(_calls.withdraw_feedback(feedback_id))

    def lists(self) -> list[ListEntry]:
        """The entries of this key's allow and block lists, oldest first."""
        return self._ask(_calls.lists())

    def add_to_list(
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
        return self._ask(_calls.add_to_list(list_name, kind, value, text_kind))

    def remove_from_list(self, entry_id: str) -> None:
        """Take an entry off its list.

        Raises:
            SpamRequestError: There is none with this id (404).
        """
        self._ask(_calls.remove_from_list(entry_id))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")

    def _result(
        self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any, **options: Any
    ) -> R:
        return _result(self._submit(partial(function, *args, **options)))

    def _ask(self, call: Call[R]) -> R:
        result: R = _result(self._submit(self._client._call, call))
        return result

    def _submit(self, function: Callable[..., Coroutine[Any, Any, R]], *args: object) -> Future[R]:
        with self._lock:
            # Under the lock: a call that comes in while another thread closes starts no new loop.
            self._check_open()
            if self._portal is None:
                self._portal = _provider.__enter__()
            return self._portal.start_task_soon(function, *args)


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
