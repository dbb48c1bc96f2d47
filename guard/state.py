"""The status snapshot and its pure derivation from facts (spec part 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from guard.breaker.circuit import CircuitState

State = Literal["ok", "degraded", "offline", "misconfigured"]
Mode = Literal["enforce", "observe", "off"]
Decisions = Literal["socket", "http", "none"]

_SILENCE_POLLS_MAX: Final = 3


class Facts(Struct, frozen=True):
    """The facts of one moment; the input of :func:`derive_state`.

    Attributes:
        misconfigured: key missing or rejected, protocol too old, or an insecure address.
        shut_down: whether ``shutdown`` was called.
        silence_ms: time since the gateway last answered; None when it never has.
        poll_interval_ms: the interval that the gateway asked for.
        channel: the control channel in use.
        breaker: state of the circuit breaker.
        spooled: events on disk.
        lost_since_contact: whether events were lost since the last usable answer.
        unseen_hosts: LLM hosts whose answers held no usage.
        gate_unavailable: whether the newest gate request got a 429 or an error, not a decision.
        unhooked_clients: whether there are HTTP clients that could not be hooked.
        stands_by: whether the key is a proxy's own, for which there is no control channel.
    """

    misconfigured: bool = False
    shut_down: bool = False
    silence_ms: int | None = None
    poll_interval_ms: int = 1000
    channel: str = "none"
    breaker: CircuitState = "closed"
    spooled: int = 0
    lost_since_contact: bool = False
    unseen_hosts: bool = False
    gate_unavailable: bool = False
    unhooked_clients: bool = False
    stands_by: bool = False


def derive_state(facts: Facts) -> State:
    """Derive the state: the worst condition that holds."""
    if facts.misconfigured:  # first: waiting does not help
        return "misconfigured"
    # A control channel in use is a sign of life by itself.
    quiet = facts.channel == "none" and (
        facts.silence_ms is None or facts.silence_ms > _SILENCE_POLLS_MAX * facts.poll_interval_ms
    )
    if facts.shut_down or facts.breaker == "open" or quiet:
        return "offline"
    if (
        (facts.channel != "websocket" and not facts.stands_by)
        or facts.breaker == "half_open"
        or facts.spooled
        or facts.lost_since_contact
        or facts.unseen_hosts
        or facts.gate_unavailable
        or facts.unhooked_clients
    ):
        return "degraded"
    return "ok"


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """A snapshot of the runtime, as returned by ``guard.status()``.

    Attributes:
        state: ``ok``, ``degraded``, ``offline`` or ``misconfigured``.
        api_url: the gateway's address.
        protocol: the protocol version that the gateway speaks; None before the first answer.
        control_channel: ``websocket``, ``poller`` or ``none``.
        breaker: ``closed``, ``open`` or ``half_open``.
        buffered, spooled: events waiting in memory and on disk.
        events_sent, events_lost: totals of this process.
        last_contact_ms: Unix time of the last usable answer, in milliseconds.
        last_error_code: code of the newest error, if any.
        unseen_hosts: LLM hosts whose answers held no usage.
        sdk_version: version of this package.
        pid: process that the numbers belong to.
        decisions: how the gateway is asked: ``socket``, ``http`` or ``none`` (it cannot be).
        leases: reservations that this process may spend without asking.
        leased_nanousd: the money set aside in them, in nano-dollars.
        leased_calls: calls and requests that they cover right now.
        mode: ``enforce``, ``observe`` (nothing is refused) or ``off``.
        workflow: the workflow of all code outside a ``workflow`` block; None before the gateway has
            answered.
        journal: the file that records requests under way, in case this process dies: ``open``,
            ``none`` (no spool, or no request yet) or ``failed`` (it cannot be written). Without a
            journal the gateway charges such requests when their lease expires.
        unseen_requests: LLM requests that could not be metered, and realtime sessions (``wss://``),
            for which nothing is set aside: by host and path, with their counts, the most frequent
            first.
        cut_short: answers that ended at a limit on their output that guard had put in, because the
            budget paid for no more.
        unpriced_models: models whose price the gateway does not know, so that they are held and
            charged at its fallback prices.
        waiting_calls: calls and requests that wait in line now, for money that is only set aside or
            for their turn under a rate.
        unhooked_clients: HTTP clients whose version cannot be hooked: their requests are not seen.
        restored_hooks: methods of HTTP clients that other code had replaced without guard in them,
            and that guard has hooked again.
        unhooked_tools: agent frameworks whose version calls its tools at a place that guard does
            not know: their tools are checked only where an answer names them.
        unchecked_tools: where there are rules for tools, those whose results were sent to a model
            although guard has checked no call of them: by name, with counts.
    """

    state: State
    api_url: str
    protocol: int | None
    control_channel: str
    breaker: CircuitState
    buffered: int
    spooled: int
    events_sent: int
    events_lost: int
    last_contact_ms: int | None
    last_error_code: str | None
    unseen_hosts: tuple[str, ...]
    sdk_version: str
    pid: int
    decisions: Decisions = "none"
    leases: int = 0
    leased_nanousd: int = 0
    leased_calls: int = 0
    mode: Mode = "enforce"
    workflow: str | None = None
    journal: str = "none"
    unseen_requests: tuple[tuple[str, int], ...] = ()
    cut_short: int = 0
    unpriced_models: tuple[str, ...] = ()
    waiting_calls: int = 0
    unhooked_clients: tuple[str, ...] = ()
    restored_hooks: tuple[str, ...] = ()
    unhooked_tools: tuple[str, ...] = ()
    unchecked_tools: tuple[tuple[str, int], ...] = ()
