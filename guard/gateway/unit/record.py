"""Tables and their rows: the statements that read and write them follow from ``baseline.sql``.

A :class:`Table` takes its columns, their types and its key from the schema. A :class:`StructTable`
adds the struct whose fields the columns are, so that a field that is added to a struct needs a
column in the schema and nothing else. Statements are written for one row, as both engines run them,
and for many rows, of which PostgreSQL takes each column as one array.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    LiteralString,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from guard.core import wire
from guard.gateway.domain.message_text import free_json
from guard.gateway.unit import baseline

T = TypeVar("T", bound=Struct)

_TABLES: Final = re.compile(r"CREATE TABLE (\w+) \((.*?)\n\) STRICT", re.DOTALL)
_PART: Final = re.compile(r'\s*((?:PRIMARY KEY|UNIQUE) \([^)]*\)|"?(\w+)"? ([A-Z]+)([^,]*))(?:,|$)')
_ARRAYS: Final = {
    "TEXT": "text[]", "INTEGER": "bigint[]", "REAL": "double precision[]", "BLOB": "bytea[]",
}  # fmt: skip
_RESERVED: Final = {"window"}
"""Words of SQL that are names of columns here, so that they are quoted."""


Codec = tuple[Callable[[Any], Any], Callable[[Any], Any] | None]
"""How the values of a field are read from their column, and written where that is not as is."""


class Column(NamedTuple):
    """A column: its type in the schema, and whether it may be NULL."""

    kind: str
    nullable: bool


class RowChange(Struct, frozen=True):
    """A statement that changes rows.

    Attributes:
        one: for one row, with ``?`` for each argument.
        many: for many rows, in PostgreSQL's words: ``%s`` for an array of each argument.
        types: of these arrays.
    """

    one: str
    many: str
    types: tuple[str, ...]


class Table:
    """A table of the shared schema.

    Args:
        name: of the table.

    Attributes:
        columns: the columns by their names, in the order of the schema.
        key: the columns that identify a row.
    """

    def __init__(self, name: LiteralString) -> None:
        self.name: LiteralString = name
        self.columns, self.key = _schema()[name]

    def _arrays(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(_ARRAYS[self.columns[each].kind] for each in columns)

    def _insert(self, columns: Sequence[str], then: str) -> RowChange:
        names = ", ".join(map(quoted, columns))
        types = self._arrays(columns)
        head, arrays = f"INSERT INTO {self.name} ({names})", ", ".join(f"%s::{t}" for t in types)
        places = ", ".join("?" * len(columns))
        return RowChange(
            f"{head} VALUES ({places}){then}",
            f"{head} SELECT * FROM unnest({arrays}){then}",
            types,
        )

    def insert(self, columns: Sequence[str] = (), *, ignore: bool = False) -> RowChange:
        """Return the insertion of some or all columns of rows; ``ignore`` skips existing ones."""
        return self._insert(columns or [*self.columns], " ON CONFLICT DO NOTHING" if ignore else "")

    def upsert(
        self,
        columns: Sequence[str] = (),
        *,
        keep: Sequence[str] = (),
        add: Sequence[str] = (),
        sets: Mapping[str, str] | None = None,
    ) -> RowChange:
        """Return the insertion of rows that changes those whose key is there.

        Args:
            columns: the columns to write; all of them unless given.
            keep: columns that a row keeps which is there.
            add: columns to whose values the new ones are added, up to the largest amount.
            sets: SQL of the values of other columns, in which ``excluded`` has the new row.
        """
        columns = columns or [*self.columns]
        own, given = self.name, sets or {}
        changed = []
        for each in columns:
            name = quoted(each)
            if each in given:
                changed.append(f"{name} = {given[each]}")
            elif each in add:
                changed.append(f"{name} = min({own}.{name} + excluded.{name}, {wire.NANOUSD_MAX})")
            elif each not in keep and each not in self.key:
                changed.append(f"{name} = excluded.{name}")
        where = ", ".join(map(quoted, self.key))
        return self._insert(columns, f" ON CONFLICT ({where}) DO UPDATE SET {', '.join(changed)}")

    def update(
        self, columns: Sequence[str], *, add: Sequence[str] = (), by: Sequence[str] = ()
    ) -> RowChange:
        """Return the change of some columns of rows.

        Args:
            columns: the columns to set, whose values are the first arguments.
            add: columns to which the next arguments are added.
            by: the columns by which a row is found, the last arguments; its key unless given.
        """
        by = by or self.key
        names = [*columns, *add, *by]
        places = [f"v.c{at}" for at in range(1, len(names) + 1)]

        def text(of: Sequence[str]) -> str:
            values = iter(of)
            sets = [f"{quoted(each)} = {next(values)}" for each in columns]
            sets += [
                f"{quoted(each)} = {self.name}.{quoted(each)} + {next(values)}" for each in add
            ]
            where = " AND ".join(f"{self.name}.{quoted(each)} = {next(values)}" for each in by)
            source = f" FROM {_values(types)}" if of is places else ""
            return f"UPDATE {self.name} SET {', '.join(sets)}{source} WHERE {where}"

        types = self._arrays(names)
        return RowChange(text("?" * len(names)), text(places), types)

    def delete(self, by: Sequence[str] = ()) -> RowChange:
        """Return the deletion of rows that are found by some columns, or by their key."""
        by = by or self.key
        types = self._arrays(by)
        one = " AND ".join(f"{quoted(each)} = ?" for each in by)
        many = " AND ".join(f"{self.name}.{quoted(n)} = v.c{at}" for at, n in enumerate(by, 1))
        head = f"DELETE FROM {self.name}"
        return RowChange(
            f"{head} WHERE {one}", f"{head} USING {_values(types)} WHERE {many}", types
        )

    def names(self, alias: LiteralString = "") -> LiteralString:
        """Return the columns of whole rows, for a query in which the table may have an alias."""
        dot = f"{alias}." if alias else ""
        return ", ".join(f"{dot}{quoted(each)}" for each in self.columns)

    def select(self) -> LiteralString:
        """Return the beginning of a query of whole rows."""
        return f"SELECT {self.names()} FROM {self.name}"


class StructTable(Table, Generic[T]):
    """A table whose rows are a struct.

    Fields that are collections or structs are stored as JSON; one that is empty is NULL where its
    column may be NULL.

    Args:
        struct: its fields are columns of the same names; fields without a column are left out.
        name: of the table.
        columns: the columns of fields that have another name.
        apart: columns that no field has, which follow the fields in rows.
        codecs: how other fields are read and written, where a column has another form of them.
    """

    def __init__(
        self,
        struct: type[T],
        name: LiteralString,
        *,
        columns: Mapping[str, str] | None = None,
        apart: Sequence[str] = (),
        codecs: Mapping[str, Codec] | None = None,
    ) -> None:
        super().__init__(name)
        self._struct = struct
        self._names: list[str] = []
        self._reads: list[tuple[int, str, Callable[[Any], Any]]] = []
        # The field of each column, and how it is written where that is not as it is.
        self._fields: dict[str, tuple[str, Callable[[Any], Any] | None]] = {}
        for field in fields(struct):
            column = (columns or {}).get(field.name, field.name)
            if column not in self.columns:
                continue
            codec = (codecs or {}).get(field.name) or _codec(field.type, self.columns[column])
            if codec is not None:
                self._reads.append((len(self._names), field.name, codec[0]))
            self._names.append(field.name)
            self._fields[column] = field.name, codec and codec[1]
        self.width = len(self._names)
        self.columns = {each: self.columns[each] for each in (*self._fields, *apart)}
        self._row = self.values(*self._fields)

    def read(self, row: Sequence[Any]) -> T:
        """Return the struct of a row, or of the beginning of a longer one."""
        values = dict(zip(self._names, row, strict=False))
        for at, name, reads in self._reads:
            if row[at] is None:
                del values[name]
            else:
                values[name] = reads(row[at])
        return self._struct(**values)

    def row(self, record: T, *apart: Any) -> tuple[Any, ...]:
        """Return the row of a struct, with the values of the columns that it does not have."""
        return (*self._row(record), *apart)

    def values(self, *columns: str) -> Callable[[T], tuple[Any, ...]]:
        """Return what takes the values of two columns or more from a struct."""
        found = [self._fields[each] for each in columns]
        get = operator.attrgetter(*(name for name, _ in found))
        writes = [(at, write) for at, (_, write) in enumerate(found) if write is not None]

        def values(record: T) -> tuple[Any, ...]:
            values = list(get(record))
            for at, write in writes:
                values[at] = write(values[at])
            return tuple(values)

        return values if writes else get


def _codec(kind: Any, column: Column) -> Codec | None:
    """Return how values of a type are read and written; ``None``: as they are."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if kind is bool:
        return bool, None
    bare = get_origin(kind) or kind
    if bare not in (list, tuple, dict) and not (
        isinstance(bare, type) and issubclass(bare, Struct)
    ):
        return None
    encode = msgspec.json.Encoder().encode

    def write(value: Any) -> str | None:
        return free_json(encode(value)).decode() if value or not column.nullable else None

    return msgspec.json.Decoder(kind).decode, write


def quoted(name: str) -> str:
    """Return the name of a column as SQL."""
    return f'"{name}"' if name in _RESERVED else name


def _values(types: Sequence[str]) -> str:
    places = ", ".join(f"c{at}" for at in range(1, len(types) + 1))
    return f"unnest({', '.join(f'%s::{each}' for each in types)}) AS v({places})"


@functools.cache
def _schema() -> dict[str, tuple[dict[str, Column], tuple[str, ...]]]:
    """Return the columns and the key of each table."""
    found = {}
    for name, body in _TABLES.findall(baseline.TABLES):
        columns: dict[str, Column] = {}
        key: tuple[str, ...] = ()
        for part, column, kind, rest in _PART.findall(" ".join(body.split())):
            if column:
                columns[column] = Column(kind, "NOT NULL" not in rest)
            if part.startswith("PRIMARY KEY"):
                key = tuple(re.findall(r"\w+", part.removeprefix("PRIMARY KEY")))
            elif "PRIMARY KEY" in part:
                key = (column,)
        found[name] = columns, key
    return found
