"""A vendor in a function, whose answers are charged: guard charges none of httpx's own mock."""

from __future__ import annotations

from typing import Any

import httpx


def vendor_transport(package: Any, answer: Any) -> Any:
    """Return a transport of ``httpx`` or ``httpx2`` that answers each request by a function."""
    return type("VendorTransport", (package.MockTransport,), {})(answer)


class VendorTransport(httpx.MockTransport):
    """Answers each request of httpx by a function."""
