"""What stands between a gateway and its PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from guard.gateway.cli.main import gateway as cli
from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.postgres.migrations import SchemaError
from guard.gateway.storage.postgres.store import PostgresStorage
from tests.support import postgres
from tests.support.pooler import TransactionPooler, pgbouncer
from tests.support.private_server import find

SAID = "pool_mode = session"


@pytest.fixture
def database() -> str:
    """An empty database of the test's own."""
    return postgres.own_database()


@pytest.fixture(params=["a stand-in", "PgBouncer"])
def pooled(request: pytest.FixtureRequest, database: str) -> Iterator[str]:
    """The database behind a pooler that gives each transaction another session."""
    if request.param == "PgBouncer":
        if find("pgbouncer") is None:
            pytest.skip("no PgBouncer on this machine; the stand-in takes its place")
        with pgbouncer(database, "transaction") as url:
            yield url
        return
    with contextlib.closing(TransactionPooler(database)) as pooler:
        yield pooler.dsn


async def opened(dsn: str) -> None:
    storage = PostgresStorage(dsn)
    await storage.open(lambda _: None)
    await storage.close()


def test_a_pooler_of_transactions_is_refused_at_the_start(pooled: str) -> None:
    """Else locks are given back to nobody and notifications go to others, long after."""
    with pytest.raises((SchemaError, StoreError), match=SAID):
        asyncio.run(opened(pooled))
    result = CliRunner().invoke(cli, ["migrate", "status", "--database", pooled])
    assert result.exit_code == 1
    assert re.search(SAID, result.output)


@pytest.mark.skipif(find("pgbouncer") is None, reason="no PgBouncer on this machine")
def test_a_pooler_of_sessions_is_none_to_refuse(database: str) -> None:
    with pgbouncer(database, "session") as url:
        asyncio.run(opened(url))
