"""Token usage from vendors' responses: one file per vendor family, bytes in, ``Usage`` out."""

from guard.core.usage.reading import read_body, read_recorded
from guard.core.usage.recording import Recording
from guard.core.usage.response_format import PENDING, Call, ResponseFormat, Usage
from guard.core.usage.vendors import Endpoint, find_endpoint, find_format

__all__ = [
    "PENDING",
    "Call",
    "Endpoint",
    "Recording",
    "ResponseFormat",
    "Usage",
    "find_endpoint",
    "find_format",
    "read_body",
    "read_recorded",
]
