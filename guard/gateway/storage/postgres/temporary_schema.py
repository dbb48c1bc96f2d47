"""A schema of its own for one gateway, dropped in the end; the rest of the database stays."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote, unquote

import psycopg
from msgspec import Struct
from psycopg import sql

from guard.gateway.domain.errors import StoreError
from guard.gateway.settings import DatabaseUrl
from guard.gateway.storage.postgres.connection import connect, reason_of

_NAME: Final = "guard-gateway-own-schema"


class TemporarySchema(Struct, frozen=True):
    """A schema and how to reach it.

    Attributes:
        name: of the schema.
        url: a gateway that is given it uses this schema.
    """

    name: str
    url: DatabaseUrl


@contextlib.contextmanager
def temporary_schema(
    url: DatabaseUrl, prefix: str, left: Callable[[str], None]
) -> Iterator[TemporarySchema]:
    """Make a new schema, and drop it in the end.

    Args:
        url: of the database.
        prefix: of the schema's name.
        left: called with what to do when the schema could not be dropped.

    Raises:
        StoreError: no schema could be made.
    """
    name = f"{prefix}_{secrets.token_hex(4)}"
    may_be_there = False
    try:
        try:
            with contextlib.closing(connect(url, _NAME)) as connection:
                may_be_there = True  # also when Ctrl-C ends the wait for the answer
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            may_be_there = False
            raise StoreError(
                f"this user may not make a schema in {url.host}: GRANT CREATE ON DATABASE, or name "
                "a database of the user's own"
            ) from None
        except psycopg.Error as exc:
            may_be_there = False
            reason = reason_of(exc, url)
            raise StoreError(f"the database {url.host} cannot be used: {reason}") from None
        yield TemporarySchema(name, _in_schema(url, name))
    finally:
        if may_be_there:
            _drop(url, name, left)


def _drop(url: DatabaseUrl, name: str, left: Callable[[str], None]) -> None:
    query = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
    is_gone = False
    try:
        with contextlib.closing(connect(url, _NAME)) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(query)
        is_gone = True
    except psycopg.Error:
        pass
    finally:  # also when Ctrl-C ends the wait for it
        if not is_gone:
            left(f"the schema {name} is left in {url.host}: DROP SCHEMA {name} CASCADE removes it")


def _in_schema(url: DatabaseUrl, name: str) -> DatabaseUrl:
    """Return the URI with the schema as its search path; other options stay."""
    head, _, query = url.partition("?")
    fields = [field for field in query.split("&") if field]
    given = [unquote(f.partition("=")[2]) for f in fields if f.startswith("options=")]
    before = given[-1] if given else os.environ.get("PGOPTIONS", "")
    options = quote(f"{before} -c search_path={name}".strip(), safe="")
    kept = [field for field in fields if not field.startswith("options=")]
    return DatabaseUrl(f"{head}?{'&'.join([*kept, f'options={options}'])}")
