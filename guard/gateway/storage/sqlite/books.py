"""The writer thread's working set: cached rows, what changed, and how it is written back.

One process owns the file, so a cached row is the truth. Rows that many requests share (balances,
workflows) are written once per group; a rollback throws the whole cache away and reads it again.
"""

from __future__ import annotations

import heapq
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain import records, windows
from guard.gateway.domain.commands import Answer, Request
from guard.gateway.domain.control import ControlBook
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import Account, Balance, Reservation
from guard.gateway.storage.port import Announcement
from guard.gateway.storage.sqlite.figures import FigureTable
from guard.gateway.storage.sqlite.opening import spent_before
from guard.gateway.storage.sqlite.replay import ReplayTable
from guard.gateway.storage.sqlite.rows import (
    balance_from_row,
    budget_from_row,
    ids_text,
    reservation_from_row,
)

CACHE_MAX: Final = 50_000

Dims = tuple[str | None, str | None, str | None, str | None, str | None]
"""Workflow, agent, chain, key and model of a call or an event."""

_DIM_KINDS: Final = ("workflow", "agent", "chain", "key", "model")


class Chain(Struct):
    """An open or closed chain."""

    opened_at_ms: int
    expires_at_ms: int
    closed: bool


class OrgState(Struct):
    """What the writer keeps of one organisation."""

    organisation_id: str
    settings: records.OrganisationSettings
    control_seq: int
    control: ControlBook
    rules: dict[str, dict[str, list[records.Budget]]]
    accounts: dict[Dims, tuple[float, list[Account]]]
    compacted_seq: int = 0


