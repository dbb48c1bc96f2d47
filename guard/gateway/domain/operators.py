"""Operators of the dashboard, what their roles allow, and their sessions."""

from __future__ import annotations

from typing import Final, Literal, get_args

from msgspec import Struct

OperatorRole = Literal["owner", "operator", "viewer", "member"]
"""What a person may do.

A member sees what is their own, and nothing else. A viewer sees everything, and changes nothing.
An operator stops and approves calls, and sets budgets, policies, prices and settings. An owner also
manages organisations, operators, sessions and keys.
"""

FIRST_OPERATOR: Final = "admin"
"""The owner whom the first run, or `guard gateway password`, gives a password."""

_RANKS: Final = {"member": 0, "viewer": 1, "operator": 2, "owner": 3}


class UnknownPersonError(Exception):
    """A person has signed in at another service and may not here; the text says why."""


class RoleError(Exception):
    """The operator's role does not allow this."""


def as_role(text: str | None) -> OperatorRole | None:
    """Return the role of this name; ``None`` if there is none."""
    return next((role for role in get_args(OperatorRole) if role == text), None)


def allows(role: OperatorRole, needed: OperatorRole) -> bool:
    """Return whether a role includes another."""
    return _RANKS[role] >= _RANKS[needed]


def require_role(role: OperatorRole, needed: OperatorRole) -> None:
    """Check that a role includes another.

    Args:
        role: of the operator who acts.
        needed: the least role that may act.

    Raises:
        RoleError: the role is a lower one.
    """
    if not allows(role, needed):
        raise RoleError(f"this takes the role {needed}, and yours is {role}")


class Operator(Struct, kw_only=True):
    """A person who signs in to the dashboard; without an organisation, they see all of them."""

    operator_id: str
    name: str
    organisation_id: str | None = None
    role: OperatorRole = "owner"
    has_password: bool = True
    created_at_ms: int = 0
    changed_at_ms: int = 0


class Person(Struct, frozen=True, kw_only=True):
    """Somebody who has signed in elsewhere.

    Attributes:
        issuer: of the provider at which they have signed in, or ``proxy``.
        subject: identifies them there for good.
        name: of the operator that they say they are.
        groups: that the provider says they belong to.
    """

    issuer: str
    subject: str
    name: str
    groups: tuple[str, ...] = ()


class Joining(Struct, frozen=True, kw_only=True):
    """As what a person joins who has signed in elsewhere and is no operator yet.

    Attributes:
        role: of the new operator.
        organisation: the id or the name of the one that they see.
        by_groups: whether the table of groups says so, and not the settings.
    """

    role: OperatorRole
    organisation: str
    by_groups: bool = False


class SignOn(Struct, frozen=True):
    """A person who has signed on, or was removed: then there is no such operator any more.

    One whom the table of groups lets in (``by_groups``) has the role that it gives, while it does.
    """

    operator_id: str
    name: str
    by_groups: bool = False


class OperatorSession(Struct, kw_only=True):
    """A signed-in browser; the token itself is only in the browser's cookie."""

    operator: Operator
    created_at_ms: int
    seen_at_ms: int
    expires_at_ms: int


class SessionView(Struct, kw_only=True):
    """A session as owners see it.

    Attributes:
        session_id: names the session; it cannot be used to sign in.
        name: of the operator.
        signed_in_by: ``password``, or the service that was used instead.
        signed_in_from: the address of the client.
    """

    session_id: str
    name: str
    organisation_id: str | None
    created_at_ms: int
    seen_at_ms: int
    expires_at_ms: int
    signed_in_by: str
    signed_in_from: str


def actor_name(operator: Operator) -> str:
    """Return an operator's name as the audit log shows it."""
    return f"operator {operator.name}"
