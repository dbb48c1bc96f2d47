"""Budgets, policies, prices and webhooks of a unit of work over SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from guard.core import globs, wire
from guard.gateway.domain import records
from guard.gateway.storage.sql.columns import SELECT_BUDGETS, SELECT_WEBHOOKS, columns
from guard.gateway.storage.sql.raise_tables import RaiseTables
from guard.gateway.storage.sql.rows import budget_from_row, stored_kind, webhook_from_row

T = TypeVar("T")
BUDGETS_FEW: Final = 256
"""So many budgets of an organisation are read and cached together."""

_SEVERAL: Final = "(instr(scope_id, '*') > 0 OR instr(scope_id, char(63)) > 0)"
"""The condition of the index of budgets with a pattern."""

_SAVE_BUDGET: Final = (
    f"INSERT INTO budgets ({columns('budgets')})"  # noqa: S608 (constant text)
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (budget_id) DO UPDATE SET"
    " limit_nanousd = excluded.limit_nanousd, mode = excluded.mode,"
    " epsilon_nanousd = excluded.epsilon_nanousd, thresholds = excluded.thresholds,"
    " version = excluded.version, updated_at_ms = excluded.updated_at_ms,"
    " on_exhausted = excluded.on_exhausted, ask_ms = excluded.ask_ms,"
    " wind_down_percent = excluded.wind_down_percent"
)


_WAITING: Final = "delivered_at_ms IS NULL AND failed = 0"
WAITING_OWNERS: Final = (
    "owners (owner) AS (SELECT * FROM (SELECT organisation_id FROM deliveries"  # noqa: S608 (constant text)
    f" WHERE {_WAITING} ORDER BY organisation_id LIMIT 1) f UNION ALL SELECT (SELECT"
    f" organisation_id FROM deliveries WHERE {_WAITING} AND organisation_id > owner"
    " ORDER BY organisation_id LIMIT 1) FROM owners WHERE owner IS NOT NULL)"
)
"""The organisations with waiting messages: each is found in the index, after the one before it."""

_DUE: Final = (
    f"WITH RECURSIVE {WAITING_OWNERS} SELECT delivery_id, organisation_id, url, secret, type,"  # noqa: S608 (constant text)
    " body, created_at_ms, attempts FROM (SELECT d.*, w.url, w.secret, ROW_NUMBER() OVER"
    " (PARTITION BY d.organisation_id ORDER BY d.next_attempt_ms) AS place"
    " FROM owners o JOIN deliveries d ON d.delivery_id IN (SELECT delivery_id FROM deliveries"
    f" WHERE {_WAITING} AND organisation_id = o.owner AND next_attempt_ms <= ?"
    " ORDER BY next_attempt_ms LIMIT ?) JOIN webhooks w USING (webhook_id)) due"
    " ORDER BY place, next_attempt_ms LIMIT ?"
)


_OF_ORGANISATION: Final = "'organisation', 'tokens:organisation', 'calls:organisation'"


def _counts(budget: records.BudgetRule) -> str:
    """Return the text that a budget's globs are stored as; none where it counts all."""
    return json.dumps(budget.counts, ensure_ascii=False) if budget.counts else ""


