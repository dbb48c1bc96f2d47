"""Token usage out of vendors' responses: one file per vendor family, bytes in, ``Usage`` out."""

from guard.core.usage.base import ResponseFormat, Usage
from guard.core.usage.vendors import find_format

__all__ = ["ResponseFormat", "Usage", "find_format"]
