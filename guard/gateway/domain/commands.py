"""Commands that services give to a storage, and their results. One command, one transaction."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from guard.core import wire


class Refusal(Struct, kw_only=True):
    """Why a call is refused, with the protocol's status and code."""

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


class ApprovalNeed(Struct, kw_only=True):
    """A call that a person has to approve."""

    tool_name: str | None
    timeout_ms: int


class PricedEvent(Struct):
    """An event that was checked and priced, ready to be charged."""

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


class Request(Struct, kw_only=True):
    """Who makes a request, and how a repeat is recognised."""

    organisation_id: str
    key_id: str
    key_workflow_id: str | None = None
    idempotency_key: str | None = None
    fingerprint: bytes = b""


class GateCommand(Struct, kw_only=True):
    """Ingest the piggybacked events, then decide one call."""

    request: Request
    call: wire.GateRequest
    events: list[PricedEvent] = []
    rejected: list[wire.RejectedEvent] = []
    refusal: Refusal | None = None
    approval: ApprovalNeed | None = None
    declared_nanousd: int | None = None
    worst_case: bool = False


class IngestCommand(Struct, kw_only=True):
    """Record and charge events."""

    request: Request
    events: list[PricedEvent]
    rejected: list[wire.RejectedEvent] = []
    batch: bool = True


class ReleaseCommand(Struct, kw_only=True):
    """Release a reservation."""

    request: Request
    reservation_id: str


class Answer(Struct):
    """A finished reply. ``replay`` marks a repeat of an earlier one."""

    status: int
    body: bytes
    retry_after_ms: int | None = None
    replay: bool = False
    kept: bool = True


class Actor(Struct):
    """Who acts, for the audit log."""

    name: str
    organisation_id: str | None = None


class PostCommitEvent(Struct):
    """A change that a commit has made visible, delivered before any answer that depends on it.

    ``control`` carries a message for the organisation's control channels (of one key only, when
    ``key_id`` is set); ``catalogue`` says that keys, policies or prices changed; ``webhooks`` that
    deliveries wait.
    """

    kind: Literal["control", "catalogue", "webhooks"]
    organisation_id: str | None
    message: wire.ControlMessage | None = None
    key_id: str | None = None