class CatalogueTables(RaiseTables):
    """Implements :class:`guard.gateway.ledger.unit_of_work.CatalogueStore`."""

    # -- budgets -------------------------------------------------------------------------------

    def budget(self, budget_id: str) -> records.BudgetRule | None:
        """Return a budget."""
        row = self.row(f"{SELECT_BUDGETS} WHERE budget_id = ?", budget_id)
        return None if row is None else budget_from_row(row)

    def find_budget(self, wanted: records.BudgetRule) -> records.BudgetRule | None:
        """Return the budget of the same organisation, scope and window that counts the same."""
        row = self.row(
            f"{SELECT_BUDGETS} WHERE organisation_id = ? AND scope_kind = ?"
            " AND scope_id = ? AND \"window\" = ? AND counts = ?",
            wanted.organisation_id, stored_kind(wanted.unit, wanted.scope_kind), wanted.scope_id,
            wanted.window, _counts(wanted),
        )  # fmt: skip
        return None if row is None else budget_from_row(row)

    def budgets(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the budgets of an organisation."""
        rows = self.rows(f"{SELECT_BUDGETS} WHERE organisation_id = ?", organisation_id)
        return [budget_from_row(row) for row in rows]

    def few_budgets(self, organisation_id: str) -> list[records.BudgetRule] | None:
        """Return the budgets of an organisation; ``None`` where they are many."""
        many = self.row(
            "SELECT 1 FROM budgets WHERE organisation_id = ? LIMIT 1 OFFSET ?",
            organisation_id, BUDGETS_FEW,
        )  # fmt: skip
        return None if many else self.budgets(organisation_id)

    def budgets_for_several(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return those that are for the organisation, or for several scopes each."""
        rows = self.rows(
            f"{SELECT_BUDGETS} WHERE organisation_id = ? AND {_SEVERAL} UNION ALL {SELECT_BUDGETS}"
            f" WHERE organisation_id = ? AND scope_kind IN ({_OF_ORGANISATION}) AND scope_id = ''",
            organisation_id, organisation_id,
        )  # fmt: skip
        return [budget_from_row(row) for row in rows]

    def budgets_for(
        self,
        organisation_id: str,
        scopes: Mapping[str, Sequence[str]],
        units: Sequence[records.BudgetUnit] = ("usd",),
    ) -> list[records.BudgetRule]:
        """Return those of some units that name one of these scopes, given by kind."""
        parts, arguments = [], []
        kinds = {stored_kind(unit, kind): kind for unit in units for kind in scopes}
        for kind, names in ((stored, scopes[kind]) for stored, kind in kinds.items()):
            places = ", ".join("?" * len(names))
            if names:
                parts.append(
                    f"{SELECT_BUDGETS} WHERE organisation_id = ? AND scope_kind = ?"
                    f" AND scope_id IN ({places})"
                )
                arguments += [organisation_id, kind, *names]
        rows = self.rows(" UNION ALL ".join(parts), *arguments) if parts else []
        found = [budget_from_row(row) for row in rows]
        return [each for each in found if not globs.is_pattern(each.scope_id)]

    def has_budgets_of_tags(self, organisation_id: str) -> bool:
        """Tell whether an organisation has budgets of tags, of money or of anything else."""
        some = (
            "SELECT 1 FROM budgets WHERE organisation_id = ?"
            " AND scope_kind IN ('tag', 'tokens:tag', 'calls:tag') LIMIT 1"
        )
        return self.row(some, organisation_id) is not None

    def has_metered_budgets(self, organisation_id: str) -> bool:
        """Tell whether an organisation has budgets of tokens or calls."""
        some = (
            "SELECT 1 FROM budgets WHERE organisation_id = ? AND scope_kind > ?"
            " AND scope_kind < ? LIMIT 1"
        )
        return any(
            self.row(some, organisation_id, f"{unit}:", f"{unit};") is not None
            for unit in ("tokens", "calls")
        )

    def save_budget(self, budget: records.BudgetRule) -> None:
        """Write a budget."""
        b = budget
        self.write(
            _SAVE_BUDGET,
            (b.budget_id, b.organisation_id, stored_kind(b.unit, b.scope_kind), b.scope_id,
             b.window, b.limit_nanousd, b.mode, b.epsilon_nanousd, json.dumps(b.thresholds),
             b.version, b.created_at_ms, b.updated_at_ms, _counts(b), b.on_exhausted, b.ask_ms,
             b.wind_down_percent),
        )  # fmt: skip
        self._forget_budgets(budget.organisation_id)

    def delete_budget(self, budget: records.BudgetRule) -> None:
        """Remove a budget."""
        self.write("DELETE FROM budgets WHERE budget_id = ?", (budget.budget_id,))
        self._forget_budgets(budget.organisation_id)

    def _forget_budgets(self, organisation_id: str) -> None:
        """Have an organisation's budgets read again, also when this change is undone."""
        org = self.orgs[organisation_id]

        def forget() -> None:
            org.budgets = None
            org.accounts.clear()

        forget()
        self.on_undo(forget)

    # -- policies and prices -------------------------------------------------------------------

    def policy(self, organisation_id: str, name: str) -> records.Policy | None:
        """Return a policy's current version."""
        row = self.row(
            "SELECT record FROM policies WHERE organisation_id = ? AND name = ? AND current = 1",
            organisation_id, name,
        )  # fmt: skip
        return None if row is None else wire.decode(row[0], records.Policy)

    def policies(self, organisation_id: str) -> list[records.Policy]:
        """Return the current policies."""
        rows = self.rows(
            "SELECT record FROM policies WHERE organisation_id = ? AND current = 1",
            organisation_id,
        )
        return _decoded(rows, records.Policy)

    def add_policy_version(self, policy: records.Policy) -> None:
        """Insert a version and make it the current one."""
        self.retire_policy(policy)
        self.write(
            "INSERT INTO policies VALUES (?,?,?,?,1,?)",
            (policy.policy_id, policy.version, policy.organisation_id, policy.name,
             wire.encode(policy).decode()),
        )  # fmt: skip

    def retire_policy(self, policy: records.Policy) -> None:
        """Leave a policy without a current version."""
        self.write("UPDATE policies SET current = 0 WHERE policy_id = ?", (policy.policy_id,))

    def price(self, organisation_id: str, provider: str, model: str) -> records.Price | None:
        """Return the price of a provider's model."""
        row = self.row(
            "SELECT record FROM prices WHERE organisation_id = ? AND provider = ? AND model = ?",
            organisation_id, provider, model,
        )  # fmt: skip
        return None if row is None else wire.decode(row[0], records.Price)

    def prices(self, organisation_id: str) -> list[records.Price]:
        """Return an organisation's prices."""
        rows = self.rows("SELECT record FROM prices WHERE organisation_id = ?", organisation_id)
        return _decoded(rows, records.Price)

    def save_price(self, price: records.Price) -> None:
        """Write a price."""
        self.write(
            "INSERT INTO prices VALUES (?,?,?,?,?) ON CONFLICT (price_id) DO UPDATE SET"
            " provider = excluded.provider, model = excluded.model, record = excluded.record",
            (price.price_id, price.organisation_id, price.provider, price.model,
             wire.encode(price).decode()),
        )  # fmt: skip

    def delete_price(self, organisation_id: str, price_id: str) -> bool:
        """Remove a price; ``False`` when there is none."""
        cursor = self.write(
            "DELETE FROM prices WHERE organisation_id = ? AND price_id = ?",
            (organisation_id, price_id),
        )
        return cursor.rowcount > 0

    # -- webhooks ------------------------------------------------------------------------------

    def webhook(self, organisation_id: str, url: str) -> records.Webhook | None:
        """Return the webhook with this address."""
        row = self.row(
            f"{SELECT_WEBHOOKS} WHERE organisation_id = ? AND url = ?", organisation_id, url
        )
        return None if row is None else webhook_from_row(row)

    def count_webhooks(self, organisation_id: str, limit: int) -> int:
        """Return how many webhooks an organisation has, counted up to a limit."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM webhooks WHERE organisation_id = ? LIMIT ?) w"
        return int(self.row(sql, organisation_id, limit)[0])

    def enabled_webhooks(self, organisation_id: str, limit: int) -> list[tuple[str, list[str]]]:
        """Return the ids and types of the webhooks in use; of more than ``limit`` the first."""
        rows = self.rows(
            "SELECT webhook_id, types FROM webhooks WHERE organisation_id = ? AND enabled = 1"
            " ORDER BY url LIMIT ?",
            organisation_id, limit,
        )  # fmt: skip
        return [(webhook_id, json.loads(types)) for webhook_id, types in rows]

    def save_webhook(self, webhook: records.Webhook, secret: str) -> None:
        """Write a webhook."""
        self.write(
            "INSERT INTO webhooks VALUES (?,?,?,?,?,?,?) ON CONFLICT (webhook_id) DO UPDATE SET"
            " url = excluded.url, types = excluded.types, secret = excluded.secret,"
            " enabled = excluded.enabled",
            (webhook.webhook_id, webhook.organisation_id, webhook.url, json.dumps(webhook.types),
             secret, webhook.enabled, webhook.created_at_ms),
        )  # fmt: skip

    def delete_webhook(self, organisation_id: str, webhook_id: str) -> bool:
        """Remove a webhook and fail its waiting deliveries; ``False`` when there is none."""
        cursor = self.write(
            "DELETE FROM webhooks WHERE organisation_id = ? AND webhook_id = ?",
            (organisation_id, webhook_id),
        )
        if cursor.rowcount == 0:
            return False
        self.write(
            "UPDATE deliveries SET failed = 1 WHERE webhook_id = ? AND delivered_at_ms IS NULL",
            (webhook_id,),
        )
        return True

    def add_delivery(self, delivery: records.Delivery, organisation_id: str, body: str) -> None:
        """Insert a delivery that is due now."""
        self.write(
            "INSERT INTO deliveries VALUES (?,?,?,?,?,?,?,0,NULL,0,NULL)",
            (delivery.delivery_id, delivery.webhook_id, organisation_id, delivery.type, body,
             delivery.created_at_ms, self.now_ms),
        )  # fmt: skip

    def due_deliveries(
        self, limit: int, each: int, sending: Mapping[str, int]
    ) -> list[records.DueDelivery]:
        """Return due deliveries: the oldest of each organisation, then their next.

        Those that are being sent are due until they are recorded, and among the first.
        """
        rows = self.rows(_DUE, self.now_ms, each, limit)
        return [records.DueDelivery(*row) for row in rows]

    def save_attempt(
        self, delivery_id: str, status: int | None, delivered: bool, next_attempt_ms: int | None
    ) -> None:
        """Record one attempt; without a next one an undelivered message has failed."""
        self.write(
            "UPDATE deliveries SET attempts = attempts + 1, last_status = ?, delivered_at_ms = ?,"
            " failed = ?, next_attempt_ms = ? WHERE delivery_id = ?",
            (status, self.now_ms if delivered else None,
             not delivered and next_attempt_ms is None,
             self.now_ms if next_attempt_ms is None else next_attempt_ms, delivery_id),
        )  # fmt: skip


def _decoded(rows: list[tuple[str]], kind: type[T]) -> list[T]:
    return [wire.decode(text, kind) for (text,) in rows]
