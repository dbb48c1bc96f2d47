"""Constants of the protocol, and the types of its fields."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

PROTOCOL_VERSION: Final = 3
SDK_MIN_VERSION_FOR_V3: Final = "0.6.0"
"""The oldest SDK version that speaks protocol v3 (spec part 9)."""

HEADER_API_KEY: Final = "X-API-Key"
HEADER_PROTOCOL: Final = "X-Guard-Protocol"
HEADER_IDEMPOTENCY: Final = "Idempotency-Key"
CONTROL_SUBPROTOCOL: Final = "guard.v3"

CAPABILITIES_PATH: Final = "/api/v1/capabilities"
LOGIN_DEVICE_PATH: Final = "/api/v1/login/device"
LOGIN_TOKEN_PATH: Final = "/api/v1/login/token"  # noqa: S105  # a path
LOGIN_WORK_KEY_PATH: Final = "/api/v1/login/work-key"
LOGIN_REVOKE_PATH: Final = "/api/v1/login/revoke"
GATE_PATH: Final = "/gate"
RELEASE_PATH: Final = "/gate/release"
LEASE_PATH: Final = "/gate/lease"
EVENTS_PATH: Final = "/api/v1/events"
CONTROL_PATH: Final = "/api/v1/control"
CONTROL_WS_PATH: Final = "/api/v1/control/ws"
SPEND_PATH: Final = "/api/v1/spend"
MODELS_PATH: Final = "/api/v1/models"

FEATURE_GATE_WS: Final = "gate_ws"
FEATURE_LEASES: Final = "leases"
FEATURE_LEASE_AHEAD: Final = "lease_ahead"
FEATURE_REQUEST_GATE: Final = "request_gate"
FEATURE_SPEND: Final = "spend"
FEATURE_CALLERS: Final = "callers"
CALLER_SEPARATOR: Final = ":"
"""Between a proxy's key and the SHA-256 of the key of the caller whom it names."""
FEATURE_KEY_WORKFLOW: Final = "key_workflow"
FEATURE_APPROVAL_NOTES: Final = "approval_notes"
FEATURE_WAIT_FOR_ROOM: Final = "wait_for_room"
"""Capabilities: requests over the control socket, leases, leases that are topped up before they are
used up, gates of kind ``llm``, spending, notes for the person who approves a call and the renewal
of what waits for them, a place in line for money that is only set aside."""

UNKNOWN_MODEL: Final = "unknown"
"""Placeholder model of a gate request without a call context (spec part 2)."""

NAME_LENGTH_MAX: Final = 256
"""Maximum characters in a name (workflow, agent, chain, tool, model) or an id."""

NAME_BYTES_MAX: Final = 3 * NAME_LENGTH_MAX
"""Maximum bytes of a name in UTF-8: those of the longest one whose characters have three each, as
those of nearly every script in use have. Three such names fit into one row of an index."""

NANOUSD_PER_CENT: Final = 10_000_000
NANOUSD_PER_DOLLAR: Final = 1_000_000_000
NANOUSD_MAX: Final = 2**62
RESPONSE_ID_LENGTH_MAX: Final = 512
RESPONSE_ID_BYTES_MAX: Final = 2 * RESPONSE_ID_LENGTH_MAX
NOTE_MESSAGE_MAX: Final = 1000
NOTE_BYTES_MAX: Final = 8192
NOTE_DEPTH_MAX: Final = 16
"""Limit what a caller shows to the person who approves: the message's characters, and the bytes and
levels of nesting of the whole as JSON."""
TOKENS_MAX: Final = 2**40
EVENT_TOKENS_MAX: Final = 10**9
"""Maximum tokens of one kind in one event."""
UNITS_MAX: Final = 10**9
"""Most units of one line of fees."""

RENEWED_MAX: Final = 256
"""Reservations in one renewal."""

AROUND_MAX: Final = 64
MODELS_MAX: Final = 64
"""Calls around one, and streams of one task, that a question can name."""
FEES_MAX: Final = 32
"""Maximum lines of fees of one request."""

