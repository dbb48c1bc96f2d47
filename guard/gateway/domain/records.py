"""The gateway's stored data, as the admin API shows it. Money is integer nano-dollars."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from guard.core.wire import NANOUSD_MAX, ControlMessage, MayName, NanoUsd
from guard.gateway.domain.windows import UTC, WEEKDAYS, Calendar, Window, Zone

ScopeKind = Literal[
    "organisation", "workflow", "agent", "chain", "user", "key", "tag", "model", "run"
]
PolicyScope = Literal["organisation", "workflow", "agent", "key"]
BudgetMode = Literal["hard", "soft"]
BudgetUnit = Literal["usd", "tokens", "calls"]
OnExhausted = Literal["refuse", "ask"]
ApprovalStatus = Literal["pending", "approved", "used", "refused", "expired", "withdrawn"]

Label = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Glob = Annotated[str, Meta(min_length=1, max_length=256)]
DurationMs = Annotated[int, Meta(ge=1, le=366 * 86_400_000)]
PerMtok = Annotated[int, Meta(ge=0, le=10**15)]
NanoLimit = Annotated[int, Meta(ge=0, le=NANOUSD_MAX)]
Thresholds = Annotated[list[Annotated[float, Meta(gt=0, le=10)]], Meta(max_length=20)]

ASK_MS: Final = 300_000
"""How long a budget that asks waits for an operator, unless it says otherwise."""


# ``setting_table`` reads the sentences of this docstring: they are the help texts of the settings.
class OrganisationSettings(Struct, kw_only=True):
    """How the ledger treats one organisation.

    Args:
        strict: reserve the worst case, refuse what cannot be priced, and report every
            consumption above the reservation.
        chain_over_permille: how far an open chain may go over a budget, in thousandths.
        chain_ttl_ms: how long a chain stays open without activity.
        reservation_ttl_ms: how long a reservation that nobody renews lasts without activity.
        default_hold_nanousd: what is set aside for a call about which nothing is known.
        unbounded_output: what to set aside for an LLM request without a limit on its output:
            ``bounded``, the most that its model can answer; ``learned``, what its model's answers
            have been like, which may be exceeded; ``refuse`` such requests. One that may be charged
            any number of times for something else (searches) is refused under a hard budget, but
            for ``learned``.
        lease_ttl_ms: how long a lease, or a reservation that its holder renews, lasts unless it is
            renewed.
        lease_grace_ms: how much longer its money stays set aside: for bytes that were on their way
            at its end.
        in_doubt: what a request costs whose answer was lost, so that nothing shows what was billed:
            ``bound``, the most that it can have cost; ``likely``, what the requests of its model
            usually cost, for products whose users leave all the time. It is learned from then on.
        wait_for_room_max_ms: how long a call or request may wait in line for money that is only set
            aside, however long its program would; 0 refuses it at once.
        default_tier: the service tier of the OpenAI projects that are used: it decides what is set
            aside for a request that names none.
        zone: the IANA time zone in which days, weeks and months of budgets and pages begin. A
            budget may have another one. A change counts for each window when the present one ends.
        week_begins: the first day of a week.
    """

    strict: bool = False
    chain_over_permille: Annotated[int, Meta(ge=0, le=10_000)] = 200
    chain_ttl_ms: DurationMs = 3_600_000
    reservation_ttl_ms: DurationMs = 900_000
    default_hold_nanousd: Annotated[int, Meta(ge=1, le=NANOUSD_MAX)] = 1_000_000
    unbounded_output: Literal["bounded", "learned", "refuse"] = "bounded"
    lease_ttl_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] = 30_000
    lease_grace_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 10_000
    in_doubt: Literal["bound", "likely"] = "bound"
    wait_for_room_max_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 86_400_000
    default_tier: Literal["standard", "priority", "fast", "ultrafast"] = "standard"
    zone: Zone = UTC
    week_begins: Literal[
        "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"
    ] = "monday"

    def calendar(self, zone: str = "") -> Calendar:
        """Return whose days count for a budget, which may have a zone of its own."""
        return Calendar(zone or self.zone, WEEKDAYS.index(self.week_begins))


class Organisation(Struct, kw_only=True):
    """One tenant."""

    organisation_id: str
    name: str
    created_at_ms: int
    settings: OrganisationSettings


Role = Literal["sdk", "admin", "proxy"]
"""What a key is for: an agent's calls, the admin API, or the calls of others (a proxy's)."""


class Secret(Struct, kw_only=True):
    """What is known of a secret of a key: how it begins, and its times."""

    prefix: str
    signed: bool = False
    created_at_ms: int = 0
    ends_at_ms: int | None = None
    used_at_ms: int | None = None


Attribute = Annotated[str, Meta(max_length=256)]
Names = Annotated[list[MayName], Meta(max_length=8)]


class KeyAttributes(Struct, kw_only=True):
    """Whose work a key is for (``team``, which never changes), who has it, and what it is for.

    Behind a proxy, ``may_name`` is what its requests may name themselves, and with ``shows_cost``
    they are told what they have cost. A key that belongs to another has what it lacks from that
    one.
    """

    team: Attribute = ""
    person: Attribute = ""
    purpose: Attribute = ""
    may_name: Names = []
    shows_cost: bool = False


class KeyChanges(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of a key to change; what is left out stays as it is."""

    name: Label | None = None
    person: Attribute | None = None
    purpose: Attribute | None = None
    may_name: Names | None = None
    shows_cost: bool | None = None
    expires_at_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class Key(KeyAttributes, kw_only=True):
    """An API key, which lasts; its secrets change. One of no organisation is for the whole gateway.

    ``secrets`` in lists of keys has those that are valid, the newest first; ``prefix`` is how the
    first of them begins. Lists also say when a key was last used, and whether it is the account of
    a person who gets its secrets by signing in.
    """

    key_id: str
    organisation_id: str | None
    role: Role
    name: str
    prefix: str = ""
    workflow_id: str | None = None
    signed: bool = False
    created_at_ms: int = 0
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None
    secrets: list[Secret] = []
    used_at_ms: int | None = None
    signs_in: bool = False


