"""Small rows that many requests share: cached, changed in memory, written once for each unit."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from guard.gateway.unit.record import StructTable
from guard.gateway.unit.tables import CACHE_MAX, UnitBase

T = TypeVar("T", bound=Struct)


class KeptRows(Generic[T]):
    """The rows of one table, by organisation and name.

    Args:
        tables: of the unit of work.
        table: its key is an organisation and a name. The rows are never changed in place.
    """

    def __init__(self, tables: UnitBase, table: StructTable[T]) -> None:
        self._tables, self._table = tables, table
        where = " AND ".join(f"{each} = ?" for each in table.key)
        self._select = f"{table.select()} WHERE {where}"
        self._save = table.upsert()
        # ``None``: there is no row, which is worth remembering too.
        self.cached: dict[str, dict[str, T | None]] = {}
        self._size = 0
        # What ``flush`` has to write. A failed command leaves its marks behind: the row is then
        # written as it was, which is harmless.
        self._dirty: dict[tuple[str, str], None] = {}

    def find(self, organisation_id: str, name: str) -> T | None:
        """Return a row, if there is one."""
        own = self.cached.get(organisation_id)
        if own is None or name not in own:
            row = self._tables.row(self._select, organisation_id, name)
            self._put(organisation_id, name, row and self._table.read(row))
            own = self.cached[organisation_id]
        return own[name]

    def save(self, organisation_id: str, name: str, row: T) -> None:
        """Write a row."""
        self._put(organisation_id, name, row)
        self._dirty[organisation_id, name] = None

    def _put(self, organisation_id: str, name: str, row: T | None) -> None:
        if self._size >= CACHE_MAX and not self._dirty:
            self.clear()
        own = self.cached.setdefault(organisation_id, {})
        self._size += name not in own
        self._tables.cache_set(own, name, row)

    def flush(self) -> None:
        """Write the rows that have changed, in the transaction that is open."""
        if self._dirty:
            found = ((key, self.cached.get(key[0], {}).get(key[1])) for key in self._dirty)
            rows = [self._table.row(row, *key) for key, row in found if row is not None]
            self._tables.connection.change(self._save, rows)
            self._dirty.clear()

    def forget_changes(self) -> None:
        """Forget which rows have changed: the unit is undone."""
        self._dirty.clear()

    def names(self, organisation_id: str) -> list[str]:
        """Return which rows of an organisation are cached."""
        return [*self.cached.get(organisation_id, ())]

    def drop(self, organisation_id: str, name: str | None = None) -> None:
        """Drop the cached rows of an organisation, or one of them."""
        if name is None:
            self._size -= len(self.cached.pop(organisation_id, ()))
        elif self.cached.get(organisation_id, {}).pop(name, None) is not None:
            self._size -= 1

    def clear(self) -> None:
        """Drop every cached row."""
        self.cached.clear()
        self._size = 0
