"""The schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec

from spamdetect._answers import Predicted, Preprocessed
from spamdetect.models import ErrorCode
from spamdetect.service.rules import Entry
from spamdetect.service.wire import BatchRequest, FeedbackRequest, PredictRequest, TextRequest

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
    found = _derived(TextRequest, PredictRequest, BatchRequest, FeedbackRequest, Entry, Predicted)
    for name in ("TextRequest", "PredictRequest", "FeedbackRequest"):
        found[name]["properties"]["text"]["maxLength"] = max_text_chars
    entry = found["Entry"]
    asked = {name: each for name, each in entry["properties"].items() if name != "entry_id"}
    entry["required"] = list(entry["properties"])
    found["Reason"]["properties"]["weight"]["description"] = "Log-odds; above 0 is for spam."
    predicted = found.pop("Predicted")
    reasons = predicted["properties"]["reasons"]
    # Left out where nobody asked, and never null.
    reasons |= reasons.pop("anyOf")[0]
    no_error: Schema = {"error_code": {"type": "string", "const": ""}}
    refused = [code.value for _, codes in REFUSALS.values() for code in codes]
    return found | {
        "EntryRequest": object_of(asked, required=["list", "kind", "value"]),
        "PredictAnswer": envelope_of(predicted),
        "PreprocessAnswer": envelope_of(_derived(Preprocessed)["Preprocessed"]),
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


def _derived(*types: type) -> Schema:
    """Schemas of types and of what they hold, by name."""
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    for schema in found.values():
        # Docstrings are for readers of the code.
        del schema["title"]
        schema.pop("description", None)
        for each in schema["properties"].values():
            each.pop("default", None)
            if "enum" in each:
                each["type"] = "string"
    return found


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
