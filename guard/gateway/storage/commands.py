"""The writing half of the storage port: each method is one command in a unit of work."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.commands import (
    Actor,
    Answer,
    GateCommand,
    IngestCommand,
    LeaseCommand,
    ReleaseCommand,
)
from guard.gateway.domain.operators import Operator
from guard.gateway.domain.rulesets import Change, RuleSet
from guard.gateway.ledger import (
    approvals,
    catalogue,
    charge,
    control,
    directory,
    expiry,
    gate,
    leases,
    webhooks,
)
from guard.gateway.ledger.idempotency import lookup_key
from guard.gateway.ledger.state import Scopes
from guard.gateway.ledger.unit_of_work import UnitOfWork

T = TypeVar("T")


def _only(*organisation_ids: str | None) -> Scopes:
    """Name the organisations that administration touches; ``None``: none."""
    return Scopes(organisations=tuple(each for each in organisation_ids if each is not None))


def _of_key(organisation_id: str | None) -> Scopes | None:
    """Name the organisation of a key; an operator of all may change the key of any."""
    return None if organisation_id is None else _only(organisation_id)


class CommandStorage(abc.ABC):
    """Runs the ledger's use cases; a store says how a unit of work is run, and adds queries."""

    @abc.abstractmethod
    def write(
        self,
        work: Callable[[UnitOfWork], T],
        scopes: Scopes | None = None,
        *,
        weight: int = 1,
    ) -> Awaitable[T]:
        """Run a command in the next unit of work; its result comes after the commit.

        Args:
            work: the command.
            scopes: the scopes that it touches; ``None``: any.
            weight: how many small commands this one is worth.
        """

    # -- ledger --------------------------------------------------------------------------------

    def gate(self, command: GateCommand) -> Awaitable[Answer]:
        """Decide one call."""
        return self.write(
            lambda unit: gate.gate(unit, command),
            Scopes(lookup_key(command.request), command),
            weight=1 + len(command.events),
        )

    async def ingest(self, command: IngestCommand) -> Answer:
        """Record and charge events."""
        return await self.write(
            lambda unit: charge.ingest(unit, command),
            Scopes(lookup_key(command.request), command),
            weight=1 + len(command.events),
        )

    async def release(self, command: ReleaseCommand) -> Answer:
        """Release a reservation."""
        return await self.write(
            lambda unit: expiry.release(unit, command),
            Scopes(lookup_key(command.request), command),
        )

    async def lease(self, command: LeaseCommand) -> Answer:
        """Renew a lease, give back a part of it, or close it."""
        return await self.write(
            lambda unit: leases.update(unit, command),
            Scopes(lookup_key(command.request), command),
        )

    async def sweep(self) -> int:
        """Run the periodic work; return how many reservations have expired."""
        return await self.write(expiry.sweep)

    async def resume(self) -> int:
        """Renew open leases after a time without a gateway; return how many there are."""
        return await self.write(leases.resume)

    # -- control -------------------------------------------------------------------------------

    async def issue_directive(
        self, actor: Actor, organisation_id: str, draft: wire.ControlMessage
    ) -> wire.ControlMessage:
        """Record a kill, pause, resume or revive and push it."""
        return await self.write(
            lambda unit: control.issue_directive(unit, actor, organisation_id, draft),
            _only(organisation_id),
        )

    async def answer_approval(
        self, actor: Actor, organisation_id: str, approval_id: str, *, approved: bool, reason: str
    ) -> records.Approval:
        """Record a person's answer and push it."""
        return await self.write(
            lambda unit: approvals.answer(
                unit, actor, organisation_id, approval_id, approved=approved, reason=reason
            ),
            _only(organisation_id),
        )

    # -- directory -----------------------------------------------------------------------------

    async def create_organisation(self, actor: Actor, name: str) -> records.Organisation:
        """Add a tenant."""
        return await self.write(
            lambda unit: directory.create_organisation(unit, actor, name), _only()
        )

    async def update_organisation(
        self, actor: Actor, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation:
        """Change a tenant's settings."""
        return await self.write(
            lambda unit: directory.update_organisation(unit, actor, organisation_id, settings),
            _only(organisation_id),
        )

    async def create_key(
        self, actor: Actor, key: records.Key, key_hash: bytes, hmac_secret: str | None
    ) -> records.Key:
        """Store a new key by its hash."""
        return await self.write(
            lambda unit: directory.create_key(unit, actor, key, key_hash, hmac_secret),
            _only(key.organisation_id),
        )

    async def rotate_key(
        self, actor: Actor, organisation_id: str | None, key_id: str, successor: records.Key,
        key_hash: bytes, hmac_secret: str | None, overlap_ms: int,
    ) -> records.Key:  # fmt: skip
        """Make a successor of a key."""
        return await self.write(
            lambda unit: directory.rotate_key(
                unit, actor, organisation_id, key_id, successor, key_hash, hmac_secret, overlap_ms
            ),
            _of_key(organisation_id),
        )

    async def revoke_key(
        self, actor: Actor, organisation_id: str | None, key_id: str
    ) -> records.Key:
        """End a key now."""
        return await self.write(
            lambda unit: directory.revoke_key(unit, actor, organisation_id, key_id),
            _of_key(organisation_id),
        )

    async def use_nonce(self, key_id: str, nonce: str, keep_ms: int) -> bool:
        """Remember a nonce; ``False`` when it was used before."""
        return await self.write(
            lambda unit: directory.use_nonce(unit, key_id, nonce, keep_ms), _only()
        )

    # -- catalogue -----------------------------------------------------------------------------

    async def put_budget(self, actor: Actor, budget: records.Budget) -> records.Budget:
        """Create or change a budget."""
        return await self.write(
            lambda unit: catalogue.put_budget(unit, actor, budget), _only(budget.organisation_id)
        )

    async def delete_budget(self, actor: Actor, organisation_id: str, budget_id: str) -> None:
        """Remove a budget."""
        await self.write(
            lambda unit: catalogue.delete_budget(unit, actor, organisation_id, budget_id),
            _only(organisation_id),
        )

    async def put_policy(self, actor: Actor, policy: records.Policy) -> records.Policy:
        """Create a policy or add a version."""
        return await self.write(
            lambda unit: catalogue.put_policy(unit, actor, policy), _only(policy.organisation_id)
        )

    async def delete_policy(self, actor: Actor, organisation_id: str, name: str) -> None:
        """Deactivate a policy."""
        await self.write(
            lambda unit: catalogue.delete_policy(unit, actor, organisation_id, name),
            _only(organisation_id),
        )

    async def put_price(self, actor: Actor, price: records.Price) -> records.Price:
        """Create or change an operator's price."""
        return await self.write(
            lambda unit: catalogue.put_price(unit, actor, price), _only(price.organisation_id)
        )

    async def delete_price(self, actor: Actor, organisation_id: str, price_id: str) -> None:
        """Remove an operator's price."""
        await self.write(
            lambda unit: catalogue.delete_price(unit, actor, organisation_id, price_id),
            _only(organisation_id),
        )

    async def apply(
        self, actor: Actor, organisation_id: str, wanted: RuleSet, *, dry_run: bool, prune: bool
    ) -> list[Change]:
        """Activate a set of rules, all or nothing."""
        return await self.write(
            lambda unit: catalogue.apply(
                unit, actor, organisation_id, wanted, dry_run=dry_run, prune=prune
            ),
            _only(organisation_id),
            weight=1 + len(wanted.budgets) + len(wanted.policies) + len(wanted.prices),
        )

    async def put_webhook(
        self, actor: Actor, webhook: records.Webhook, secret: str
    ) -> records.Webhook:
        """Create or change a webhook."""
        return await self.write(
            lambda unit: webhooks.put(unit, actor, webhook, secret), _only(webhook.organisation_id)
        )

    async def delete_webhook(self, actor: Actor, organisation_id: str, webhook_id: str) -> None:
        """Remove a webhook."""
        await self.write(
            lambda unit: webhooks.delete(unit, actor, organisation_id, webhook_id),
            _only(organisation_id),
        )

    async def due_deliveries(
        self, limit: int, sending: Mapping[str, int]
    ) -> list[records.DueDelivery]:
        """Return due deliveries."""
        return await self.write(lambda unit: webhooks.due(unit, limit, sending), _only())

    async def delivery_done(
        self, delivery_id: str, *, status: int | None, delivered: bool, retry_in_ms: int | None
    ) -> None:
        """Record one attempt."""
        await self.write(
            lambda unit: webhooks.attempted(
                unit, delivery_id, status=status, delivered=delivered, retry_in_ms=retry_in_ms
            ),
            _only(),
        )

    # -- operators -----------------------------------------------------------------------------

    async def put_operator(self, actor: Actor, operator: Operator, password_hash: str) -> Operator:
        """Add an operator, or change the password and end the sessions of one."""
        return await self.write(
            lambda unit: directory.put_operator(unit, actor, operator, password_hash), _only()
        )

    async def open_session(
        self, actor: Actor, operator_id: str, token_hash: bytes, keep_ms: int
    ) -> None:
        """Start a session."""
        await self.write(
            lambda unit: directory.open_session(unit, actor, operator_id, token_hash, keep_ms),
            _only(),
        )

    async def touch_session(self, token_hash: bytes) -> None:
        """Note that a session is in use."""
        await self.write(lambda unit: unit.touch_session(token_hash), _only())

    async def end_session(self, token_hash: bytes) -> None:
        """End a session."""
        await self.write(lambda unit: unit.end_session(token_hash), _only())
