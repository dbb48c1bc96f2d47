"""Ollama, on this machine and at its own hosts."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "ollama",
        hosts=("ollama.com",),
        free="show pull push create copy me web_search web_fetch",
        work="embeddings",
    ),
)
