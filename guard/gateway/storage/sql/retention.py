"""Retention: deletes old rows in batches, keeping totals.

The cost of a deleted event moves into the ``opening`` of its balances, so that each balance is
still the sum of its opening and its entries. The running totals of its scopes stay, so that a
budget that is set later still counts it. Data of the current month is never deleted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, LiteralString

from msgspec import Struct

from guard.gateway.domain.usage import DAY_MS, HOUR_MS
from guard.gateway.domain.windows import period_of
from guard.gateway.ledger import audit
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import BALANCES, CHAINS, ESTIMATES, RAISES
from guard.gateway.unit.unit_of_work import UnitOfWork

STEP_ROWS: Final = 500
"""Rows that one step changes, in all tables together. A step is one transaction."""

READS_PER_CHANGE: Final = 8
"""Rows that are only read, for the cost of one deleted row."""

WORKFLOWS_KEPT_MS: Final = 400 * DAY_MS
WEEK_MS: Final = 7 * DAY_MS
STEPS_MAX: Final = 100
"""Steps of one sweep; waiting requests run between them."""

_PACE_MS: Final = 60_000
_ROUND_PACE_MS: Final = HOUR_MS
_EVENT_SQL: Final = (
    "SELECT event_seq, received_at_ms, cost_nanousd, balance_ids FROM events"
    " ORDER BY event_seq LIMIT ?"
)
_UNNAMED: Final = (
    "NOT EXISTS (SELECT 1 FROM reservations r WHERE r.organisation_id = c.organisation_id"
    " AND r.chain_id = c.chain_id) AND NOT EXISTS (SELECT 1 FROM events e"
    " WHERE e.organisation_id = c.organisation_id AND e.chain_id = c.chain_id)"
)
_USAGE: Final = Table("usage")
_DELETE_USAGE: Final = _USAGE.delete()
_UNSEE: Final = _USAGE.update(("calls", "first_ms", "last_ms"))
_OPEN_WITH: Final = BALANCES.update((), add=("opening",))
_END: Final = BALANCES.update(("ends_ms",))


class _Part(Struct):
    """One table's progress: where its walk continues, and when the next one begins.

    Not stored, and not undone with a failed step: a row that is missed once is found by the next
    walk.
    """

    work: Callable[[UnitOfWork, int, int, _Part], int]
    pace_ms: int
    cursor: tuple[Any, ...] = ()
    next_ms: int = 0
    walked: int = 0


class Retention:
    """Used inside a unit of work.

    Args:
        keep_days: how long data is kept; 0 keeps everything.
        keep_audit_days: how long the audit log is kept; 0 keeps all of it.
    """

    def __init__(self, keep_days: int, keep_audit_days: int) -> None:
        tables = [
            _Part(_events, _PACE_MS),
            _Part(_reservations, _PACE_MS),
            _Part(_refusals, _PACE_MS),
            _Part(_approvals, _PACE_MS),
            _Part(_deliveries, _PACE_MS),
            _Part(_runs, _ROUND_PACE_MS),
            _Part(_chains, _ROUND_PACE_MS),
            _Part(_workflows, _ROUND_PACE_MS),
            _Part(_estimates, _ROUND_PACE_MS),
            _Part(_directives, _ROUND_PACE_MS),
            _Part(_totals, _ROUND_PACE_MS),
            _Part(_quarters, DAY_MS),
            _Part(_balances, _ROUND_PACE_MS),
            _Part(_raises, _ROUND_PACE_MS),
        ]
        self.keep_ms = keep_days * DAY_MS
        self._keep_audit_ms = keep_audit_days * DAY_MS
        self._parts = tables if keep_days else []
        if keep_audit_days:
            # Every pruning adds an entry, so it runs once a day.
            self._parts.append(_Part(self._audit, DAY_MS))

    def is_due(self, now_ms: int) -> bool:
        """Return whether a step has anything to do."""
        return any(part.next_ms <= now_ms for part in self._parts)

    def _audit(self, unit: UnitOfWork, _: int, limit: int, __: _Part) -> int:
        return audit.prune(unit, unit.now_ms - self._keep_audit_ms, limit)

    def step(self, unit: UnitOfWork) -> None:
        """Delete at most ``STEP_ROWS`` old rows."""
        # Earlier commands of the group have changed cached rows, and the queries below read the
        # tables. The savepoint after it: an undo of this step must not undo the flush.
        unit.flush()
        unit.savepoint()
        now, left = unit.now_ms, STEP_ROWS
        cutoff = cutoff_ms(now, self.keep_ms)
        # A table that had its turn goes to the end, so that its backlog does not block the others.
        for part in [part for part in self._parts if part.next_ms <= now]:
            if left <= 0:
                break
            before = unit.changed_rows
            looked_at = part.work(unit, cutoff, left, part)
            changed = unit.changed_rows - before
            # Fewer than it was allowed: the walk has reached the end of the table.
            if looked_at < left:
                part.cursor, part.next_ms = (), now + part.pace_ms
            left -= max(changed, looked_at // READS_PER_CHANGE)
            self._parts.remove(part)
            self._parts.append(part)


def cutoff_ms(now_ms: int, keep_ms: int) -> int:
    """Return the time before which rows may be deleted: never one of the current month or week.

    Both may have begun a day earlier in another zone, and a week on any day.

    >>> cutoff_ms(40 * DAY_MS, 1 * DAY_MS) // DAY_MS  # tenth of February: the day before the first
    30
    >>> cutoff_ms(35 * DAY_MS, 1 * DAY_MS) // DAY_MS  # the fifth: more than a week before
    26
    """
    month_ms, _ = period_of("month", now_ms - DAY_MS)
    return min(now_ms - keep_ms, month_ms - DAY_MS, now_ms - WEEK_MS - 2 * DAY_MS)


# -- tables in the order of time -------------------------------------------------------------------


def _events(unit: UnitOfWork, cutoff: int, limit: int, _: _Part) -> int:
    # The newest event stays, whatever its age, because the next number follows from it.
    rows = unit.connection.execute(_EVENT_SQL, (limit + 1,)).fetchall()[:-1]
    old = [row for row in rows if row[1] < cutoff]
    if not old:
        return 0
    openings: Counter[int] = Counter()
    for _, _, cost, balance_ids in old:
        for balance_id in json.loads(balance_ids) if cost else ():
            openings[balance_id] += cost
    unit.write_many(_OPEN_WITH, [(cost, balance_id) for balance_id, cost in openings.items()])
    # The cached copies too: the next flush writes their whole rows.
    for balance_id, cost in openings.items():
        if balance_id in unit.balances:
            unit.change_balances([unit.balances[balance_id]])
            unit.balances[balance_id].opening += cost
    unit.write_many(Table("events").delete(), [(row[0],) for row in old])
    return len(old)


def _refusals(unit: UnitOfWork, cutoff: int, limit: int, _: _Part) -> int:
    rows = unit.connection.execute(
        "SELECT refusal_seq, at_ms FROM refusals ORDER BY refusal_seq LIMIT ?", (limit + 1,)
    ).fetchall()[:-1]
    old = [(seq,) for seq, at_ms in rows if at_ms < cutoff]
    unit.write_many(Table("refusals").delete(), old)
    return len(old)


def _reservations(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    return _by_id(
        unit, cutoff, limit, part,
        "SELECT reservation_id, state != 'open' AND expires_at_ms < ? FROM reservations"
        " WHERE reservation_id > ? AND reservation_id < ? ORDER BY reservation_id LIMIT ?",
        "reservations",
    )  # fmt: skip


def _approvals(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    return _by_id(
        unit, cutoff, limit, part,
        "SELECT approval_id, status != 'pending' AND max(deadline_ms, answered_at_ms) < ?"
        " FROM approvals WHERE approval_id > ? AND approval_id < ? ORDER BY approval_id LIMIT ?",
        "approvals",
    )  # fmt: skip


def _deliveries(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    return _by_id(
        unit, cutoff, limit, part,
        "SELECT delivery_id, failed = 1 OR delivered_at_ms < ? FROM deliveries"
        " WHERE delivery_id > ? AND delivery_id < ? ORDER BY delivery_id LIMIT ?",
        "deliveries",
    )  # fmt: skip


def _by_id(
    unit: UnitOfWork, cutoff: int, limit: int, part: _Part, select: str, table: LiteralString
) -> int:
    """Walk a table whose ids begin with their creation time."""
    (after,) = part.cursor or ("",)
    end = f"{cutoff:012x}"
    rows = unit.connection.execute(
        select, (cutoff, after, f"{end[:8]}-{end[8:]}", limit)
    ).fetchall()
    unit.write_many(Table(table).delete(), [(row_id,) for row_id, is_over in rows if is_over])
    if rows:
        part.cursor = (rows[-1][0],)
    return len(rows)


# -- tables without such an order, walked in rounds ------------------------------------------------


def _runs(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Delete runs that were not seen for long."""
    _forget_totals(unit, "run", _unseen(unit, cutoff, limit, part, "run"))
    return part.walked


