"""Charges in doubt in the table of events: those of lost answers, and of holders that are gone."""

from __future__ import annotations

from typing import Any, Final, LiteralString

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.windows import HOUR_MS
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.event_table import EVENTS
from guard.gateway.unit.state import IN_DOUBT, ChargedHour
from guard.gateway.unit.tables import UnitBase

EXPIRED: Final = "expired-"
"""How the ids of charges begin that were made when a reservation expired; its id follows."""

FREED: Final = "freed-"
"""How the ids of corrections begin by which a whole charge was taken back; its event's follows."""

_SAVE_FLAGS: Final = EVENTS.update(("flags",))

_SELECT: Final[LiteralString] = (
    "SELECT e.event_id, e.charged_at_ms, e.key_id, e.workflow_id, e.run_id, e.agent, e.user_id,"
    " e.provider, e.model, e.cost_nanousd, coalesce(r.under_way, e.cost_nanousd),"
    " e.reservation_id, e.event_seq, e.chain_id, e.flags, e.balance_ids, e.tags"
    " FROM events e LEFT JOIN reservations r ON r.organisation_id = e.organisation_id"
    f" AND r.reservation_id = e.reservation_id AND e.event_id = '{EXPIRED}' || e.reservation_id"
    " WHERE e.organisation_id = ?"
)
_TAKEN_BACK: Final[LiteralString] = (
    "SELECT event_seq FROM events INDEXED BY events_charged WHERE organisation_id = ?"
    " AND charged_at_ms = ? AND type = 'adjustment' AND flags = ?"
    " AND (event_id = ? OR reservation_id = ?)"
)


class ChargeInDoubt(Struct, frozen=True):
    """A charge as it is stored.

    Attributes:
        doubt: what operators see of it.
        event_seq: its number.
        chain_id, tags: its chain and tags.
        flags: of its event.
        balance_ids: the balances that it was charged to.
    """

    doubt: records.Doubt
    event_seq: int
    chain_id: str | None
    flags: str
    balance_ids: tuple[int, ...]
    tags: dict[str, str]

    @property
    def is_open(self) -> bool:
        """Whether it is still in doubt: nobody has settled it, and no vendor's bill."""
        return IN_DOUBT in self.flags.split()


def list_doubts(connection: Connection, organisation_id: str, limit: int) -> list[records.Doubt]:
    """Return what is in doubt, newest first."""
    rows = connection.rows(
        f"{_SELECT} AND e.flags <> '' AND e.flags LIKE ? AND e.type = 'llm'"
        " AND coalesce(r.under_way, e.cost_nanousd) > 0 ORDER BY e.event_seq DESC LIMIT ?",
        organisation_id, f"%{IN_DOUBT}%", limit,
    )  # fmt: skip
    return [_read(row).doubt for row in rows]


def find_doubt(tables: UnitBase, organisation_id: str, event_id: str) -> ChargeInDoubt | None:
    """Return a charge by the id of its event, whether it is still in doubt or not."""
    row = tables.row(f"{_SELECT} AND e.event_id = ?", organisation_id, event_id)
    return None if row is None else _read(row)


def resolved(tables: UnitBase, organisation_id: str, charge: ChargeInDoubt) -> None:
    """Note that a charge is in doubt no longer, and what was taken back of it neither."""
    _unflag(tables, charge.event_seq, charge.flags)
    of = charge.doubt
    lowered = of.reservation_id if of.holder_gone else None
    key = organisation_id, of.charged_at_ms, IN_DOUBT, FREED + of.event_id, lowered
    for (event_seq,) in tables.rows(_TAKEN_BACK, *key):
        _unflag(tables, event_seq, IN_DOUBT)


def resolve_hour(tables: UnitBase, organisation_id: str, hour: ChargedHour) -> None:
    """Note the same of all charges of a model in an hour, which a vendor's bill has settled."""
    # Corrections have the model and the time of their charge, so they are among these.
    rows = tables.rows(
        "SELECT event_seq, flags FROM events INDEXED BY events_charged WHERE organisation_id = ?"
        " AND charged_at_ms >= ? AND charged_at_ms < ? AND model = ?"
        " AND coalesce(provider, '') = ? AND flags LIKE ?",
        organisation_id, hour.hour_ms, hour.hour_ms + HOUR_MS, hour.model, hour.provider,
        f"%{IN_DOUBT}%",
    )  # fmt: skip
    for event_seq, flags in rows:
        _unflag(tables, event_seq, flags)


def _unflag(tables: UnitBase, event_seq: int, flags: str) -> None:
    left = [each for each in flags.split() if each != IN_DOUBT]
    tables.write(_SAVE_FLAGS, (" ".join(left), event_seq))


def _read(row: Any) -> ChargeInDoubt:
    event_id, at_ms, key_id, workflow, run, agent, user, provider, model, cost, left = row[:11]
    doubt = records.Doubt(
        event_id=event_id,
        charged_at_ms=at_ms,
        key_id=key_id,
        workflow_id=workflow,
        run_id=run,
        agent=agent,
        user=user,
        provider=provider,
        model=model,
        charged_nanousd=cost,
        doubt_nanousd=left,
        reservation_id=row[11],
        holder_gone=event_id.startswith(EXPIRED),
    )
    ids = tuple(int(each) for each in wire.decode(row[15], list[int]))
    tags = wire.decode(row[16], dict[str, str]) if row[16] else {}
    return ChargeInDoubt(doubt, row[12], row[13], row[14], ids, tags)