class Books:
    """Implements :class:`guard.gateway.storage.sqlite.writer.Engine` over one connection."""

    def __init__(self, connection: sqlite3.Connection, clock_ms: Callable[[], int]) -> None:
        self.connection = connection
        self.ids = IdFactory()
        self.epoch = secrets.token_hex(8)
        self.now = 0
        self._clock_ms = clock_ms
        self.announcements: list[Announcement] = []
        self._load()

    # -- transaction ---------------------------------------------------------------------------

    def begin(self, hints: list[str]) -> None:
        """Open a transaction and read the store's clock, which never runs backwards.

        ``hints`` are the idempotency keys of the group, looked up together.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        self.now = max(self.now, self._clock_ms())
        self._replies.begin(self.now, hints)

    def commit(self) -> list[Announcement]:
        """Write back everything that changed, commit, and return what has to be announced."""
        self.flush()
        self.connection.execute("COMMIT")
        news, self.announcements = self.announcements, []
        return news

    def rollback(self) -> None:
        """Drop the transaction and every cached row."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._load()

    def truncate_log(self) -> None:
        """Copy the whole write-ahead log into the database and start it afresh."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _load(self) -> None:
        execute = self.connection.execute
        self.announcements = []
        self.orgs: dict[str, OrgState] = {}
        self.balances: dict[int, Balance] = {}
        self.reservations: dict[str, Reservation] = {}
        self.exhausted: dict[int, str] = {}
        self.expiries: list[tuple[int, str]] = []
        self.chains: dict[tuple[str, str], Chain] = {}
        self.estimates: dict[tuple[str, str], Estimate] = {}
        self._dirty_balances: dict[int, Balance] = {}
        self._new_reservations: dict[str, Reservation] = {}
        self._dirty_reservations: dict[str, Reservation] = {}
        self._dirty_chains: dict[tuple[str, str], Chain] = {}
        self._dirty_estimates: dict[tuple[str, str], Estimate] = {}
        self._workflow_deltas: dict[tuple[str, str], list[int]] = {}
        self._run_deltas: dict[tuple[str, str], list[Any]] = {}
        self._replies = ReplayTable(self.connection)
        self.figures = FigureTable(self.connection)
        row = execute("SELECT value FROM facts WHERE name = 'clock_ms'").fetchone()
        if row is not None:
            self.now = max(self.now, int(row[0]))
        for (organisation_id,) in execute("SELECT organisation_id FROM organisations").fetchall():
            self.reload_org(organisation_id)
        for row in execute(
            "SELECT * FROM reservations WHERE reservation_id >= coalesce((SELECT value FROM facts"
            " WHERE name = 'oldest_open'), '') AND state = 'open'"
        ).fetchall():
            self._adopt(reservation_from_row(row))
        for row in execute(
            "SELECT b.balance_id, u.organisation_id FROM balances b JOIN budgets u"
            " USING (budget_id) WHERE b.exhausted = 1"
        ).fetchall():
            self.exhausted[row[0]] = row[1]

    def reload_org(self, organisation_id: str) -> None:
        """Read one organisation's settings, budgets and standing orders again."""
        execute = self.connection.execute
        row = execute(
            "SELECT settings, control_seq FROM organisations WHERE organisation_id = ?",
            (organisation_id,),
        ).fetchone()
        rules: dict[str, dict[str, list[records.Budget]]] = {}
        for budget in self.read_budgets(organisation_id):
            rules.setdefault(budget.scope_kind, {}).setdefault(budget.scope_id, []).append(budget)
        book = ControlBook()
        for (message,) in execute(
            "SELECT message FROM orders WHERE organisation_id = ?", (organisation_id,)
        ):
            book.apply(msgspec.json.decode(message, type=wire.ControlMessage))
        self.orgs[organisation_id] = OrgState(
            organisation_id=organisation_id,
            settings=msgspec.json.decode(row[0], type=records.OrganisationSettings),
            control_seq=row[1],
            control=book,
            rules=rules,
            accounts={},
        )

    def read_budgets(self, organisation_id: str) -> list[records.Budget]:
        """Return the budgets of an organisation as stored."""
        rows = self.connection.execute(
            "SELECT * FROM budgets WHERE organisation_id = ?", (organisation_id,)
        ).fetchall()
        return [budget_from_row(row) for row in rows]

    # -- balances ------------------------------------------------------------------------------

    def accounts(self, org: OrgState, dims: Dims) -> list[Account]:
        """Return every balance over a call or event in the current epochs."""
        cached = org.accounts.get(dims)
        if cached is not None and self.now < cached[0]:
            return cached[1]
        accounts: list[Account] = []
        valid_until = float("inf")
        for rule, scope_id in self._applying(org, dims):
            epoch_ms, ends_ms = windows.epoch_of(rule.window, self.now)
            valid_until = min(valid_until, ends_ms if ends_ms is not None else valid_until)
            accounts.append(Account(rule, self._balance(org, rule, scope_id, epoch_ms, ends_ms)))
        # A fixed order, so that a storage with row locks takes them in the same one.
        accounts.sort(key=lambda account: account.balance.balance_id)
        if len(org.accounts) >= CACHE_MAX:
            org.accounts.clear()
        org.accounts[dims] = (valid_until, accounts)
        return accounts

    def _applying(self, org: OrgState, dims: Dims) -> Iterable[tuple[records.Budget, str]]:
        for rule in org.rules.get("organisation", {}).get("", ()):
            yield rule, ""
        for kind, scope_id in zip(_DIM_KINDS, dims, strict=True):
            of_kind = org.rules.get(kind)
            if of_kind is None or scope_id is None:
                continue
            exact = of_kind.get(scope_id, [])
            taken = {rule.window for rule in exact}
            for rule in exact:
                yield rule, scope_id
            for rule in of_kind.get("*", ()):
                if rule.window not in taken:
                    yield rule, scope_id

    def _balance(
        self, org: OrgState, rule: records.Budget, scope_id: str, epoch_ms: int, ends_ms: int | None
    ) -> Balance:
        row = self.connection.execute(
            "SELECT balance_id FROM balances WHERE budget_id = ? AND scope_id = ? AND epoch_ms = ?",
            (rule.budget_id, scope_id, epoch_ms),
        ).fetchone()
        if row is not None:
            return self.balance(row[0])
        opening = spent_before(
            self.connection, org.organisation_id, rule, scope_id, epoch_ms, ends_ms
        )
        cursor = self.connection.execute(
            "INSERT INTO balances (budget_id, scope_id, epoch_ms, ends_ms, opening, committed,"
            " reserved, overshoot, bound, level, exhausted) VALUES (?,?,?,?,?,?,0,?,?,0,0)",
            (rule.budget_id, scope_id, epoch_ms, ends_ms, opening, opening,
             max(0, opening - rule.limit_nanousd), rule.limit_nanousd),
        )  # fmt: skip
        assert cursor.lastrowid is not None
        return self.balance(cursor.lastrowid)

    def balance(self, balance_id: int) -> Balance:
        """Return a balance by its number."""
        found = self.balances.get(balance_id)
        if found is None:
            row = self.connection.execute(
                "SELECT * FROM balances WHERE balance_id = ?", (balance_id,)
            ).fetchone()
            found = balance_from_row(row)
            self.balances[balance_id] = found
        return found

    def touch_balances(self, balances: Iterable[Balance]) -> None:
        """Remember balances to be written back."""
        for balance in balances:
            self._dirty_balances[balance.balance_id] = balance

    # -- reservations --------------------------------------------------------------------------

    def reservation(self, reservation_id: str) -> Reservation | None:
        """Return a reservation in whatever state, or ``None`` when there never was one."""
        found = self.reservations.get(reservation_id) or self._dirty_reservations.get(
            reservation_id
        )
        if found is None:
            row = self.connection.execute(
                "SELECT * FROM reservations WHERE reservation_id = ?", (reservation_id,)
            ).fetchone()
            found = None if row is None else reservation_from_row(row)
        return found

    def open_reservation(self, reservation: Reservation) -> None:
        """Add a new hold."""
        self._new_reservations[reservation.reservation_id] = reservation
        self._adopt(reservation)

    def _adopt(self, reservation: Reservation) -> None:
        self.reservations[reservation.reservation_id] = reservation
        heapq.heappush(self.expiries, (reservation.expires_at_ms, reservation.reservation_id))

    def touch_reservation(self, reservation: Reservation) -> None:
        """Remember a changed reservation; a closed one leaves the working set."""
        key = reservation.reservation_id
        if key not in self._new_reservations:
            self._dirty_reservations[key] = reservation
        if reservation.state != "open" and key not in self._new_reservations:
            self.reservations.pop(key, None)

    # -- idempotency ---------------------------------------------------------------------------

    def replay(self, request: Request) -> Answer | None:
        """Return the kept answer to a repeated request, a conflict, or ``None`` for a new one."""
        return None if request.idempotency_key is None else self._replies.find(request)

    def keep(self, request: Request, answer: Answer) -> None:
        """Keep an answer for repeats, in the transaction that its effects belong to."""
        if request.idempotency_key is not None and answer.kept:
            self._replies.keep(request, answer)

    # -- small tables --------------------------------------------------------------------------

    def chain(self, organisation_id: str, chain_id: str) -> Chain | None:
        """Return a chain if it is open now."""
        key = (organisation_id, chain_id)
        chain = self.chains.get(key)
        if chain is None:
            row = self.connection.execute(
                "SELECT opened_at_ms, expires_at_ms, closed FROM chains"
                " WHERE organisation_id = ? AND chain_id = ?",
                key,
            ).fetchone()
            if row is None:
                return None
            self._bound_cache(self.chains, self._dirty_chains)
            chain = self.chains[key] = Chain(row[0], row[1], bool(row[2]))
        return None if chain.closed or chain.expires_at_ms <= self.now else chain

    def set_chain(self, organisation_id: str, chain_id: str, chain: Chain) -> None:
        """Write a chain."""
        key = (organisation_id, chain_id)
        self.chains[key] = self._dirty_chains[key] = chain

    def estimate(self, organisation_id: str, subject: str) -> Estimate | None:
        """Return what calls of one kind have cost, if any were seen."""
        key = (organisation_id, subject)
        known = self.estimates.get(key)
        if known is None:
            row = self.connection.execute(
                "SELECT count, mean, variance FROM estimates"
                " WHERE organisation_id = ? AND subject = ?",
                key,
            ).fetchone()
            self._bound_cache(self.estimates, self._dirty_estimates)
            known = self.estimates[key] = Estimate(*row) if row else Estimate()
        return known if known.count else None

    def learn(self, organisation_id: str, subject: str, cost: int) -> None:
        """Take the cost of a finished call into its estimate."""
        self.estimate(organisation_id, subject)
        key = (organisation_id, subject)
        known = self.estimates[key]
        known.learn(cost)
        self._dirty_estimates[key] = known

    def seen(
        self,
        org: OrgState,
        workflow_id: str | None,
        run_id: str | None,
        *,
        spent: int = 0,
        calls: int = 0,
        events: int = 0,
    ) -> None:
        """Count a call or an event for its workflow and run."""
        now = self.now
        if workflow_id is not None:
            delta = self._workflow_deltas.setdefault(
                (org.organisation_id, workflow_id), [now, now, 0, 0, 0]
            )
            delta[1] = now
            delta[2] += spent
            delta[3] += calls
            delta[4] += events
        if run_id is not None:
            run = self._run_deltas.setdefault(
                (org.organisation_id, run_id), [workflow_id, now, now, 0]
            )
            run[2] = now
            run[3] += spent

    @staticmethod
    def _bound_cache(cache: dict[Any, Any], dirty: dict[Any, Any]) -> None:
        if len(cache) >= CACHE_MAX:
            cache.clear()
            cache.update(dirty)

    # -- write back ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Write every changed row into its table, in the transaction that is open."""
        many = self.connection.executemany
        if self._dirty_balances:
            many(
                "UPDATE balances SET committed = ?, reserved = ?, overshoot = ?, bound = ?,"
                " level = ?, exhausted = ? WHERE balance_id = ?",
                [(b.committed, b.reserved, b.overshoot, b.bound, b.level, b.exhausted, b.balance_id)
                 for b in self._dirty_balances.values()],
            )  # fmt: skip
            self._dirty_balances.clear()
        if self._new_reservations:
            many(
                "INSERT INTO reservations VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [(r.reservation_id, r.organisation_id, r.key_id, r.call_id,
                  ids_text(r.balance_ids), r.amount, r.held, r.created_at_ms, r.expires_at_ms,
                  r.spent, r.state, r.basis, r.workflow_id, r.run_id, r.chain_id, r.agent,
                  r.model, r.function) for r in self._new_reservations.values()],
            )  # fmt: skip
            for key, reservation in self._new_reservations.items():
                if reservation.state != "open":
                    self.reservations.pop(key, None)
            self._new_reservations.clear()
        if self._dirty_reservations:
            many(
                "UPDATE reservations SET held = ?, expires_at_ms = ?, spent = ?, state = ?"
                " WHERE reservation_id = ?",
                [(r.held, r.expires_at_ms, r.spent, r.state, r.reservation_id)
                 for r in self._dirty_reservations.values()],
            )  # fmt: skip
            self._dirty_reservations.clear()
        if self._workflow_deltas:
            many(
                "INSERT INTO workflows VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
                " last_seen_ms = excluded.last_seen_ms,"
                " spent_nanousd = spent_nanousd + excluded.spent_nanousd,"
                " calls = calls + excluded.calls, events = events + excluded.events",
                [(*key, *delta) for key, delta in self._workflow_deltas.items()],
            )
            self._workflow_deltas.clear()
        if self._run_deltas:
            many(
                "INSERT INTO runs VALUES (?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
                " last_seen_ms = excluded.last_seen_ms,"
                " spent_nanousd = spent_nanousd + excluded.spent_nanousd",
                [(*key, *delta) for key, delta in self._run_deltas.items()],
            )
            self._run_deltas.clear()
        self._replies.flush()
        self.figures.flush()
        if self._dirty_chains:
            many(
                "INSERT OR REPLACE INTO chains VALUES (?,?,?,?,?)",
                [(*key, c.opened_at_ms, c.expires_at_ms, c.closed)
                 for key, c in self._dirty_chains.items()],
            )  # fmt: skip
            self._dirty_chains.clear()
        if self._dirty_estimates:
            many(
                "INSERT OR REPLACE INTO estimates VALUES (?,?,?,?,?)",
                [(*key, e.count, e.mean, e.variance) for key, e in self._dirty_estimates.items()],
            )
            self._dirty_estimates.clear()
