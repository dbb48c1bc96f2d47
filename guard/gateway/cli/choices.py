"""Choices on the command line."""

from __future__ import annotations

import click


class OneOf(click.Choice[str]):
    """One of some words; where it is missing, one line says which."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return the words."""
        return f"Write one of {', '.join(self.choices)}."