MayName = Literal["user", "workflow", "run", "tags"]
"""What requests through a proxy may name themselves."""

NAMED: Final[tuple[MayName, ...]] = get_args(MayName)

TAGS_MAX: Final = 16
"""Maximum tags of a call or an event."""

TAG_NAME_LENGTH_MAX: Final = 64
"""Maximum characters in the name of a tag; its value is as long as a name at most."""

BYTES_MAX: Final = "bytes_max"
"""How a type names the most bytes of a text (see :mod:`guard.core.wire.text`)."""

Name = Annotated[str, Meta(max_length=NAME_LENGTH_MAX, extra={BYTES_MAX: NAME_BYTES_MAX})]
ResponseId = Annotated[
    str, Meta(max_length=RESPONSE_ID_LENGTH_MAX, extra={BYTES_MAX: RESPONSE_ID_BYTES_MAX})
]
TagName = Annotated[str, Meta(min_length=1, max_length=TAG_NAME_LENGTH_MAX)]
LongText = Annotated[str, Meta(max_length=512)]
Tags = Annotated[dict[TagName, Name], Meta(max_length=TAGS_MAX)]
Fees = Annotated[dict[Name, Annotated[int, Meta(ge=0, le=UNITS_MAX)]], Meta(max_length=FEES_MAX)]
Tokens = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
NanoUsd = Annotated[int, Meta(ge=0, le=NANOUSD_MAX)]
UnixMs = Annotated[int, Meta(ge=0, le=2**53)]
DurationMs = Annotated[int, Meta(ge=0, le=2**53)]

CallKind = Literal["llm", "tool", "call"]


def dollars(nanousd: int) -> str:
    """Return an amount as dollars, for people to read: exact, and with cents unless it is whole.

    >>> dollars(1_500_000_000), dollars(20_000), dollars(2_000_000_000_000), dollars(-50_000_000)
    ('$1.50', '$0.00002', '$2,000', '-$0.05')
    """
    sign = "-" if nanousd < 0 else ""
    whole, rest = divmod(abs(nanousd), NANOUSD_PER_DOLLAR)
    part = f".{f'{rest:09d}'.rstrip('0'):0<2}" if rest else ""
    return f"{sign}${whole:,}{part}"


def decimal_dollars(nanousd: int) -> str:
    """Return an amount as a plain number of dollars, exact, for programs and forms.

    >>> decimal_dollars(5_000_000_000), decimal_dollars(12_500), decimal_dollars(-50_000_000)
    ('5', '0.0000125', '-0.05')
    """
    sign = "-" if nanousd < 0 else ""
    whole, rest = divmod(abs(nanousd), NANOUSD_PER_DOLLAR)
    return f"{sign}{whole}.{rest:09d}".rstrip("0").rstrip(".")


def amount_in(unit: str, amount: int, of: str = "") -> str:
    """Return an amount of a budget, for people to read.

    Args:
        unit: ``usd`` (then the amount is in nano-dollars), ``tokens`` or ``calls``.
        amount: so many of them.
        of: what is counted; everything if empty.

    >>> amount_in("usd", 2_000_000_000), amount_in("tokens", 20_000), amount_in("calls", 3, "f")
    ('$2', '20,000 tokens', '3 calls of f')
    """
    if unit == "usd":
        return dollars(amount)
    return f"{amount:,} {unit}{f' of {of}' if of else ''}"


def reached(spent: object) -> str:
    """Return how a sentence about a limit ends that does not let a request go.

    Args:
        spent: what was used of it; None if that is not known.

    >>> reached(5), reached(0)
    ('is reached', 'is too low for a request')
    """
    return "is too low for a request" if spent == 0 else "is reached"


def cents(nanousd: int) -> float:
    """Return nano-dollars as decimal cents, for people to read.

    >>> cents(12_345_678)
    1.2345678
    """
    return nanousd / NANOUSD_PER_CENT
