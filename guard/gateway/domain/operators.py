"""Operators of the dashboard and their sessions."""

from __future__ import annotations

from msgspec import Struct


class Operator(Struct, kw_only=True):
    """A person who signs in to the dashboard; without an organisation, one who sees all."""

    operator_id: str
    name: str
    organisation_id: str | None = None
    created_at_ms: int = 0
    changed_at_ms: int = 0


class OperatorSession(Struct, kw_only=True):
    """A signed-in browser; the token itself is only in the browser's cookie."""

    operator: Operator
    created_at_ms: int
    seen_at_ms: int
    expires_at_ms: int
