"""The account of one key: its session with the gateway, its money, its directives, its events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from guard.asking.courier import Courier
from guard.asking.gate import Gate
from guard.asking.keeper import Keeper
from guard.asking.llm_requests import LlmRequests
from guard.asking.renewals import Renewals
from guard.asking.reports import Reports
from guard.asking.tool_policy import ToolPolicy
from guard.asking.updates import LeaseUpdates
from guard.control.directives import DirectiveFeed
from guard.control.enforcement import Enforcement
from guard.control.last_decision import Decisions
from guard.control.warnings import WarningLog
from guard.core import wire
from guard.core.gateway_facts import GatewayFacts
from guard.core.leases import Desk, LeaseBook
from guard.instrumentation.unread_answers import UnreadAnswers
from guard.loop import Admission, BackgroundLoop, Concurrency
from guard.session.event_pipeline import EventPipeline
from guard.session.exit_hooks import ExitHooks
from guard.session.link import Link
from guard.settings import GATE_CONCURRENCY, Settings

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.local_gateway import LocalGateway
    from guard.session.session import Session

_WAITING_MAX: Final = 20_000
_WAITING_SHARE: Final = 0.8
"""Share of a caller's deadline after which its question over HTTP is no longer sent."""


@attrs.frozen
class ProcessParts:
    """The parts that all accounts of a process share.

    Attributes:
        background: the loop.
        exits: hooks the end of the process.
        unread: the LLM answers that have not been read yet.
        note_tool: called with the name of a tool that has run without a check.
        local_gateway: this user's local gateway, if the process uses it.
    """

    background: BackgroundLoop
    exits: ExitHooks
    unread: UnreadAnswers
    note_tool: Callable[[str], None]
    local_gateway: LocalGateway | None = None


class KeyAccount:
    """Everything that belongs to one key.

    No part of it is shared with another key, so neither money, events nor kills can be mixed up.

    Args:
        settings: with the key.
        parts: the parts that it shares with the other accounts of the process.

    Attributes:
        settings: as given.
        opened: whether this is a runtime that was opened in this process.
        is_shut_down: whether the runtime was shut down.
        reports: passes errors to the status and the hooks.
        enforcement: the control state, and the running bodies that a kill stops.
        link: the connection to the gateway.
        events: records events and delivers them.
        leases: the amounts that this process may spend without asking.
        gate: asks the gateway for decisions.
        requests: covers LLM requests before they are sent.
        request_gate: the same; None where requests go out as they are.
        decisions: the newest known decision of each workflow.
        warnings: reports the gateway's warnings.
        tools: checks the tools that answers ask for.
    """

    def __init__(self, settings: Settings, parts: ProcessParts) -> None:
        # Made in this order: each part is given some of those before it.
        self.settings = settings
        self._parts = parts
        self._background = parts.background
        # Set once, by the thread that shuts down; any thread reads it.
        self.is_shut_down = False
        # Set by the runtime, once the gateway has been asked; never for a caller's account.
        self.opened = False
        self.decisions = Decisions()
        self.warnings = WarningLog()
        self.leases = LeaseBook()
        self.link = Link(self._background, self._make_session, parts.exits)
        self.link.restarts_gateway = parts.local_gateway is not None
        self.events = EventPipeline(settings, self.link, parts.exits, self.leases)
        self.reports = Reports(settings, self._background, self.events)
        self.enforcement = Enforcement(
            own_thread=lambda: self._background.is_own_thread,
            changed=self.decisions.changed,
            observed=None if self.reports.enforces else self.reports.observed,
        )
        # What the observation of requests uses; see `guard.instrumentation.account`.
        self.record = self.events.record
        self.check_request = self.enforcement.check_request
        self.enter_request = self.enforcement.enter_request
        self.leave_request = self.enforcement.leave_request
        self._compose_asking(parts.unread)
        self.requests = LlmRequests(
            settings,
            self.link,
            self.events,
            self.gate,
            self.leases,
            self.reports,
            self.enforcement,
        )
        self.request_gate = self.requests if settings.gate_requests else None
        self.tools = ToolPolicy(
            self.enforcement,
            self.gate,
            self._background,
            self.events.ids,
            gates_requests=lambda: self.gates_requests,
            warnings=lambda: self.warnings,
            reports=self.reports,
            unchecked=parts.note_tool,
        )

    @property
    def facts(self) -> GatewayFacts | None:
        """What the operators of its organisation have judged; None for nothing."""
        return self.enforcement.control.facts

    def _compose_asking(self, unread: UnreadAnswers) -> None:
        """Make the parts that ask the gateway and keep the leases: see ``guard.asking``."""
        timeout_s = self.settings.timeout_s
        desk = Desk(self.leases)
        updates = LeaseUpdates(self.link, desk)
        admission = Admission(
            self._background,
            concurrency=Concurrency(timeout_s, most=GATE_CONCURRENCY),
            waiting_max=_WAITING_MAX,
            wait_s=_WAITING_SHARE * timeout_s,
        )
        renewals = Renewals(self.link)
        courier = Courier(
            self.link, self.events, desk, updates, admission, self.decisions, unread, renewals
        )
        self._keeper = Keeper(desk, courier, updates, unread, renewals)
        self.gate = Gate(
            self.link,
            courier,
            self.enforcement,
            timeout_s,
            wait_ms=self.settings.wait_for_room_ms if self.reports.enforces else 0,
            paces=self.reports.enforces,
            waits_for_people=self.reports.enforces,
        )

    def _make_session(self) -> Session:
        from guard.session.session import Session

        return Session(
            self.settings,
            self.events.outbox,
            DirectiveFeed(self.enforcement),
            self._keeper,
            on_error=lambda exc: self.reports.error(exc, "flush"),
            learned=self._learned,
            local_gateway=self._parts.local_gateway,
            restarts=lambda: self.link.restarts_gateway,
        )

    def _learned(self, capabilities: wire.Capabilities) -> None:
        """Note the gateway's capabilities, and what they say of the key; on the background loop."""

    def _after_fork(self) -> None:
        """Start afresh in a forked child: the parent delivers the events that it recorded."""
        # The links and journals first: nothing below may use the parent's connections or slots.
        self.events.after_fork()
        self.enforcement.forget_bodies()
        self.leases.after_fork()
        self.gate.after_fork()
        self.tools.after_fork()
        self.decisions.changed()
        self.warnings = WarningLog()

    def new_run_id(self) -> str:
        """Return the id of a run that begins now."""
        return self.events.ids.uuid7(time.time_ns() // 1_000_000)

    @property
    def gates_requests(self) -> bool:
        """Whether the LLM requests of instrumented clients are covered one by one."""
        return self.requests.is_on and self.settings.auto_instrument

    @property
    def waiting_calls(self) -> int:
        """How many calls and requests wait in line."""
        return self._keeper.waiting

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settings.api_url} pid={os.getpid()}>"
