"""The version and the name of the distribution, as in ``guard.version``: a test compares them."""

from __future__ import annotations

__version__ = "1.0.0"

DISTRIBUTION = "agent-hard-stop"
"""The name on a package index; the packages are `guard` and `spamdetect`."""


def installs(extras: str) -> str:
    """Return the command that installs extras, such as ``gateway`` or ``gateway,redis``."""
    return f"pip install '{DISTRIBUTION}[{extras}]'"
