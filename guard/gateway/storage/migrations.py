"""The port of schema migrations: the version of a store, and the one that this gateway knows.

Each store numbers its migrations from 1 and never changes one that was released. A step is whole
or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class MigrationStep(Struct, frozen=True):
    """One migration.

    Attributes:
        number: the version that the schema has afterwards.
        name: its purpose; may be empty.
    """

    number: int
    name: str = ""


class SchemaStatus(Struct, frozen=True):
    """Where a database is.

    Attributes:
        version: of its schema; 0: it has none yet. More than ``newest`` if a newer gateway has
            changed it in a way that is compatible with this one.
        newest: the version that this gateway knows.
        pending: the steps between the two, in order.
        oldest: the version that a gateway must know to run on it.
    """

    version: int
    newest: int
    pending: Sequence[MigrationStep]
    oldest: int = 1


class Migrator(Protocol):
    """Looks at one database's schema, and brings it up to date."""

    def status(self) -> SchemaStatus:
        """Return the versions; a gateway may be running.

        Raises:
            StoreError: the database cannot be read, or is for newer gateways only.
        """

    def preview(self, *, carry: bool = False) -> Sequence[str]:
        """Return what a conversion of release 0.7 would join, in sentences.

        Raises:
            StoreError: the database cannot be read.
        """

    def up(self, *, dry_run: bool, carry: bool = False) -> Sequence[MigrationStep]:
        """Apply the pending steps and return them.

        Args:
            dry_run: roll everything back in the end.
            carry: let joined balances above their limits keep what they have counted.

        Raises:
            StoreError: in use, or a step failed; what was applied before stays, except when dry.
        """
