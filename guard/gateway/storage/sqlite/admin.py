"""Catalogue and queries of the embedded store: each method one transaction or one query."""

from __future__ import annotations

import json

import msgspec

from guard.gateway.domain import records
from guard.gateway.domain.rulesets import Change, RuleSet
from guard.gateway.storage.port import Actor, DueDelivery
from guard.gateway.storage.sqlite import audit as sqlite_audit
from guard.gateway.storage.sqlite import catalogue as sqlite_catalogue
from guard.gateway.storage.sqlite.core import SqliteCore


class SqliteAdmin(SqliteCore):
    """What operators write and read."""

    # -- catalogue -----------------------------------------------------------------------------

    async def put_budget(self, actor: Actor, budget: records.Budget) -> records.Budget:
        """Create or change a budget."""
        return await self.write(lambda books: sqlite_catalogue.put_budget(books, actor, budget))

    async def delete_budget(self, actor: Actor, organisation_id: str, budget_id: str) -> None:
        """Remove a budget."""
        await self.write(
            lambda books: sqlite_catalogue.delete_budget(books, actor, organisation_id, budget_id)
        )

    async def budgets(self, organisation_id: str) -> list[records.Budget]:
        """Return the budgets of an organisation."""
        return await self.write(lambda books: books.read_budgets(organisation_id))

    async def put_policy(self, actor: Actor, policy: records.Policy) -> records.Policy:
        """Create a policy or add a version."""
        return await self.write(lambda books: sqlite_catalogue.put_policy(books, actor, policy))

    async def delete_policy(self, actor: Actor, organisation_id: str, name: str) -> None:
        """Take a policy out of force."""
        await self.write(
            lambda books: sqlite_catalogue.delete_policy(books, actor, organisation_id, name)
        )

    async def policies(self, organisation_id: str) -> list[records.Policy]:
        """Return the policies in force, by name."""
        return await self.read(
            lambda reader: [
                msgspec.json.decode(row[0], type=records.Policy)
                for row in reader.rows(
                    "SELECT record FROM policies WHERE organisation_id = ? AND current = 1"
                    " ORDER BY name",
                    organisation_id,
                )
            ]
        )

    async def policy_versions(self, organisation_id: str, name: str) -> list[records.Policy]:
        """Return every version of a policy, newest first."""
        return await self.read(
            lambda reader: [
                msgspec.json.decode(row[0], type=records.Policy)
                for row in reader.rows(
                    "SELECT record FROM policies WHERE organisation_id = ? AND name = ?"
                    " ORDER BY policy_id DESC, version DESC",
                    organisation_id,
                    name,
                )
            ]
        )

    async def put_price(self, actor: Actor, price: records.Price) -> records.Price:
        """Create or change an operator's price."""
        return await self.write(lambda books: sqlite_catalogue.put_price(books, actor, price))

    async def delete_price(self, actor: Actor, organisation_id: str, price_id: str) -> None:
        """Remove an operator's price."""
        await self.write(
            lambda books: sqlite_catalogue.delete_price(books, actor, organisation_id, price_id)
        )

    async def prices(self, organisation_id: str) -> list[records.Price]:
        """Return the operator's prices."""
        return await self.read(
            lambda reader: [
                msgspec.json.decode(row[0], type=records.Price)
                for row in reader.rows(
                    "SELECT record FROM prices WHERE organisation_id = ? ORDER BY provider, model",
                    organisation_id,
                )
            ]
        )

    async def apply(
        self, actor: Actor, organisation_id: str, wanted: RuleSet, *, dry_run: bool, prune: bool
    ) -> list[Change]:
        """Bring a whole set of rules into force, or nothing of it."""
        return await self.write(
            lambda books: sqlite_catalogue.apply(
                books, actor, organisation_id, wanted, dry_run=dry_run, prune=prune
            ),
            weight=1 + len(wanted.budgets) + len(wanted.policies) + len(wanted.prices),
        )

    async def put_webhook(
        self, actor: Actor, webhook: records.Webhook, secret: str
    ) -> records.Webhook:
        """Create or change a webhook."""
        return await self.write(
            lambda books: sqlite_catalogue.put_webhook(books, actor, webhook, secret)
        )

    async def delete_webhook(self, actor: Actor, organisation_id: str, webhook_id: str) -> None:
        """Remove a webhook."""
        await self.write(
            lambda books: sqlite_catalogue.delete_webhook(books, actor, organisation_id, webhook_id)
        )

    async def webhooks(self, organisation_id: str) -> list[records.Webhook]:
        """Return the webhooks, without their secrets."""
        return await self.read(
            lambda reader: [
                records.Webhook(
                    webhook_id=row[0], organisation_id=row[1], url=row[2],
                    types=json.loads(row[3]), enabled=bool(row[5]), created_at_ms=row[6],
                )
                for row in reader.rows(
                    "SELECT * FROM webhooks WHERE organisation_id = ? ORDER BY webhook_id",
                    organisation_id,
                )
            ]
        )  # fmt: skip

    async def due_deliveries(self, limit: int) -> list[DueDelivery]:
        """Return what has to be sent now."""
        return await self.write(lambda books: sqlite_catalogue.due_deliveries(books, limit))

    async def delivery_done(
        self, delivery_id: str, *, status: int | None, delivered: bool, retry_in_ms: int | None
    ) -> None:
        """Record one attempt."""
        await self.write(
            lambda books: sqlite_catalogue.delivery_done(
                books, delivery_id, status, delivered, retry_in_ms
            )
        )

    async def deliveries(self, organisation_id: str, limit: int) -> list[records.Delivery]:
        """Return webhook deliveries, newest first."""
        return await self.read(lambda reader: reader.deliveries(organisation_id, limit))

    # -- queries -------------------------------------------------------------------------------

    async def workflows(
        self, organisation_id: str, after: str, limit: int
    ) -> list[records.Workflow]:
        """Return workflows by id."""
        now_ms = self.clock_ms()
        return await self.read(lambda r: r.workflows(organisation_id, after, limit, now_ms))

    async def workflow(self, organisation_id: str, workflow_id: str) -> records.Workflow:
        """Return one workflow."""
        now_ms = self.clock_ms()
        return await self.read(lambda r: r.workflow(organisation_id, workflow_id, now_ms))

    async def runs(
        self, organisation_id: str, workflow_id: str | None, after: str, limit: int
    ) -> list[records.Run]:
        """Return runs by id."""
        now_ms = self.clock_ms()
        return await self.read(lambda r: r.runs(organisation_id, workflow_id, after, limit, now_ms))

    async def events(
        self, organisation_id: str, after: int, limit: int, workflow_id: str | None,
        event_type: str | None,
    ) -> list[records.StoredEvent]:  # fmt: skip
        """Return events in the order of arrival."""
        return await self.read(
            lambda reader: reader.events(organisation_id, after, limit, workflow_id, event_type)
        )

    async def usage(
        self, organisation_id: str, group_by: str, since_ms: int, until_ms: int, limit: int
    ) -> list[records.UsageRow]:
        """Return usage summed by group."""
        return await self.read(
            lambda reader: reader.usage(organisation_id, group_by, since_ms, until_ms, limit)
        )

    async def balances(
        self, organisation_id: str, *, current_only: bool
    ) -> list[records.BalanceView]:
        """Return balances with their budgets."""
        now_ms = self.clock_ms()
        return await self.read(
            lambda reader: reader.balances(organisation_id, now_ms, current_only=current_only)
        )

    async def approvals(
        self, organisation_id: str, status: str | None, limit: int
    ) -> list[records.Approval]:
        """Return approvals, newest first."""
        return await self.read(lambda reader: reader.approvals(organisation_id, status, limit))

    async def audit(
        self, organisation_id: str | None, after: int, limit: int
    ) -> list[records.AuditEntry]:
        """Return audit entries in order."""
        return await self.read(
            lambda r: list(sqlite_audit.entries(r.connection, organisation_id, after, limit))
        )

    async def verify_audit(self) -> tuple[int, int | None]:
        """Check the hash chain of the audit log."""
        return await self.read(lambda reader: sqlite_audit.verify(reader.connection))
