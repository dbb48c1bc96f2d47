"""Budgets, policies, prices and webhooks on the writer's working set."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.rulesets import Change, RuleSet, Step, plan
from guard.gateway.storage.port import (
    DELIVERIES_AT_ONCE,
    Actor,
    Announcement,
    DueDelivery,
    NotFoundError,
)
from guard.gateway.storage.sqlite import audit as sqlite_audit
from guard.gateway.storage.sqlite import control as sqlite_control
from guard.gateway.storage.sqlite.books import Books

T = TypeVar("T")


def put_budget(books: Books, actor: Actor, wanted: records.Budget) -> records.Budget:
    """Create a budget, or change the one of the same scope and window.

    Raises:
        NotFoundError: no such organisation.
    """
    new = _put_budget(books, actor, wanted)
    books.reload_org(wanted.organisation_id)
    return new


def _put_budget(books: Books, actor: Actor, wanted: records.Budget) -> records.Budget:
    if wanted.organisation_id not in books.orgs:
        raise NotFoundError("no such organisation")
    row = books.connection.execute(
        "SELECT budget_id FROM budgets WHERE organisation_id = ? AND scope_kind = ?"
        " AND scope_id = ? AND window = ?",
        (wanted.organisation_id, wanted.scope_kind, wanted.scope_id, wanted.window),
    ).fetchone()
    old = None if row is None else sqlite_control.rule_of(books, row[0])
    new = msgspec.structs.replace(
        wanted,
        budget_id=books.ids.uuid7(books.now) if old is None else old.budget_id,
        version=1 if old is None else old.version + 1,
        created_at_ms=books.now if old is None else old.created_at_ms,
        updated_at_ms=books.now,
    )
    if old is not None and _same(old, new):
        return old
    books.connection.execute(
        "INSERT OR REPLACE INTO budgets VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
        (new.budget_id, new.organisation_id, new.scope_kind, new.scope_id, new.window,
         new.limit_nanousd, new.mode, new.epsilon_nanousd, json.dumps(new.thresholds),
         new.version, new.created_at_ms, new.updated_at_ms),
    )  # fmt: skip
    sqlite_control.budget_changed(books, old, new)
    sqlite_audit.record(
        books, actor, "budget.put", new.budget_id, msgspec.to_builtins(new), new.organisation_id
    )
    return new


def _same(old: Any, new: Any) -> bool:
    neutral = {"version": 0, "updated_at_ms": 0}
    return bool(msgspec.structs.replace(old, **neutral) == msgspec.structs.replace(new, **neutral))


def delete_budget(books: Books, actor: Actor, organisation_id: str, budget_id: str) -> None:
    """Remove a budget; what it has counted stays in the record."""
    _delete_budget(books, actor, organisation_id, budget_id)
    books.reload_org(organisation_id)


def _delete_budget(books: Books, actor: Actor, organisation_id: str, budget_id: str) -> None:
    old = sqlite_control.rule_of(books, budget_id)
    if old is None or old.organisation_id != organisation_id:
        raise NotFoundError("no such budget")
    books.connection.execute("DELETE FROM budgets WHERE budget_id = ?", (budget_id,))
    sqlite_control.budget_changed(books, old, None)
    sqlite_audit.record(books, actor, "budget.delete", budget_id, {}, organisation_id)


def put_policy(books: Books, actor: Actor, wanted: records.Policy) -> records.Policy:
    """Create a policy, or add a version to the one of the same name."""
    if wanted.organisation_id not in books.orgs:
        raise NotFoundError("no such organisation")
    old = _policy(books, wanted.organisation_id, wanted.name)
    new = msgspec.structs.replace(
        wanted,
        policy_id=books.ids.uuid7(books.now) if old is None else old.policy_id,
        version=1 if old is None else old.version + 1,
        created_at_ms=books.now if old is None else old.created_at_ms,
        updated_at_ms=books.now,
    )
    if old is not None and _same(old, new):
        return old
    if old is not None:
        books.connection.execute(
            "UPDATE policies SET current = 0 WHERE policy_id = ?", (old.policy_id,)
        )
    books.connection.execute(
        "INSERT INTO policies VALUES (?,?,?,?,1,?)",
        (new.policy_id, new.version, new.organisation_id, new.name, wire.encode(new).decode()),
    )
    details = {"version": new.version, "document": msgspec.to_builtins(new.document)}
    sqlite_audit.record(books, actor, "policy.put", new.name, details, new.organisation_id)
    _policy_changed(books, new.organisation_id, f"policy {new.name} version {new.version}")
    return new


def delete_policy(books: Books, actor: Actor, organisation_id: str, name: str) -> None:
    """Take a policy out of force; its versions stay readable."""
    old = _policy(books, organisation_id, name)
    if old is None:
        raise NotFoundError("no such policy")
    books.connection.execute(
        "UPDATE policies SET current = 0 WHERE policy_id = ?", (old.policy_id,)
    )
    sqlite_audit.record(books, actor, "policy.delete", name, {}, organisation_id)
    _policy_changed(books, organisation_id, f"policy {name} removed")


def _policy(books: Books, organisation_id: str, name: str) -> records.Policy | None:
    row = books.connection.execute(
        "SELECT record FROM policies WHERE organisation_id = ? AND name = ? AND current = 1",
        (organisation_id, name),
    ).fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=records.Policy)


def _policy_changed(books: Books, organisation_id: str, reason: str) -> None:
    books.announcements.append(Announcement("catalogue", organisation_id))
    draft = wire.ControlMessage(seq=0, type="policy", workflow_id="*", reason=reason)
    sqlite_control.publish(books, organisation_id, draft)


def put_price(books: Books, actor: Actor, wanted: records.Price) -> records.Price:
    """Create an operator's price, or change the one for the same provider and model."""
    if wanted.organisation_id not in books.orgs:
        raise NotFoundError("no such organisation")
    row = books.connection.execute(
        "SELECT record FROM prices WHERE organisation_id = ? AND provider = ? AND model = ?",
        (wanted.organisation_id, wanted.provider, wanted.model),
    ).fetchone()
    old = None if row is None else msgspec.json.decode(row[0], type=records.Price)
    new = msgspec.structs.replace(
        wanted,
        price_id=books.ids.uuid7(books.now) if old is None else old.price_id,
        version=1 if old is None else old.version + 1,
        updated_at_ms=books.now,
    )
    if old is not None and _same(old, new):
        return old
    books.connection.execute(
        "INSERT OR REPLACE INTO prices VALUES (?,?,?,?,?)",
        (new.price_id, new.organisation_id, new.provider, new.model, wire.encode(new).decode()),
    )
    sqlite_audit.record(
        books, actor, "price.put", new.price_id, msgspec.to_builtins(new), new.organisation_id
    )
    books.announcements.append(Announcement("catalogue", new.organisation_id))
    return new


