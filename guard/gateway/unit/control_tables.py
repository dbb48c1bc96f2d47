"""Organisations with their directives, and approvals, of a unit of work over SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.control import Directives, is_timed
from guard.gateway.domain.message_text import free_json
from guard.gateway.unit.connection import WritingConnection
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import APPROVALS, approval_from_row
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.tables import UnitBase

_SLOTS: Final[dict[str, tuple[str, ...]]] = {
    "kill": ("life",),
    "revive": ("life", "flow"),
    "pause": ("flow",),
    "resume": ("flow",),
}


_SELECT_APPROVALS: Final = APPROVALS.select()
_ADD_APPROVAL: Final = APPROVALS.insert()
_ANSWER: Final = (
    "status", "answered_at_ms", "answered_by", "reason", "present_until_ms", "call_id",
)  # fmt: skip
_SAVE_APPROVAL: Final = APPROVALS.update(_ANSWER)
_ANSWERED: Final = APPROVALS.values(*_ANSWER, "approval_id")
_SAVE_SEQ: Final = Table("organisations").update(("control_seq",))
_ADD_CONTROL: Final = Table("control").insert()
_SAVE_DIRECTIVE: Final = Table("directives").upsert()
_DROP_DIRECTIVE: Final = Table("directives").delete()


class ControlTables(UnitBase):
    """Organisations with their directives, and approvals."""

    def __init__(self, connection: WritingConnection) -> None:
        super().__init__(connection)
        # Every organisation that was loaded. The objects are changed in place, with entries in the
        # undo log, and stay cached from one unit to the next; the engine decides how long.
        self.orgs: dict[str, OrganisationState] = {}

    def load_organisations(self) -> None:
        """Cache every organisation."""
        for row in self.rows("SELECT organisation_id, settings, control_seq FROM organisations"):
            self.load_organisation(*row)

    def load_organisation(self, organisation_id: str, settings: str, control_seq: int) -> None:
        """Cache an organisation, with its directives."""
        self.orgs[organisation_id] = OrganisationState(
            organisation_id=organisation_id,
            settings=wire.decode(settings, records.OrganisationSettings),
            control_seq=control_seq,
            directives=self._directives(organisation_id),
        )

    def _directives(self, organisation_id: str) -> Directives:
        found = Directives()
        for (message,) in self.rows(
            "SELECT message FROM directives WHERE organisation_id = ?", organisation_id
        ):
            found.apply(wire.decode(message, wire.ControlMessage))
        return found

    def adopt(self, org: OrganisationState) -> None:
        """Cache an organisation that this unit has inserted."""
        self.cache_set(self.orgs, org.organisation_id, org)

    def organisation(self, organisation_id: str) -> OrganisationState | None:
        """Return an organisation's state."""
        return self.orgs.get(organisation_id)

    def organisation_states(self) -> Iterable[OrganisationState]:
        """Return every organisation's state."""
        return list(self.orgs.values())

    def append_control(
        self, org: OrganisationState, message: wire.ControlMessage, key_id: str | None
    ) -> None:
        """Store the next numbered message and apply it to the directives.

        The directives are the current state, the messages the way to it: a client that connects
        gets the first and then follows the second, so both change in one transaction.
        """
        encoded = wire.encode(message).decode()
        if message.type in _SLOTS:
            self.tally.add("directive", message.type)
        self.write(_SAVE_SEQ, (message.seq, org.organisation_id))
        added = (org.organisation_id, message.seq, key_id, message.type, encoded)
        self.write(_ADD_CONTROL, added)
        target = "" if message.run_id is not None else message.workflow_id or "*"
        # One row for each slot of a target: a later directive for the same slot replaces it.
        for slot in ("timed",) if is_timed(message) else _SLOTS.get(message.type, ()):
            self._save_directive(org, target, slot, message, encoded, key_id)
        if message.budget is not None:
            self._save_directive(
                org, message.budget.scope or "", "budget", message, encoded, key_id
            )
        self.on_undo(setattr, org, "control_seq", org.control_seq)
        org.control_seq = message.seq
        undo = org.directives.apply(message)
        if undo is not None:
            self.on_undo(undo)

    def _save_directive(
        self, org: OrganisationState, target: str, slot: str, message: wire.ControlMessage,
        encoded: str, key_id: str | None,
    ) -> None:  # fmt: skip
        where = (org.organisation_id, target, message.run_id or "", slot)
        if slot == "budget" and not message.exhausted:
            self.write(_DROP_DIRECTIVE, where)
        else:
            self.write(_SAVE_DIRECTIVE, (*where, encoded, key_id, message.at_ms))

    def drop_control(self, org: OrganisationState, through_seq: int) -> None:
        """Drop old messages, except active directives."""
        self.write(
            "DELETE FROM control WHERE organisation_id = ? AND seq <= ? AND NOT EXISTS (SELECT 1"
            " FROM directives d WHERE d.organisation_id = control.organisation_id"
            " AND d.message = control.message)",
            (org.organisation_id, through_seq),
        )
        self.on_undo(setattr, org, "compacted_seq", org.compacted_seq)
        org.compacted_seq = through_seq

    # -- approvals -----------------------------------------------------------------------------

    def approval(self, approval_id: str) -> records.Approval | None:
        """Return an approval."""
        row = self.row(f"{_SELECT_APPROVALS} WHERE approval_id = ?", approval_id)
        return None if row is None else approval_from_row(row)

    def approval_of_call(
        self, organisation_id: str, key_id: str, call_id: str
    ) -> tuple[records.Approval, str] | None:
        """Return the approval that a call asked for, and its subject."""
        row = self.row(
            f"{_SELECT_APPROVALS} WHERE organisation_id = ? AND key_id = ? AND call_id = ?",
            organisation_id, key_id, call_id,
        )  # fmt: skip
        return None if row is None else (approval_from_row(row), row[APPROVALS.width + 1])

    def approval_key(self, approval_id: str) -> str | None:
        """Return the key that asked for an approval."""
        row = self.row("SELECT key_id FROM approvals WHERE approval_id = ?", approval_id)
        return None if row is None else str(row[0])

    def add_approval(self, approval: records.Approval, key_id: str, subject: str) -> None:
        """Insert an approval."""
        a = approval
        self.tally.add("approval", "requested")
        note = free_json(wire.encode(wire.ApprovalNote(a.message, a.details))).decode()
        self.write(_ADD_APPROVAL, APPROVALS.row(a, key_id, subject, note))

    def save_approval(self, approval: records.Approval) -> None:
        """Write an approval's status, answer, presence and call."""
        if approval.answered_at_ms == self.now_ms and approval.status not in ("pending", "used"):
            self.tally.add("approval", approval.status)
        self.write(_SAVE_APPROVAL, _ANSWERED(approval))

    def overdue_approvals(self, limit: int) -> list[records.Approval]:
        """Return pending approvals past their deadline, or without a caller who renews them."""
        pending = f"{_SELECT_APPROVALS} WHERE status = 'pending' AND"
        rows = self.rows(
            f"SELECT * FROM (SELECT * FROM ({pending} deadline_ms <= ? LIMIT ?) late"
            f" UNION SELECT * FROM ({pending} present_until_ms <= ? LIMIT ?) gone) overdue LIMIT ?",
            self.now_ms, limit, self.now_ms, limit, limit,
        )  # fmt: skip
        return [approval_from_row(row) for row in rows]

    def extend_presence(self, until_ms: int) -> None:
        """Let pending approvals count as renewed until a time, unless they are for longer."""
        self.write(
            "UPDATE approvals SET present_until_ms = ? WHERE status = 'pending'"
            " AND present_until_ms < ?",
            (until_ms, until_ms),
        )


class UnitPart:
    """A part of a unit of work: the rows of one subject, in the transaction of the unit."""

    def __init__(self, unit: ControlTables) -> None:
        self._unit = unit
