"""Balances, reservations and estimates over PostgreSQL: how long rows stay cached, and queries.

Rows of an organisation may be used only while it is locked. Cached rows stay valid until another
replica writes the organisation; the unit of work then calls :meth:`PostgresMoney.read_again`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from psycopg import Cursor

from guard.gateway.domain import records
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.ledger import Balance, Reservation, held_by_key
from guard.gateway.storage.postgres.cached_keys import CachedKeys
from guard.gateway.storage.postgres.connection import WriteConnection
from guard.gateway.storage.postgres.new_events import NewEvents
from guard.gateway.unit.money import SELECT_BALANCES, SELECT_RESERVATIONS, LedgerTables
from guard.gateway.unit.rows import (
    APPROVALS,
    BALANCES,
    ESTIMATES,
    RESERVATIONS,
    approval_from_row,
)
from guard.gateway.unit.state import LeaseHold, OrganisationState
from guard.gateway.unit.tables import CACHE_MAX

_LEASE_HOLDS: Final = (
    "SELECT r.held * (1 - r.closing), r.key_id, r.reservation_id FROM lease_balances b"
    " JOIN reservations r USING (reservation_id) WHERE b.balance_id = %s AND b.reservation_id > %s"
    " ORDER BY b.reservation_id LIMIT %s"
)
_BALANCES: Final = (
    f"SELECT {BALANCES.names('b')}, u.organisation_id"
    " FROM balances b LEFT JOIN budgets u USING (budget_id)"
)


READ_AGAIN_MAX: Final = 256
"""If more rows of a kind are cached, they are dropped after another replica's commit, not read."""


class AskedReservations(NamedTuple):
    """Reservations that were queried, and the cursor of the answer; ``None``: none were."""

    ids: list[str]
    rows: Cursor[Any] | None


