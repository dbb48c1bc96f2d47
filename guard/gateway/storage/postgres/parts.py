"""The parts of a unit of work that replicas of PostgreSQL have to share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from guard.gateway.domain import records
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import WriteConnection
from guard.gateway.unit.alert_tables import WAITING_OWNERS, AlertTables
from guard.gateway.unit.control_tables import ControlTables
from guard.gateway.unit.directory_tables import DirectoryTables

ALONE: Final = "SELECT pg_advisory_xact_lock(%s::int, hashtext(current_schema()))"
CLAIM_MS: Final = 60_000
"""How long a webhook message belongs to the replica that sends it.

If that replica dies, another one sends the message afterwards: it is sent at least once.
"""
_CLAIM_DELIVERIES: Final = (
    f"WITH RECURSIVE {WAITING_OWNERS},"
    " ranked AS (SELECT x.*, ROW_NUMBER() OVER"
    "  (PARTITION BY organisation_id ORDER BY next_attempt_ms) AS place"
    "  FROM owners CROSS JOIN LATERAL (SELECT delivery_id, organisation_id, next_attempt_ms"
    "   FROM deliveries WHERE delivered_at_ms IS NULL AND failed = 0 AND organisation_id = owner"
    "   AND next_attempt_ms <= %(now)s ORDER BY organisation_id, next_attempt_ms LIMIT %(each)s) x"
    "  WHERE owner IS NOT NULL),"
    " due AS (SELECT delivery_id, place FROM ranked LEFT JOIN"
    "  unnest(%(owners)s::text[], %(counts)s::bigint[]) AS s(owner, count)"
    "  ON organisation_id = s.owner WHERE place + coalesce(s.count, 0) <= %(each)s"
    "  ORDER BY place, next_attempt_ms LIMIT %(limit)s),"
    " mine AS (SELECT d.delivery_id, due.place FROM deliveries d JOIN due USING (delivery_id)"
    "  WHERE d.delivered_at_ms IS NULL AND d.failed = 0 AND d.next_attempt_ms <= %(now)s"
    "  FOR UPDATE OF d SKIP LOCKED)"
    " UPDATE deliveries d SET next_attempt_ms = %(until)s FROM mine, webhooks w"
    " WHERE d.delivery_id = mine.delivery_id AND w.webhook_id = d.webhook_id"
    " RETURNING d.delivery_id, d.organisation_id, w.url, w.secret, d.type, d.body,"
    " d.created_at_ms, d.attempts, d.webhook_id, w.channel_kind, w.channel_options, mine.place"
)


class PostgresDirectory(DirectoryTables):
    """Organisations and the audit log, of which replicas add rows in turn."""

    def organisation_named(self, name: str) -> bool:
        """Return whether the name is taken.

        Replicas take turns, so that no two of them find it free and create it both.
        """
        # The lock of the audit chain, which the entry of the creation needs as well.
        _connection(self._unit).ask(ALONE, (schema.AUDIT,))
        return super().organisation_named(name)

    def audit_head(self) -> tuple[int, str] | None:
        """Return the number and the hash of the newest audit entry.

        The chain is locked until the commit: a second entry with the same predecessor would break
        it, and the entries of all organisations are in one chain.
        """
        if self.newest_audit is None:
            _connection(self._unit).ask(ALONE, (schema.AUDIT,))
        return super().audit_head()


class PostgresAlerts(AlertTables):
    """Deliveries, each of which one replica sends."""

    def due_deliveries(
        self, limit: int, each: int, sending: Mapping[str, int]
    ) -> list[records.DueDelivery]:
        """Return due deliveries and claim them: no other replica gets them until the claim ends.

        Deliveries that another replica is just claiming are skipped, so that no replica waits for
        another one's lock.
        """
        rows = _connection(self._unit).ask(
            _CLAIM_DELIVERIES,
            {
                "now": self._unit.now_ms, "until": self._unit.now_ms + CLAIM_MS, "each": each,
                "limit": max(0, limit - sum(sending.values())),
                "owners": list(sending.keys()), "counts": list(sending.values()),
            },
        ).fetchall()  # fmt: skip
        self._unit.changed_rows += len(rows)
        rows.sort(key=lambda row: row[-1])
        return [records.DueDelivery(*row[:-1]) for row in rows]


def _connection(unit: ControlTables) -> WriteConnection:
    return cast("WriteConnection", unit.connection)
