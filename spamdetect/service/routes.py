"""The routes that take a key: no framework between the socket and the engine."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any, Final

from spamdetect._exchange import (
    BATCH_PATH,
    FEEDBACK_PATH,
    LISTS_PATH,
    PREDICT_PATH,
    PREPROCESS_PATH,
)
from spamdetect.models import ErrorCode
from spamdetect.service.auth import authenticate, count
from spamdetect.service.body import (
    ClientGoneError,
    RequestBody,
    batch_too_long,
    check_media_type,
    fields_of,
    too_long,
)
from spamdetect.service.keys import KeyRecord
from spamdetect.service.respond import RefusalError, Reply, send_reply
from spamdetect.service.rule_routes import RuleRoutes
from spamdetect.service.state import Fields, HotState, Request
from spamdetect.service.steps import Steps, run_steps
from spamdetect.service.texts import TextRoutes, failed

# How much of a refused body is read before disconnecting, as a multiple of the longest body.
_DRAIN_FACTOR: Final = 4
ENDPOINTS: Final = {
    PREDICT_PATH: "predict",
    PREPROCESS_PATH: "preprocess",
    BATCH_PATH: "batch",
    FEEDBACK_PATH: "feedback",
    LISTS_PATH: "lists",
}
_RESOURCES: Final = ("feedback", "lists")


def endpoint_of(path: str) -> tuple[str, str] | None:
    """The endpoint that a path names, and the id of what is to be deleted; None for other paths."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return endpoint, ""
    for resource_path in (FEEDBACK_PATH, LISTS_PATH):
        resource = path.removeprefix(resource_path + "/")
        if resource and resource != path:
            return ENDPOINTS[resource_path], resource
    return None


class HotRoutes:
    """Answers everything that takes a key.

    Args:
        state: What the routes work with.
    """

    def __init__(self, state: HotState) -> None:
        self._state = state
        settings = state.settings
        self._max_drained_bytes = _DRAIN_FACTOR * settings.max_body_bytes
        # The longest body, and what refuses a longer one: of one text, of a batch.
        self._bodies = (
            (settings.max_body_bytes, partial(too_long, settings.max_text_chars)),
            (settings.max_batch_bytes, partial(batch_too_long, settings.max_batch_bytes)),
        )
        texts, self._rules = TextRoutes(state), RuleRoutes(state)
        self._posts = {
            "predict": texts.predict,
            "preprocess": texts.preprocess,
            "batch": texts.batch,
            "feedback": self._rules.take_feedback,
            "lists": self._rules.add_entry,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fields = fields_of(scope["headers"])
        body = RequestBody(b"", fields, receive, self._state.settings.body_timeout_s)
        found = endpoint_of(scope["path"])
        assert found is not None
        endpoint, resource = found
        request = Request(endpoint, scope["method"], fields, body, resource)
        with contextlib.suppress(ClientGoneError):
            reply = await run_steps(self.answer(request))
            drain = partial(body.drain, self._max_drained_bytes) if reply.close else None
            await send_reply(send, reply, drain)

    def answer(self, request: Request) -> Steps[Reply]:
        """Answer one request.

        Raises:
            ClientGoneError: The client has gone before its request was complete.
        """
        started_s = time.perf_counter()
        error_code = ""
        try:
            content, headers = yield from self._answer(request)
            reply = Reply(200, content, headers)
        except ClientGoneError:
            raise
        except RefusalError as refusal:
            body = request.body
            if not body.complete and refusal.status_code != 413:
                yield body.drain(self._max_drained_bytes)
            error_code = refusal.error_code.value
            close = refusal.close and not body.complete
            reply = Reply(refusal.status_code, refusal.body(), refusal.headers, close)
        except Exception as error:  # noqa: BLE001 - the last resort, answered as 500 INTERNAL
            error_code = ErrorCode.INTERNAL.value
            reply = Reply(500, failed(request.endpoint, error).body())
        self._state.metrics.answered(
            request.endpoint, reply.status_code, error_code, time.perf_counter() - started_s
        )
        return reply

    def _answer(self, request: Request) -> Steps[tuple[bytes, Fields]]:
        state, endpoint, fields = self._state, request.endpoint, request.fields
        method = request.method
        _check_method(request)
        key = yield from authenticate(fields.get(b"x-api-key", b""), state.store)
        yield from count(key, state.limits)
        if method != "POST":
            return (yield from self._see_to(method, request, key))
        check_media_type(fields.get(b"content-type"), fields.get(b"content-encoding"))
        max_bytes, refuse = self._bodies[endpoint == "batch"]
        content = yield from request.body.content(max_bytes=max_bytes, too_long=refuse)
        return (yield from self._posts[endpoint](content, key))

    def _see_to(self, method: str, request: Request, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        if method == "DELETE":
            return (yield from self._rules.remove(request.endpoint, key, request.resource))
        if request.endpoint == "lists":
            return (yield from self._rules.show_entries(key))
        return (yield from self._rules.show_feedback(key))


def _check_method(request: Request) -> None:
    if request.method == "POST" and not request.resource:
        return
    allowed = "POST"
    if request.endpoint in _RESOURCES:
        allowed = "DELETE" if request.resource else "GET, POST"
    if request.method not in allowed.split(", "):
        raise RefusalError(
            405,
            ErrorCode.METHOD_NOT_ALLOWED,
            f"Use {allowed.replace(', ', ' or ')}.",
            headers=((b"allow", allowed.encode()),),
            close=True,
        )