class PostgresMoney(LedgerTables):
    """The rows of the locked organisations.

    Attributes:
        locked: the organisations of the unit.
        earlier: events of other replicas that precede those of the unit.
    """

    connection: WriteConnection

    def __init__(self, connection: WriteConnection) -> None:
        super().__init__(connection)
        self.locked: list[str] = []
        self.earlier: list[Any] = []
        # The keys of the cached rows by organisation. May name rows that have left their cache
        # since. A cached row that is not named here is not read again, or dropped, after another
        # replica has written the organisation.
        self._cached: dict[str, CachedKeys] = {}
        # Cached balances of deleted budgets, by number; dropped at the start of the next unit.
        self._transient: list[int] = []
        # By balance, the id of the last lease that a refusal looked at, if there are more than it
        # looks at. Only decides which leases are recalled first, so it is not undone.
        self._looked_up_to: dict[int, str] = {}
        self.new_events = NewEvents(self)

    # -- caches --------------------------------------------------------------------------------

    def forget_money(self) -> None:
        """Drop every cached row."""
        self.balances.clear()
        self._cached.clear()
        self.reservations.clear()
        self.leases.clear()
        self.lease_index.clear()
        for kept in self.kept:
            kept.clear()

    def forget_transient(self) -> None:
        """Drop the balances of deleted budgets.

        They have no organisation, and so no record of which replica wrote them last.
        """
        while self._transient:
            self.balances.pop(self._transient.pop(), None)

    def cached(self, organisation_id: str) -> CachedKeys:
        """Return which rows of an organisation are cached."""
        found = self._cached.get(organisation_id)
        if found is None:
            found = self._cached[organisation_id] = CachedKeys()
        return found

    def forget_accounts(self, organisation_id: str) -> None:
        """Drop the balances of an organisation whose rules have changed."""
        known = self.cached(organisation_id)
        for balance_id in known.balances:
            self.balances.pop(balance_id, None)
        known.balances.clear()

    def read_again(self, org: OrganisationState) -> None:
        """Read the cached rows of an organisation again, those of balances in place.

        If they are many, they are dropped instead, and each is read when a command needs it.
        """
        own = org.organisation_id
        known = self.cached(own)
        # 1. Dropped: most commands name their reservation, and ``_begin`` reads those.
        for key in known.reservations:
            self.reservations.pop(key, None)
            lease = self.leases.pop(key, None)
            if lease is not None:
                self.lease_index.drop(lease)
        known.reservations.clear()
        self.chains.drop(own)
        self.rate_windows.drop(own)
        # 2. Read again in one query, or dropped.
        if len(known.balances) > READ_AGAIN_MAX:
            self.forget_accounts(own)
            org.accounts.clear()
        else:
            self._read_balances(org, known.balances)
        self._read_estimates(own)

    def _read_balances(self, org: OrganisationState, known: set[int]) -> None:
        if not known:
            return
        found = {
            row[0]: BALANCES.read(row)
            for row in self.connection.ask(
                f"{SELECT_BALANCES} WHERE balance_id = ANY(%s)", [[*known]]
            )
        }
        for balance_id in list(known):
            fresh, cached = found.get(balance_id), self.balances.get(balance_id)
            # Deleted by retention, or its insertion was undone. An account may still refer to it.
            if fresh is None or cached is None:
                org.accounts.clear()
                known.discard(balance_id)
                self.balances.pop(balance_id, None)
                continue
            # In place: the cached accounts refer to the object.
            for name in Balance.__struct_fields__:
                setattr(cached, name, getattr(fresh, name))

    def _read_estimates(self, own: str) -> None:
        known = self.estimates.names(own)
        self.estimates.drop(own)
        if not 0 < len(known) <= READ_AGAIN_MAX:
            return
        cached = self.estimates.cached[own] = dict.fromkeys(known)
        for row in self.connection.ask(
            f"{ESTIMATES.select()} WHERE organisation_id = %s AND subject = ANY(%s)", (own, known)
        ):
            cached[row[-1]] = ESTIMATES.read(row)

    # -- balances ------------------------------------------------------------------------------

    def balance(self, balance_id: int) -> Balance:
        """Return a balance by its number."""
        found = self.balances.get(balance_id)
        if found is None:
            row = self.row(f"{_BALANCES} WHERE balance_id = ?", balance_id)
            found = BALANCES.read(row)
            self._own(found, row[BALANCES.width])
        return found

    def add_balance(self, balance: Balance) -> Balance:
        """Insert a balance and return it with its number."""
        added = super().add_balance(balance)
        row = self.row("SELECT organisation_id FROM budgets WHERE budget_id = ?", added.budget_id)
        self.cached(row[0]).balances.add(added.balance_id)
        return added

    def _own(self, balance: Balance, organisation_id: str | None) -> None:
        self.cache_set(self.balances, balance.balance_id, balance)
        if organisation_id is None:  # its budget is deleted, see ``forget_transient``
            self._transient.append(balance.balance_id)
        else:
            self.cached(organisation_id).balances.add(balance.balance_id)

    def note_exhausted(self, balance_id: int, organisation_id: str) -> None:
        """Do nothing: :meth:`ended_exhausted` queries the flag of the balance's row."""

    def clear_exhausted(self, balance_id: int) -> None:
        """Do nothing: :meth:`ended_exhausted` queries the flag of the balance's row."""

    def ended_exhausted(self) -> list[tuple[Balance, str]]:
        """Return exhausted balances whose period has ended, with their organisations."""
        rows = self.connection.ask(
            f"{_BALANCES} WHERE u.organisation_id = ANY(%s) AND b.exhausted = 1"
            " AND b.ends_ms <= %s", (self.locked, self.now_ms)
        ).fetchall()  # fmt: skip
        found = [(self.balance(row[0]), row[BALANCES.width]) for row in rows]
        # The flag again: the cached balance may have changed in this unit, which the row has not.
        return [(balance, own) for balance, own in found if balance.exhausted]

    # -- reservations --------------------------------------------------------------------------

    def ask_named(self, reservation_ids: set[str]) -> AskedReservations:
        """Query the reservations that commands name; :meth:`take_named` reads the answer.

        In two steps, so that the query goes out in the same round trip as the locks.
        """
        unknown = [each for each in reservation_ids if each not in self.reservations]
        if not unknown:
            return AskedReservations(unknown, None)
        sql = f"{SELECT_RESERVATIONS} WHERE reservation_id = ANY(%s) AND state = 'open'"
        return AskedReservations(unknown, self.connection.ask(sql, (unknown,)))

    def take_named(self, asked: AskedReservations) -> None:
        """Cache the open reservations among those asked for."""
        for row in () if asked.rows is None else asked.rows:
            found = RESERVATIONS.read(row)
            if found.organisation_id in self.locked:
                self._index_open(found)

    def reservation(self, reservation_id: str) -> Reservation | None:
        """Return a reservation in any state."""
        found = super().reservation(reservation_id)
        # A row that was just read is cached like the others, but only under the organisation's
        # lock, and not if this unit has already changed it.
        if (
            found is not None
            and found.state == "open"
            and found.organisation_id in self.locked
            and found.reservation_id not in self._dirty_reservations
        ):
            self._index_open(found)
        return found

    def _index_open(self, reservation: Reservation) -> None:
        """Cache an open reservation. There is no queue of expiries: the table has an index."""
        self.reservations[reservation.reservation_id] = reservation
        self.cached(reservation.organisation_id).reservations.add(reservation.reservation_id)
        if reservation.is_lease:
            self.leases[reservation.reservation_id] = reservation
            self.lease_index.add(reservation)

    def expire_sooner(self, reservation: Reservation, expires_at_ms: int) -> None:
        """Change a reservation's expiry to an earlier one."""
        self.change_reservation(reservation)
        reservation.expires_at_ms = expires_at_ms

    def _current(self, rows: Sequence[tuple[Any, ...]]) -> list[Reservation]:
        """Return the reservations of rows with this unit's changes, which the rows have not."""
        found = []
        for row in rows:
            known = self.reservations.get(row[0]) or self._dirty_reservations.get(row[0])
            if known is None:
                known = RESERVATIONS.read(row)
                self._index_open(known)
            found.append(known)
        return found

    def lease_holds(self, balance_ids: Sequence[int], limit: int) -> list[LeaseHold]:
        """Return open leases that hold money on any of these balances, some of many in turn."""
        found = {hold.lease_id: hold for hold in super().lease_holds(balance_ids, limit)}
        for balance_id in balance_ids:
            for hold in self._stored_holds(balance_id, limit):
                # A cached lease is newer than its row, and ``super()`` has looked at it. One that
                # this unit has closed is in ``_dirty_reservations`` only.
                if hold.lease_id not in self.reservations:
                    closed = self._dirty_reservations.get(hold.lease_id)
                    if hold.held and closed is None:
                        found[hold.lease_id] = hold
        return list(found.values())

    def _stored_holds(self, balance_id: int, limit: int) -> list[LeaseHold]:
        """Return the next leases of a balance from the database, beginning again at the end."""
        rows = self.connection.ask(
            _LEASE_HOLDS, (balance_id, self._looked_up_to.get(balance_id, ""), limit)
        ).fetchall()
        if len(rows) < limit and balance_id in self._looked_up_to:  # once around: from the start
            last = self._looked_up_to.pop(balance_id)
            again = (balance_id, "", limit - len(rows))
            more = self.connection.ask(_LEASE_HOLDS, again).fetchall()
            rows += [row for row in more if row[2] <= last]
        elif len(rows) == limit:
            if len(self._looked_up_to) >= CACHE_MAX:
                self._looked_up_to.clear()
            self._looked_up_to[balance_id] = rows[-1][2]
        return [LeaseHold(*row) for row in rows]

    def leased(self, organisation_id: str, root_id: str, limit: int) -> dict[int, int] | None:
        """Return, by balance, what the open leases of a key and of those below it hold.

        Leases that this unit has changed are added from memory: their rows are older. ``None`` if
        there are more than the limit.
        """
        changed = {**self._dirty_reservations, **self._new_reservations}
        rows = self.connection.ask(
            "SELECT balance_ids, held FROM reservations WHERE organisation_id = %s"
            " AND split_part(key_id, '.', 1) = %s AND state = 'open' AND basis = 'lease'"
            " AND reservation_id <> ALL(%s) LIMIT %s",
            (organisation_id, root_id, list(changed), limit + 1),
        ).fetchall()
        if len(rows) > limit:
            return None
        found = held_by_key(changed.values(), organisation_id, root_id)
        for balance_ids, held in rows:
            for balance_id in json.loads(balance_ids):
                found[balance_id] = found.get(balance_id, 0) + held
        return found

    def all_renewed(self) -> list[Reservation]:
        """Return every open lease, and the open reservations that are renewed."""
        rows = self.connection.ask(
            f"{SELECT_RESERVATIONS} WHERE organisation_id = ANY(%s) AND state = 'open'"
            " AND (basis = 'lease' OR renewed = 1)", (self.locked,)
        ).fetchall()  # fmt: skip
        # Caches every one of them, so that the cache has the answer.
        self._current(rows)
        return super().all_renewed()

    def expired_reservations(self, limit: int) -> list[Reservation]:
        """Return open reservations past their expiry, of the locked organisations."""
        rows = self.connection.ask(
            f"{SELECT_RESERVATIONS} WHERE organisation_id = ANY(%s) AND state = 'open'"
            " AND expires_at_ms <= %s ORDER BY expires_at_ms LIMIT %s",
            (self.locked, self.now_ms, limit),
        ).fetchall()
        return [
            each
            for each in self._current(rows)
            if each.state == "open" and each.expires_at_ms <= self.now_ms
        ]

    # -- events --------------------------------------------------------------------------------

    def add_event(
        self, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
        flags: Sequence[str], balance_ids: Sequence[int],
    ) -> bool:  # fmt: skip
        """Record an event; ``False`` when its id or its response was recorded before."""
        own, numbers = organisation_id, tuple(balance_ids)
        return self.new_events.add(own, key_id, priced, charged_at_ms, " ".join(flags), numbers)

    def write_events(self) -> None:
        """Write the rows of events that are kept back until the unit ends."""
        self.new_events.write()

    def flush(self) -> None:
        """Write every changed row into its table, in the transaction that is open."""
        closed = [
            each
            for changed in (self._new_reservations, self._dirty_reservations)
            for each in changed.values()
            if each.state != "open"
        ]
        super().flush()
        for each in closed:  # a rollback puts them back into the cache, and so into this set
            self.cached(each.organisation_id).reservations.discard(each.reservation_id)
            self.on_undo(self.cached(each.organisation_id).reservations.add, each.reservation_id)
        self.new_events.flush()

    # -- other rows ----------------------------------------------------------------------------

    def overdue_approvals(self, limit: int) -> list[records.Approval]:
        """Return pending approvals past their deadline, or without a caller who renews them."""
        pending = f"{APPROVALS.select()} WHERE status = 'pending'"
        rows = self.connection.ask(
            f"SELECT * FROM (({pending} AND deadline_ms <= %s ORDER BY deadline_ms LIMIT %s) UNION"
            f" ({pending} AND present_until_ms <= %s ORDER BY present_until_ms LIMIT %s)) overdue"
            " WHERE organisation_id = ANY(%s)",
            (self.now_ms, limit, self.now_ms, limit, self.locked),
        ).fetchall()
        return [approval_from_row(row) for row in rows]
