"""The self-hosted gateway: budgets, kill switch and tool policy over protocol v3."""

from importlib import metadata

__version__ = metadata.version("guard")
