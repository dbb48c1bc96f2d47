"""The unit-of-work port: everything that the ledger's rules ask of a storage.

A unit of work serves a group of commands. It begins with their scopes, so that a store with locks
reads and locks all rows of the group at once, always in the same order: two units can then not
deadlock. Then the commands run, one after the other, each behind a savepoint; then every table is
written back in one statement and committed. A process runs one unit of a store at a time.

Objects that a unit of work hands out belong to it. A rule that is going to change a balance or a
reservation announces that first (``change_balances``, ``change_reservation``): the unit writes it
back at the end, and :meth:`UnitOfWork.undo` restores it when the command fails. A change that was
not announced would be lost, or outlive a failed command. Objects must not be used in a later unit;
whether rows stay cached between units is up to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain import records
from guard.gateway.domain.commands import (
    CallRefusal,
    PostCommitEvent,
    PricedEvent,
    RequestOrigin,
)
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import Balance, BudgetAccount, Reservation
from guard.gateway.domain.operators import Operator, SignOn
from guard.gateway.domain.rate_window import RateWindow
from guard.gateway.ledger.alert_store import AlertStore
from guard.gateway.ledger.raise_store import RaiseStore
from guard.gateway.ledger.repeat_store import RepeatStore
from guard.gateway.ledger.state import (
    AccountKeys,
    AuditRow,
    ChainState,
    ChargedHour,
    LeaseHold,
    OrganisationState,
    ScopeKeys,
    Scopes,
    StoredAnswer,
)

T = TypeVar("T")


class Transaction(Protocol):
    """How a group of commands is run; the group writer needs nothing else."""

    def begin(self, scopes: Sequence[Scopes]) -> None:
        """Open a transaction, read the store's clock, read and lock what the scopes name."""

    def savepoint(self) -> None:
        """Begin a command: :meth:`undo` returns to here."""

    def undo(self) -> None:
        """Undo everything since the last savepoint, and nothing else.

        Raises:
            Exception: the store has lost the whole transaction.
        """

    def commit(self) -> list[PostCommitEvent]:
        """Write every changed row back, commit, and return the post-commit events."""

    def rollback(self) -> None:
        """Undo everything since :meth:`begin`."""


class Kept(Protocol[T]):
    """Small rows of organisations, each with a name."""

    def find(self, organisation_id: str, name: str) -> T | None:
        """Return a row, if there is one."""

    def save(self, organisation_id: str, name: str, row: T) -> None:
        """Write a row."""


