"""The routes that take texts, as bare ASGI: no framework between the socket and the engine."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import msgspec

from spamdetect._exchange import (
    FEEDBACK_PATH,
    PREDICT_PATH,
    PREPROCESS_PATH,
    THRESHOLD_HEADER,
)
from spamdetect.models import ErrorCode
from spamdetect.service.auth import authenticate, authenticate_now, unavailable
from spamdetect.service.body import (
    ClientGoneError,
    RequestBody,
    check_media_type,
    decode,
    header,
    too_long,
)
from spamdetect.service.keys import KeyRecord, KeyStore, StoreError, WouldWaitError
from spamdetect.service.limits import Limits
from spamdetect.service.metrics import Metrics
from spamdetect.service.respond import (
    Headers,
    RefusalError,
    Reply,
    envelope,
    retry_after,
    send_reply,
)
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.work import EngineFailedError, Item, Outcome, WorkerPool, place_of
from spamdetect.thresholds import PROFILE_NAMES, checked_threshold

_log = logging.getLogger("spamdetect.service")


class TextRequest(msgspec.Struct):
    """Body of ``preprocess``."""

    text: str


class PredictRequest(TextRequest):
    """Body of ``predict``; ``threshold`` is our addition to the API."""

    threshold: float | str | None = None


class FeedbackRequest(msgspec.Struct):
    """Body of ``feedback``."""

    text: str
    is_spam: bool
    feedback_id: str = ""


# How much of a refused body is read before disconnecting, as a multiple of the longest body.
_DRAIN_FACTOR: Final = 4
_TEXT: Final = msgspec.json.Decoder(TextRequest)
_PREDICT: Final = msgspec.json.Decoder(PredictRequest)
_FEEDBACK: Final = msgspec.json.Decoder(FeedbackRequest)
Fields = tuple[tuple[bytes, bytes], ...]
ENDPOINTS: Final = {
    PREDICT_PATH: "predict",
    PREPROCESS_PATH: "preprocess",
    FEEDBACK_PATH: "feedback",
}


@attrs.frozen
class HotState:
    """What the routes work with, made at start-up."""

    settings: ServiceSettings
    store: KeyStore
    limits: Limits
    workers: WorkerPool
    metrics: Metrics


class HotRoutes:
    """Answers ``predict``, ``preprocess`` and ``feedback``."""

    def __init__(self, state: HotState) -> None:
        self._state = state
        self._max_drained_bytes = _DRAIN_FACTOR * state.settings.max_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = scope["headers"]
        body = RequestBody(headers, receive, self._state.settings.body_timeout_s)
        reply = await self.answer(ENDPOINTS[scope["path"]], scope["method"], headers, body)
        if reply is not None:
            await send_reply(send, reply)

    async def answer(
        self, endpoint: str, method: str, headers: Headers, body: RequestBody
    ) -> Reply | None:
        """Answer one request.

        Args:
            endpoint: One of :data:`ENDPOINTS`.
            method: The HTTP method.
            headers: The request's headers, names in lower case.
            body: The request's body.

        Returns:
            The answer, or None when the client has gone.
        """
        started_s = time.perf_counter()
        error_code = ""
        try:
            content, fields = await self._answer(endpoint, method, headers, body)
            reply = Reply(200, content, fields)
        except RefusalError as refusal:
            try:
                close = refusal.close and not await body.drain(max_bytes=self._max_drained_bytes)
            except ClientGoneError:
                return None
            error_code = refusal.error_code.value
            reply = _refused(refusal, close)
        except ClientGoneError:
            return None
        except Exception as error:  # noqa: BLE001 - the last resort, answered as 500 INTERNAL
            error_code = ErrorCode.INTERNAL.value
            reply = _internal(endpoint, error)
        self._state.metrics.answered(
            endpoint, reply.status_code, error_code, time.perf_counter() - started_s
        )
        return reply

    def answer_soon(
        self,
        endpoint: str,
        fields: Mapping[bytes, bytes],
        content: bytes,
        send: Callable[[Reply], None],
    ) -> None:
        """Answer a POST request whose body has come, without a task.

        Args:
            endpoint: One of :data:`ENDPOINTS`.
            fields: The request's headers, names in lower case, none of which came twice.
            content: The body.
            send: Takes the answer, perhaps before this returns.

        Raises:
            WouldWaitError: Only :meth:`answer` can answer this request; nothing was done.
        """
        started_s = time.perf_counter()
        state = self._state

        def finish(reply: Reply, error_code: str = "") -> None:
            seconds = time.perf_counter() - started_s
            state.metrics.answered(endpoint, reply.status_code, error_code, seconds)
            send(reply)

        def refuse(error: Exception) -> None:
            if isinstance(error, RefusalError):
                close = error.close and len(content) > self._max_drained_bytes
                finish(_refused(error, close), error.error_code.value)
            else:
                finish(_internal(endpoint, error), ErrorCode.INTERNAL.value)

        def analysed(outcome: Outcome | RefusalError) -> None:
            if isinstance(outcome, Exception):
                refuse(outcome)
                return
            answer, is_spam = outcome
            if is_spam is not None:
                state.metrics.classified(is_spam)
            finish(Reply(200, answer, headers))

        if endpoint == "feedback":
            raise WouldWaitError
        try:
            key = authenticate_now(fields.get(b"x-api-key", b""), state.store)
            state.limits.admit_now(key)
            check_media_type(fields.get(b"content-type"), fields.get(b"content-encoding"))
            if len(content) > state.settings.max_body_bytes:
                raise too_long(state.settings.max_text_chars)
            item, headers = self._item(endpoint, content)
            state.workers.submit(item, analysed)
        except WouldWaitError:
            raise
        except Exception as error:  # noqa: BLE001 - the last resort, answered as 500 INTERNAL
            refuse(error)

    async def _answer(
        self, endpoint: str, method: str, headers: Headers, body: RequestBody
    ) -> tuple[bytes, Fields]:
        state = self._state
        settings = state.settings
        if endpoint == "feedback" and not settings.store_feedback:
            raise RefusalError(
                404, ErrorCode.NOT_FOUND, "This service does not collect feedback.", close=True
            )
        if method != "POST":
            raise RefusalError(
                405,
                ErrorCode.METHOD_NOT_ALLOWED,
                "Use POST.",
                headers=((b"allow", b"POST"),),
                close=True,
            )
        key = await authenticate(headers, state.store)
        try:
            await state.limits.admit(key)
        except StoreError:  # it could not say how often the key was used today
            raise unavailable() from None
        check_media_type(header(headers, b"content-type"), header(headers, b"content-encoding"))
        content = await body.read(
            max_bytes=settings.max_body_bytes, max_chars=settings.max_text_chars
        )
        if endpoint == "feedback":
            return await self._take_feedback(decode(content, _FEEDBACK), key), ()
        item, fields = self._item(endpoint, content)
        answer, is_spam = await state.workers.run(item)
        if is_spam is not None:
            state.metrics.classified(is_spam)
        return answer, fields

    def _item(self, endpoint: str, content: bytes) -> tuple[Item, Fields]:
        """What the engine is to do for a body, and further headers of the answer."""
        if endpoint == "preprocess":
            return (self._checked(decode(content, _TEXT).text), False, None), ()
        request = decode(content, _PREDICT)
        if request.threshold is None:
            return (self._checked(request.text), True, None), ()
        limit = self._limit(request.threshold)
        fields = ((THRESHOLD_HEADER.encode(), f"{limit:g}".encode()),)
        return (self._checked(request.text), True, limit), fields

    def _checked(self, text: str) -> str:
        if len(text) > self._state.settings.max_text_chars:
            raise too_long(self._state.settings.max_text_chars)
        return text

    def _limit(self, threshold: float | str) -> float:
        if isinstance(threshold, float | int) or threshold in PROFILE_NAMES:
            with contextlib.suppress(ValueError):
                return self._state.workers.threshold_of(checked_threshold(threshold))
        raise RefusalError(
            422,
            ErrorCode.INVALID_REQUEST,
            f"threshold must be {', '.join(PROFILE_NAMES)} or a number from 0 to 1.",
            field="threshold",
        )

    async def _take_feedback(self, report: FeedbackRequest, key: KeyRecord) -> bytes:
        if len(report.text) > self._state.settings.max_text_chars:
            raise too_long(self._state.settings.max_text_chars)
        if len(report.feedback_id) > 64:
            raise RefusalError(
                422,
                ErrorCode.INVALID_REQUEST,
                "feedback_id may have at most 64 characters.",
                field="feedback_id",
            )
        # Scoped to the key: one caller's id can neither hide nor reveal another's.
        feedback_id = f"{key.key_id}:{report.feedback_id or time.time_ns()}"
        try:
            await self._state.store.add_feedback(
                feedback_id, key.key_id, report.text, report.is_spam
            )
        except StoreError:
            raise RefusalError(
                503,
                ErrorCode.UNAVAILABLE,
                "The report could not be stored; try again in a moment.",
                headers=retry_after(1),
            ) from None
        return envelope("Thank you, the report was stored.", {"error_code": ""})


def _refused(refusal: RefusalError, close: bool) -> Reply:
    return Reply(refusal.status_code, refusal.body(), refusal.headers, close)


def _internal(endpoint: str, error: Exception) -> Reply:
    # Only type and place: a message or a traceback could hold the caller's text.
    if isinstance(error, EngineFailedError):
        kind, place = error.kind, error.place
    else:
        kind, place = type(error).__name__, place_of(error)
    _log.error("%s failed: %s at %s", endpoint, kind, place)
    refusal = RefusalError(
        500,
        ErrorCode.INTERNAL,
        "The service failed on this request; the operator's log says where.",
    )
    return Reply(500, refusal.body())
