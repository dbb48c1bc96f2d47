"""Types that the dashboard reads: usage over time, refusals, active directives, watermarks."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from guard.gateway.domain.records import BalanceView, StoredEvent
from guard.gateway.domain.spend_series import TAG

MINUTE_MS: Final = 60_000
QUARTER_MS: Final = 900_000
"""The widest step of which the days of every time zone consist."""

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WorkflowSort = Literal["seen", "spend", "name"]
UsageGroup = Literal["workflow", "run", "agent", "chain", "user", "key", "team", "person", "tool",
                     "model", "provider", "type", "hour", "day", "total"]  # fmt: skip

LISTED_GROUPS: Final = ("workflow", "agent", "user", "key", "team", "person", "tool", "model",
                        "provider")  # fmt: skip
"""Those of which reports list all rows, as they do of a tag."""

_BY_MODEL: Final = ("workflow", "user", "key", "team", "person")


class UsagePoint(Struct, kw_only=True):
    """Usage within one bucket of time, which starts at ``start_ms``."""

    start_ms: int
    cost_nanousd: int
    llm_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int


class ModelUsage(Struct, kw_only=True):
    """Usage of one model; ``unpriced`` says that some of it was charged at fallback prices."""

    model: str
    cost_nanousd: int
    llm_calls: int
    input_tokens: int
    output_tokens: int
    unpriced: bool = False
    uncertain_nanousd: int = 0


class Refused(Struct, kw_only=True):
    """A call that the gate refused."""

    refusal_seq: int
    at_ms: int
    workflow_id: str | None
    run_id: str | None
    agent: str | None
    call_id: str
    kind: str
    function: str
    tool_name: str | None
    model: str | None
    status: int
    error_code: str
    reason: str
    user: str | None = None
    refused_by: str = ""


class Held(Struct, kw_only=True):
    """The reservation of a call, a request or a lease, and its state."""

    reservation_id: str
    state: str
    basis: str
    function: str
    amount_nanousd: int
    held_nanousd: int
    spent_nanousd: int
    created_at_ms: int
    expires_at_ms: int
    metered: list[tuple[str, int]] = []


class EventDetails(Struct, kw_only=True):
    """An event with everything that is stored about it.

    Args:
        event: the event.
        balances: the balances that it was charged to, in their present state.
        held: its reservation, as long as that is stored.
        refused: refusals of its call, newest first.
    """

    event: StoredEvent
    charged_at_ms: int
    provider: str | None
    response_id: str | None
    request_id: str | None
    input_tokens: int
    output_tokens: int
    balances: list[BalanceView]
    held: Held | None
    refused: list[Refused]


class UsedLately(Struct, kw_only=True):
    """The money, tokens and calls that a scope has used in the hour from ``since_ms`` on."""

    since_ms: int
    cost_nanousd: int
    tokens: int
    calls: int


class ActiveDirective(Struct, kw_only=True):
    """An active kill or pause of a workflow, a pattern, everything, or one run."""

    action: Literal["kill", "pause"]
    target: str
    run_id: str | None
    reason: str
    at_ms: int
    resume_at_ms: int | None


class ChargedEvent(Struct):
    """One charge, as the preview of a budget reads it."""

    at_ms: int
    cost_nanousd: int
    scope_id: str


class Watermark(Struct):
    """How far a listener has seen an organisation's changes; compare with ``!=``."""

    event_seq: int = 0
    reservation_id: str = ""
    refusal_seq: int = 0
    approval_id: str = ""
    control_seq: int = 0
    audit_seq: int = 0
    asks: str = ""


def is_kept_by_model(group_by: str) -> bool:
    """Tell whether the rows of all scopes of a kind may be divided by model.

    >>> is_kept_by_model("tag:project"), is_kept_by_model("agent")
    (True, False)
    """
    return group_by in _BY_MODEL or group_by.startswith(TAG)


def pieces(since_ms: int, until_ms: int, sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Divide a time into whole buckets, the widest that fit, and the rests at both ends.

    Args:
        since_ms: the first moment.
        until_ms: the moment after the last one.
        sizes: widths of buckets, the widest first; each a multiple of the next.

    Returns:
        Bucket width (0 for less than any), start and end of each piece.

    >>> pieces(5, 27, (10, 2))
    [(0, 5, 6), (2, 6, 10), (10, 10, 20), (2, 20, 26), (0, 26, 27)]
    """
    if since_ms >= until_ms:
        return []
    if not sizes:
        return [(0, since_ms, until_ms)]
    size, narrower = sizes[0], sizes[1:]
    start_ms, end_ms = -(-since_ms // size) * size, until_ms // size * size
    if start_ms >= end_ms:
        return pieces(since_ms, until_ms, narrower)
    return [
        *pieces(since_ms, start_ms, narrower),
        (size, start_ms, end_ms),
        *pieces(end_ms, until_ms, narrower),
    ]
