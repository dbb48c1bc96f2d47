"""Repeats within a run: counted in the ledger, which every process of the run asks.

A rule that stops repeats is exact under fan-out: an organisation's commands run one after the
other, and a call counts when it is allowed (``allowed``). For a rule that only notices, calls are
counted by their events (``seen``), so that it needs no question. A call under rules of both kinds
is in both counts; the larger one is how often it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import acceleration, alerts, repeats
from guard.gateway.domain.commands import (
    Actor,
    CallRefusal,
    GateCommand,
    PricedEvent,
    RepeatUse,
    RequestOrigin,
)
from guard.gateway.domain.repeats import RepeatCount, RepeatPlace
from guard.gateway.ledger import alerting, control
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork

UNNOTICED_MS: Final = 7 * 86_400_000
"""How long a count is kept after its last call, for previews."""

NOTICED_MS: Final = 90 * 86_400_000
"""The same for a run that was flagged."""


def judge(unit: UnitOfWork, org: OrganisationState, command: GateCommand) -> CallRefusal | None:
    """Refuse a call that its run has made as often as a rule allows; a rule may pause the run."""
    call = command.call
    for use in command.repeats:
        if use.action == "notice":
            continue
        place = _place_of(command.request, call, use)
        count = _current(unit, org, place)
        if count.allowed < use.times:
            continue
        # A run's id is no secret: a caller that names another workflow's run must not pause it.
        refuses = use.action == "refuse" or unit.repeats.is_foreign_run(place)
        action = "refuse" if refuses else use.action
        _notice(unit, place, count, action, policy=use.policy, limit=use.times)
        if refuses:
            return repeats.refusal(use, call, count.allowed)
        what = repeats.what(use.kind, use.subject, count.allowed)
        _stop(unit, place, "pause", use.policy, what)
        return control.stopped(unit, org, call.workflow_id, call.run_id)
    return None


def allowed(unit: UnitOfWork, org: OrganisationState, command: GateCommand) -> None:
    """Count a call that is allowed, in the transaction that allows it."""
    _count(unit, org, command.request, command.call, command.repeats, allowed=1)


def reported(
    unit: UnitOfWork, org: OrganisationState, request: RequestOrigin, priced: PricedEvent
) -> None:
    """Count a call that an event reports."""
    _count(unit, org, request, priced.event, priced.repeats, seen=1)


def _count(
    unit: UnitOfWork,
    org: OrganisationState,
    request: RequestOrigin,
    call: wire.GateRequest | wire.Event,
    uses: Sequence[RepeatUse],
    *,
    allowed: int = 0,
    seen: int = 0,
) -> None:
    place = _place_of(request, call, uses[0])
    count = _current(unit, org, place)
    count = msgspec.structs.replace(
        count, allowed=count.allowed + allowed, seen=count.seen + seen, last_ms=unit.now_ms
    )
    unit.repeats.save_repeat(place, count)
    for use in uses:
        if use.action == "notice" and count.times > use.times:
            _notice(unit, place, count, "notice", policy=use.policy, limit=use.times)


def _place_of(
    request: RequestOrigin, call: wire.GateRequest | wire.Event, use: RepeatUse
) -> RepeatPlace:
    return RepeatPlace(
        organisation_id=request.organisation_id, run_id=call.run_id or "", kind=use.kind,
        subject=use.subject, digest=use.digest, workflow_id=call.workflow_id, agent=call.agent,
        key_id=request.key_id,
    )  # fmt: skip


def _current(unit: UnitOfWork, org: OrganisationState, place: RepeatPlace) -> RepeatCount:
    """Return a count; a new one if there is none, or if an operator has resumed the run since."""
    # Without a new count, a run that was paused for its repeats would be paused again by its next
    # call.
    found = unit.repeats.repeat(place)
    resumed = org.directives.resumed(place.workflow_id, place.run_id)
    # By numbers, not by time: two of these may happen in the same millisecond.
    if found is None or (resumed is not None and found.began_seq < resumed.seq):
        return _new(unit, place, org.control_seq)
    return found


def _new(unit: UnitOfWork, place: RepeatPlace, began_seq: int) -> RepeatCount:
    return RepeatCount(
        run_id=place.run_id, workflow_id=place.workflow_id, agent=place.agent,
        key_id=place.key_id, kind=place.kind, subject=place.subject, allowed=0, seen=0,
        began_ms=unit.now_ms, last_ms=unit.now_ms, began_seq=began_seq,
    )  # fmt: skip


def _stop(unit: UnitOfWork, place: RepeatPlace, action: str, policy: str, what: str) -> None:
    """Pause or kill a run, in the name of a policy."""
    actor = Actor(f"policy {policy}", place.organisation_id)
    draft = wire.ControlMessage(seq=0, type=action, run_id=place.run_id, reason=what)
    control.issue_directive(unit, actor, place.organisation_id, draft)


def _notice(
    unit: UnitOfWork, place: RepeatPlace, count: RepeatCount, action: str, **told: Any
) -> bool:
    """Flag a run and send notices of it, once for each count and action.

    Returns:
        ``True`` if it was not flagged for this before.
    """
    if count.noticed_ms is not None and count.action == action:
        return False
    flagged = msgspec.structs.replace(count, noticed_ms=unit.now_ms, action=action)
    unit.repeats.save_repeat(place, flagged)
    unit.repeats.count_loop(place.kind)
    data = {
        "run_id": place.run_id, "workflow_id": place.workflow_id, "kind": place.kind,
        "subject": count.subject, "action": action, **told,
    }  # fmt: skip
    if place.kind != "spend":
        data["count"] = count.times
    key = f"loop:{place.run_id}:{place.kind}:{place.digest}:{count.began_seq}"
    fact = alerts.Fact(type="run.loop", key=f"{key}:{action}", data=data)
    alerting.tell(unit, place.organisation_id, fact)
    return True


# -- spend -----------------------------------------------------------------------------------------


class FasterRun(Struct, frozen=True, kw_only=True):
    """A run whose spend accelerates.

    Attributes:
        run_id, workflow_id: of the run.
        recent_nanousd: its spend in the newest minutes.
        usual_nanousd: its usual spend in as many minutes.
        action, policy: what is done about it, and the policy that this is of.
    """

    run_id: str
    workflow_id: str | None
    recent_nanousd: int
    usual_nanousd: int
    action: acceleration.Action = "notice"
    policy: str | None = None


def spend_accelerates(unit: UnitOfWork, organisation_id: str, runs: Sequence[FasterRun]) -> None:
    """Flag runs whose spend accelerates, each once, and pause or kill those that a rule covers.

    A run that an operator has resumed is left alone for one step, until all of the recent minutes
    are later than that. It is compared with the minutes before, so it must be faster still.
    """
    # The runs were found by reading outside of this transaction, perhaps at another replica too:
    # one that has been stopped, or flagged, since then is passed over here.
    org = unit.organisation(organisation_id)
    if org is None:
        return
    for run in runs:
        resumed = org.directives.resumed(run.workflow_id, run.run_id)
        if resumed is not None and unit.now_ms < resumed.at_ms + acceleration.STEP_MS:
            continue
        if control.stopped(unit, org, run.workflow_id, run.run_id) is not None:
            continue
        place = RepeatPlace(
            organisation_id=organisation_id, run_id=run.run_id, kind="spend",
            workflow_id=run.workflow_id,
        )  # fmt: skip
        # As with repeats: naming another workflow's run must not stop that.
        action = "notice" if unit.repeats.is_foreign_run(place) else run.action
        named = {} if run.policy is None else {"policy": run.policy}
        is_new = _notice(
            unit, place, _current(unit, org, place), action, recent_nanousd=run.recent_nanousd,
            usual_nanousd=run.usual_nanousd, within_ms=acceleration.STEP_MS, **named,
        )  # fmt: skip
        if is_new and action != "notice" and run.policy is not None:
            what = acceleration.what(run.recent_nanousd, run.usual_nanousd)
            _stop(unit, place, action, run.policy, what)


def lapse(unit: UnitOfWork) -> None:
    """Delete the counts of calls made long ago."""
    unit.repeats.drop_repeats(unit.now_ms - UNNOTICED_MS, unit.now_ms - NOTICED_MS)
