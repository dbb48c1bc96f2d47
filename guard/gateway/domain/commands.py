"""Commands that services give to a storage, and their results. One command, one transaction.

All are frozen: a store may run a command twice, because the group that it was committed with has
failed, and the second run must find what the first one found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import models
from guard.gateway.domain.operators import OperatorRole
from guard.gateway.domain.waiting import Place, Waiter


class CallRefusal(Struct, kw_only=True, frozen=True):
    """Why a call is refused, with the protocol's status and code.

    ``recall`` names leases, by the key that holds them, which hold the room that the call lacks.
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
        """Name the budget or the policy that has refused it; empty where it was neither.

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
        times, action: as in the rule: so many are allowed, and what happens to one more.
        policy, policy_version: whose rule it is.
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

    ``repeats`` are the rules that count it as one of the same calls of its run.
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
    observed: bool = False
    text_tokens: int = 0
    requested_model: str | None = None
    repeats: tuple[RepeatUse, ...] = ()


class RequestOrigin(Struct, kw_only=True, frozen=True):
    """Who makes a request, and how a repeat is recognised."""

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
        input_max: the most tokens of a prompt that nothing bounds, for a model whose context is not
            known.
        output_max: the most tokens that the model can answer, for a request without a limit.
        grants_lease: a lease may be granted.
        small_lease: the key does not answer recalls, so a lease holds no more than this call needs.
        lease_calls: how many calls the lease's share of rate caps allows; ``None``: no cap.
        policy_version: identifies the policies, prices and settings that the decision rests on.
        recalls: rather than refuse, ask for a recall of the leases that hold the room.
        is_again: it is decided once more, after a recall.
        judges_model: refuses a model by its name; for the one that is expected to answer.
        rates_of: returns the rates of a model by its name, likewise; None without a known price.
        note: for the person who approves the call, if one has to.
        turn_in_ms: of a call that is faster than a rate cap allows: when its turn comes.
        place: of a call that waits for money that is only set aside; ``None``: it is refused.
        waiters: who waits already, in order.
        awaited: the balances whose money is waited for at other replicas.
        repeats: the rules that count it as one of the same calls of its run.
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
    lease_calls: int | None = None
    policy_version: str = ""
    recalls: bool = False
    is_again: bool = False
    judges_model: Callable[[str], CallRefusal | None] | None = None
    rates_of: Callable[[str], wire.ModelRates | None] | None = None
    note: wire.ApprovalNote | None = None
    turn_in_ms: int | None = None
    place: Place | None = None
    waiters: tuple[Waiter, ...] = ()
    awaited: frozenset[int] = frozenset()
    repeats: tuple[RepeatUse, ...] = ()

    @property
    def is_ahead(self) -> bool:
        """Whether no call waits: the lease is only to be topped up."""
        return self.call.lease is not None and self.call.lease.ahead

    @property
    def is_foreign(self) -> bool:
        """Whether the call is made for another workflow than the one that the key is for."""
        return self.request.key_workflow_id not in (None, self.call.workflow_id)

    @property
    def answers_function(self) -> str | None:
        """Under which the model is learned that answers requests for the one asked for."""
        call = self.call
        if call.model == wire.UNKNOWN_MODEL or not (call.kind == "llm" or call.gates_requests):
            return None
        return models.answers(call.model, self.request.key_id)


class IngestCommand(Struct, kw_only=True, frozen=True):
    """Record and charge events."""

    request: RequestOrigin
    events: list[PricedEvent]
    rejected: list[wire.RejectedEvent] = []
    batch: bool = True


class ReleaseCommand(Struct, kw_only=True, frozen=True):
    """Release a reservation, or leave an approval: for good, or until the same call comes again."""

    request: RequestOrigin
    reservation_id: str
    stays: bool = False


class LeaseCommand(Struct, kw_only=True, frozen=True):
    """Renew a lease, give back a part of it, or close it."""

    request: RequestOrigin
    update: wire.LeaseUpdate


class EncodedAnswer(Struct, frozen=True):
    """A finished reply. ``replay`` marks a repeat of an earlier one.

    With ``recall`` (as in a refusal) it is not finished: the same command decides once more, after
    the holders of these leases have given back what they do not use. ``lease_id`` names the lease
    that was granted, ``own_lease`` the caller's own, open one that the request has named and given
    back to. ``waits`` is set when the call has a place in line.
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


class Actor(Struct, frozen=True):
    """Who acts, for the audit log."""

    name: str
    organisation_id: str | None = None
    role: OperatorRole = "owner"


class PostCommitEvent(Struct, frozen=True):
    """A change that a commit has made visible, delivered before any answer that depends on it.

    ``control`` carries a message for the organisation's control channels (of one key only, when
    ``key_id`` is set); ``catalogue`` says that keys, policies or prices changed; ``webhooks`` that
    deliveries wait. ``room`` says that money has come back on some balances. The others come
    from other replicas and are stored nowhere: ``recall``, a question to the holders of ``leases``
    (by key), who give back at once for ``returns_ms``; ``answered``, that these leases have given
    back; ``room_at_peer``; and ``waits_at_peer``, that calls wait there for some balances.
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
