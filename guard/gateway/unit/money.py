"""Balances, reservations, events and estimates of a unit of work over SQL.

Rows are cached from one unit to the next; the engine drops rows that another process may have
changed. Rows that many requests share are changed in memory and written once for each group of
commands. A cached row is therefore newer than the table until :meth:`LedgerTables.flush`: queries
in the middle of a unit must not read those tables directly.

All amounts are integers, in nano-dollars for budgets of money.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.commands import CallRefusal, PricedEvent, RequestOrigin
from guard.gateway.domain.ledger import Balance, BudgetBalance, Reservation, held_by_key
from guard.gateway.unit.connection import WritingConnection
from guard.gateway.unit.doubts import resolve_hour
from guard.gateway.unit.event_table import add_event
from guard.gateway.unit.kept_rows import KeptRows
from guard.gateway.unit.lease_index import LeaseIndex
from guard.gateway.unit.refusals import Refusals
from guard.gateway.unit.replay import ReplayTable
from guard.gateway.unit.reservation_counts import ReservationCounts
from guard.gateway.unit.rows import (
    BALANCES,
    CHAINS,
    ESTIMATES,
    RATE_WINDOWS,
    RESERVATIONS,
)
from guard.gateway.unit.state import (
    AccountKeys,
    ChargedHour,
    LeaseHold,
    OrganisationState,
    ScopeKeys,
    StoredAnswer,
)
from guard.gateway.unit.tables import CACHE_MAX, UnitBase, restore_fields
from guard.gateway.unit.usage import UsageTable, charged_hours

_BALANCE: Final = (
    "committed", "reserved", "overspend", "authorized_max", "level", "exhausted", "opening",
    "leases", "refused", "period_start_ms", "ends_ms",
)  # fmt: skip
"""What changes of a balance."""

_RESERVATION: Final = (
    "amount", "held", "expires_at_ms", "spent", "state", "under_way", "closing", "metered",
    "calls", "buckets",
)  # fmt: skip
"""What changes of a reservation."""

SELECT_BALANCES: Final = BALANCES.select()
SELECT_RESERVATIONS: Final = RESERVATIONS.select()
_ADD_BALANCE: Final = BALANCES.insert([each for each in BALANCES.columns if each != "balance_id"])
_NEW_BALANCE: Final = BALANCES.values(*(each for each in BALANCES.columns if each != "balance_id"))
_SAVE_BALANCE: Final = BALANCES.update(_BALANCE)
_CHANGED_BALANCE: Final = BALANCES.values(*_BALANCE, "balance_id")
_ADD_RESERVATION: Final = RESERVATIONS.insert()
_SAVE_RESERVATION: Final = RESERVATIONS.update(_RESERVATION)
_CHANGED_RESERVATION: Final = RESERVATIONS.values(*_RESERVATION, "reservation_id")


class LedgerTables(UnitBase):
    """Balances, reservations and events."""

    def __init__(self, connection: WritingConnection) -> None:
        super().__init__(connection)
        # -- caches, valid from one unit to the next; the engine decides how long ------------------
        # By number. An account of ``OrganisationState`` refers to the same object, so a balance is
        # changed in place and never replaced while it is cached.
        self.balances: dict[int, Balance] = {}
        # Open reservations, leases included. On SQLite all of them, since one process owns the
        # file; on PostgreSQL those that units have met.
        self.reservations: dict[str, Reservation] = {}
        # The leases among them, and the same leases by balance and by key.
        self.leases: dict[str, Reservation] = {}
        self.lease_index = LeaseIndex()
        # Totals for metrics; follows the rows that are written.
        self.counts = ReservationCounts()
        # The organisation of each exhausted balance, by number: the sweep looks at these alone.
        self.exhausted: dict[int, str] = {}
        self.chains = KeptRows(self, CHAINS)
        self.estimates = KeptRows(self, ESTIMATES)
        self.rate_windows = KeptRows(self, RATE_WINDOWS)
        self.kept = self.chains, self.estimates, self.rate_windows
        # Heap of times and ids, one entry or more for each open reservation. Entries are not moved
        # when an expiry changes or a reservation closes: ``expired_reservations`` sorts that out.
        self._expiries: list[tuple[int, str]] = []
        # -- of this unit: what ``flush`` has to write. Empty between units ------------------------
        # A failed command leaves its marks behind: the row is then written as it was, which is
        # harmless. Only a new reservation must lose its mark, or it would be inserted.
        self._dirty_balances: dict[int, Balance] = {}
        self._new_reservations: dict[str, Reservation] = {}
        # Never one of the new ones. May hold closed reservations, which are not in the cache.
        self._dirty_reservations: dict[str, Reservation] = {}
        # -- sums and rows that are collected in a unit and written by ``flush`` -------------------
        self.answers = ReplayTable(self)
        self.usage = UsageTable(self)
        self.refusals = Refusals(self)

    def load_open(self) -> None:
        """Cache every open reservation and every exhausted balance, when the store is opened."""
        # Ids begin with their time, so those below the oldest open one are skipped by the index:
        # the table holds far more closed reservations than open ones.
        for row in self.rows(
            f"{SELECT_RESERVATIONS} WHERE reservation_id >= coalesce((SELECT value FROM facts"
            " WHERE name = 'oldest_open'), '') AND state = 'open'"
        ):
            self._index_open(RESERVATIONS.read(row))
        self.counts.start(self.leases.values())
        for row in self.rows(
            "SELECT b.balance_id, u.organisation_id FROM balances b JOIN budgets u"
            " USING (budget_id) WHERE b.exhausted = 1"
        ):
            self.exhausted[row[0]] = row[1]

    # -- balances ------------------------------------------------------------------------------

    def cached_accounts(
        self, org: OrganisationState, keys: AccountKeys
    ) -> list[BudgetBalance] | None:
        """Return the cached accounts of these scopes, unless a period has ended."""
        cached = org.accounts.get(keys)
        return cached[1] if cached is not None and self.now_ms < cached[0] else None

    def cache_accounts(
        self,
        org: OrganisationState,
        keys: AccountKeys,
        valid_until_ms: float,
        found: list[BudgetBalance],
    ) -> None:
        """Cache accounts for later calls; a store that must not cache does nothing."""
        if len(org.accounts) >= CACHE_MAX:
            org.accounts.clear()
        org.accounts[keys] = (valid_until_ms, found)
        # The command may have inserted the balances; if it fails, their numbers do not exist.
        self.on_undo(org.accounts.pop, keys, None)

    def newest_balance(self, budget_id: str, scope_id: str, at_ms: int) -> Balance | None:
        """Return the balance of one budget and scope whose period began last before a time."""
        row = self.row(
            "SELECT balance_id FROM balances WHERE budget_id = ? AND scope_id = ?"
            " AND period_start_ms <= ? ORDER BY period_start_ms DESC LIMIT 1",
            budget_id, scope_id, at_ms,
        )  # fmt: skip
        return None if row is None else self.balance(row[0])

    def add_balance(self, balance: Balance) -> Balance:
        """Insert a balance and return it with its number."""
        row = _NEW_BALANCE(balance)
        balance.balance_id = self.insert_numbered("balance_id", _ADD_BALANCE, row)
        self.cache_set(self.balances, balance.balance_id, balance)
        return balance

    def balance(self, balance_id: int) -> Balance:
        """Return a balance by its number."""
        found = self.balances.get(balance_id)
        if found is None:
            row = self.row(f"{SELECT_BALANCES} WHERE balance_id = ?", balance_id)
            found = BALANCES.read(row)
            self.cache_set(self.balances, balance_id, found)
        return found

    def open_balances(self, budget_id: str) -> list[Balance]:
        """Return a budget's balances of periods that have not ended."""
        rows = self.rows(
            "SELECT balance_id FROM balances WHERE budget_id = ? AND coalesce(ends_ms, ?) > ?",
            budget_id, 2**62, self.now_ms,
        )  # fmt: skip
        return [self.balance(row[0]) for row in rows]

    def change_balances(self, balances: Iterable[Balance]) -> None:
        """Mark balances to be written back, and log the values that an undo restores.

        Called before the change. The log gets an entry for each call, not for each unit: a command
        may fail after another one has changed the same balance.
        """
        log, dirty = self.undo_log, self._dirty_balances
        for b in balances:
            log.append((restore_fields, b, _BALANCE, (b.committed, b.reserved, b.overspend,
                        b.authorized_max, b.level, b.exhausted, b.opening, b.leases,
                        b.refused, b.period_start_ms, b.ends_ms)))  # fmt: skip
            dirty[b.balance_id] = b

    def note_exhausted(self, balance_id: int, organisation_id: str) -> None:
        """Remember a balance as exhausted."""
        self.cache_set(self.exhausted, balance_id, organisation_id)

    def clear_exhausted(self, balance_id: int) -> None:
        """Forget that a balance was exhausted."""
        organisation_id = self.exhausted.pop(balance_id, None)
        if organisation_id is not None:
            self.on_undo(self.exhausted.__setitem__, balance_id, organisation_id)

    def ended_exhausted(self) -> list[tuple[Balance, str]]:
        """Return exhausted balances whose period has ended, with their organisations."""
        known = [(self.balance(number), own) for number, own in self.exhausted.items()]
        return [
            (balance, own)
            for balance, own in known
            if balance.ends_ms is not None and balance.ends_ms <= self.now_ms
        ]

    def used_before(
        self, organisation_id: str, kind: records.ScopeKind, scope_id: str, start_ms: int,
        end_ms: int | None, pattern: str = "*",
    ) -> tuple[int, int]:  # fmt: skip
        """Return what a scope has cost in the current period, and its tokens.

        Without an end, in all. A key's usage includes that of the keys below it which the balance
        of a budget for ``pattern`` counts.
        """
        return self.usage.used(organisation_id, kind, scope_id, start_ms, end_ms, pattern)

    # -- reservations --------------------------------------------------------------------------

    def reservation(self, reservation_id: str) -> Reservation | None:
        """Return a reservation in any state."""
        # The dirty ones too: one that this unit has changed while it was closed is not cached, and
        # its row is older.
        found = self.reservations.get(reservation_id) or self._dirty_reservations.get(
            reservation_id
        )
        if found is None:
            row = self.row(f"{SELECT_RESERVATIONS} WHERE reservation_id = ?", reservation_id)
            found = None if row is None else RESERVATIONS.read(row)
        return found

    def add_reservation(self, reservation: Reservation) -> None:
        """Insert an open reservation."""
        key = reservation.reservation_id
        self._new_reservations[key] = reservation
        self._index_open(reservation)
        self.undo_log.append((self._drop_reservation, key))

    def _index_open(self, reservation: Reservation) -> None:
        """Cache an open reservation in every index, and queue its expiry."""
        self.reservations[reservation.reservation_id] = reservation
        if reservation.is_lease:
            self.leases[reservation.reservation_id] = reservation
            self.lease_index.add(reservation)
        heapq.heappush(self._expiries, (reservation.expires_at_ms, reservation.reservation_id))

    def _drop_reservation(self, key: str) -> None:
        """Undo :meth:`_index_open`. Its entry in the expiry queue is skipped in its turn."""
        self._new_reservations.pop(key, None)
        self.reservations.pop(key, None)
        lease = self.leases.pop(key, None)
        if lease is not None:
            self.lease_index.drop(lease)

    def change_reservation(self, reservation: Reservation) -> None:
        """Mark a reservation to be written back, and log the values that an undo restores.

        Called before the change.
        """
        r, key = reservation, reservation.reservation_id
        self.undo_log.append(
            (
                restore_fields,
                r,
                _RESERVATION,
                (
                    r.amount,
                    r.held,
                    r.expires_at_ms,
                    r.spent,
                    r.state,
                    r.under_way,
                    r.closing,
                    r.metered,
                    r.calls,
                    r.buckets,
                ),
            )
        )
        if key not in self._new_reservations:
            self._dirty_reservations[key] = r

    def expire_sooner(self, reservation: Reservation, expires_at_ms: int) -> None:
        """Change a reservation's expiry to an earlier one.

        A later one can simply be set: the expiry queue finds out when the old time comes. An
        earlier one would be found too late, so it has to be queued.
        """
        self.change_reservation(reservation)
        reservation.expires_at_ms = expires_at_ms
        heapq.heappush(self._expiries, (expires_at_ms, reservation.reservation_id))

    def reopen(self, reservation: Reservation) -> None:
        """Open an expired reservation again, until a time that is set already."""
        key = reservation.reservation_id
        # It is still cached if it has expired in this same unit; an undo must leave it there then.
        if key not in self.reservations:
            self.undo_log.append((self._drop_reservation, key))
        reservation.state = "open"
        self._index_open(reservation)

    def lease_holds(self, balance_ids: Sequence[int], limit: int) -> list[LeaseHold]:
        """Return open leases that hold money on any of these balances.

        Args:
            balance_ids: the balances.
            limit: maximum leases of one balance to look at; where there are more, the next call
                looks at the next ones.
        """
        found = {
            lease.reservation_id: LeaseHold(lease.held, lease.key_id, lease.reservation_id)
            for balance_id in balance_ids
            for lease in self.lease_index.turn(balance_id, limit)
            if lease.state == "open" and lease.held and not lease.closing
        }
        return list(found.values())

    def leased(self, organisation_id: str, root_id: str, limit: int) -> dict[int, int] | None:
        """Return, by balance, what the open leases of a key and of those below it hold.

        ``None`` if there are more than the limit.
        """
        own = self.lease_index.of_key(organisation_id, root_id)
        return None if len(own) > limit else held_by_key(own, organisation_id, root_id)

    def all_renewed(self) -> list[Reservation]:
        """Return every open lease, and the open reservations that are renewed."""
        return [
            each
            for each in self.reservations.values()
            if each.state == "open" and (each.is_lease or each.renewed)
        ]

    def expired_reservations(self, limit: int) -> list[Reservation]:
        """Return open reservations past their expiry that this unit may change.

        Each is returned once, unless the command fails: the caller has to close all of them.
        """
        expired: list[Reservation] = []
        heap = self._expiries
        while heap and heap[0][0] <= self.now_ms and len(expired) < limit:
            entry = heapq.heappop(heap)
            # Whatever is found: what this unit has closed or renewed is open and due again if the
            # unit is undone. An entry too many is passed over in its turn.
            self.on_undo(heapq.heappush, heap, entry)
            reservation = self.reservations.get(entry[1])
            # 1. Closed since it was queued.
            if reservation is None or reservation.state != "open":
                continue
            # 2. Renewed since: queued for its new time.
            if reservation.expires_at_ms > self.now_ms:
                heapq.heappush(heap, (reservation.expires_at_ms, entry[1]))
                continue
            # 3. Expired. The caller closes it.
            expired.append(reservation)
        return expired

    # -- events --------------------------------------------------------------------------------

    def add_event(
        self, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
        flags: Sequence[str], balance_ids: Sequence[int],
    ) -> bool:  # fmt: skip
        """Record an event; ``False`` when its id or its response was recorded before.

        The one guard against charging twice: it holds across batches, processes and replicas.
        """
        own, numbers = organisation_id, tuple(balance_ids)
        return add_event(self, own, key_id, priced, charged_at_ms, " ".join(flags), numbers)

    def see_workflow(self, organisation_id: str, workflow_id: str, calls: int = 0) -> None:
        """Note that a workflow is in use, and how many calls it makes."""
        self.usage.see(organisation_id, "workflow", workflow_id, calls=calls)

    def see_run(
        self, organisation_id: str, run_id: str, workflow_id: str | None, *, spent: int = 0
    ) -> None:
        """Note that a run is in use."""
        self.usage.see(organisation_id, "run", run_id, spent=spent != 0, owner=workflow_id)

    def count_usage(
        self, organisation_id: str, keys: ScopeKeys, at_ms: int, priced: PricedEvent
    ) -> None:
        """Add an event to the usage of its scopes."""
        self.usage.count(organisation_id, keys, at_ms, priced)

    def count_doubtful_tokens(
        self, organisation_id: str, keys: ScopeKeys, at_ms: int, priced: PricedEvent, tokens: int
    ) -> None:
        """Add an event's tokens to the charges in doubt, if it was charged in doubt."""
        self.usage.count_doubtful_tokens(organisation_id, keys, at_ms, priced, tokens)

    def charged_hours(
        self, organisation_id: str, since_ms: int, until_ms: int, provider: str | None
    ) -> list[ChargedHour]:
        """Return the charges of LLM requests, by hour, provider and model."""
        return charged_hours(self, organisation_id, since_ms, until_ms, provider)

    def resolve_doubt(self, organisation_id: str, hour: ChargedHour) -> None:
        """Take a resolved doubt out of the usage of the organisation and the model."""
        self.usage.resolve(organisation_id, hour)
        resolve_hour(self, organisation_id, hour)

    def add_refusal(
        self, request: RequestOrigin, call: wire.GateRequest, refusal: CallRefusal
    ) -> None:
        """Record a refused call."""
        self.refusals.add(request, call, refusal)

    # -- answers -------------------------------------------------------------------------------

    def stored_answer(self, lookup_key: str) -> StoredAnswer | None:
        """Return the answer stored under a key that the scopes named."""
        return self.answers.find(lookup_key)

    def store_answer(self, lookup_key: str, answer: StoredAnswer) -> None:
        """Store an answer for repeats, for half a day at least."""
        self.answers.keep(lookup_key, answer)

    # -- write back ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Write every changed row into its table, in the transaction that is open.

        Called once before the commit, and by retention in the middle of a unit. The caches are not
        undone to before it unless the whole unit is.
        """
        # Releases the savepoint of the last command: a flush is of the unit, not of a command.
        self.savepoint()
        change = self.connection.change
        if self._dirty_balances:
            change(_SAVE_BALANCE, map(_CHANGED_BALANCE, self._dirty_balances.values()))
        if self._new_reservations:
            change(_ADD_RESERVATION, map(RESERVATIONS.row, self._new_reservations.values()))
        if self._dirty_reservations:
            change(_SAVE_RESERVATION, map(_CHANGED_RESERVATION, self._dirty_reservations.values()))
        # Before ``_forget_changes``: the cache still has those that were open until now.
        for changed in (self._new_reservations, self._dirty_reservations):
            self.counts.written(changed, self.reservations)
        self.answers.flush()
        self.usage.flush()
        self.refusals.flush()
        for kept in self.kept:
            kept.flush()
        self._forget_changes()

    def _forget_changes(self) -> None:
        """Clear the change marks; closed reservations leave the cache.

        The rows are written but not committed, so leaving the cache is logged as well: a failed
        commit opens the reservations again.
        """
        for changed in (self._new_reservations, self._dirty_reservations):
            for key, reservation in changed.items():
                if reservation.state == "open":
                    continue
                for cache in (self.reservations, self.leases):
                    if cache.pop(key, None) is not None:
                        self.on_undo(cache.__setitem__, key, reservation)
                        if cache is self.leases:
                            self.lease_index.drop(reservation)
                            self.on_undo(self.lease_index.add, reservation)
            changed.clear()
        self._dirty_balances.clear()
        for kept in self.kept:
            kept.forget_changes()