class BudgetTerms(Struct, kw_only=True):
    """What a budget has beside its scope, window and limit: as operators set it, and as it is."""

    mode: BudgetMode = "hard"
    epsilon_nanousd: NanoLimit = 0
    thresholds: Thresholds = field(default_factory=lambda: [0.8, 1.0])
    counts: Annotated[list[Glob], Meta(max_length=100)] = []
    on_exhausted: OnExhausted = "refuse"
    ask_ms: DurationMs = ASK_MS
    wind_down_percent: Annotated[int, Meta(ge=0, le=99)] = 0
    zone: Zone = ""


class BudgetRule(BudgetTerms, kw_only=True):
    """A limit on one scope and window.

    ``scope_id`` is an exact id, a glob, which gives each matching id a balance of its own, or
    ``"*"``, which gives one to every id. Of the budgets of the same kind and window, an exact one
    replaces globs for its id, and matching globs replace ``"*"``; all matching globs apply. It is
    empty for the organisation.

    Its limit is in its unit: nano-dollars, tokens (input, output and cached, as the vendor reports
    them) or calls. One of calls counts LLM requests by their model and other calls by their tool's
    name: those that match a glob of ``counts``, or all.

    Where a hard budget's ``on_exhausted`` is ``ask``, a call that does not fit waits up to
    ``ask_ms`` for an operator to raise the limit. ``wind_down_percent`` of a hard budget are kept
    for calls that wind down, and for the last request of a run; budgets of calls have no such
    share. Days, weeks and months are those of its ``zone``, or of the organisation's.
    """

    budget_id: str
    organisation_id: str
    scope_kind: ScopeKind
    scope_id: str
    window: Window
    limit: int
    unit: BudgetUnit = "usd"
    version: int = 1
    created_at_ms: int = 0
    updated_at_ms: int = 0

    @property
    def kept(self) -> int:
        """The part of the limit that is kept for winding down."""
        return self.limit * self.wind_down_percent // 100 if self.mode == "hard" else 0

    @property
    def asks(self) -> bool:
        """Whether operators are asked for a raise before it refuses a call."""
        return self.on_exhausted == "ask" and self.mode == "hard"

    def opens_with_tokens(self, start_ms: int) -> bool:
        """Whether what was used before in this period counts: tokens, where it was made in it."""
        return self.unit == "tokens" and self.created_at_ms >= start_ms