class MoneyStore(Protocol):
    """Balances, reservations and events."""

    @property
    def chains(self) -> Kept[ChainState]:
        """Chains in any state, by their ids."""

    @property
    def estimates(self) -> Kept[Estimate]:
        """What calls of a kind have cost, by what they are of."""

    @property
    def rate_windows(self) -> Kept[RateWindow]:
        """What rate caps have counted, by their buckets."""

    def cached_accounts(
        self, org: OrganisationState, keys: AccountKeys
    ) -> list[BudgetAccount] | None:
        """Return the cached accounts of these scopes, unless a period has ended."""

    def cache_accounts(
        self,
        org: OrganisationState,
        keys: AccountKeys,
        valid_until_ms: float,
        found: list[BudgetAccount],
    ) -> None:
        """Cache accounts for later calls; a store that must not cache does nothing."""

    def find_balance(self, budget_id: str, scope_id: str, period_start_ms: int) -> Balance | None:
        """Return the balance of one budget, scope and period."""

    def add_balance(self, balance: Balance) -> Balance:
        """Insert a balance and return it with its number."""

    def balance(self, balance_id: int) -> Balance:
        """Return a balance by its number."""

    def open_balances(self, budget_id: str) -> list[Balance]:
        """Return a budget's balances of periods that have not ended."""

    def change_balances(self, balances: Iterable[Balance]) -> None:
        """Announce that balances are going to change."""

    def note_exhausted(self, balance_id: int, organisation_id: str) -> None:
        """Remember a balance as exhausted."""

    def clear_exhausted(self, balance_id: int) -> None:
        """Forget that a balance was exhausted."""

    def ended_exhausted(self) -> list[tuple[Balance, str]]:
        """Return exhausted balances whose period has ended, with their organisations."""

    def used_before(
        self, organisation_id: str, kind: records.ScopeKind, scope_id: str, start_ms: int,
        end_ms: int | None,
    ) -> tuple[int, int]:  # fmt: skip
        """Return what a scope has cost in the current period, and its tokens.

        Without an end, in all.
        """

    def reservation(self, reservation_id: str) -> Reservation | None:
        """Return a reservation in any state."""

    def add_reservation(self, reservation: Reservation) -> None:
        """Insert an open reservation."""

    def change_reservation(self, reservation: Reservation) -> None:
        """Announce that a reservation is going to change."""

    def expire_sooner(self, reservation: Reservation, expires_at_ms: int) -> None:
        """Change a reservation's expiry to an earlier one.

        A later one can simply be set: the expiry queue finds out when the old time comes. An
        earlier one would be found too late, so it has to be queued.
        """

    def lease_holds(self, balance_ids: Sequence[int], limit: int) -> list[LeaseHold]:
        """Return open leases that hold money on any of these balances.

        Args:
            balance_ids: the balances.
            limit: maximum leases of one balance to look at; where there are more, the next call
                looks at the next ones.
        """

    def reopen(self, reservation: Reservation) -> None:
        """Open an expired reservation again; that it changes was announced."""

    def leased(self, organisation_id: str, root_id: str, limit: int) -> dict[int, int] | None:
        """Return, by balance, what the open leases of a key and of the keys below it hold.

        ``None`` where there are more leases than the limit.
        """

    def all_renewed(self) -> list[Reservation]:
        """Return every open lease, and the open reservations that are renewed."""

    def expired_reservations(self, limit: int) -> list[Reservation]:
        """Return open reservations past their expiry that this unit may change.

        Each is returned once, unless the command fails: the caller has to close all of them.
        """

    def add_event(
        self, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
        flags: Sequence[str], balance_ids: Sequence[int],
    ) -> bool:  # fmt: skip
        """Record an event; ``False`` when its id or its response was recorded before.

        The one guard against charging twice: it holds across batches, processes and replicas.
        """

    def see_workflow(self, organisation_id: str, workflow_id: str, calls: int = 0) -> None:
        """Note that a workflow is in use, and how many calls it makes."""

    def see_run(
        self, organisation_id: str, run_id: str, workflow_id: str | None, *, spent: int = 0
    ) -> None:
        """Note that a run is in use."""

    def count_usage(
        self, organisation_id: str, keys: ScopeKeys, at_ms: int, priced: PricedEvent
    ) -> None:
        """Add an event to the usage of its scopes."""

    def count_doubtful_tokens(
        self, organisation_id: str, keys: ScopeKeys, at_ms: int, priced: PricedEvent, tokens: int
    ) -> None:
        """Add an event's tokens to what was charged in doubt, if it was."""

    def charged_hours(
        self, organisation_id: str, since_ms: int, until_ms: int, provider: str | None
    ) -> list[ChargedHour]:
        """Return what LLM requests were charged, by hour, provider and model."""

    def resolve_doubt(self, organisation_id: str, hour: ChargedHour) -> None:
        """Note that what was charged in doubt is known now, for the organisation and the model."""

    def add_refusal(
        self, request: RequestOrigin, call: wire.GateRequest, refusal: CallRefusal
    ) -> None:
        """Record a refused call."""

    def stored_answer(self, lookup_key: str) -> StoredAnswer | None:
        """Return the answer stored under a key that the scopes named."""

    def store_answer(self, lookup_key: str, answer: StoredAnswer) -> None:
        """Store an answer for repeats, for half a day at least."""


