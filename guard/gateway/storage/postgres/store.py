"""The store of several replicas: one PostgreSQL database."""

from __future__ import annotations

from typing import Final

from guard.gateway.ledger import leases
from guard.gateway.storage.port import Storage
from guard.gateway.storage.postgres.engine import PostgresEngine
from guard.gateway.storage.postgres.unit_of_work import PostgresUnitOfWork
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION
from guard.gateway.unit.unit_of_work import AWAY_MS

SWEEP_ORGANISATIONS: Final = 50
"""Organisations that one step of a sweep locks."""

ALIVE_MS: Final = 15_000
"""A replica that was seen so lately may have connections to holders of leases."""

_DUE: Final = (
    "SELECT organisation_id FROM reservations WHERE state = 'open' AND expires_at_ms <= ?1 UNION"
    " SELECT organisation_id FROM approvals WHERE status = 'pending' AND deadline_ms <= ?1 UNION"
    " SELECT organisation_id FROM approvals WHERE status = 'pending' AND present_until_ms <= ?1"
    " UNION SELECT u.organisation_id FROM balances b JOIN budgets u USING (budget_id)"
    " WHERE b.exhausted = 1 AND b.ends_ms <= ?1"
    " UNION SELECT organisation_id FROM rate_windows WHERE lent = 0 AND ends_ms <= ?1 - 3600000"
)


class PostgresStorage(PostgresEngine, Storage):
    """The storage on a database that replicas share.

    Args:
        dsn: a connection URI or string of libpq.
        clock_ms: a clock in place of the database's, for tests.
        retention_days: how long data is kept; 0 keeps everything.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
    """

    async def _expire(self) -> int:
        # Every replica does so. Work that another replica has done is not found again.
        await self._note_alive()
        now_ms = self.clock_ms()
        # Without locks: an organisation that is added to the list needlessly does no harm, and one
        # that is missed is found by the next sweep.
        due = await self.look_up(lambda reading: [row[0] for row in reading.rows(_DUE, now_ms)])
        expired = 0
        for start in range(0, len(due), SWEEP_ORGANISATIONS):
            some = tuple(due[start : start + SWEEP_ORGANISATIONS])
            expired += await self._lapse(some)
        if not due:
            await self._lapse(())
        return expired

    async def resume(self) -> int:
        """Renew the leases of all holders, unless another replica has served them meanwhile.

        Returns:
            How many were renewed.
        """
        return await self.write(ALL_ORGANISATIONS, _resume)

    def resume_in(self, unit: PostgresUnitOfWork) -> None:
        """Do the same in the first unit after a lost connection, before any lease can expire."""
        _resume(unit)

    async def _note_alive(self) -> None:
        self.peers.are_there = await self.write(NO_ORGANISATION, _note_alive)


def _note_alive(unit: PostgresUnitOfWork) -> bool:
    unit.note_alive()
    return unit.others_alive(ALIVE_MS)


def _resume(unit: PostgresUnitOfWork) -> int:
    renewed = 0 if unit.anybody_alive(AWAY_MS) else leases.resume(unit)
    unit.note_alive()
    return renewed
