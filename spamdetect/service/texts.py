"""The steps of the requests that bring texts: ``predict``, ``predict/batch``, ``preprocess``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from spamdetect._exchange import THRESHOLD_HEADER
from spamdetect.models import ErrorCode
from spamdetect.service.analysis import Answer, EngineFailedError, Item, Outcome, place_of
from spamdetect.service.auth import count
from spamdetect.service.body import too_long
from spamdetect.service.keys import KeyRecord
from spamdetect.service.respond import RefusalError, envelope, predict_body
from spamdetect.service.rules import KeyRules
from spamdetect.service.state import Fields, HotState
from spamdetect.service.steps import Steps
from spamdetect.service.wire import (
    NO_CONTEXT,
    PREDICT,
    TEXT,
    Context,
    Options,
    batch_text,
    decode,
    decode_batch,
)
from spamdetect.service.work import Job
from spamdetect.thresholds import PROFILE_NAMES, checked_threshold

_log = logging.getLogger("spamdetect.service")

# So much of a batch is analysed before the next part of it: other requests come in between.
_PART_TEXTS: Final = 64
_PART_CHARS: Final = 50_000
_OK: Final = b'{"status":200,'


class TextRoutes:
    """Answers requests that bring texts."""

    def __init__(self, state: HotState) -> None:
        self._state = state

    def preprocess(self, content: bytes, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """Clean one text."""
        text = self._checked(decode(content, TEXT).text)
        answer, _ = yield self._state.workers.submit(Item(text, verdict=False))
        return answer, ()

    def predict(self, content: bytes, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """Classify one text."""
        request = decode(content, PREDICT)
        limit, headers = self._limit(request)
        rules = yield from self._state.book.rules_of(key)
        item = Item(self._checked(request.text), True, limit, request.reasons, bool(rules))
        found = yield self._state.workers.submit(item)
        return self._body(found, item, rules, request.context or NO_CONTEXT), headers

    def batch(self, content: bytes, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """Classify many texts; each has the outcome that it would have alone."""
        request = decode_batch(content)
        limit, headers = self._limit(request)
        # The request was counted as one text before its body was read.
        if len(request.texts) > 1:
            yield from count(key, self._state.limits, len(request.texts) - 1)
        rules = yield from self._state.book.rules_of(key)
        items: list[Item | RefusalError] = []
        contexts: list[Context] = []
        for each in request.texts:
            try:
                text, context = batch_text(each)
                item = Item(self._checked(text), True, limit, request.reasons, bool(rules))
                items.append(item)
            except RefusalError as refusal:
                context = None
                items.append(refusal)
            contexts.append(context or request.context or NO_CONTEXT)
        outcomes = yield self._analyse(items)
        parts = [
            self._part(outcome, item, rules, context)
            for outcome, item, context in zip(outcomes, items, contexts, strict=True)
        ]
        head = envelope(f"{len(parts)} texts.", {"error_code": ""})
        # Every part is JSON already.
        return head[:-2] + b',"results":[' + b",".join(parts) + b"]}}", headers

    async def _analyse(self, items: Sequence[Item | RefusalError]) -> list[Outcome | RefusalError]:
        outcomes: list[Outcome | RefusalError] = []
        at = 0
        while at < len(items):
            jobs: list[Job | RefusalError] = []
            chars = 0
            for item in items[at : at + _PART_TEXTS]:
                if chars >= _PART_CHARS:
                    break
                try:
                    if isinstance(item, RefusalError):
                        raise item
                    chars += item.cost_chars
                    jobs.append(self._state.workers.submit(item))
                except RefusalError as refusal:
                    jobs.append(refusal)
            at += len(jobs)
            for job in jobs:
                try:
                    outcomes.append(job if isinstance(job, RefusalError) else await job)
                except (RefusalError, EngineFailedError) as error:
                    outcomes.append(error)
            await asyncio.sleep(0)
        return outcomes

    def _part(
        self,
        outcome: Outcome | RefusalError,
        item: Item | RefusalError,
        rules: KeyRules,
        context: Context,
    ) -> bytes:
        """One text's outcome: the answer's status and the answer."""
        if isinstance(outcome, EngineFailedError):
            outcome = failed("predict", outcome)
        if isinstance(outcome, RefusalError) or isinstance(item, RefusalError):
            assert isinstance(outcome, RefusalError)
            return b'{"status":%d,%b' % (outcome.status_code, outcome.body()[1:])
        return _OK + self._body(outcome, item, rules, context)[1:]

    def _body(self, answer: Answer, item: Item, rules: KeyRules, context: Context) -> bytes:
        """The body of a verdict, after the key's rules have had their say."""
        if isinstance(answer, tuple):
            body, is_spam = answer
        else:
            threshold = self._state.workers.threshold if item.limit is None else item.limit
            found = rules.judge(answer, context, threshold) if rules else answer
            is_spam = found.analysis.prediction.is_spam
            body = predict_body(found.analysis, found.reasons if item.reasons else None)
        if is_spam is not None:
            self._state.metrics.classified(is_spam)
        return body

    def _checked(self, text: str) -> str:
        if len(text) > self._state.settings.max_text_chars:
            raise too_long(self._state.settings.max_text_chars)
        return text

    def _limit(self, request: Options) -> tuple[float | None, Fields]:
        """The threshold that a request asks for, and the header that says so."""
        threshold = request.threshold
        if threshold is None:
            return None, ()
        if isinstance(threshold, float | int) or threshold in PROFILE_NAMES:
            with contextlib.suppress(ValueError):
                limit = self._state.workers.threshold_of(checked_threshold(threshold))
                return limit, ((THRESHOLD_HEADER.encode(), f"{limit:g}".encode()),)
        raise RefusalError(
            422,
            ErrorCode.INVALID_REQUEST,
            f"threshold must be {', '.join(PROFILE_NAMES)} or a number from 0 to 1.",
            field="threshold",
        )


def failed(endpoint: str, error: Exception) -> RefusalError:
    """500 for a fault of the service, which is logged."""
    # Only type and place: a message or a traceback could hold the caller's text.
    if isinstance(error, EngineFailedError):
        kind, place = error.kind, error.place
    else:
        kind, place = type(error).__name__, place_of(error)
    _log.error("%s failed: %s at %s", endpoint, kind, place)
    return RefusalError(
        500,
        ErrorCode.INTERNAL,
        "The service failed on this request; the operator's log says where.",
    )
