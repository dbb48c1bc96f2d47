"""The schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any, get_args

from spamdetect.models import ErrorCode
from spamdetect.service.rules import MAX_VALUE_CHARS, EntryKind, ListName
from spamdetect.service.wire import MAX_BATCH_TEXTS
from spamdetect.thresholds import PROFILE_NAMES

Schema = dict[str, Any]

REFUSALS: dict[int, tuple[str, tuple[ErrorCode, ...]]] = {
    400: ("The body is not JSON.", (ErrorCode.INVALID_JSON, ErrorCode.INVALID_REQUEST)),
    401: (
        "The API key is missing, unknown or revoked.",
        (ErrorCode.MISSING_API_KEY, ErrorCode.INVALID_API_KEY),
    ),
    404: ("This key has nothing with this id.", (ErrorCode.NOT_FOUND,)),
    405: ("The endpoint takes other methods.", (ErrorCode.METHOD_NOT_ALLOWED,)),
    408: ("The request did not arrive in time.", (ErrorCode.REQUEST_TIMEOUT,)),
    413: ("The text is too long.", (ErrorCode.TEXT_TOO_LONG,)),
    415: ("The body is not declared as JSON in UTF-8.", (ErrorCode.UNSUPPORTED_MEDIA_TYPE,)),
    422: ("The JSON lacks a field or has one of a wrong type.", (ErrorCode.INVALID_REQUEST,)),
    429: (
        "The rate or the day's quota of the key is used up.",
        (ErrorCode.RATE_LIMITED, ErrorCode.QUOTA_EXCEEDED),
    ),
    431: ("The head of the request is too large.", (ErrorCode.INVALID_REQUEST,)),
    500: ("The service failed on this request.", (ErrorCode.INTERNAL,)),
    503: (
        "The service has more to do than it can, or cannot check keys.",
        (ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE),
    ),
}


def schemas(max_text_chars: int) -> Schema:
    """Every schema by name.

    Args:
        max_text_chars: Longest text.
    """
    text = {"type": "string", "maxLength": max_text_chars, "description": "The text to analyse."}
    probability = {"type": "number", "minimum": 0, "maximum": 1}
    common: Schema = {
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
    verdict: Schema = {
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
    reasons = {
        "type": "array",
        "description": "What moved the verdict, strongest first; only where it was asked for.",
        "items": {"$ref": "#/components/schemas/Reason"},
    }
    options: Schema = {
        "threshold": {
            "description": "Spam from this spam_score on, or a profile of the model.",
            "anyOf": [
                probability,
                {"type": "string", "enum": list(PROFILE_NAMES)},
                {"type": "null"},
            ],
        },
        "reasons": {"type": "boolean", "description": "Say what moved the verdict."},
        "context": {"anyOf": [{"$ref": "#/components/schemas/Context"}, {"type": "null"}]},
    }
    entry: Schema = {
        "list": {"type": "string", "enum": list(get_args(ListName))},
        "kind": {"type": "string", "enum": list(get_args(EntryKind))},
        "value": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_VALUE_CHARS,
            "description": "A name, an address or @domain; a domain; a phrase.",
        },
        "text_kind": {
            "type": ["string", "null"],
            "maxLength": 64,
            "description": "The only kind of text that the entry is for.",
        },
    }
    no_error: Schema = {"error_code": {"type": "string", "const": ""}}
    refused = [code.value for _, codes in REFUSALS.values() for code in codes]
    return {
        "TextRequest": object_of({"text": text}),
        "PredictRequest": object_of({"text": text, **options}, required=["text"]),
        "BatchRequest": object_of(
            {
                "texts": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_BATCH_TEXTS,
                    "description": "Texts, or objects with text and context. What is wrong with "
                    "one is that text's outcome.",
                    "items": {},
                },
                **options,
            },
            required=["texts"],
        ),
        "BatchAnswer": envelope_of(
            object_of(
                {
                    "error_code": {"type": "string", "const": ""},
                    "results": {
                        "type": "array",
                        "description": "An outcome for each text, in order: the status and the "
                        "answer that it would have had alone.",
                        "items": {
                            "anyOf": [
                                {
                                    "allOf": [
                                        object_of({"status": {"const": 200}}),
                                        {"$ref": "#/components/schemas/PredictAnswer"},
                                    ]
                                },
                                {
                                    "allOf": [
                                        object_of({"status": {"type": "integer", "minimum": 400}}),
                                        {"$ref": "#/components/schemas/Refusal"},
                                    ]
                                },
                            ]
                        },
                    },
                }
            )
        ),
        "Context": object_of(
            {
                "kind": {"type": ["string", "null"], "maxLength": 64},
                "author": {"type": ["string", "null"], "maxLength": 320},
                "address": {"type": ["string", "null"], "maxLength": 320},
            },
            required=[],
        ),
        "Reason": object_of(
            {
                "feature": {"type": "string"},
                "weight": {"type": "number", "description": "Log-odds; above 0 is for spam."},
                "explanation": {"type": "string"},
            }
        ),
        "EntryRequest": object_of(entry, required=["list", "kind", "value"]),
        "Entry": object_of({"entry_id": {"type": "string"}, **entry}),
        "EntryAnswer": envelope_of(
            object_of({"entry": {"$ref": "#/components/schemas/Entry"}, **no_error})
        ),
        "ListsAnswer": envelope_of(
            object_of(
                {
                    "entries": {"type": "array", "items": {"$ref": "#/components/schemas/Entry"}},
                    **no_error,
                }
            )
        ),
        "FeedbackAnswer": envelope_of(
            object_of(
                {
                    "feedback_id": {"type": "string", "description": "To take it back."},
                    "error_code": {"type": "string", "enum": ["", ErrorCode.TEXT_EMPTY.value]},
                },
                required=["error_code"],
            )
        ),
        "FeedbackListAnswer": envelope_of(
            object_of(
                {
                    "feedback": {
                        "type": "array",
                        "items": object_of(
                            {
                                "feedback_id": {"type": "string"},
                                "is_spam": {"type": "boolean"},
                                "received_s": {"type": "number", "description": "Unix time."},
                            }
                        ),
                    },
                    **no_error,
                }
            )
        ),
        "FeedbackRequest": object_of(
            {
                "text": text,
                "is_spam": {"type": "boolean"},
                "feedback_id": {
                    "type": "string",
                    "maxLength": 64,
                    "pattern": r"^[^\x00-\x1f\x7f]*$",
                    "description": "Your name for the report; the service makes one of the text.",
                },
            },
            required=["text", "is_spam"],
        ),
        "Language": object_of(
            {
                "language": {
                    "type": "string",
                    "description": "ISO 639-1, else 639-3; und when undetermined.",
                },
                "probability": probability,
                "is_reliable": {"type": "boolean"},
            }
        ),
        "Prediction": object_of(
            {"is_spam": {"type": "boolean"}, "ham_score": probability, "spam_score": probability}
        ),
        "PredictAnswer": envelope_of(
            object_of({**common, **verdict, "reasons": reasons}, required=[*common, *verdict])
        ),
        "PreprocessAnswer": envelope_of(object_of(common)),
        "Acknowledgement": envelope_of(object_of({"error_code": {"type": "string", "const": ""}})),
        "Refusal": envelope_of(
            object_of(
                {
                    "error_code": {"type": "string", "enum": sorted({*refused, "NOT_FOUND"})},
                    "field": {"type": "string", "description": "The field that is wrong."},
                },
                required=["error_code"],
            )
        ),
    }


def object_of(properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these properties, all of them required unless it says which."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def envelope_of(data: Schema) -> Schema:
    """The envelope around some data."""
    return object_of({"message": {"type": "string"}, "data": data})
