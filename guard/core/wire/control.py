"""The control channel, and what a gateway says of itself."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from guard.core.wire.budget import Budget
from guard.core.wire.fields import DurationMs, Name, UnixMs


class Limits(Struct):
    """Limits on one request to this gateway."""

    max_batch_events: int = 1000
    max_batch_bytes: int = 1_048_576
    max_event_bytes: int = 65_536


class ControlSettings(Struct):
    """How clients are to use the control channel."""

    poll_interval_ms: int = 1000


class Capabilities(Struct):
    """Reply to ``GET /api/v1/capabilities`` (spec part 4)."""

    protocol: int
    min_sdk_version: str
    server: str
    features: list[str] = []
    limits: Limits = msgspec.field(default_factory=Limits)
    control: ControlSettings = msgspec.field(default_factory=ControlSettings)
    server_time_ms: int = 0
    workflow_id: str | None = None
    """The only workflow of the key that asks, if it has one (feature ``key_workflow``)."""
    role: str = "sdk"
    """``proxy`` for a proxy's key that names no caller (feature ``callers``)."""
    key_id: str = ""
    """The id of the key, which stays when its secret is replaced; empty from older gateways."""
    organisation_id: str = ""
    """The organisation that the key belongs to; empty from older gateways."""
    team: str = ""
    """The team that the key's work is for."""
    person: str = ""
    """Who has the key."""
    may_name: list[str] = []
    """What requests with the key may name themselves where a proxy sends them."""
    shows_cost: bool = False
    """Whether a proxy tells them what they have cost, and what is left."""


class ToolRule(Struct, omit_defaults=True):
    """The part of one policy about tools, as far as it concerns the key that reads it.

    Patterns are globs (``*`` and ``?``), compared with names after folding both.

    Args:
        policy, policy_version: the policy that it comes from.
        scope_kind, scope_id: the calls that it applies to: those of the ``organisation``, or of
            a ``workflow`` or ``agent`` that the glob ``scope_id`` matches. Clients leave out rules
            of kinds that they do not know.
        block: such a tool is refused.
        allow: when set, a tool that matches none is refused.
        ask: the gateway decides about each call of such a tool, mostly by asking a person.
        blocks_sensitive: calls that their caller declares as sensitive are refused.
        repeat_tools, repeat_models: calls of these tools, and requests for these models, are
            counted by a digest of their arguments or prompt.
        repeat_asks: the gateway is asked about each of them; else their events have the digest.
    """

    policy: Name
    policy_version: int
    scope_kind: Name = "organisation"
    scope_id: Name = "*"
    block: list[str] = []
    allow: list[str] | None = None
    ask: list[str] = []
    blocks_sensitive: bool = False
    repeat_tools: list[str] = []
    repeat_models: list[str] = []
    repeat_asks: bool = False


NO_TOOL_RULES: Final = "none"
"""The version of an empty list of tool rules."""


class ToolRules(Struct, omit_defaults=True):
    """All tool rules for one key; they replace the earlier ones.

    Args:
        version: a digest of the rules; :data:`NO_TOOL_RULES` without any.
        rules: one for each policy that speaks of tools.
    """

    version: Name = NO_TOOL_RULES
    rules: list[ToolRule] = []


NO_FACTS: Final = "none"
"""The version of no facts."""


class FactGroup(Struct, array_like=True):
    """Names of one object in a request's body, and what an operator has judged them to be.

    Args:
        format: that of the body, such as ``chat``, or ``trust`` for names with their kind.
        at: the place of the object in the body.
        judged: such as ``neutral`` or ``opens``; a client ignores what it does not know.
        names: the names of members, or of types of tools or blocks.
    """

    format: Name
    at: Name
    judged: Name
    names: list[Name]


class OwnFacts(Struct, omit_defaults=True):
    """All that an organisation's operators have judged; it replaces what they had before.

    Args:
        version: a digest of it; :data:`NO_FACTS` without any.
        date: when the newest was judged, as an ISO date.
        groups: the groups, of one format, place and judgement each.
    """

    version: Name = NO_FACTS
    date: str = ""
    groups: list[FactGroup] = []


class ControlMessage(Struct, omit_defaults=True):
    """One message of the control channel.

    ``workflow_id`` is an exact id, a glob pattern (``*`` and ``?``) or ``"*"`` for everything.
    ``seq`` rises per organisation; ``hello`` and ``ping`` repeat the newest one. ``epoch`` is a
    random id of the process that assigned the number; in a ``hello`` it belongs to the message
    that the client named as its newest. If it differs from the one the client knows, the gateway's
    record is not the one that the client has followed. A ``recall`` (never stored, ``seq`` 0) asks
    the holders of ``leases`` to give back at once what they do not use, and for ``returns_ms`` what
    is not used from then on. A ``room`` (never stored either) makes the ``calls`` that wait in line
    ask again. ``tools`` is in a ``hello`` and in a ``policy`` with ``seq`` 0 (never stored) when
    the reader's tool rules are not those that it named by their version; ``facts`` likewise.
    ``spread_ms``, in a
    ``hello`` and a ``ping``, is the time over which clients are to come back when they all lose
    their sockets at once.
    """

    seq: int
    type: str
    workflow_id: str | None = None
    run_id: str | None = None
    reason: str = ""
    resume_after_ms: UnixMs | None = None
    at_ms: UnixMs = 0
    budget: Budget | None = None
    exhausted: bool = False
    approval_id: str | None = None
    approved: bool | None = None
    epoch: str = ""
    leases: list[Name] = []
    returns_ms: DurationMs = 0
    calls: list[Name] = []
    tools: ToolRules | None = None
    spread_ms: DurationMs = 0
    facts: OwnFacts | None = None


class ControlReply(Struct, omit_defaults=True):
    """Reply to the control long poll; ``epoch`` is as in a ``hello``."""

    messages: list[ControlMessage]
    seq: int
    epoch: str = ""
