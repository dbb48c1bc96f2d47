"""Operators of the dashboard and their sessions, on the writer's working set."""

from __future__ import annotations

from typing import Any

from guard.gateway.domain.figures import Operator, Session
from guard.gateway.storage.port import Actor, ConflictError
from guard.gateway.storage.sqlite import audit as sqlite_audit
from guard.gateway.storage.sqlite.books import Books


def put_operator(books: Books, actor: Actor, wanted: Operator, password_hash: str) -> Operator:
    """Add an operator, or change the password of one and end every session of theirs.

    Raises:
        ConflictError: an operator of this name sees another organisation.
    """
    execute = books.connection.execute
    row = execute("SELECT * FROM operators WHERE name = ?", (wanted.name,)).fetchone()
    if row is None:
        known = Operator(
            operator_id=books.ids.uuid7(books.now), name=wanted.name,
            organisation_id=wanted.organisation_id, created_at_ms=books.now,
            changed_at_ms=books.now,
        )  # fmt: skip
        execute(
            "INSERT INTO operators VALUES (?,?,?,?,?,?)",
            (known.operator_id, known.name, known.organisation_id, password_hash, books.now,
             books.now),
        )  # fmt: skip
        action = "operator.create"
    else:
        known, _ = operator_from_row(row)
        if known.organisation_id != wanted.organisation_id:
            raise ConflictError("an operator of this name sees another organisation")
        known.changed_at_ms = books.now
        execute(
            "UPDATE operators SET password_hash = ?, changed_at_ms = ? WHERE operator_id = ?",
            (password_hash, books.now, known.operator_id),
        )
        execute("DELETE FROM sessions WHERE operator_id = ?", (known.operator_id,))
        action = "operator.password"
    sqlite_audit.record(books, actor, action, known.name, {}, known.organisation_id)
    return known


def operator_from_row(row: tuple[Any, ...]) -> tuple[Operator, str]:
    """Build an operator, and the password's hash, from a row."""
    operator = Operator(
        operator_id=row[0], name=row[1], organisation_id=row[2], created_at_ms=row[4],
        changed_at_ms=row[5],
    )  # fmt: skip
    return operator, row[3]


def session_from_row(row: tuple[Any, ...]) -> Session:
    """Build a session from a row of operators and the times of the session."""
    operator, _ = operator_from_row(row)
    return Session(operator=operator, created_at_ms=row[6], seen_at_ms=row[7], expires_at_ms=row[8])


def open_session(
    books: Books, actor: Actor, operator_id: str, token_hash: bytes, keep_ms: int
) -> None:
    """Start a session, by the hash of its token."""
    books.connection.execute(
        "INSERT INTO sessions VALUES (?,?,?,?,?)",
        (token_hash, operator_id, books.now, books.now, books.now + keep_ms),
    )
    sqlite_audit.record(books, actor, "operator.sign_in", actor.name, {}, actor.organisation_id)


def touch_session(books: Books, token_hash: bytes) -> None:
    """Note that a session is in use."""
    books.connection.execute(
        "UPDATE sessions SET seen_at_ms = ? WHERE token_hash = ?", (books.now, token_hash)
    )


def end_session(books: Books, token_hash: bytes) -> None:
    """End a session."""
    books.connection.execute("DELETE FROM sessions WHERE token_hash = ?", (token_hash,))
