"""Bodies and queries of the admin API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from guard.core import globs
from guard.core.wire import NANOUSD_MAX, NANOUSD_PER_CENT
from guard.gateway.api.admin.alert_bodies import ApplyAlert, ApplyChannel
from guard.gateway.domain import records, windows
from guard.gateway.domain.acceleration import AccelerationPreview
from guard.gateway.domain.operators import OperatorRole
from guard.gateway.domain.records import DurationMs, Label
from guard.gateway.domain.repeats import RepeatPreview
from guard.gateway.domain.rulesets import Change
from guard.gateway.domain.setting_table import SETTINGS
from guard.gateway.domain.usage import LISTED_GROUPS, UsageGroup
from guard.gateway.domain.usage_export import ROWS_MAX, BilledRow
from guard.gateway.services.operators import PASSWORD_LENGTH_MAX, PASSWORD_LENGTH_MIN

_WEBHOOK_URL = (
    r"^(https://[a-zA-Z0-9.-]{1,253}|http://(127\.0\.0\.1|\[::1\]))(:\d{1,5})?(/[!-~]*)?$"
)
Reason = Annotated[str, Meta(max_length=512)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Moment = Annotated[int, Meta(ge=0, le=2**53)]
Target = Annotated[str, Meta(min_length=1, max_length=256)]
CentsLimit = Annotated[float, Meta(ge=0, le=NANOUSD_MAX / NANOUSD_PER_CENT)]


class Strict(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A body in which unknown fields are refused."""


class Page(Struct, kw_only=True):
    """Paging by the last item of the page before."""

    after: Annotated[str, Meta(max_length=512)] = ""
    limit: Limit = 100


class AuditQuery(Struct, kw_only=True):
    """Paging by number; ``newest`` gives the last entries instead of those after a number."""

    after: Moment = 0
    limit: Limit = 100
    newest: bool = False


class NewOrganisation(Strict, kw_only=True):
    """A tenant to create."""

    name: Label


class NewKeyBody(records.KeyAttributes, kw_only=True, forbid_unknown_fields=True):
    """A key to create. ``workflow_id`` confines it to one workflow.

    A proxy's key (role ``proxy``) names the keys of its callers: those of its organisation, or with
    ``every_organisation`` all of this gateway's.

    What it spends counts for the key ``owner_id`` too, whose budgets and whose end are its own.
    """

    name: Label = "sdk"
    role: records.Role = "sdk"
    every_organisation: bool = False
    workflow_id: Target | None = None
    expires_at_ms: Moment | None = None
    signed: bool = False
    hmac_secret: Annotated[str, Meta(min_length=16, max_length=256)] | None = None
    owner_id: Target | None = None


class RotateBody(Strict, kw_only=True):
    """How long a key's old secrets stay valid beside the new one."""

    overlap_ms: Annotated[int, Meta(ge=0, le=90 * 86_400_000)] = 0


class CreatedKey(Struct, kw_only=True):
    """A key with its new secrets, which are never shown again."""

    key: records.Key
    api_key: str
    hmac_secret: str | None = None