def delete_price(books: Books, actor: Actor, organisation_id: str, price_id: str) -> None:
    """Remove an operator's price."""
    cursor = books.connection.execute(
        "DELETE FROM prices WHERE organisation_id = ? AND price_id = ?", (organisation_id, price_id)
    )
    if cursor.rowcount == 0:
        raise NotFoundError("no such price")
    sqlite_audit.record(books, actor, "price.delete", price_id, {}, organisation_id)
    books.announcements.append(Announcement("catalogue", organisation_id))


def apply(
    books: Books,
    actor: Actor,
    organisation_id: str,
    wanted: RuleSet,
    *,
    dry_run: bool,
    prune: bool,
) -> list[Change]:
    """Compare what is wanted with what is in force, and make it so, or only say what would change.

    Raises:
        NotFoundError: no such organisation.
    """
    if organisation_id not in books.orgs:
        raise NotFoundError("no such organisation")
    current = RuleSet(
        books.read_budgets(organisation_id),
        _records(books, "policies", records.Policy, organisation_id, " AND current = 1"),
        _records(books, "prices", records.Price, organisation_id),
    )
    steps = plan(current, wanted, prune=prune)
    if not dry_run:
        for step in steps:
            _take(books, actor, organisation_id, step)
        books.reload_org(organisation_id)
    return [step.change for step in steps]


