"""The embedded store: one process, one SQLite file, one writer."""

from __future__ import annotations

from guard.gateway.ledger import leases
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sqlite.engine import SqliteEngine
from guard.gateway.unit.state import ALL_ORGANISATIONS


class SqliteStorage(SqliteEngine, Storage):
    """The storage on one file.

    Args:
        path: the database file; created with mode 0600.
        durable: sync each commit to the disk.
        clock_ms: the store's clock; the machine's by default.
        retention_days: how long data is kept; 0 keeps everything.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
    """

    async def _expire(self) -> int:
        return await self._lapse(None)

    async def resume(self) -> int:
        """Renew what holders renew after a time without a gateway; return how many there are."""
        return await self.write(ALL_ORGANISATIONS, leases.resume)