class BudgetBody(records.BudgetTerms, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A budget to set; give its limit in one unit: nano-dollars, cents, tokens or calls.

    A limit of calls counts LLM requests by their model, and other calls by their tool's name: all,
    or those that match a glob of ``counts``. What is for a key, a tag or a model that does not
    exist is refused without ``anyway``; a key may be given by its name or prefix.
    """

    scope_kind: records.ScopeKind = "organisation"
    scope_id: Annotated[str, Meta(max_length=256)] = ""
    window: windows.Window = "total"
    limit_nanousd: records.NanoLimit | None = None
    limit_cents: CentsLimit | None = None
    limit_tokens: records.NanoLimit | None = None
    limit_calls: records.NanoLimit | None = None
    anyway: bool = False

    @property
    def unit(self) -> records.BudgetUnit:
        """What the budget counts."""
        if self.limit_tokens is not None:
            return "tokens"
        return "usd" if self.limit_calls is None else "calls"

    def limit(self) -> int:
        """Return the limit in the budget's unit; of money in nano-dollars.

        Raises:
            ValueError: not exactly one of the limits is given, or something is contradictory.
        """
        limits = (self.limit_nanousd, self.limit_cents, self.limit_tokens, self.limit_calls)
        if sum(each is not None for each in limits) != 1:
            raise ValueError(
                "give exactly one of limit_nanousd, limit_cents, limit_tokens and limit_calls"
            )
        if self.counts and self.limit_calls is None:
            raise ValueError("counts belongs to limit_calls")
        if self.epsilon_nanousd and self.unit != "usd":
            raise ValueError("epsilon_nanousd belongs to a limit of money")
        if self.unit == "calls" and self.wind_down_percent:
            raise ValueError(
                "a limit of calls keeps no share for winding down: set wind_down_percent with a "
                "limit of money or tokens, or set limit_calls lower"
            )
        if (self.scope_kind == "organisation") != (self.scope_id == ""):
            raise ValueError("scope_id is empty for the organisation and set for all others")
        if self.scope_kind == "tag" and not globs.is_pattern(self.scope_id):
            name, equals, _ = self.scope_id.partition("=")
            if not (name and equals):
                raise ValueError("scope_id of a tag is its name and value, such as team=search")
        if self.zone:
            if self.window not in ("day", "week", "month"):
                raise ValueError(
                    "zone belongs to a window of a day, a week or a month: others are the same in"
                    " every zone"
                )
            windows.checked_zone(self.zone)
        for counted in (self.limit_nanousd, self.limit_tokens, self.limit_calls):
            if counted is not None:
                return counted
        assert self.limit_cents is not None
        return min(round(self.limit_cents * NANOUSD_PER_CENT), NANOUSD_MAX)


class BudgetReply(records.BudgetRule, kw_only=True):
    """A budget. One of money has its limit also under its older name, ``limit_nanousd``."""

    limit_nanousd: int | None = None

    def __post_init__(self) -> None:
        self.limit_nanousd = self.limit if self.unit == "usd" else None


class RaiseBody(Strict, kw_only=True):
    """By how much to raise a budget, in its unit; once for each ``key``."""

    by_nanousd: Annotated[int, Meta(ge=1, le=NANOUSD_MAX)] | None = None
    by_tokens: Annotated[int, Meta(ge=1, le=NANOUSD_MAX)] | None = None
    by_calls: Annotated[int, Meta(ge=1, le=NANOUSD_MAX)] | None = None
    key: Annotated[str, Meta(max_length=256)] = ""

    def amount(self) -> tuple[records.BudgetUnit, int]:
        """Return the unit, and how many of it.

        Raises:
            ValueError: not exactly one amount is given.
        """
        given: dict[records.BudgetUnit, int | None] = {
            "usd": self.by_nanousd, "tokens": self.by_tokens, "calls": self.by_calls,
        }  # fmt: skip
        found = [(unit, by) for unit, by in given.items() if by is not None]
        if len(found) != 1:
            raise ValueError("give exactly one of by_nanousd, by_tokens and by_calls")
        return found[0]


class RefusalBody(Strict, kw_only=True):
    """Which calls wait no longer for a raise: the one named, or all that wait for the budget.

    The calls are told ``reason``.
    """

    call_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    reason: Reason = ""


class RaisesQuery(Struct, kw_only=True):
    """Which raises to list."""

    budget_id: str | None = None
    limit: Limit = 100


class PolicyBody(Strict, kw_only=True):
    """A policy to set under its name; ``anyway``: also for a key that does not exist yet."""

    scope_kind: records.PolicyScope = "organisation"
    scope_id: Target = "*"
    enabled: bool = True
    document: records.PolicyDocument = msgspec.field(default_factory=records.PolicyDocument)
    anyway: bool = False


class PreviewBody(Strict, kw_only=True):
    """A policy to try against recent traffic, in place of the one of the same name."""

    name: Label
    policy: PolicyBody
    calls: Limit = 500


class PreviewedCall(Struct, kw_only=True):
    """A recent call that the change decides differently."""

    call_id: str
    at_ms: int
    workflow_id: str | None
    function: str
    tool_name: str | None
    model: str
    before: str
    after: str
    reason: str


class Preview(Struct, kw_only=True):
    """What a policy change would have done to recent calls.

    Args:
        repeats: what its rules about repeats would have stopped in stored runs; only with such
            rules.
        acceleration: which stored runs its rule about accelerating spend would have found; only
            with one.
    """

    calls: int
    changed: int
    newly_refused: int
    newly_allowed: int
    newly_pending: int
    examples: list[PreviewedCall]
    repeats: RepeatPreview | None = None
    acceleration: AccelerationPreview | None = None


class PriceBody(Strict, kw_only=True):
    """A price to set for the models that match."""

    model: Target
    provider: Target = "*"
    rates: records.Rates


class ReconcileBody(Strict, kw_only=True):
    """What a vendor says it has billed, by model and hour (or day).

    A row without ``cost_nanousd`` is priced by its tokens. ``provider`` is whose charges are
    compared; ``source`` names the vendor's file in the audit log.
    """

    rows: Annotated[list[BilledRow], Meta(min_length=1, max_length=ROWS_MAX)]
    source: Target
    provider: Target | None = None
    dry_run: bool = False


class ControlBody(Strict, kw_only=True):
    """A directive. Without ``workflow_id`` and ``run_id`` it applies to everything."""

    action: Literal["kill", "pause", "resume", "revive"]
    workflow_id: Target | None = None
    run_id: Target | None = None
    reason: Reason = ""
    resume_after_ms: DurationMs | None = None


class ApprovalBody(Strict, kw_only=True):
    """A person's answer."""

    approved: bool
    reason: Reason = ""


class WebhookBody(Strict, kw_only=True):
    """Where notices are sent. An empty ``types`` means all of them."""

    url: Annotated[str, Meta(max_length=2048, pattern=_WEBHOOK_URL)]
    types: Annotated[list[Label], Meta(max_length=50)] = []
    enabled: bool = True


class CreatedWebhook(Struct, kw_only=True):
    """A webhook with its signing secret, which is never shown again."""

    webhook: records.Webhook
    secret: str


class OperatorBody(Strict, kw_only=True):
    """An operator of the dashboard to add or to change; what is left out stays as it is.

    A new operator is an owner, if it says nothing else, and without a password one who can sign in
    by single sign-on only.
    """

    password: (
        Annotated[str, Meta(min_length=PASSWORD_LENGTH_MIN, max_length=PASSWORD_LENGTH_MAX)] | None
    ) = None
    role: OperatorRole | None = None


class GroupBody(Strict, kw_only=True):
    """What members of a group of the provider get; ``place`` in the table, from 1 for the first.

    Without a place a new group comes last, and a known one stays where it is.
    """

    team: records.Attribute = ""
    role: OperatorRole | None = None
    models: Annotated[list[records.Glob], Meta(max_length=100)] = []
    place: Annotated[int, Meta(ge=1, le=1000)] | None = None


class SignInLink(Struct, kw_only=True):
    """A link that makes the browser known which opens it: it waits for no strangers' attempts.

    Attributes:
        path: of the link, on the gateway's own address. It signs nobody in.
        expires_at_ms: Unix milliseconds.
    """

    path: str
    expires_at_ms: int


class UsageQuery(Struct, kw_only=True):
    """How to group usage, and over which time (default: all of it)."""

    group_by: UsageGroup = "workflow"
    since_ms: Moment = 0
    until_ms: Moment = 2**53
    limit: Limit = 100


class UsageRowsQuery(Struct, kw_only=True):
    """Which rows of usage: of every scope of a kind, in the order of their names.

    The time is widened to whole quarter hours. ``after`` and ``after_model`` are the ``group`` and
    the ``model`` of the last row of the page before.
    """

    group_by: Annotated[str, Meta(pattern=f"^({'|'.join(LISTED_GROUPS)}|tag:.{{1,64}})$")] = (
        "workflow"
    )
    by_model: bool = False
    since_ms: Moment = 0
    until_ms: Moment = 2**53
    after: Annotated[str, Meta(max_length=512)] = ""
    after_model: Annotated[str, Meta(max_length=512)] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class EventsQuery(Struct, kw_only=True):
    """Which events; ``flag`` names flags that events carry, such as ``in_doubt``.

    Several are separated by commas: events that have one of them.
    """

    after: Moment = 0
    limit: Limit = 100
    workflow_id: Target | None = None
    event_type: Target | None = msgspec.field(default=None, name="type")
    flag: Annotated[str, Meta(pattern=r"^[a-z_]{1,32}(,[a-z_]{1,32}){0,7}$")] | None = None


class NamedQuery(Struct, kw_only=True):
    """The target of a directive."""

    target: Target = msgspec.field(default="*", name="workflow_id")


class KnownQuery(Struct, kw_only=True):
    """The target of a directive, which may be one run of it."""

    target: Target = msgspec.field(default="*", name="workflow_id")
    run_id: Target | None = None


class RunsQuery(Struct, kw_only=True):
    """Which runs."""

    workflow_id: Target | None = None
    after: Annotated[str, Meta(max_length=512)] = ""
    limit: Limit = 100


class ApprovalsQuery(Struct, kw_only=True):
    """Which approvals."""

    status: records.ApprovalStatus | None = None
    limit: Limit = 100


class LedgerQuery(Struct, kw_only=True):
    """Which balances, by their number; ``all`` shows windows that have ended as well."""

    all_windows: bool = msgspec.field(default=False, name="all")
    after: Moment = 0
    limit: Limit = 1000


class LimitQuery(Struct, kw_only=True):
    """How many."""

    limit: Limit = 100


class AuditHead(Struct, kw_only=True):
    """The newest entry of the audit log; note it where the gateway's machine cannot write."""

    seq: int
    hash: str


class AuditCheck(Struct, kw_only=True):
    """A head noted earlier, as ``SEQ:HASH``; the chain has to contain it."""

    expect: Annotated[str, Meta(pattern=r"^\d{1,15}:[0-9a-f]{64}$")] | None = None


class AuditReport(Struct, kw_only=True):
    """Outcome of checking the audit log's hash chain."""

    entries: int
    first_bad_seq: int | None
    ok: bool


class ApplyPolicy(PolicyBody, kw_only=True):
    """A policy with its name."""

    name: Label


SettingChanges = Annotated[
    dict[str, bool | int | str],
    Meta(
        min_length=1,
        max_length=100,
        extra_json_schema={
            "properties": {name: each.schema for name, each in SETTINGS.items()},
            "propertyNames": {"enum": list(SETTINGS)},
        },
    ),
]
"""Settings by name, and their new values; all others stay as they are."""


class ApplyBody(Strict, kw_only=True):
    """The complete set of rules to activate, and the settings to change."""

    budgets: Annotated[list[BudgetBody], Meta(max_length=1000)] = []
    policies: Annotated[list[ApplyPolicy], Meta(max_length=1000)] = []
    prices: Annotated[list[PriceBody], Meta(max_length=1000)] = []
    settings: Annotated[dict[str, bool | int | str], Meta(max_length=100)] = {}
    channels: Annotated[list[ApplyChannel], Meta(max_length=100)] = []
    alerts: Annotated[list[ApplyAlert], Meta(max_length=100)] = []
    dry_run: bool = False
    prune: bool = False
    anyway: bool = False


class Plan(Struct, kw_only=True):
    """The changes that were, or would be, made."""

    dry_run: bool
    changed: int
    changes: list[Change]
