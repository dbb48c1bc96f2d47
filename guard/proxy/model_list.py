"""Lists of models, as vendors write them: what a key may use, in place of what an account has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from guard.proxy.upstreams import Destination

_PATH: Final = re.compile(r"(?:/openai|/api)?/v1(?:beta)?/models")
_MADE: Final = "1970-01-01T00:00:00Z"
"""When a model was made is not known here, and the format wants it."""


def lists_models(method: str, destination: Destination) -> bool:
    """Return whether a request asks for all models."""
    return method == "GET" and _PATH.fullmatch(destination.path) is not None


def model_list(vendor: str, models: Sequence[str]) -> bytes:
    """Return a list of models in a vendor's format, whole.

    >>> model_list("openai", ["gpt-4o"])
    b'{"object":"list","data":[{"id":"gpt-4o","object":"model","created":0,"owned_by":"openai"}]}'
    """
    said: dict[str, Any]
    if vendor == "anthropic":
        said = {
            "data": [
                {"type": "model", "id": each, "display_name": each, "created_at": _MADE}
                for each in models
            ],
            "has_more": False,
            "first_id": models[0] if models else None,
            "last_id": models[-1] if models else None,
        }
    elif vendor == "gemini":
        methods = ["generateContent", "countTokens"]
        said = {
            "models": [
                {
                    "name": f"models/{each}",
                    "displayName": each,
                    "supportedGenerationMethods": methods,
                }
                for each in models
            ]
        }
    else:
        said = {
            "object": "list",
            "data": [
                {"id": each, "object": "model", "created": 0, "owned_by": vendor} for each in models
            ],
        }
    return msgspec.json.encode(said)