def _records(
    books: Books, table: str, kind: type[T], organisation_id: str, where: str = ""
) -> list[T]:
    rows = books.connection.execute(
        f"SELECT record FROM {table} WHERE organisation_id = ?{where}",  # noqa: S608 (constants of this module)
        (organisation_id,),
    ).fetchall()
    return [msgspec.json.decode(text, type=kind) for (text,) in rows]


def _take(books: Books, actor: Actor, organisation_id: str, step: Step) -> None:
    change, record = step.change.change, step.record
    if change == "unchanged":
        return
    if isinstance(record, records.Budget):
        if change == "delete":
            _delete_budget(books, actor, organisation_id, record.budget_id)
        else:
            _put_budget(books, actor, record)
    elif isinstance(record, records.Policy):
        if change == "delete":
            delete_policy(books, actor, organisation_id, record.name)
        else:
            put_policy(books, actor, record)
    elif change == "delete":
        delete_price(books, actor, organisation_id, record.price_id)
    else:
        put_price(books, actor, record)


def put_webhook(
    books: Books, actor: Actor, wanted: records.Webhook, secret: str
) -> records.Webhook:
    """Create a webhook, or change the one with the same address (its secret is replaced)."""
    if wanted.organisation_id not in books.orgs:
        raise NotFoundError("no such organisation")
    row = books.connection.execute(
        "SELECT webhook_id, created_at_ms FROM webhooks WHERE organisation_id = ? AND url = ?",
        (wanted.organisation_id, wanted.url),
    ).fetchone()
    new = msgspec.structs.replace(
        wanted,
        webhook_id=books.ids.uuid7(books.now) if row is None else row[0],
        created_at_ms=books.now if row is None else row[1],
    )
    books.connection.execute(
        "INSERT OR REPLACE INTO webhooks VALUES (?,?,?,?,?,?,?)",
        (new.webhook_id, new.organisation_id, new.url, json.dumps(new.types), secret,
         new.enabled, new.created_at_ms),
    )  # fmt: skip
    details = {"url": new.url, "types": new.types, "enabled": new.enabled}
    sqlite_audit.record(books, actor, "webhook.put", new.webhook_id, details, new.organisation_id)
    return new


def delete_webhook(books: Books, actor: Actor, organisation_id: str, webhook_id: str) -> None:
    """Remove a webhook and what waits for it."""
    cursor = books.connection.execute(
        "DELETE FROM webhooks WHERE organisation_id = ? AND webhook_id = ?",
        (organisation_id, webhook_id),
    )
    if cursor.rowcount == 0:
        raise NotFoundError("no such webhook")
    books.connection.execute(
        "UPDATE deliveries SET failed = 1 WHERE webhook_id = ? AND delivered_at_ms IS NULL",
        (webhook_id,),
    )
    sqlite_audit.record(books, actor, "webhook.delete", webhook_id, {}, organisation_id)


def due_deliveries(books: Books, limit: int) -> list[DueDelivery]:
    """Return what has to be sent now: the oldest of each organisation, then their next."""
    rows = books.connection.execute(
        "SELECT delivery_id, url, secret, type, body, created_at_ms, attempts FROM ("
        " SELECT d.*, w.url, w.secret, ROW_NUMBER() OVER (PARTITION BY d.organisation_id"
        "  ORDER BY d.next_attempt_ms) AS place"
        " FROM deliveries d JOIN webhooks w USING (webhook_id) WHERE d.delivered_at_ms IS NULL"
        " AND d.failed = 0 AND d.next_attempt_ms <= ?)"
        " WHERE place <= ? ORDER BY place, next_attempt_ms LIMIT ?",
        (books.now, DELIVERIES_AT_ONCE, limit),
    ).fetchall()
    return [DueDelivery(*row) for row in rows]


def delivery_done(
    books: Books, delivery_id: str, status: int | None, delivered: bool, retry_in_ms: int | None
) -> None:
    """Record one attempt; without a retry an undelivered message has failed."""
    books.connection.execute(
        "UPDATE deliveries SET attempts = attempts + 1, last_status = ?, delivered_at_ms = ?,"
        " failed = ?, next_attempt_ms = ? WHERE delivery_id = ?",
        (status, books.now if delivered else None, not delivered and retry_in_ms is None,
         books.now + (retry_in_ms or 0), delivery_id),
    )  # fmt: skip
