"""The OpenAPI 3.1 description of the service, with its configured limits."""

from __future__ import annotations

import json
from collections.abc import Iterable

from spamdetect._exchange import (
    BATCH_PATH,
    FEEDBACK_PATH,
    LISTS_PATH,
    PREDICT_PATH,
    PREPROCESS_PATH,
    THRESHOLD_HEADER,
)
from spamdetect.service.openapi_schemas import REFUSALS, Schema, schemas
from spamdetect.service.settings import ServiceSettings
from spamdetect.version import __version__


def openapi_document(settings: ServiceSettings) -> bytes:
    """Describe the service.

    Args:
        settings: Gives the longest text.

    Returns:
        The document as JSON.
    """
    threshold: Schema = {
        THRESHOLD_HEADER: {
            "description": "The threshold applied, where the request asked for one.",
            "schema": {"type": "number", "minimum": 0, "maximum": 1},
        }
    }
    paths: Schema = {
        PREDICT_PATH: _post(
            "predict",
            "Classify a text as spam or not; preprocessing is part of it.",
            "PredictRequest",
            "PredictAnswer",
            threshold,
        ),
        BATCH_PATH: _post(
            "predict_batch",
            "Classify up to 1,000 texts, each with its own outcome.",
            "BatchRequest",
            "BatchAnswer",
            threshold,
        ),
        PREPROCESS_PATH: _post(
            "preprocess",
            "Clean a text, count it and detect its language, without a verdict.",
            "TextRequest",
            "PreprocessAnswer",
        ),
        "/healthz": _get("healthz", "Whether the process is alive."),
        "/readyz": _get(
            "readyz", "Whether it can answer: the model is loaded and the key store reachable.", 503
        ),
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Metrics for Prometheus.",
                "security": [],
                "responses": {
                    "200": {
                        "description": "The exposition format.",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    }
                },
            }
        },
    }
    lists = _post(
        "add_to_list",
        "Put an entry on the allow or the block list of this key.",
        "EntryRequest",
        "EntryAnswer",
    )
    lists["get"] = _keyed("lists", "The entries of this key's lists.", "ListsAnswer")
    feedback = _post(
        "feedback",
        "Report what a text really is; it counts at once, for this key alone.",
        "FeedbackRequest",
        "FeedbackAnswer",
    )
    feedback["get"] = _keyed(
        "list_feedback", "The reports that count for this key.", "FeedbackListAnswer"
    )
    paths |= {
        LISTS_PATH: lists,
        LISTS_PATH + "/{id}": _delete("remove_from_list", "Take an entry off its list."),
        FEEDBACK_PATH: feedback,
        FEEDBACK_PATH + "/{id}": _delete("withdraw_feedback", "Take a report back."),
    }
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Spam detection",
            "version": __version__,
            "description": "Tells spam from ham, with calibrated scores and the language.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "apiKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "Send /token to the service's chat bot to get one.",
                }
            },
            "schemas": schemas(settings.max_text_chars),
        },
    }
    return json.dumps(document).encode()


def _operation(
    name: str, summary: str, answer: str, refusals: Iterable[int], **more: object
) -> Schema:
    responses = {"200": {"description": "Done.", "content": _json_of(answer)}}
    responses |= {str(status): _refusal(status) for status in refusals}
    return {"operationId": name, "summary": summary, "responses": responses, **more}


def _post(
    name: str, summary: str, request: str, answer: str, headers: Schema | None = None
) -> Schema:
    asked = {"required": True, "content": _json_of(request)}
    refusals = sorted(REFUSALS.keys() - {404})
    operation = _operation(name, summary, answer, refusals, requestBody=asked)
    if headers:
        operation["responses"]["200"]["headers"] = headers
    return {"post": operation}


def _keyed(name: str, summary: str, answer: str, *more: int, **parts: object) -> Schema:
    """An operation with a key and without a body."""
    return _operation(name, summary, answer, (401, 405, 408, 429, 431, 500, 503, *more), **parts)


def _delete(name: str, summary: str) -> Schema:
    name_of = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"delete": _keyed(name, summary, "Acknowledgement", 404, parameters=[name_of])}


def _get(name: str, summary: str, *refusals: int) -> Schema:
    operation = _operation(name, summary, "Acknowledgement", refusals, security=[])
    operation["responses"]["200"]["description"] = "Yes."
    return {"get": operation}


def _refusal(status: int) -> Schema:
    description, codes = REFUSALS[status]
    refusal: Schema = {
        "description": f"{description} data.error_code: {', '.join(codes)}.",
        "content": _json_of("Refusal"),
    }
    if status in {429, 503}:
        refusal["headers"] = {
            "Retry-After": {
                "description": "Seconds until it makes sense to try again.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    if status == 405:
        refusal["headers"] = {"Allow": {"schema": {"type": "string"}}}
    return refusal


def _json_of(schema: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
