"""The embedded store: one process, one SQLite file, one writer thread."""

from __future__ import annotations

import asyncio
import sqlite3

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.commands import Answer, GateCommand, IngestCommand, ReleaseCommand
from guard.gateway.storage.port import Actor, KeySecret, NotFoundError, StoredControl
from guard.gateway.storage.sqlite import audit as sqlite_audit
from guard.gateway.storage.sqlite import control as sqlite_control
from guard.gateway.storage.sqlite import directory as sqlite_directory
from guard.gateway.storage.sqlite import ledger as sqlite_ledger
from guard.gateway.storage.sqlite import verify as sqlite_verify
from guard.gateway.storage.sqlite.admin import SqliteAdmin
from guard.gateway.storage.sqlite.books import Books
from guard.gateway.storage.sqlite.dashboard import SqliteDashboard
from guard.gateway.storage.sqlite.queries import Reader


class SqliteStorage(SqliteAdmin, SqliteDashboard):
    """Implements :class:`guard.gateway.storage.port.Storage` on one file.

    Args:
        path: the database file; created with mode 0600.
        durable: sync each commit to the disk.
        clock_ms: the store's clock; the machine's by default.
        retention_days: how long the record goes back; 0 keeps everything.
        audit_retention_days: how long the audit log goes back; 0 keeps all of it.
    """

    # -- ledger --------------------------------------------------------------------------------

    async def gate(self, command: GateCommand) -> Answer:
        """Decide one call."""
        return await self.write(
            lambda books: sqlite_ledger.gate(books, command),
            command.request,
            weight=1 + len(command.events),
        )

    async def ingest(self, command: IngestCommand) -> Answer:
        """Record and charge events."""
        return await self.write(
            lambda books: sqlite_ledger.ingest(books, command),
            command.request,
            weight=1 + len(command.events),
        )

    async def release(self, command: ReleaseCommand) -> Answer:
        """Give back a hold."""
        return await self.write(
            lambda books: sqlite_ledger.release(books, command), command.request
        )

    async def sweep(self) -> int:
        """Expire what has run out, and take a few rows older than the retention away."""
        closed = await self.write(sqlite_ledger.sweep)
        await self.retain()
        await self.checkpoint()
        return closed

    async def verify_ledger(self) -> records.LedgerReport:
        """Check every balance against its entries."""
        return await asyncio.to_thread(self._verify)

    def _verify(self) -> records.LedgerReport:
        connection = sqlite3.connect(str(self.path), isolation_level=None)
        try:
            return sqlite_verify.verify_ledger(connection)
        finally:
            connection.close()

    # -- control -------------------------------------------------------------------------------

    async def order(
        self, actor: Actor, organisation_id: str, draft: wire.ControlMessage
    ) -> wire.ControlMessage:
        """Record a kill, pause, resume or revive and push it."""

        def work(books: Books) -> wire.ControlMessage:
            if organisation_id not in books.orgs:
                raise NotFoundError("no such organisation")
            message = sqlite_control.publish(books, organisation_id, draft)
            target = draft.run_id or draft.workflow_id or "*"
            details = {"reason": draft.reason, "run": draft.run_id is not None, "seq": message.seq,
                       "resume_after_ms": draft.resume_after_ms}  # fmt: skip
            action = f"workflow.{draft.type}"
            sqlite_audit.record(books, actor, action, target, details, organisation_id)
            return message

        return await self.write(work)

    async def control_after(
        self, organisation_id: str, after: int, limit: int
    ) -> list[StoredControl]:
        """Return messages newer than ``after``."""
        return await self.read(lambda reader: reader.control_after(organisation_id, after, limit))

    async def control_seq(self, organisation_id: str) -> int:
        """Return the newest number."""
        return await self.write(lambda books: books.orgs[organisation_id].control_seq)

    async def answer_approval(
        self, actor: Actor, organisation_id: str, approval_id: str, *, approved: bool, reason: str
    ) -> records.Approval:
        """Record a person's answer and push it."""

        def work(books: Books) -> records.Approval:
            answered = sqlite_control.answer_approval(
                books, organisation_id, approval_id, actor.name, approved=approved, reason=reason
            )
            details = {"approved": approved, "reason": reason, "call_id": answered.call_id}
            sqlite_audit.record(
                books, actor, "approval.answer", approval_id, details, organisation_id
            )
            return answered

        return await self.write(work)

    # -- directory -----------------------------------------------------------------------------

    async def create_organisation(self, actor: Actor, name: str) -> records.Organisation:
        """Add a tenant."""
        return await self.write(
            lambda books: sqlite_directory.create_organisation(books, actor, name)
        )

    async def update_organisation(
        self, actor: Actor, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation:
        """Change a tenant's settings."""
        return await self.write(
            lambda books: sqlite_directory.update_organisation(
                books, actor, organisation_id, settings
            )
        )

    async def organisations(self) -> list[records.Organisation]:
        """Return all tenants, oldest first."""
        return await self.read(
            lambda reader: [
                sqlite_directory.organisation_from_row(row)
                for row in reader.rows("SELECT * FROM organisations ORDER BY organisation_id")
            ]
        )

    async def create_key(
        self, actor: Actor, key: records.Key, key_hash: bytes, hmac_secret: str | None
    ) -> records.Key:
        """Store a new key by its hash."""
        return await self.write(
            lambda books: sqlite_directory.create_key(books, actor, key, key_hash, hmac_secret)
        )

    async def rotate_key(
        self, actor: Actor, organisation_id: str | None, key_id: str, successor: records.Key,
        key_hash: bytes, hmac_secret: str | None, overlap_ms: int,
    ) -> records.Key:  # fmt: skip
        """Make a successor of a key."""
        return await self.write(
            lambda books: sqlite_directory.rotate_key(
                books, actor, organisation_id, key_id, successor, key_hash, hmac_secret, overlap_ms
            )
        )

    async def revoke_key(
        self, actor: Actor, organisation_id: str | None, key_id: str
    ) -> records.Key:
        """End a key now."""
        return await self.write(
            lambda books: sqlite_directory.revoke_key(books, actor, organisation_id, key_id)
        )

    async def find_key(self, key_hash: bytes) -> KeySecret | None:
        """Return the key with this hash, in whatever state."""

        def work(reader: Reader) -> KeySecret | None:
            rows = reader.rows("SELECT * FROM keys WHERE key_hash = ?", key_hash)
            return sqlite_directory.key_from_row(rows[0]) if rows else None

        return await self.read(work)

    async def keys(self, organisation_id: str | None) -> list[records.Key]:
        """Return keys, of one organisation or of all."""
        return await self.read(
            lambda reader: [
                sqlite_directory.key_from_row(row).key
                for row in reader.rows(
                    "SELECT * FROM keys WHERE ? IS NULL OR organisation_id = ? ORDER BY key_id",
                    organisation_id, organisation_id,
                )
            ]
        )  # fmt: skip

    async def use_nonce(self, key_id: str, nonce: str, keep_ms: int) -> bool:
        """Remember a nonce; ``False`` when it was used before."""
        return await self.write(
            lambda books: sqlite_directory.use_nonce(books, key_id, nonce, keep_ms)
        )
