"""The OpenAPI 3.1 description of the service, with its configured limits."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from spamdetect._exchange import (
    FEEDBACK_PATH,
    PREDICT_PATH,
    PREPROCESS_PATH,
    THRESHOLD_HEADER,
)
from spamdetect.models import ErrorCode
from spamdetect.service.settings import ServiceSettings
from spamdetect.thresholds import PROFILE_NAMES

_Schema = dict[str, Any]

_REFUSALS: dict[int, tuple[str, tuple[ErrorCode, ...]]] = {
    400: ("The body is not JSON.", (ErrorCode.INVALID_JSON, ErrorCode.INVALID_REQUEST)),
    401: (
        "The API key is missing, unknown or revoked.",
        (ErrorCode.MISSING_API_KEY, ErrorCode.INVALID_API_KEY),
    ),
    405: ("The endpoint takes POST alone.", (ErrorCode.METHOD_NOT_ALLOWED,)),
    408: ("The request did not arrive in time.", (ErrorCode.REQUEST_TIMEOUT,)),
    413: ("The text is too long.", (ErrorCode.TEXT_TOO_LONG,)),
    415: ("The body is not declared as JSON in UTF-8.", (ErrorCode.UNSUPPORTED_MEDIA_TYPE,)),
    422: ("The JSON lacks a field or has one of a wrong type.", (ErrorCode.INVALID_REQUEST,)),
    429: (
        "The rate or the day's quota of the key is used up.",
        (ErrorCode.RATE_LIMITED, ErrorCode.QUOTA_EXCEEDED),
    ),
    500: ("The service failed on this request.", (ErrorCode.INTERNAL,)),
    503: (
        "The service has more to do than it can, or cannot check keys.",
        (ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE),
    ),
}


def openapi_document(settings: ServiceSettings) -> bytes:
    """Describe the service.

    Args:
        settings: Gives the longest text, and whether feedback is accepted.

    Returns:
        The document as JSON.
    """
    paths: _Schema = {
        PREDICT_PATH: _post(
            "predict",
            "Classify a text as spam or not; preprocessing is part of it.",
            "PredictRequest",
            "PredictAnswer",
            {
                THRESHOLD_HEADER: {
                    "description": "The threshold applied, where the request asked for one.",
                    "schema": {"type": "number", "minimum": 0, "maximum": 1},
                }
            },
        ),
        PREPROCESS_PATH: _post(
            "preprocess",
            "Clean a text, count it and detect its language, without a verdict.",
            "TextRequest",
            "PreprocessAnswer",
        ),
        "/healthz": _get("healthz", "Whether the process is alive.", "Acknowledgement", {}),
        "/readyz": _get(
            "readyz",
            "Whether it can answer: the model is loaded and the key store reachable.",
            "Acknowledgement",
            {"503": _refusal(503)},
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
    if settings.store_feedback:
        paths[FEEDBACK_PATH] = _post(
            "feedback",
            "Report what a text really is, after a wrong verdict.",
            "FeedbackRequest",
            "Acknowledgement",
        )
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Spam detection",
            "version": version("guard"),
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
            "schemas": _schemas(settings.max_text_chars),
        },
    }
    return json.dumps(document).encode()


def _schemas(max_text_chars: int) -> _Schema:
    text = {"type": "string", "maxLength": max_text_chars, "description": "The text to analyse."}
    probability = {"type": "number", "minimum": 0, "maximum": 1}
    common: _Schema = {
        "input_text": {"type": "string", "description": "The text as received."},
        "processed_text": {"type": "string", "description": "The text after preprocessing."},
        "text_length": {
            "type": "integer",
            "minimum": 0,
            "description": "Code points of input_text.",
        },
        "word_count": {
            "type": "integer",
            "minimum": 0,
            "description": "Words by Unicode segmentation that hold a letter or a digit.",
        },
        "language": {"$ref": "#/components/schemas/Language"},
    }
    verdict: _Schema = {
        "prediction": {"$ref": "#/components/schemas/Prediction"},
        "error_code": {
            "type": "string",
            "enum": [
                ErrorCode.NONE.value,
                ErrorCode.TEXT_EMPTY.value,
                ErrorCode.LANGUAGE_UNKNOWN.value,
                ErrorCode.TEXT_TRUNCATED.value,
            ],
        },
    }
    refused = [code.value for _, codes in _REFUSALS.values() for code in codes]
    return {
        "TextRequest": _object({"text": text}),
        "PredictRequest": _object(
            {
                "text": text,
                "threshold": {
                    "description": "Spam from this spam_score on, or a profile of the model.",
                    "anyOf": [
                        probability,
                        {"type": "string", "enum": list(PROFILE_NAMES)},
                        {"type": "null"},
                    ],
                },
            },
            required=["text"],
        ),
        "FeedbackRequest": _object(
            {
                "text": text,
                "is_spam": {"type": "boolean"},
                "feedback_id": {
                    "type": "string",
                    "maxLength": 64,
                    "description": "Makes a repeated report count once.",
                },
            },
            required=["text", "is_spam"],
        ),
        "Language": _object(
            {
                "language": {
                    "type": "string",
                    "description": "ISO 639-1, else 639-3; und when undetermined.",
                },
                "probability": probability,
                "is_reliable": {"type": "boolean"},
            }
        ),
        "Prediction": _object(
            {"is_spam": {"type": "boolean"}, "ham_score": probability, "spam_score": probability}
        ),
        "PredictAnswer": _envelope(_object({**common, **verdict})),
        "PreprocessAnswer": _envelope(_object(common)),
        "Acknowledgement": _envelope(_object({"error_code": {"type": "string", "const": ""}})),
        "Refusal": _envelope(
            _object(
                {
                    "error_code": {"type": "string", "enum": sorted({*refused, "NOT_FOUND"})},
                    "field": {"type": "string", "description": "The field that is wrong."},
                },
                required=["error_code"],
            )
        ),
    }


def _object(properties: _Schema, required: list[str] | None = None) -> _Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def _envelope(data: _Schema) -> _Schema:
    return _object({"message": {"type": "string"}, "data": data})


def _post(
    name: str, summary: str, request: str, answer: str, headers: _Schema | None = None
) -> _Schema:
    done: _Schema = {"description": "Done.", "content": _json_of(answer)}
    if headers:
        done["headers"] = headers
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "requestBody": {"required": True, "content": _json_of(request)},
            "responses": {
                "200": done,
                **{str(status): _refusal(status) for status in _REFUSALS},
            },
        }
    }


def _get(name: str, summary: str, answer: str, refusals: _Schema) -> _Schema:
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "security": [],
            "responses": {"200": {"description": "Yes.", "content": _json_of(answer)}, **refusals},
        }
    }


def _refusal(status: int) -> _Schema:
    description, codes = _REFUSALS[status]
    refusal: _Schema = {
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


def _json_of(schema: str) -> _Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