def _workflows(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Take workflows that were not seen for long from the lists; their totals stay."""
    old = _unseen(unit, cutoff, limit, part, "workflow")
    unit.usage.flush()
    unit.write_many(_UNSEE, [(0, None, None, *_total_of("workflow", *each)) for each in old])
    return part.walked


def _unseen(
    unit: UnitOfWork, cutoff: int, limit: int, part: _Part, kind: str
) -> list[tuple[str, str]]:
    """Walk the workflows or runs that are listed, and return those that were not seen for long."""
    rows = unit.connection.execute(
        "SELECT organisation_id, scope_id, last_ms FROM usage WHERE scope_kind = ? AND size_ms = 0"
        " AND start_ms = 0 AND last_ms IS NOT NULL AND (organisation_id, scope_id) > (?, ?)"
        " ORDER BY organisation_id, scope_id LIMIT ?",
        (kind, *(part.cursor or ("", "")), limit),
    ).fetchall()
    if rows:
        part.cursor = rows[-1][:2]
    part.walked = len(rows)
    return [row[:2] for row in rows if row[2] < cutoff]


def _chains(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Delete chains that no stored event or reservation refers to any more."""
    rows = unit.connection.execute(
        f"SELECT organisation_id, chain_id, expires_at_ms < ? AND {_UNNAMED} FROM chains c"
        " WHERE (organisation_id, chain_id) > (?, ?) ORDER BY organisation_id, chain_id LIMIT ?",
        (cutoff, *(part.cursor or ("", "")), limit),
    ).fetchall()
    over = [row[:2] for row in rows if row[2]]
    unit.write_many(CHAINS.delete(), over)
    _forget_totals(unit, "chain", over)
    for key in over:
        unit.chains.drop(*key)
    if rows:
        part.cursor = rows[-1][:2]
    return len(rows)


def _estimates(unit: UnitOfWork, _: int, limit: int, part: _Part) -> int:
    """Delete the estimates of workflows that have been deleted."""
    rows = unit.connection.execute(
        "SELECT organisation_id, subject FROM estimates"
        " WHERE (organisation_id, subject) > (?, ?) ORDER BY organisation_id, subject LIMIT ?",
        (*(part.cursor or ("", "")), limit),
    ).fetchall()
    # Decoded here: the engines differ in the JSON that they accept, and one name that an engine
    # refuses would stop the whole query.
    workflows = {(own, subject): json.loads(subject)[0] for own, subject in rows}
    left = _known_workflows(unit, {(own, name) for (own, _), name in workflows.items() if name})
    over = [key for key, name in workflows.items() if name and (key[0], name) not in left]
    unit.write_many(ESTIMATES.delete(), over)
    for key in over:
        unit.estimates.drop(*key)
    if rows:
        part.cursor = rows[-1][:2]
    return len(rows)


def _known_workflows(unit: UnitOfWork, named: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the named workflows that are stored."""
    if not named:
        return set()
    places = ", ".join(["(?, ?)"] * len(named))
    rows = unit.connection.execute(
        "SELECT organisation_id, scope_id FROM usage WHERE scope_kind = 'workflow'"
        " AND size_ms = 0 AND start_ms = 0 AND last_ms IS NOT NULL"
        f" AND (organisation_id, scope_id) IN (VALUES {places})",
        tuple(value for each in named for value in each),
    ).fetchall()
    return {(own, name) for own, name in rows}


def _directives(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Delete the directives of runs that have been deleted."""
    rows = unit.connection.execute(
        "SELECT organisation_id, run_id, slot, at_ms < ? AND NOT EXISTS"
        " (SELECT 1 FROM usage r WHERE r.organisation_id = d.organisation_id"
        " AND r.scope_kind = 'run' AND r.size_ms = 0 AND r.start_ms = 0"
        " AND r.scope_id = d.run_id) FROM directives d WHERE target = '' AND run_id <> ''"
        " AND (organisation_id, target, run_id, slot) > (?, '', ?, ?)"
        " ORDER BY organisation_id, target, run_id, slot LIMIT ?",
        (cutoff, *(part.cursor or ("", "", "")), limit),
    ).fetchall()
    over = [row[:3] for row in rows if row[3]]
    unit.write_many(Table("directives").delete(), [(own, "", *rest) for own, *rest in over])
    for organisation_id, run_id, slot in over:
        unit.on_undo(unit.orgs[organisation_id].directives.forget_run(run_id, slot))
    if rows:
        part.cursor = rows[-1][:3]
    return len(rows)


def _totals(unit: UnitOfWork, _: int, limit: int, part: _Part) -> int:
    """Delete the totals of chains that nothing refers to any more."""
    rows = unit.connection.execute(
        "SELECT organisation_id, chain_id, chain_id > '' AND NOT EXISTS (SELECT 1 FROM chains n"
        f" WHERE n.organisation_id = c.organisation_id AND n.chain_id = c.chain_id) AND {_UNNAMED}"
        " FROM (SELECT organisation_id, scope_id AS chain_id FROM usage"
        " WHERE scope_kind = 'chain' AND size_ms = 0 AND start_ms = 0"
        " AND (organisation_id, scope_id) > (?, ?) ORDER BY organisation_id, scope_id LIMIT ?) c",
        (*(part.cursor or ("", "")), limit),
    ).fetchall()
    _forget_totals(unit, "chain", [row[:2] for row in rows if row[2]])
    if rows:
        part.cursor = rows[-1][:2]
    return len(rows)


def _forget_totals(unit: UnitOfWork, kind: str, scopes: Iterable[tuple[str, str]]) -> None:
    unit.usage.flush()
    unit.write_many(_DELETE_USAGE, [_total_of(kind, *scope) for scope in scopes])


def _total_of(kind: str, organisation_id: str, scope_id: str) -> tuple[Any, ...]:
    """Return the key of the row of all time of a scope."""
    return organisation_id, kind, 0, 0, scope_id, "", "", ""


def _quarters(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Delete the quarter hours of scopes whose events are deleted.

    Those of workflows are shown for longer, and an organisation's own stay.
    """
    key = ", ".join(_USAGE.key)
    places = ", ".join("?" * len(_USAGE.key))
    ends = {"workflow": min(cutoff, unit.now_ms - WORKFLOWS_KEPT_MS)}
    after: tuple[Any, ...] = part.cursor or ("", "", 0, 0, "", "", "", "")
    rows = unit.connection.execute(
        f"SELECT {key} FROM usage WHERE ({key}) > ({places}) ORDER BY {key} LIMIT ?",
        (*after, limit),
    ).fetchall()
    unit.write_many(
        _DELETE_USAGE,
        [
            row
            for row in rows
            if row[1] != "organisation" and 0 < row[2] <= ends.get(row[1], cutoff) - row[3]
        ],
    )
    if rows:
        part.cursor = tuple(rows[-1])
    return len(rows)


def _raises(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Delete raises of long ago, and so the memory of their keys; the limits stay raised."""
    rows = unit.connection.execute(
        "SELECT organisation_id, raise_key, raised_at_ms FROM budget_raises"
        " WHERE (organisation_id, raise_key) > (?, ?) ORDER BY organisation_id, raise_key LIMIT ?",
        (*(part.cursor or ("", "")), limit),
    ).fetchall()
    over = [(row[0], row[1]) for row in rows if row[2] < cutoff]
    unit.write_many(RAISES.delete(), over)
    if rows:
        part.cursor = (rows[-1][0], rows[-1][1])
    return len(rows)


def _balances(unit: UnitOfWork, cutoff: int, limit: int, part: _Part) -> int:
    """Delete balances of ended windows without reservations and charges, and of deleted chains.

    A window without an end ends here once its budget was removed, and leaves like the others.
    """
    execute = unit.connection.execute
    floor = cutoff
    # No balance of a stored reservation or event has ended before that was made. So balances that
    # ended before the oldest of both have neither.
    oldest = execute(
        "SELECT created_at_ms FROM reservations ORDER BY reservation_id LIMIT 1"
    ).fetchone()
    if oldest is not None:
        floor = min(floor, oldest[0])
    for organisation_id in unit.orgs:
        (charged_at_ms,) = execute(
            "SELECT min(charged_at_ms) FROM events WHERE organisation_id = ?",
            (organisation_id,),
        ).fetchone()
        if charged_at_ms is not None:
            floor = min(floor, charged_at_ms)
    (after,) = part.cursor or ("0",)
    # The newest balance stays, because the next number follows from it.
    rows = execute(
        "SELECT balance_id, reserved = 0 AND CASE WHEN ends_ms IS NOT NULL"
        " THEN ends_ms <= ? AND exhausted = 0"
        " ELSE scope_kind = 'chain' AND NOT EXISTS (SELECT 1"
        " FROM chains n WHERE n.organisation_id = c.organisation_id AND n.chain_id = c.chain_id)"
        f" AND {_UNNAMED} END, ends_ms IS NULL AND organisation_id IS NULL AND reserved = 0"
        f" AND leases = 0 FROM (SELECT {BALANCES.names('b')}, u.organisation_id,"
        " u.scope_kind, b.scope_id AS chain_id"
        " FROM balances b LEFT JOIN budgets u USING (budget_id)"
        " WHERE balance_id > ? AND balance_id < (SELECT max(balance_id) FROM balances)"
        " ORDER BY balance_id LIMIT ?) c",
        (floor, int(after), limit),
    ).fetchall()
    over = [balance_id for balance_id, is_over, _ in rows if is_over]
    removed = [balance_id for balance_id, _, is_removed in rows if is_removed]
    unit.write_many(_END, [(unit.now_ms, balance_id) for balance_id in removed])
    for balance_id in unit.balances.keys() & removed:
        unit.change_balances([unit.balances[balance_id]])
        unit.balances[balance_id].ends_ms = unit.now_ms
    unit.write_many(BALANCES.delete(), [(balance_id,) for balance_id in over])
    for balance_id in over:
        unit.balances.pop(balance_id, None)
        unit.clear_exhausted(balance_id)
    if over:
        for org in unit.orgs.values():
            org.accounts.clear()
    if rows:
        part.cursor = (str(rows[-1][0]),)
    return len(rows)