class ControlStore(Protocol):
    """Organisations with their directives, and approvals."""

    def organisation(self, organisation_id: str) -> OrganisationState | None:
        """Return an organisation's state."""

    def organisation_states(self) -> Iterable[OrganisationState]:
        """Return every organisation's state."""

    def append_control(
        self, org: OrganisationState, message: wire.ControlMessage, key_id: str | None
    ) -> None:
        """Store the next numbered message and apply it to the directives."""

    def drop_control(self, org: OrganisationState, through_seq: int) -> None:
        """Drop old messages, except active directives."""

    def approval(self, approval_id: str) -> records.Approval | None:
        """Return an approval."""

    def approval_of_call(
        self, organisation_id: str, key_id: str, call_id: str
    ) -> tuple[records.Approval, str] | None:
        """Return the approval that a call asked for, and its subject."""

    def approval_key(self, approval_id: str) -> str | None:
        """Return the key that asked for an approval."""

    def add_approval(self, approval: records.Approval, key_id: str, subject: str) -> None:
        """Insert an approval."""

    def save_approval(self, approval: records.Approval) -> None:
        """Write an approval's status, answer and presence."""

    def overdue_approvals(self, limit: int) -> list[records.Approval]:
        """Return pending approvals past their deadline, or no longer renewed by their caller."""

    def extend_presence(self, until_ms: int) -> None:
        """Let no pending approval end before a time for want of renewal."""