class BudgetRaise(Struct, kw_only=True):
    """One raise of a budget's limit.

    ``raise_key`` identifies it: a second raise with the same key changes nothing. ``limit`` is the
    limit after it. Both amounts are in ``unit``; ``usd`` stands for nano-dollars.
    """

    raise_key: str
    organisation_id: str
    budget_id: str
    by: int
    limit: int
    raised_at_ms: int
    raised_by: str
    unit: BudgetUnit = "usd"


class Raised(Struct, kw_only=True):
    """A budget, and the raise of it."""

    budget: BudgetRule
    raised: BudgetRaise


class BudgetAsk(Struct, kw_only=True):
    """A call that waits for an operator to raise a budget.

    ``needed`` is what it may cost, ``lacking`` the part that the budget does not pay for; the other
    figures are those of the moment at which it began to ask, all in ``unit``; ``usd`` stands for
    nano-dollars. It is refused at ``deadline_ms``; an operator who refuses (``refused_by``,
    ``refused_reason``) moves that to the present.
    """

    organisation_id: str
    budget_id: str
    balance_id: int
    scope: str
    limit: int
    spent: int
    needed: int
    lacking: int
    call_id: str
    function: str
    workflow_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    user: str | None = None
    model: str | None = None
    asked_at_ms: int = 0
    deadline_ms: int = 0
    unit: BudgetUnit = "usd"
    counts: list[str] = []
    refused_by: str = ""
    refused_reason: str = ""


class RateCap(Struct, kw_only=True):
    """At most ``calls`` calls in any ``per_ms``, counted for each value of ``by``.

    A call above that is refused (429), or waits for its turn, as ``on_limit`` says; one whose
    caller does not wait is refused.
    """

    calls: Annotated[int, Meta(ge=1, le=100_000)]
    per_ms: DurationMs = 60_000
    by: Literal["organisation", "workflow", "agent", "key", "tool"] = "organisation"
    tools: list[Glob] = []
    on_limit: Literal["refuse", "wait"] = "refuse"


_NAMES_SOME: Final = Meta(
    extra_json_schema={
        "anyOf": [
            {"required": [name], "properties": {name: {"minItems": 1}}}
            for name in ("tools", "models")
        ]
    }
)


class RepeatCap(Struct, kw_only=True):
    """At most ``times`` calls of one run that are the same.

    The same are calls of a tool with the same arguments, for tools that match, and requests for a
    model with the same prompt, for models that match. One above that is refused, or pauses its run,
    as ``on_repeat`` says; ``notice`` only flags the run.
    """

    times: Annotated[int, Meta(ge=1, le=100_000)]
    tools: Annotated[list[Glob], Meta(max_length=1000)] = []
    models: Annotated[list[Glob], Meta(max_length=1000)] = []
    on_repeat: Literal["notice", "pause", "refuse"] = "refuse"

    def __post_init__(self) -> None:
        if not (self.tools or self.models):
            raise ValueError("repeat_caps: each names tools or models")

    @property
    def stops(self) -> bool:
        """Whether it does more than flag a run."""
        return self.on_repeat != "notice"


class PolicyDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """The rules of one policy. Tool and model names are compared folded (NFKC, no case).

    Rules for tools, but for ``tools_allow``, also match what follows a separator in a name.

    Args:
        tools_block: a tool that matches is refused (GD-T001), block wins over allow.
        tools_allow: when set, a tool that matches none is refused.
        models_block, models_allow: the same for models (GD-X001).
        models_priced: an LLM request for a model without a known price is refused (GD-X001).
        sensitive_tools: tools treated as sensitive although the caller did not say so.
        sensitive_action: what happens to a sensitive call.
        approval_tools: tools that a person has to approve, call by call.
        approval_timeout_ms: how long the answer may take; none in time refuses.
        rate_caps: call rates (429).
        repeat_caps: how often a run may repeat the same call, or the same prompt of a model.
        on_accelerating_spend: what happens to a run that spends faster and faster.
    """

    tools_block: Annotated[list[Glob], Meta(max_length=1000)] = []
    tools_allow: Annotated[list[Glob], Meta(max_length=1000)] | None = None
    models_block: Annotated[list[Glob], Meta(max_length=1000)] = []
    models_allow: Annotated[list[Glob], Meta(max_length=1000)] | None = None
    models_priced: bool = False
    sensitive_tools: Annotated[list[Glob], Meta(max_length=1000)] = []
    sensitive_action: Literal["allow", "approve", "block"] = "allow"
    approval_tools: Annotated[list[Glob], Meta(max_length=1000)] = []
    approval_timeout_ms: DurationMs = 300_000
    rate_caps: Annotated[list[RateCap], Meta(max_length=100)] = []
    repeat_caps: Annotated[list[Annotated[RepeatCap, _NAMES_SOME]], Meta(max_length=100)] = []
    on_accelerating_spend: Literal["notice", "pause", "kill"] | None = None


class Policy(Struct, kw_only=True):
    """One named policy of an organisation, with its version."""

    policy_id: str
    organisation_id: str
    name: str
    scope_kind: PolicyScope = "organisation"
    scope_id: str = "*"
    enabled: bool = True
    document: PolicyDocument
    version: int = 1
    created_at_ms: int = 0
    updated_at_ms: int = 0


class Rates(Struct, kw_only=True, frozen=True):
    """Prices in nano-dollars per million tokens. Unset ones follow from input and output."""

    input_per_mtok: PerMtok
    output_per_mtok: PerMtok
    cache_read_per_mtok: PerMtok | None = None
    cache_write_per_mtok: PerMtok | None = None
    reasoning_per_mtok: PerMtok | None = None
    audio_per_mtok: PerMtok | None = None


class Price(Struct, kw_only=True):
    """The operator's price for the models that match. ``model: "*"`` is the default price for
    models that nothing else prices. ``from_file`` tells that `apply` has set it from a file."""

    price_id: str
    organisation_id: str
    provider: str
    model: str
    rates: Rates
    version: int = 1
    updated_at_ms: int = 0
    from_file: bool = False


class Webhook(Struct, kw_only=True):
    """Where threshold and approval notices are sent (Standard Webhooks). Secret not shown."""

    webhook_id: str
    organisation_id: str
    url: str
    types: list[str] = []
    enabled: bool = True
    created_at_ms: int = 0


class Delivery(Struct, kw_only=True):
    """One message to a channel and how its delivery went.

    ``last_status`` is the status of HTTP or the reply code of SMTP; ``error`` is in a few words why
    the last attempt failed.
    """

    delivery_id: str
    webhook_id: str
    type: str
    created_at_ms: int
    attempts: int
    delivered_at_ms: int | None
    failed: bool
    last_status: int | None
    error: str = ""
    channel: str = ""
    kind: str = "webhook"


class Workflow(Struct, kw_only=True):
    """A workflow as seen by the gateway, with its control state.

    ``uncertain_nanousd`` is the part of the spend that was charged in doubt: at most this much was
    not billed. ``llm_calls`` is how many requests to models were charged, ``calls`` how many calls
    of all kinds asked before they ran. ``stopped_by`` is the id or glob of the directive that has
    killed or paused it.
    """

    workflow_id: str
    state: Literal["active", "paused", "killed"] = "active"
    reason: str = ""
    stopped_by: str = ""
    resume_at_ms: int | None = None
    first_seen_ms: int | None = None
    last_seen_ms: int | None = None
    spent_nanousd: NanoUsd = 0
    spent_cents: float = 0.0
    calls: int = 0
    events: int = 0
    uncertain_nanousd: NanoUsd = 0
    uncertain_cents: float = 0.0
    llm_calls: int = 0


