"""Operators of the dashboard and their sessions."""

from __future__ import annotations

import msgspec

from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.domain.operators import (
    FIRST_OPERATOR,
    Joining,
    Operator,
    OperatorRole,
    Person,
    SessionView,
    UnknownPersonError,
    actor_name,
)
from guard.gateway.ledger import audit
from guard.gateway.unit.unit_of_work import UnitOfWork


def put_operator(
    unit: UnitOfWork,
    actor: Actor,
    wanted: Operator,
    *,
    password_hash: str | None = None,
    role: OperatorRole | None = None,
) -> Operator:
    """Add an operator, or change the password or the role of one.

    Args:
        unit, actor: as everywhere.
        wanted: the name, and the organisation that the operator sees; ``None`` matches that of any
            known operator.
        password_hash: of the new password, which ends every session; ``None``: unchanged. A new
            operator without one cannot sign in with a password.
        role: the new role; ``None``: unchanged, and that of ``wanted`` for a new operator.

    Raises:
        ConflictError: an operator of this name sees another organisation, or a member would see
            all of them.
    """
    known = unit.directory.operator(wanted.name)
    if known is not None and wanted.organisation_id not in (None, known.organisation_id):
        raise ConflictError("this name cannot be given: choose another")
    if role == "member" and (known or wanted).organisation_id is None:
        raise ConflictError("a member belongs to one organisation: add them in that one")
    if known is None:
        saved = msgspec.structs.replace(
            wanted,
            operator_id=unit.ids.uuid7(unit.now_ms),
            role=role or wanted.role,
            has_password=bool(password_hash),
            created_at_ms=unit.now_ms,
            changed_at_ms=unit.now_ms,
        )
        unit.directory.add_operator(saved, password_hash or "")
        unit.directory.forgive(saved.name)
        _record(unit, actor, "operator.create", saved, {"role": saved.role})
        return saved
    saved = known
    if password_hash is not None:
        saved = msgspec.structs.replace(saved, has_password=True, changed_at_ms=unit.now_ms)
        unit.directory.save_password(saved, password_hash)
        # A password may be changed because another person knows it: that person is signed out.
        unit.directory.end_sessions(saved.operator_id)
        _record(unit, actor, "operator.password", saved)
    if role is not None and role != saved.role:
        saved = msgspec.structs.replace(saved, role=role, changed_at_ms=unit.now_ms)
        unit.directory.save_role(saved)
        _record(unit, actor, "operator.role", saved, {"role": role, "before": known.role})
    return saved


def remove_operator(
    unit: UnitOfWork, actor: Actor, organisation_id: str | None, name: str
) -> Operator:
    """Remove an operator and end every session of theirs.

    Args:
        unit, actor: as everywhere.
        organisation_id: the organisation that the operator has to see; ``None``: any, or all.
        name: of the operator.

    Raises:
        NotFoundError: there is no such operator.
    """
    known = _own(unit, organisation_id, name)
    unit.directory.remove_operator(known)
    _record(unit, actor, "operator.remove", known)
    return known


def _own(unit: UnitOfWork, organisation_id: str | None, name: str) -> Operator:
    known = unit.directory.operator(name)
    if known is None or organisation_id not in (None, known.organisation_id):
        raise NotFoundError("no such operator")
    return known


def let_device_in(unit: UnitOfWork, actor: Actor, operator: Operator) -> None:
    """Record that a link was made for a new device of an operator."""
    _record(unit, actor, "operator.link", operator)


def open_session(
    unit: UnitOfWork,
    actor: Actor,
    operator_id: str,
    token_hash: bytes,
    keep_ms: int,
    *,
    signed_in_by: str,
    signed_in_from: str,
) -> None:
    """Start a session, by the hash of its token."""
    ends_ms = unit.now_ms + keep_ms
    unit.directory.add_session(token_hash, operator_id, ends_ms, signed_in_by, signed_in_from)
    details = {"by": signed_in_by, "from": signed_in_from}
    audit.record(unit, actor, "operator.sign_in", actor.name, details, actor.organisation_id)