class CatalogueStore(Protocol):
    """Budgets, policies and prices."""

    def budget(self, budget_id: str) -> records.BudgetRule | None:
        """Return a budget."""

    def find_budget(self, wanted: records.BudgetRule) -> records.BudgetRule | None:
        """Return the budget of the same organisation, scope and window that counts the same."""

    def budgets(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the budgets of an organisation."""

    def few_budgets(self, organisation_id: str) -> list[records.BudgetRule] | None:
        """Return the budgets of an organisation; ``None`` where they are many."""

    def budgets_for_several(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the budgets of the whole organisation, and those for several scopes each."""

    def budgets_for(
        self,
        organisation_id: str,
        scopes: Mapping[str, Sequence[str]],
        units: Sequence[records.BudgetUnit] = ("usd",),
    ) -> list[records.BudgetRule]:
        """Return the budgets of some units that name one of these scopes, given by kind."""

    def has_metered_budgets(self, organisation_id: str) -> bool:
        """Return whether an organisation has budgets of tokens or calls."""

    def has_budgets_of_tags(self, organisation_id: str) -> bool:
        """Return whether an organisation has budgets of tags, in any unit."""

    def save_budget(self, budget: records.BudgetRule) -> None:
        """Write a budget."""

    def delete_budget(self, budget: records.BudgetRule) -> None:
        """Remove a budget."""

    def policy(self, organisation_id: str, name: str) -> records.Policy | None:
        """Return a policy's current version."""

    def policies(self, organisation_id: str) -> list[records.Policy]:
        """Return the current policies."""

    def add_policy_version(self, policy: records.Policy) -> None:
        """Insert a version and make it the current one."""

    def retire_policy(self, policy: records.Policy) -> None:
        """Leave a policy without a current version."""

    def price(self, organisation_id: str, provider: str, model: str) -> records.Price | None:
        """Return the price of a provider's model."""

    def prices(self, organisation_id: str) -> list[records.Price]:
        """Return an organisation's prices."""

    def save_price(self, price: records.Price) -> None:
        """Write a price."""

    def delete_price(self, organisation_id: str, price_id: str) -> bool:
        """Remove a price; ``False`` when there is none."""


class DirectoryStore(Protocol):
    """Organisations, keys, nonces, operators, sessions and the audit log."""

    def organisation_named(self, name: str) -> bool:
        """Return whether an organisation has this name."""

    def organisation_names(self) -> dict[str, str]:
        """Return the names of all organisations, by their ids."""

    def add_organisation(self, organisation: records.Organisation) -> None:
        """Insert an organisation."""

    def remove_organisation(self, organisation_id: str) -> None:
        """Mark an organisation as removed, and free its name."""

    def save_settings(
        self, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation | None:
        """Write an organisation's settings and return it; ``None`` when there is none."""

    def key(self, key_id: str) -> records.Key | None:
        """Return a key."""

    def has_key(self, key_hash: bytes) -> bool:
        """Return whether a key has or had this hash, in any state."""

    def keys_below(self, key_id: str) -> list[records.Key]:
        """Return the keys that belong to a key, directly or not, and are not revoked."""

    def keys_in_use(self, organisation_id: str) -> list[records.Key]:
        """Return the keys of an organisation that are not revoked."""

    def has_other_keys(self, organisation_id: str, root_id: str) -> bool:
        """Return whether an organisation's agents have a valid key outside of one key's lineage."""

    def add_key(self, key: records.Key, key_hash: bytes, hmac_secret: str | None) -> None:
        """Insert a key with its first secret."""

    def save_key(self, key: records.Key) -> None:
        """Write when a key ends."""

    def add_secret(self, key: records.Key, key_hash: bytes, hmac_secret: str | None) -> None:
        """Insert another secret of a key."""

    def end_secrets(self, key_id: str, ends_ms: int) -> None:
        """End a key's secrets at a time at the latest."""

    def note_secrets_used(self, used_ms: Mapping[bytes, int]) -> None:
        """Write when secrets were last used, by their hashes."""

    def use_nonce(self, key_id: str, nonce: str, expires_at_ms: int) -> bool:
        """Insert a nonce; ``False`` when it is known."""

    def operator(self, name: str) -> Operator | None:
        """Return an operator."""

    def operator_of(self, operator_id: str) -> Operator | None:
        """Return the operator with an id."""

    def sign_on(self, issuer: str, subject: str) -> SignOn | None:
        """Return who a person of a provider is here; with no issuer, a name that was removed."""

    def has_signed_on(self, issuer: str, operator_id: str) -> bool:
        """Return whether a person of a provider is known as an operator."""

    def note_sign_on(self, issuer: str, subject: str, operator: Operator) -> None:
        """Note that a person of a provider is an operator."""

    def forgive(self, name: str) -> None:
        """Forget that people were removed under a name, and who they were."""

    def operators(self, organisation_id: str) -> list[Operator]:
        """Return the operators of one organisation."""

    def add_operator(self, operator: Operator, password_hash: str) -> None:
        """Insert an operator; with an empty hash, they cannot sign in with a password."""

    def save_password(self, operator: Operator, password_hash: str) -> None:
        """Write an operator's password."""

    def save_role(self, operator: Operator) -> None:
        """Write an operator's role."""

    def remove_operator(self, operator: Operator) -> None:
        """Remove an operator and their sessions; they stay known as removed."""

    def add_session(
        self,
        token_hash: bytes,
        operator_id: str,
        expires_at_ms: int,
        signed_in_by: str,
        signed_in_from: str,
    ) -> None:
        """Insert a session."""

    def touch_session(self, token_hash: bytes) -> None:
        """Note that a session is in use."""

    def end_session(self, token_hash: bytes) -> None:
        """Remove a session."""

    def end_sessions(self, operator_id: str) -> None:
        """Remove every session of an operator."""

    def audit_head(self) -> tuple[int, str] | None:
        """Return the number and the hash of the newest audit entry."""

    def add_audit(self, row: AuditRow) -> None:
        """Append an audit entry."""

    def oldest_audit(self, limit: int) -> list[AuditRow]:
        """Return the oldest audit entries, never the newest one."""

    def drop_audit(self, through: AuditRow) -> None:
        """Delete the entries up to one, which becomes the anchor of the chain."""


class UnitOfWork(
    Transaction, MoneyStore, ControlStore, RaiseStore, RepeatStore, CatalogueStore, AlertStore,
    DirectoryStore, Protocol,
):  # fmt: skip
    """One unit of work.

    Attributes:
        now_ms: the store's clock at the beginning; it never runs backwards.
        incarnation: identifies this opening of the store (``epoch`` of its control messages).
        ids: makes identifiers.
    """

    now_ms: int
    incarnation: str
    ids: IdFactory

    def announce(self, event: PostCommitEvent) -> None:
        """Deliver an event once the unit has committed."""

    def housekeep(self) -> None:
        """Do the store's own maintenance, such as dropping old nonces."""