class TargetExists(Struct, kw_only=True):
    """Whether the target of a directive names anything.

    Args:
        known: a workflow or a run that was seen, or that a budget, a key, or a kill or pause in
            force is for; or everything.
    """

    known: bool


class TargetCount(Struct, kw_only=True):
    """How many workflows and runs the target of a directive names.

    Args:
        workflows: how many workflows that were seen.
        runs: how many of their runs were seen within the last ``within_ms``.
        within_ms: a time in milliseconds.
    """

    workflows: int
    runs: int
    within_ms: int


class Run(Struct, kw_only=True):
    """One entry of a workflow."""

    run_id: str
    workflow_id: str | None
    state: Literal["active", "paused", "killed"] = "active"
    first_seen_ms: int
    last_seen_ms: int
    spent_nanousd: int = 0
    uncertain_nanousd: int = 0


class Approval(Struct, kw_only=True):
    """A call that waits for a person's answer, or has received one.

    Args:
        message, details: what the caller shows to that person.
        arguments: a keyed digest of the call's arguments, which only its program can make.
        present_until_ms: when it ends unless its caller renews it; ``None``: only at the deadline.
    """

    approval_id: str
    organisation_id: str
    call_id: str
    status: ApprovalStatus
    tool_name: str | None
    function: str
    workflow_id: str | None
    run_id: str | None
    agent: str | None
    requested_at_ms: int
    deadline_ms: int
    answered_at_ms: int | None = None
    answered_by: str | None = None
    reason: str = ""
    message: str = ""
    details: dict[str, Any] = {}
    present_until_ms: int | None = None
    user: str | None = None
    arguments: str | None = None


class AuditEntry(Struct, kw_only=True):
    """One action of an operator. ``hash`` covers all other fields and the entry before it."""

    seq: int
    at_ms: int
    organisation_id: str | None
    actor: str
    action: str
    target: str
    details: dict[str, Any]
    prev_hash: str
    hash: str


_EXHAUSTED: Final = (
    "All is spent; or a call was refused for want of this budget, none was let through since, and "
    "what is left is still less than was refused."
)


class BalanceView(Struct, kw_only=True):
    """What one scope has spent and reserved in one window.

    Its amounts are in ``unit``; ``usd`` stands for nano-dollars. ``kept`` of the limit are kept for
    winding down; ``remaining`` includes them. Of a budget of money, some amounts are also there
    under their older names, which end in ``nanousd``; of others these are None, and cents are 0. A
    window of a length has no ``ends_ms`` before its first charge. ``zone`` is whose day, week or
    month it is.
    """

    balance_id: int
    budget_id: str
    scope_kind: ScopeKind
    scope_id: str
    window: Window
    epoch_ms: int
    ends_ms: int | None
    mode: BudgetMode
    limit: int
    committed: int
    reserved: int
    remaining: int
    overshoot: int
    limit_cents: float
    committed_cents: float
    reserved_cents: float
    exhausted: Annotated[bool, Meta(description=_EXHAUSTED)]
    uncertain: int = 0
    uncertain_cents: float = 0.0
    unit: BudgetUnit = "usd"
    counts: list[str] = []
    kept: int = 0
    zone: str = UTC
    limit_nanousd: int | None = None
    committed_nanousd: int | None = None
    reserved_nanousd: int | None = None
    remaining_nanousd: int | None = None
    overshoot_nanousd: int | None = None

    def __post_init__(self) -> None:
        if self.unit == "usd":
            self.limit_nanousd, self.committed_nanousd = self.limit, self.committed
            self.reserved_nanousd, self.remaining_nanousd = self.reserved, self.remaining
            self.overshoot_nanousd = self.overshoot