def sign_on(
    unit: UnitOfWork,
    actor: Actor,
    person: Person,
    joining: Joining | None,
    token_hash: bytes,
    keep_ms: int,
    signed_in_from: str,
) -> None:
    """Start a session of a person who has signed in elsewhere, by the hash of its token.

    Args:
        unit: the unit of work.
        actor: where the person has signed in.
        person: who that is there.
        joining: as what a person joins who is no operator yet; ``None``: they are refused.
        token_hash, keep_ms, signed_in_from: as for :func:`open_session`.

    Raises:
        UnknownPersonError: they are no operator here, or no longer.
    """
    known = unit.directory.sign_on(person.issuer, person.subject)
    if known is None:
        found = unit.directory.operator(person.name)
        operator, is_new = found or _joined(unit, actor, person, joining), found is None
        # A name is no proof: the provider's `admin` may be anybody, and names change hands.
        if operator.has_password:
            raise UnknownPersonError(f"{person.name} signs in with a password here")
        if unit.directory.has_signed_on(person.issuer, operator.operator_id):
            raise UnknownPersonError(f"{person.name} has signed on before as another person")
        unit.directory.note_sign_on(
            person.issuer, person.subject, operator,
            by_groups=joining is not None and joining.by_groups and is_new,
        )  # fmt: skip
    else:
        found = unit.directory.operator_of(known.operator_id)
        if found is None:
            raise _removed(known.name)
        operator = _as_groups_say(unit, actor, found, joining) if known.by_groups else found
    own = Actor(actor_name(operator), operator.organisation_id)
    open_session(
        unit, own, operator.operator_id, token_hash, keep_ms, signed_in_by=actor.name,
        signed_in_from=signed_in_from,
    )  # fmt: skip


def _as_groups_say(
    unit: UnitOfWork, actor: Actor, operator: Operator, joining: Joining | None
) -> Operator:
    """Return an operator whom the table of groups has let in, with the role that it gives now."""
    if joining is None or not joining.by_groups or joining.organisation != operator.organisation_id:
        raise UnknownPersonError(f"no group of {operator.name} may sign in to the dashboard")
    return put_operator(unit, actor, operator, role=joining.role)


def _joined(unit: UnitOfWork, actor: Actor, person: Person, joining: Joining | None) -> Operator:
    if unit.directory.sign_on("", person.name) is not None:
        raise _removed(person.name)
    # `guard gateway password` would make that person an owner.
    if joining is None or person.name == FIRST_OPERATOR:
        raise UnknownPersonError(f"{person.name} is not an operator of this gateway")
    for organisation_id, name in unit.directory.organisation_names().items():
        if joining.organisation in (organisation_id, name):
            new = Operator(operator_id="", name=person.name, organisation_id=organisation_id)
            return put_operator(unit, actor, new, role=joining.role)
    raise UnknownPersonError(f"there is no organisation {joining.organisation} to join")


def _removed(name: str) -> UnknownPersonError:
    return UnknownPersonError(
        f"{name} was removed from this gateway, until an owner adds an operator of this name"
    )


def touch_session(unit: UnitOfWork, token_hash: bytes) -> None:
    """Note that a session is in use."""
    unit.directory.touch_session(token_hash)


def end_session(unit: UnitOfWork, token_hash: bytes) -> None:
    """End a session."""
    unit.directory.end_session(token_hash)


def end_others_session(
    unit: UnitOfWork, actor: Actor, whose: SessionView, token_hash: bytes
) -> None:
    """End a session of another operator."""
    unit.directory.end_session(token_hash)
    audit.record(unit, actor, "session.end", whose.name, {}, whose.organisation_id)


def end_sessions(
    unit: UnitOfWork, actor: Actor, organisation_id: str | None, name: str
) -> Operator:
    """End every session of an operator.

    Raises:
        NotFoundError: there is no such operator.
    """
    known = _own(unit, organisation_id, name)
    unit.directory.end_sessions(known.operator_id)
    _record(unit, actor, "session.end_all", known)
    return known


def _record(
    unit: UnitOfWork,
    actor: Actor,
    action: str,
    operator: Operator,
    details: dict[str, str] | None = None,
) -> None:
    audit.record(unit, actor, action, operator.name, details or {}, operator.organisation_id)
