"""The self-hosted gateway: budgets, kill switch and tool policy over protocol v3."""

from guard.version import __version__

__all__ = ["__version__"]
