"""The one table of vendors, whose hosts, paths and speeds are data.

Read from the vendors' SDKs and API references, and from what coding agents send (2026-11).
"""

from typing import Final

from guard.core.vendors import (
    amazon,
    anthropic,
    cohere,
    compatible,
    google,
    mistral,
    ollama,
    openai,
)
from guard.core.vendors.vendor import Vendor

__all__ = ["VENDORS", "Vendor"]

VENDORS: Final[dict[str, Vendor]] = {
    vendor.name: vendor
    for module in (openai, anthropic, google, mistral, cohere, ollama, amazon, compatible)
    for vendor in module.VENDORS
}
