"""The storage port: what the gateway needs kept, and the promises that a storage makes.

Every method is one transaction. A method that returns has committed. ``gate``, ``ingest`` and
``release`` keep the ledger's property (see :mod:`guard.gateway.domain.ledger`) under any
interleaving, crash and retry. One conformance suite runs against every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import figures, records
from guard.gateway.domain.commands import Answer, GateCommand, IngestCommand, ReleaseCommand
from guard.gateway.domain.rulesets import Change, RuleSet


class StoreError(Exception):
    """The store cannot answer now: closed, out of space, damaged, or not reachable."""


class NotFoundError(Exception):
    """There is no such thing in this organisation."""


class ConflictError(Exception):
    """The change contradicts what is stored."""


class Announcement(Struct):
    """Something committed that others have to hear of.

    ``control`` carries a message for the organisation's control channels (of one key only, when
    ``key_id`` is set); ``catalogue`` says that keys, policies or prices changed; ``webhooks`` that
    deliveries wait.
    """

    kind: Literal["control", "catalogue", "webhooks"]
    organisation_id: str | None
    message: wire.ControlMessage | None = None
    key_id: str | None = None


class StoredControl(Struct):
    """A control message as replayed, with the key that it is for (``None``: all)."""

    message: wire.ControlMessage
    key_id: str | None


class KeySecret(Struct):
    """A key with what only the gateway may see."""

    key: records.Key
    hmac_secret: str | None = None


class Actor(Struct):
    """Who acts, for the audit log."""

    name: str
    organisation_id: str | None = None


DELIVERIES_AT_ONCE: Final = 4
"""Most webhook messages of one organisation that are under way at once."""


class DueDelivery(Struct):
    """A webhook message that has to be sent now."""

    delivery_id: str
    url: str
    secret: str
    type: str
    body: str
    created_at_ms: int
    attempts: int


class Ledger(Protocol):
    """Budgets in force: decisions and charges."""

    async def gate(self, command: GateCommand) -> Answer: ...
    async def ingest(self, command: IngestCommand) -> Answer: ...
    async def release(self, command: ReleaseCommand) -> Answer: ...
    async def sweep(self) -> int: ...
    async def verify_ledger(self) -> records.LedgerReport: ...


class ControlLog(Protocol):
    """Standing orders and their messages, numbered per organisation."""

    async def order(
        self, actor: Actor, organisation_id: str, draft: wire.ControlMessage
    ) -> wire.ControlMessage: ...
    async def control_after(
        self, organisation_id: str, after: int, limit: int
    ) -> list[StoredControl]: ...
    async def control_seq(self, organisation_id: str) -> int: ...
    async def answer_approval(
        self, actor: Actor, organisation_id: str, approval_id: str, *, approved: bool, reason: str
    ) -> records.Approval: ...


class Directory(Protocol):
    """Organisations, keys and nonces."""

    async def create_organisation(self, actor: Actor, name: str) -> records.Organisation: ...
    async def update_organisation(
        self, actor: Actor, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation: ...
    async def organisations(self) -> list[records.Organisation]: ...
    async def create_key(
        self, actor: Actor, key: records.Key, key_hash: bytes, hmac_secret: str | None
    ) -> records.Key: ...
    async def rotate_key(
        self, actor: Actor, organisation_id: str | None, key_id: str, successor: records.Key,
        key_hash: bytes, hmac_secret: str | None, overlap_ms: int,
    ) -> records.Key: ...  # fmt: skip
    async def revoke_key(
        self, actor: Actor, organisation_id: str | None, key_id: str
    ) -> records.Key: ...
    async def find_key(self, key_hash: bytes) -> KeySecret | None: ...
    async def keys(self, organisation_id: str | None) -> list[records.Key]: ...
    async def use_nonce(self, key_id: str, nonce: str, keep_ms: int) -> bool: ...


class Catalogue(Protocol):
    """Budgets, policies, prices and webhooks: data that operators write."""

    async def put_budget(self, actor: Actor, budget: records.Budget) -> records.Budget: ...
    async def delete_budget(self, actor: Actor, organisation_id: str, budget_id: str) -> None: ...
    async def budgets(self, organisation_id: str) -> list[records.Budget]: ...
    async def put_policy(self, actor: Actor, policy: records.Policy) -> records.Policy: ...
    async def delete_policy(self, actor: Actor, organisation_id: str, name: str) -> None: ...
    async def policies(self, organisation_id: str) -> list[records.Policy]: ...
    async def policy_versions(self, organisation_id: str, name: str) -> list[records.Policy]: ...
    async def put_price(self, actor: Actor, price: records.Price) -> records.Price: ...
    async def delete_price(self, actor: Actor, organisation_id: str, price_id: str) -> None: ...
    async def prices(self, organisation_id: str) -> list[records.Price]: ...
    async def apply(
        self, actor: Actor, organisation_id: str, wanted: RuleSet, *, dry_run: bool, prune: bool
    ) -> list[Change]: ...
    async def put_webhook(
        self, actor: Actor, webhook: records.Webhook, secret: str
    ) -> records.Webhook: ...
    async def delete_webhook(self, actor: Actor, organisation_id: str, webhook_id: str) -> None: ...
    async def webhooks(self, organisation_id: str) -> list[records.Webhook]: ...
    async def due_deliveries(self, limit: int) -> list[DueDelivery]: ...
    async def delivery_done(
        self, delivery_id: str, *, status: int | None, delivered: bool, retry_in_ms: int | None
    ) -> None: ...
    async def deliveries(self, organisation_id: str, limit: int) -> list[records.Delivery]: ...


class Queries(Protocol):
    """What operators look at. Reading never waits for writers."""

    async def workflows(
        self, organisation_id: str, after: str, limit: int
    ) -> list[records.Workflow]: ...
    async def workflow(self, organisation_id: str, workflow_id: str) -> records.Workflow: ...
    async def runs(
        self, organisation_id: str, workflow_id: str | None, after: str, limit: int
    ) -> list[records.Run]: ...
    async def events(
        self, organisation_id: str, after: int, limit: int, workflow_id: str | None,
        event_type: str | None,
    ) -> list[records.StoredEvent]: ...  # fmt: skip
    async def usage(
        self, organisation_id: str, group_by: str, since_ms: int, until_ms: int, limit: int
    ) -> list[records.UsageRow]: ...
    async def balances(
        self, organisation_id: str, *, current_only: bool
    ) -> list[records.BalanceView]: ...
    async def approvals(
        self, organisation_id: str, status: str | None, limit: int
    ) -> list[records.Approval]: ...
    async def audit(
        self, organisation_id: str | None, after: int, limit: int
    ) -> list[records.AuditEntry]: ...
    async def verify_audit(self) -> tuple[int, int | None]: ...


class DashboardQueries(Protocol):
    """What the dashboard looks at: newest first, and bounded whatever the store holds."""

    async def spend_over_time(
        self, organisation_id: str, size_ms: int, since_ms: int, until_ms: int, step_ms: int,
        workflow_id: str | None,
    ) -> list[figures.FigurePoint]: ...  # fmt: skip
    async def usage_by_model(
        self, organisation_id: str, size_ms: int, since_ms: int, workflow_id: str | None,
        limit: int,
    ) -> list[figures.ModelFigures]: ...  # fmt: skip
    async def workflow_page(
        self, organisation_id: str, search: str, sort: figures.WorkflowSort, offset: int,
        limit: int,
    ) -> list[records.Workflow]: ...  # fmt: skip
    async def standing_orders(self, organisation_id: str) -> list[figures.StandingOrder]: ...
    async def newest_runs(
        self, organisation_id: str, workflow_id: str, before: str, limit: int
    ) -> list[records.Run]: ...
    async def newest_events(
        self, organisation_id: str, before: int, limit: int, workflow_id: str | None,
        event_type: str | None, run_id: str | None,
    ) -> list[records.StoredEvent]: ...  # fmt: skip
    async def refusals(
        self, organisation_id: str, workflow_id: str | None, before: int, limit: int
    ) -> list[figures.Refused]: ...
    async def newest_audit(
        self, organisation_id: str, before: int, limit: int, *, with_gateway: bool
    ) -> list[records.AuditEntry]: ...
    async def newest_charges(
        self, organisation_id: str, scope_kind: records.ScopeKind, limit: int
    ) -> list[figures.ChargedEvent]: ...
    async def fullest_balances(
        self, organisation_id: str, limit: int
    ) -> list[records.BalanceView]: ...
    async def marks(self, seen: Mapping[str, figures.Mark | None]) -> dict[str, figures.Mark]: ...


class Operators(Protocol):
    """People who sign in to the dashboard, and their sessions (by the hash of their token)."""

    async def put_operator(
        self, actor: Actor, operator: figures.Operator, password_hash: str
    ) -> figures.Operator: ...
    async def find_operator(self, name: str) -> tuple[figures.Operator, str] | None: ...
    async def has_operators(self) -> bool: ...
    async def open_session(
        self, actor: Actor, operator_id: str, token_hash: bytes, keep_ms: int
    ) -> None: ...
    async def find_session(self, token_hash: bytes) -> figures.Session | None: ...
    async def touch_session(self, token_hash: bytes) -> None: ...
    async def end_session(self, token_hash: bytes) -> None: ...


class Storage(
    Ledger, ControlLog, Directory, Catalogue, Queries, DashboardQueries, Operators, Protocol
):
    """Everything together, with its life cycle."""

    async def open(self, listener: Callable[[Sequence[Announcement]], None]) -> None: ...
    async def close(self) -> None: ...
    async def ready(self) -> bool: ...
    def statistics(self) -> dict[str, Any]: ...
