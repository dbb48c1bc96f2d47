"""The storage port: what the gateway asks of a storage, and the guarantees of one.

A use case of :mod:`guard.gateway.ledger` is written with :meth:`Writer.write`, and what it returns
has been committed. The ledger's property (see :mod:`guard.gateway.domain.ledger`) is kept under any
interleaving, crash and retry. One conformance suite runs against every implementation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from guard.core import wire
from guard.gateway.domain import records, usage
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.operators import Operator, OperatorSession
from guard.gateway.domain.records import KeySecret, StoredControl
from guard.gateway.domain.statistics import StoreStatistics
from guard.gateway.ledger.state import ScopeKeys, Scopes
from guard.gateway.ledger.unit_of_work import UnitOfWork

P = ParamSpec("P")
T = TypeVar("T")


class Writer(Protocol):
    """Runs use cases, many to a transaction."""

    def write(
        self,
        scopes: Scopes,
        use_case: Callable[Concatenate[UnitOfWork, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """Run a use case in the next unit of work; its result comes after the commit.

        It may run twice, when the group that it was committed with has failed: so it must not
        change its arguments. What is returned is awaited without a task
        (:mod:`guard.gateway.api.stepping`): a store whose commit needs one, such as for
        ``asyncio.timeout``, returns the task.

        Args:
            scopes: what the use case touches.
            use_case: a function of the ledger, which gets the unit of work first.
            args: the rest of its arguments.
            kwargs: the same.
        """


class Ledger(Writer, Protocol):
    """Budgets at work."""

    async def sweep(self) -> int:
        """Run the periodic work; return how many reservations have expired."""

    async def resume(self) -> int:
        """Renew open leases after a time without a gateway; return how many there are."""

    async def verify_ledger(self) -> records.LedgerReport: ...


class ControlLog(Writer, Protocol):
    """Directives and their messages, numbered per organisation."""

    async def control_after(
        self, organisation_id: str, after: int, limit: int
    ) -> list[StoredControl]: ...
    async def control_snapshot(
        self, organisation_id: str, key_id: str
    ) -> list[wire.ControlMessage]: ...
    async def control_seq(self, organisation_id: str) -> int: ...


class Directory(Writer, Protocol):
    """Organisations and keys."""

    async def organisations(self) -> list[records.Organisation]: ...
    async def find_key(self, key_hash: bytes) -> KeySecret | None: ...
    async def keys(self, organisation_id: str | None) -> list[records.Key]: ...


class Catalogue(Writer, Protocol):
    """Budgets, policies, prices and webhooks: data that operators write."""

    async def budgets(self, organisation_id: str) -> list[records.BudgetRule]: ...
    async def policies(self, organisation_id: str) -> list[records.Policy]: ...
    async def policy_versions(self, organisation_id: str, name: str) -> list[records.Policy]: ...
    async def prices(self, organisation_id: str) -> list[records.Price]: ...
    async def webhooks(self, organisation_id: str) -> list[records.Webhook]: ...
    async def deliveries(self, organisation_id: str, limit: int) -> list[records.Delivery]: ...


class Queries(Protocol):
    """Queries of the admin API. Reading never waits for writers."""

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
    async def spend(
        self, organisation_id: str, keys: ScopeKeys, run_id: str | None
    ) -> wire.SpendReply: ...
    async def balances(
        self, organisation_id: str, *, current_only: bool, after: int = 0, limit: int = 2**31
    ) -> list[records.BalanceView]: ...
    async def approvals(
        self, organisation_id: str, status: str | None, limit: int
    ) -> list[records.Approval]: ...
    async def audit(
        self, organisation_id: str | None, after: int, limit: int
    ) -> list[records.AuditEntry]: ...
    async def audit_head(self) -> tuple[int, str]: ...
    async def verify_audit(
        self, noted: tuple[int, str] | None = None
    ) -> tuple[int, int | None]: ...


class DashboardQueries(Protocol):
    """Queries of the dashboard: newest first, and bounded whatever the amount of stored data."""

    async def spend_over_time(
        self, organisation_id: str, size_ms: int, since_ms: int, until_ms: int, step_ms: int,
        workflow_id: str | None,
    ) -> list[usage.UsagePoint]: ...  # fmt: skip
    async def usage_by_model(
        self, organisation_id: str, size_ms: int, since_ms: int, workflow_id: str | None,
        limit: int,
    ) -> list[usage.ModelUsage]: ...  # fmt: skip
    async def workflow_page(
        self, organisation_id: str, search: str, sort: usage.WorkflowSort, offset: int,
        limit: int,
    ) -> list[records.Workflow]: ...  # fmt: skip
    async def active_directives(self, organisation_id: str) -> list[usage.ActiveDirective]: ...
    async def newest_runs(
        self, organisation_id: str, workflow_id: str, before: str, limit: int
    ) -> list[records.Run]: ...
    async def newest_events(
        self, organisation_id: str, before: int, limit: int, workflow_id: str | None,
        event_type: str | None, run_id: str | None,
    ) -> list[records.StoredEvent]: ...  # fmt: skip
    async def refusals(
        self, organisation_id: str, workflow_id: str | None, before: int, limit: int
    ) -> list[usage.Refused]: ...
    async def newest_audit(
        self, organisation_id: str, before: int, limit: int, *, with_gateway: bool
    ) -> list[records.AuditEntry]: ...
    async def newest_charges(
        self, organisation_id: str, scope_kind: records.ScopeKind, limit: int
    ) -> list[usage.ChargedEvent]: ...
    async def fullest_balances(
        self, organisation_id: str, limit: int
    ) -> list[records.BalanceView]: ...
    async def watermarks(
        self, seen: Mapping[str, usage.Watermark | None]
    ) -> dict[str, usage.Watermark]: ...


class Operators(Writer, Protocol):
    """People who sign in to the dashboard, and their sessions (by the hash of their token)."""

    async def find_operator(self, name: str) -> tuple[Operator, str] | None: ...
    async def has_operators(self) -> bool: ...
    async def find_session(self, token_hash: bytes) -> OperatorSession | None: ...


class Storage(
    Ledger, ControlLog, Directory, Catalogue, Queries, DashboardQueries, Operators, Protocol
):
    """The complete storage, with its life cycle."""

    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None: ...
    async def close(self) -> None: ...
    async def ready(self) -> bool: ...
    def statistics(self) -> StoreStatistics: ...
