"""What release 0.7 rotated becomes one key again.

There a rotation made a new key with an id of its own, and only the audit log says that the two are
one. The first of them gives the joined key its id; the others are its aliases.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from guard.core.wire import dollars
from guard.gateway.domain.key_hierarchy import SEPARATOR

_ROTATED: Final = "SELECT target, details FROM {0}.audit WHERE action = 'key.rotate' ORDER BY seq"
_KEYS: Final = (
    "SELECT key_id, organisation_id, role, name, workflow_id, created_at_ms, expires_at_ms,"
    " revoked_at_ms FROM {0}.keys ORDER BY created_at_ms, key_id"
)
_UNLINKED: Final = (
    "SELECT a.key_id, b.key_id, b.name FROM {0}.keys a JOIN {0}.keys b ON a.key_id <> b.key_id"
    " AND a.organisation_id IS b.organisation_id AND a.role = b.role AND a.name = b.name"
    " AND a.workflow_id IS b.workflow_id AND a.expires_at_ms >= b.created_at_ms"
    " AND a.created_at_ms <= b.created_at_ms WHERE b.created_at_ms <"
    " (SELECT at_ms FROM {0}.audit WHERE seq > 1 AND seq = (SELECT min(seq) FROM {0}.audit))"
    " ORDER BY b.created_at_ms, a.created_at_ms DESC"
)
"""Keys that were made before what the audit log still has, and look like successors."""
_BUDGETS: Final = (
    "SELECT budget_id, organisation_id, scope_id, window, limit_nanousd, thresholds, updated_at_ms"
    " FROM {0}.budgets WHERE scope_kind = 'key' ORDER BY updated_at_ms DESC, budget_id DESC"
)
_BALANCES: Final = (
    "SELECT balance_id, budget_id, scope_id, epoch_ms, ends_ms, committed, reserved, bound"
    " FROM {0}.balances WHERE budget_id IN (SELECT budget_id FROM {0}.budgets"
    " WHERE scope_kind = 'key') ORDER BY balance_id"
)
_SPENT: Final = (
    "SELECT coalesce(sum(cost_nanousd), 0) FROM {0}.events WHERE organisation_id = ?"
    " AND (key_id = ? OR key_id LIKE ?) AND charged_at_ms >= ? AND charged_at_ms < ?"
)
_CHARGED: Final = (
    "SELECT coalesce(sum(e.cost_nanousd), 0) FROM events e, json_each(e.balance_ids) j"
    " WHERE j.value = ?"
)
_FOR_EVER: Final = 2**62


@attrs.frozen
class _Budget:
    budget_id: str
    organisation_id: str
    scope_id: str
    window: str
    limit: int
    thresholds: list[float]


@attrs.define
class _Balance:
    """A balance of a joined key: the row that stays, those that go, and what it counts."""

    balance_id: int
    budget: _Budget
    scope_id: str
    others: list[int]
    committed: int
    reserved: int
    authorized_max: int
    starts_anew: bool = False


@attrs.define
class Joined:
    """Which keys become one, and what that does to budgets.

    Attributes:
        aliases: the other ids of joined keys, each with the id that stays.
        members: the ids of each joined key, by the one that stays, in the order they were made.
        lines: the plan, in sentences for the operator.
    """

    _now_ms: int
    aliases: dict[str, str] = attrs.field(factory=dict)
    members: dict[str, list[str]] = attrs.field(factory=dict)
    lines: list[str] = attrs.field(factory=list)
    _lost: dict[str, _Budget] = attrs.field(factory=dict)
    _moved: list[_Budget] = attrs.field(factory=list)
    _balances: list[_Balance] = attrs.field(factory=list)

    def key_of(self, key_id: Any) -> Any:
        """Return the id that a key has now, or one below it; anything else as it is."""
        if not isinstance(key_id, str) or not self.aliases:
            return key_id
        top, dot, rest = key_id.partition(SEPARATOR)
        return self.aliases.get(top, top) + dot + rest if dot else self.scope_of(key_id)

    def scope_of(self, scope_id: str) -> str:
        """Return a key's id, or a glob of the keys below one, with the id that stays."""
        bare = scope_id.rstrip(f"*{SEPARATOR}")
        return self.aliases.get(bare, bare) + scope_id[len(bare) :]

    # -- the plan -----------------------------------------------------------------------------

    @classmethod
    def of(cls, reading: sqlite3.Connection, now_ms: int, *, carry: bool, schema: str) -> Joined:
        """Read what a file of 0.7 says about its rotations.

        Args:
            reading: a connection that has the file.
            now_ms: the time; periods that have ended by then are not summed anew.
            carry: whether a joined balance above its limit keeps what it has counted.
            schema: the name of the file on the connection.
        """
        plan = cls(now_ms)

        def rows(sql: str, *arguments: Any) -> list[Any]:
            return reading.execute(sql.format(schema), arguments).fetchall()

        names = {row[0]: row[3] for row in rows(_KEYS)}
        plan._link(rows(_ROTATED), list(names))
        for kept, members in plan.members.items():
            others = ", ".join(members[1:])
            plan.lines.append(f"key {names[kept]}: {kept} stays, also found by {others}")
        for older, newer, name in rows(_UNLINKED):
            if plan.key_of(older) != plan.key_of(newer):
                plan.lines.append(
                    f"key {name}: {newer} may be the successor of {older}; the audit log no longer"
                    " goes back so far, so they stay apart: set for the new one what is to hold"
                )
        if plan.aliases:
            budgets = plan._join_budgets(rows(_BUDGETS), names)
            plan._join_balances(rows, budgets, carry=carry)
        return plan

    def _link(self, rotations: Iterable[tuple[str, str]], key_ids: list[str]) -> None:
        known = set(key_ids)
        before: dict[str, str] = {}
        for target, details in rotations:
            successor = json.loads(details).get("successor")
            if target in known and successor in known and successor != target:
                before.setdefault(successor, target)
        for key_id in key_ids:
            first = key_id
            while first in before:
                first = before[first]
            if first != key_id:
                self.aliases[key_id] = first
                self.members.setdefault(first, [first]).append(key_id)

    def _join_budgets(self, found: Iterable[Any], names: dict[str, str]) -> dict[str, _Budget]:
        """Let the budget that was set last stay; return today's budget of each of 0.7's."""
        kept: dict[tuple[str, str, str], _Budget] = {}
        budgets = {}
        for budget_id, own, scope_id, window, limit, thresholds, _ in found:  # newest first
            scope = self.scope_of(scope_id)
            budget = _Budget(budget_id, own, scope, window, limit, json.loads(thresholds))
            winner = kept.setdefault((own, scope, window), budget)
            budgets[budget_id] = winner
            if winner is not budget:
                self._lost[budget_id] = winner
                self.lines.append(
                    f"key {names.get(scope, scope)}, budget of {window}: {dollars(winner.limit)},"
                    f" which was set last, stays; {dollars(limit)} of {scope_id} goes"
                )
            elif scope != scope_id:
                self._moved.append(budget)
        return budgets

    def _join_balances(
        self,
        rows: Callable[..., list[Any]],
        budgets: dict[str, _Budget],
        *,
        carry: bool,
    ) -> None:
        groups: dict[tuple[str, str, int], list[Any]] = defaultdict(list)
        for row in rows(_BALANCES):
            scope_id = self.key_of(row[2])
            if scope_id in self.members:
                groups[budgets[row[1]].budget_id, scope_id, row[3]].append(row)
        for (_, scope_id, start_ms), group in groups.items():
            budget, ends_ms = budgets[group[0][1]], group[0][4]
            committed, reserved = sum(row[5] for row in group), sum(row[6] for row in group)
            is_current = ends_ms is None or ends_ms > self._now_ms
            # A secret that no balance has counted was spent from all the same.
            for member in set(self.members[scope_id]) - {row[2] for row in group}:
                if is_current:
                    ((spent,),) = rows(
                        _SPENT, budget.organisation_id, member, f"{member}{SEPARATOR}%",
                        start_ms, ends_ms or _FOR_EVER,
                    )  # fmt: skip
                    committed += spent
            most = max(budget.limit, *(row[7] for row in group))
            others = [row[0] for row in group[1:]]
            balance = _Balance(group[0][0], budget, scope_id, others, committed, reserved, most)
            if is_current and committed > budget.limit:
                balance.starts_anew = not carry
                counted = (
                    "counts" if carry else "begins to count at the conversion (--carry: goes on)"
                )
                self.lines.append(
                    f"key {scope_id}, budget of {budget.window}: joined, {dollars(committed)} of"
                    f" {dollars(budget.limit)} is spent, which {counted}"
                )
            self._balances.append(balance)

    # -- the conversion -----------------------------------------------------------------------

    def apply(self, connection: sqlite3.Connection) -> None:
        """Join what has been copied into the new file; within the conversion's transaction."""
        run = connection.execute
        run(
            "INSERT INTO keys SELECT key_id, organisation_id, role, name, workflow_id,"
            " created_at_ms, expires_at_ms, revoked_at_ms, '', '', '', '[]', 0 FROM old.keys"
        )
        run(
            "INSERT INTO secrets SELECT key_hash, key_of(key_id), prefix, hmac_secret,"
            " created_at_ms, NULL, NULL, NULL, NULL FROM old.keys"
        )
        if self.aliases:
            for kept, members in self.members.items():
                self._join_key(connection, kept, members)
            self._rewrite(connection)

    def _join_key(self, connection: sqlite3.Connection, kept: str, members: list[str]) -> None:
        places = ", ".join("?" * len(members))
        of = f"FROM old.keys WHERE key_id IN ({places})"
        connection.execute(
            "UPDATE keys SET"
            f" expires_at_ms = (SELECT nullif(max(coalesce(expires_at_ms, {_FOR_EVER})),"
            f" {_FOR_EVER}) {of}),"
            " revoked_at_ms = (SELECT CASE WHEN count(*) = count(coalesce(revoked_at_ms,"
            " CASE WHEN expires_at_ms <= ? THEN expires_at_ms END)) THEN max(revoked_at_ms) END"
            f" {of}) WHERE key_id = ?",
            (*members, self._now_ms, *members, kept),
        )
        # What has ended one of several secrets ends this one alone.
        connection.execute(
            "UPDATE secrets SET ends_ms = (SELECT coalesce(min(o.expires_at_ms, o.revoked_at_ms),"
            " o.expires_at_ms, o.revoked_at_ms) FROM old.keys o WHERE o.key_hash ="
            " secrets.key_hash) WHERE key_id = ?",
            (kept,),
        )
        connection.executemany(
            "INSERT INTO key_aliases VALUES (?, ?)", [(each, kept) for each in members[1:]]
        )
        connection.executemany(
            "DELETE FROM keys WHERE key_id = ?", [(each,) for each in members[1:]]
        )

    def _rewrite(self, connection: sqlite3.Connection) -> None:
        run = connection.execute
        lost = {each: b.balance_id for b in self._balances for each in b.others}
        if lost:

            def joined(text: str) -> str:
                ids = dict.fromkeys(lost.get(each, each) for each in json.loads(text))
                return json.dumps([*ids])

            connection.create_function("joined", 1, joined, deterministic=True)
            for table in ("events", "reservations"):
                run(f"UPDATE {table} SET balance_ids = joined(balance_ids)"
                    " WHERE joined(balance_ids) <> balance_ids")  # fmt: skip
            connection.executemany(
                "DELETE FROM balances WHERE balance_id = ?", [(each,) for each in lost]
            )
        for balance in self._balances:
            self._write(connection, balance)
        connection.executemany(
            "DELETE FROM budgets WHERE budget_id = ?", [(each,) for each in self._lost]
        )
        connection.executemany(
            "UPDATE budgets SET scope_id = ? WHERE budget_id = ?",
            [(each.scope_id, each.budget_id) for each in self._moved],
        )
        # A program that is told nothing asks, and the joined balance answers.
        connection.executemany(
            "DELETE FROM directives WHERE slot = 'budget' AND key_id = ?",
            [(each,) for each in self.members],
        )
        for policy_id, version, text in run("SELECT policy_id, version, record FROM policies"):
            record = json.loads(text)
            if record.get("scope_kind") == "key":
                record["scope_id"] = self.scope_of(record["scope_id"])
                run("UPDATE policies SET record = ? WHERE policy_id = ? AND version = ?",
                    (json.dumps(record), policy_id, version))  # fmt: skip
        for alias, kept in self.aliases.items():
            for table in ("idempotency_0", "idempotency_1"):
                run(f"UPDATE OR REPLACE {table} SET request = replace(request, ?, ?)"
                    " WHERE instr(request, ?) > 0", (alias, kept, alias))  # fmt: skip

    def _write(self, connection: sqlite3.Connection, balance: _Balance) -> None:
        budget = balance.budget
        ((charged,),) = connection.execute(_CHARGED, (balance.balance_id,)).fetchall()
        committed = 0 if balance.starts_anew else balance.committed
        total = committed + balance.reserved
        connection.execute(
            "UPDATE balances SET budget_id = ?, scope_id = ?, opening = ?, committed = ?,"
            " reserved = ?, overspend = ?, authorized_max = ?, level = ?, exhausted = ?"
            " WHERE balance_id = ?",
            (budget.budget_id, balance.scope_id, committed - charged, committed, balance.reserved,
             max(0, total - balance.authorized_max), balance.authorized_max,
             sum(committed >= each * budget.limit for each in budget.thresholds),
             committed >= budget.limit, balance.balance_id),
        )  # fmt: skip