class StoredEvent(Struct, kw_only=True):
    """A stored event."""

    event_seq: int
    event_id: str
    type: str
    at_ms: int
    received_at_ms: int
    workflow_id: str | None
    run_id: str | None
    chain_id: str | None
    agent: str | None
    call_id: str | None
    reservation_id: str | None
    key_id: str
    model: str | None
    cost_nanousd: int
    price_source: str | None
    flags: list[str]
    data: dict[str, Any]
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    user: str | None = None
    tags: dict[str, str] = {}


class EventSearch(Struct, kw_only=True, frozen=True):
    """Which events are sought; ``None``: any.

    Attributes:
        workflow_id, type, run_id, call_id, event_id, user, agent, model: only of this one.
        tag: only with this tag, a name and a value.
        cost_nanousd: only those that cost at least this.
        since_ms, until_ms: only those that were charged from the one time on, and before the other.
    """

    workflow_id: str | None = None
    type: str | None = None
    run_id: str | None = None
    call_id: str | None = None
    event_id: str | None = None
    user: str | None = None
    agent: str | None = None
    model: str | None = None
    tag: tuple[str, str] | None = None
    cost_nanousd: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class FoundEvents(Struct):
    """What was found among the events that were looked at.

    Attributes:
        events: newest first.
        further: before which event to look on; ``None`` where all were looked at.
    """

    events: list[StoredEvent]
    further: int | None = None


class Doubt(Struct, kw_only=True):
    """A charge of which it is not known what the vendor bills for it.

    ``charged_nanousd`` is what was charged, ``doubt_nanousd`` what of it is still in doubt.
    ``holder_gone`` tells the charge for a process that did not renew what it held from that for an
    answer that was lost. ``event_id`` names it.
    """

    event_id: str
    charged_at_ms: int
    workflow_id: str | None
    run_id: str | None
    agent: str | None
    user: str | None
    key_id: str
    provider: str | None
    model: str | None
    charged_nanousd: int
    doubt_nanousd: int
    reservation_id: str | None
    holder_gone: bool


class DoubtSettlement(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a charge in doubt has cost: what was charged, if nothing is given."""

    cost_nanousd: Annotated[int, Meta(ge=0, le=10**15)] | None = None


class UsageRow(Struct, kw_only=True):
    """Usage summed over one group.

    ``uncertain_nanousd`` is the part of the cost that was charged in doubt: at most this much was
    not billed. ``model`` is what a group's rows are divided by, where that was asked for.
    """

    group: str | None
    model: str | None = None
    events: int
    llm_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cost_nanousd: int
    cost_cents: float
    unpriced: int
    uncertain_nanousd: int = 0
    uncertain_cents: float = 0.0


class LedgerReport(Struct, kw_only=True):
    """Outcome of checking every balance against its entries."""

    balances: int
    reservations_open: int
    events: int
    problems: list[str]


class KeySecret(Struct):
    """A key with its HMAC secret, for the gateway alone.

    Attributes:
        works_until_ms: of a work key: until then its end is put off while its person's provider
            knows them.
    """

    key: Key
    hmac_secret: str | None = None
    works_until_ms: int | None = None


class StoredControl(Struct):
    """A stored control message with the key that it is for (``None``: all)."""

    message: ControlMessage
    key_id: str | None


class DueDelivery(Struct):
    """A message that has to be sent now, with its channel."""

    delivery_id: str
    organisation_id: str
    url: str
    secret: str
    type: str
    body: str
    created_at_ms: int
    attempts: int
    channel_id: str = ""
    kind: str = "webhook"
    options: str = "{}"


class Billed(Struct, frozen=True, kw_only=True):
    """A vendor's bill for one model in one hour or day."""

    start_ms: int
    width_ms: int
    model: str
    cost_nanousd: int


class Adjustment(Struct, frozen=True, kw_only=True):
    """The difference between the bill and the charges for one model and time.

    ``uncertain_nanousd`` is the part of the charges that was in doubt. ``note`` says why nothing is
    booked; empty if something is.
    """

    start_ms: int
    width_ms: int
    model: str
    charged_nanousd: int
    uncertain_nanousd: int
    billed_nanousd: int
    adjustment_nanousd: int
    note: str = ""
