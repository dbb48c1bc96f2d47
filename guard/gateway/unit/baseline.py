"""The schema of both engines, as the text of ``baseline.sql``."""

from __future__ import annotations

from importlib import resources
from typing import Final

TABLES: Final = resources.files("guard.gateway.unit").joinpath("baseline.sql").read_text("utf-8")
"""Statements in SQLite's words."""
