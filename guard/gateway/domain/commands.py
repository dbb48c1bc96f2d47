"""Commands that services give to a storage, and their results. One command, one transaction.

All are frozen. A store may run a command twice, as the group that it was committed with may fail,
and the second run must find the command as the first one did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import models
from guard.gateway.domain.operators import OperatorRole
from guard.gateway.domain.rate_window import CapUse
from guard.gateway.domain.waiting import Place, Waiter


class CallRefusal(Struct, kw_only=True, frozen=True):
    """Why a call is refused, with the protocol's status and code.

    ``recall`` names the leases that hold the room that the call lacks, by the key that holds them.
    A refusal with such leases is not final: the call is decided again after they were asked.
    """

    status: int
    error_code: str
    title: str
    reason: str
    action: str | None = None
    workflow_id: str | None = None
    tool_name: str | None = None
    retry_after_ms: int | None = None
    resume_after_ms: int | None = None
    budget: wire.Budget | None = None
    details: dict[str, Any] = {}
    recall: dict[str, list[str]] = {}

    def refused_by(self) -> str:
        """Name the budget or the policy that has refused the call; empty if it was neither.

        >>> why = CallRefusal(status=403, error_code="", title="", reason="",
        ...                   details={"policy": "careful", "policy_version": 2})
        >>> why.refused_by()
        'policy careful, version 2'
        """
        if self.budget is not None:
            return f"budget of {self.budget.scope}"
        if "counted" in self.details:
            return f"budget of {self.details['counted']['scope']}"
        if "policy" in self.details:
            version = self.details.get("policy_version")
            return f"policy {self.details['policy']}, version {version}"
        return ""


class ApprovalNeed(Struct, kw_only=True, frozen=True):
    """A call that a person has to approve."""

    tool_name: str | None
    timeout_ms: int


class RepeatUse(Struct, kw_only=True, frozen=True):
    """One rule about repeats as it counts one call.

    Args:
        kind, subject: a ``tool`` by its name, or a ``model``.
        digest: of the call's arguments or of its prompt.
        times: how many such calls the rule allows in a run.
        action: what happens to one more.
        policy, policy_version: the policy that the rule is of.
    """

    kind: Literal["tool", "model"]
    subject: str
    digest: str
    times: int
    action: Literal["notice", "pause", "refuse"]
    policy: str
    policy_version: int


class PricedEvent(Struct, frozen=True):
    """An event that was checked and priced, ready to be charged.

    Attributes:
        event: as reported.
        data_json: its data, as they are stored.
        cost: nano-dollars.
        price_source: where the price comes from.
        provider, model: that have answered.
        response_id, request_id: the vendor's; a response is charged once, whatever reports it.
        input_tokens, output_tokens: as budgets of tokens count them, cached ones included.
        flags: separated by spaces.
        final: whether it ends the call that it belongs to.
        ends_holder: whether it says that the process is gone that held its lease.
        observed: whether guard's own instrumentation has seen it, not the program.
        text_tokens: the bound of the prompt's text; 0 where nothing can be learned from it.
        requested_model: the model that was asked for.
        repeats: the rules that count it as a repeat within its run.
    """

    event: wire.Event
    data_json: bytes
    cost: int = 0
    price_source: str | None = None
    provider: str | None = None
    model: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    flags: str = ""
    final: bool = False
    ends_holder: bool = False
    observed: bool = False
    text_tokens: int = 0
    requested_model: str | None = None
    repeats: tuple[RepeatUse, ...] = ()


class RequestOrigin(Struct, kw_only=True, frozen=True):
    """The key that makes a request, and what a repeat of the request is recognised by.

    Attributes:
        organisation_id, key_id: of the key.
        key_workflow_id: the only workflow that the key is for; ``None``: any.
        idempotency_key: names the request; ``None``: its answer is not stored.
        fingerprint: of the request's body; a repeat has the same.
    """

    organisation_id: str
    key_id: str
    key_workflow_id: str | None = None
    idempotency_key: str | None = None
    fingerprint: bytes = b""

    @property
    def lookup_key(self) -> str | None:
        """The name under which its answer is stored; ``None`` if it is not."""
        return None if self.idempotency_key is None else f"{self.key_id}/{self.idempotency_key}"


class GateCommand(Struct, kw_only=True, frozen=True):
    """Ingest the piggybacked events, then decide one call.

    Args:
        rates: prices of the model of an LLM request, or of a lease's lane.
        input_max: the most tokens that a prompt without a bound can have, for a model whose context
            is not known.
        output_max: the most tokens that the model can answer, for a request without a limit.
        grants_lease: a lease may be granted.
        small_lease: the key does not answer recalls, so a lease holds no more than this call needs.
        policy_version: identifies the policies, prices and settings that the decision rests on.
        recalls: rather than refuse, ask for a recall of the leases that hold the room.
        is_rerun: this is the second run, after a recall.
        judges_model: refuses a model by its name; for the one that is expected to answer.
        rates_of: returns the rates of a model by its name, for the same; None without a known
            price.
        note: for the person who approves the call, if one has to.
        caps: the rate caps that count it; empty if it has been counted.
        lane_caps: those that count every call of its lane, so that a lease may hold some of theirs.
        place: the place in line of a call that would wait for money that is set aside; ``None``: it
            does not wait, but is refused.
        waiters: the calls that wait already, in order.
        awaited: the balances that calls at other replicas wait for.
        repeats: the rules that count it as a repeat within its run.
        before: the outcome of events of the request that were recorded ahead of it.
    """

    request: RequestOrigin
    call: wire.GateRequest
    events: list[PricedEvent] = []
    rejected: list[wire.RejectedEvent] = []
    refusal: CallRefusal | None = None
    approval: ApprovalNeed | None = None
    declared_nanousd: int | None = None
    worst_case: bool = False
    rates: wire.ModelRates | None = None
    input_max: int = 0
    output_max: int | None = None
    grants_lease: bool = False
    small_lease: bool = False
    policy_version: str = ""
    recalls: bool = False
    is_rerun: bool = False
    judges_model: Callable[[str], CallRefusal | None] | None = None
    rates_of: Callable[[str], wire.ModelRates | None] | None = None
    note: wire.ApprovalNote | None = None
    caps: Sequence[CapUse] = ()
    lane_caps: Sequence[CapUse] = ()
    place: Place | None = None
    waiters: tuple[Waiter, ...] = ()
    awaited: frozenset[int] = frozenset()
    repeats: tuple[RepeatUse, ...] = ()
    before: wire.EventsOutcome | None = None

    @property
    def is_top_up(self) -> bool:
        """Whether no call waits: the lease is only to be topped up."""
        return self.call.lease is not None and self.call.lease.ahead

    @property
    def is_foreign(self) -> bool:
        """Whether the call names another workflow than the one that its key is for."""
        return self.request.key_workflow_id not in (None, self.call.workflow_id)

    @property
    def answers_function(self) -> str | None:
        """The name under which it is learned which model answers for the one asked for."""
        call = self.call
        if call.model == wire.UNKNOWN_MODEL or not (call.kind == "llm" or call.gates_requests):
            return None
        return models.answers(call.model, self.request.key_id)


class Ingested(Struct, frozen=True):
    """The results of recording some events.

    Attributes:
        outcome: how many were recorded, how many were known, and which are rejected.
        last: the last event, with what it inherits from its reservation.
        over: the last budget that a cost exceeded.
        over_workflow: the workflow of that cost.
    """

    outcome: wire.EventsOutcome
    last: wire.Event | None = None
    over: wire.Budget | None = None
    over_workflow: str | None = None


class IngestCommand(Struct, kw_only=True, frozen=True):
    """Record and charge events: a batch, or the next part of one.

    Args:
        before: the results of the batch's earlier parts.
        is_last: whether no part follows, so that the batch is answered.
    """

    request: RequestOrigin
    events: list[PricedEvent]
    rejected: list[wire.RejectedEvent] = []
    before: Ingested | None = None
    is_last: bool = True


class ReleaseCommand(Struct, kw_only=True, frozen=True):
    """Release a reservation, or leave an approval; with ``stays``, leave it for a later call."""

    request: RequestOrigin
    reservation_id: str
    stays: bool = False


class LeaseCommand(Struct, kw_only=True, frozen=True):
    """Renew a lease, give back a part of it, or close it."""

    request: RequestOrigin
    update: wire.LeaseUpdate


class EncodedAnswer(Struct, frozen=True):
    """An encoded reply, with what the services need of it.

    Attributes:
        status, body, retry_after_ms: of the reply.
        replay: whether it repeats an earlier reply.
        kept: whether it is stored for repeats of the request.
        recall: leases to recall, as in a refusal. The reply is not finished then: the same command
            is decided again after their holders have given back what they do not use.
        lease_id: the lease that was granted or topped up.
        own_lease: the caller's open lease that the request has named and that has given back.
        waits: the call's place in line, if it has one.
        ingested: the results so far of a batch of which parts follow. The reply is not finished
            then.
    """

    status: int
    body: bytes
    retry_after_ms: int | None = None
    replay: bool = False
    kept: bool = True
    recall: dict[str, list[str]] = {}
    lease_id: str | None = None
    own_lease: str | None = None
    waits: Waiter | None = None
    ingested: Ingested | None = None


class Actor(Struct, frozen=True):
    """The person, key or part of the gateway that acts, for the audit log."""

    name: str
    organisation_id: str | None = None
    role: OperatorRole = "owner"


class PostCommitEvent(Struct, frozen=True):
    """A change that a commit has made visible, delivered before any answer that depends on it.

    ``control`` carries a message for the organisation's control channels (of one key only, when
    ``key_id`` is set). ``catalogue``: keys, policies or prices have changed. ``webhooks``:
    deliveries are queued. ``room``: money has come back on some balances.

    The others come from other replicas, and are stored nowhere. ``recall`` asks the holders of
    ``leases`` (by key) to give back at once for ``returns_ms``. ``answered``: these leases have
    given back. ``room_at_peer``: money has come back there. ``waits_at_peer``: calls wait there for
    some balances.
    """

    kind: Literal[
        "control", "catalogue", "webhooks", "room", "recall", "answered", "room_at_peer",
        "waits_at_peer",
    ]  # fmt: skip
    organisation_id: str | None
    message: wire.ControlMessage | None = None
    key_id: str | None = None
    leases: dict[str, list[str]] = {}
    balance_ids: tuple[int, ...] = ()
    returns_ms: int = 0
