"""Operators of the dashboard: passwords, throttled sign-in, sessions."""

from __future__ import annotations

import asyncio
import collections
import functools
import hashlib
import secrets
from collections.abc import Callable
from typing import Final

import argon2
from argon2.exceptions import VerifyMismatchError

from guard.gateway.domain.commands import Actor
from guard.gateway.domain.operators import Operator, OperatorSession
from guard.gateway.ledger import directory
from guard.gateway.ledger.state import NOTHING
from guard.gateway.storage.port import Storage

FIRST_OPERATOR: Final = "admin"
PASSWORD_LENGTH_MIN: Final = 12
PASSWORD_LENGTH_MAX: Final = 256
SESSION_MS: Final = 12 * 3_600_000
IDLE_MS: Final = 2 * 3_600_000
_TOUCH_MS: Final = 60_000
_FREE_FAILURES: Final = {"address": 5, "name": 10}
_WAIT_MAX_MS: Final = {"address": 300_000, "name": 30_000}
_FORGET_MS: Final = 900_000
_TRACKED_MAX: Final = 10_000
_CHECKS_AT_ONCE: Final = 2
_CHECKS_WAITING_MAX: Final = 16


class WrongPasswordError(Exception):
    """No operator has this name and password."""


class ThrottledError(Exception):
    """Too many attempts; the next one is accepted after ``retry_after_ms``."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {-(-retry_after_ms // 1000)} s")
        self.retry_after_ms = retry_after_ms


class Throttle:
    """Computes waits that double with every failed attempt, per address and per name.

    Pure: time is an argument. The wait for one name is capped low, so that a stranger cannot keep
    an operator out for long. Each process counts on its own.
    """

    def __init__(self) -> None:
        # By address and by name: failures in a row, and the time of the last. Oldest first, and
        # the oldest is dropped when there are too many.
        self._failures: collections.OrderedDict[tuple[str, str], tuple[int, int]] = (
            collections.OrderedDict()
        )

    def wait_ms(self, now_ms: int, address: str, name: str) -> int:
        """Return how long an attempt has to wait; 0 when it may be made now."""
        return max(self._wait(now_ms, "address", address), self._wait(now_ms, "name", name))

    def _wait(self, now_ms: int, kind: str, value: str) -> int:
        count, last_ms = self._failures.get((kind, value), (0, 0))
        over = count - _FREE_FAILURES[kind]
        if over < 0 or now_ms - last_ms >= _FORGET_MS:
            return 0
        wait_ms: int = min(1000 * 2 ** min(over, 20), _WAIT_MAX_MS[kind])
        return max(0, last_ms + wait_ms - now_ms)

    def failed(self, now_ms: int, address: str, name: str) -> None:
        """Count a failed attempt."""
        for key in (("address", address), ("name", name)):
            count, last_ms = self._failures.pop(key, (0, now_ms))
            if now_ms - last_ms >= _FORGET_MS:
                count = 0
            self._failures[key] = (count + 1, now_ms)
        while len(self._failures) > _TRACKED_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        """Forget the failures of an operator who has signed in."""
        self._failures.pop(("address", address), None)
        self._failures.pop(("name", name), None)


class OperatorService:
    """Use cases of operators.

    Args:
        store: where operators and sessions are kept.
        clock_ms: Unix milliseconds.
        passed_ms: time that only passes, in milliseconds, for the throttle.
    """

    def __init__(
        self, store: Storage, clock_ms: Callable[[], int], passed_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._passed_ms = passed_ms
        self._throttle = Throttle()
        self._hasher = argon2.PasswordHasher()
        # A check takes a core for a moment, and 64 MB: only so many at once, and so many in line.
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._waiting = 0

    async def has_operators(self) -> bool:
        """Tell whether there is an operator who can sign in."""
        return await self._store.has_operators()

    async def set_password(
        self, actor: Actor, name: str, password: str, organisation_id: str | None
    ) -> Operator:
        """Add an operator, or change the password of one (which ends their sessions).

        Raises:
            ValueError: the password is too short or too long.
            ConflictError: the name belongs to an operator of another organisation.
        """
        if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
            raise ValueError(
                f"a password has {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters"
            )
        hashed = await asyncio.to_thread(self._hasher.hash, password)
        wanted = Operator(operator_id="", name=name, organisation_id=organisation_id)
        return await self._store.write(NOTHING, directory.put_operator, actor, wanted, hashed)

    async def sign_in(self, name: str, password: str, address: str) -> str:
        """Check a password and start a session; return its token.

        Raises:
            ThrottledError: too many attempts from this address, for this name, or at once.
            WrongPasswordError: no such name and password.
        """
        wait_ms = self._throttle.wait_ms(self._passed_ms(), address, name)
        if wait_ms:
            raise ThrottledError(wait_ms)
        found = await self._store.find_operator(name)
        # An unknown name takes as long as a wrong password.
        hashed = await asyncio.to_thread(_nobodys_hash, self._hasher) if found is None else found[1]
        # Counted before the check, so that concurrent attempts are counted too.
        self._throttle.failed(self._passed_ms(), address, name)
        if not await self._matches(hashed, password) or found is None:
            raise WrongPasswordError
        self._throttle.succeeded(address, name)
        operator = found[0]
        token = secrets.token_urlsafe(32)
        await self._store.write(
            NOTHING,
            directory.open_session,
            Actor(actor_name(operator), operator.organisation_id),
            operator.operator_id,
            token_hash(token),
            SESSION_MS,
        )
        return token

    async def _matches(self, hashed: str, password: str) -> bool:
        if len(password) > PASSWORD_LENGTH_MAX:
            return False
        if self._waiting >= _CHECKS_WAITING_MAX:
            raise ThrottledError(1000)
        self._waiting += 1
        try:
            async with self._checks:
                return await asyncio.to_thread(self._verify, hashed, password)
        finally:
            self._waiting -= 1

    def _verify(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except VerifyMismatchError:
            return False

    async def session(self, token: str) -> OperatorSession | None:
        """Return the session of a token while it is valid."""
        found = await self._store.find_session(token_hash(token))
        now_ms = self._clock_ms()
        if found is None or found.expires_at_ms <= now_ms or found.seen_at_ms + IDLE_MS <= now_ms:
            return None
        if now_ms - found.seen_at_ms >= _TOUCH_MS:
            await self._store.write(NOTHING, directory.touch_session, token_hash(token))
        return found

    async def sign_out(self, token: str) -> None:
        """End a session."""
        await self._store.write(NOTHING, directory.end_session, token_hash(token))


def actor_name(operator: Operator) -> str:
    """Return an operator's name as the audit log shows it."""
    return f"operator {operator.name}"


def token_hash(token: str) -> bytes:
    """Return the hash that is stored of a session's token (256 random bits)."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@functools.lru_cache(maxsize=1)
def _nobodys_hash(hasher: argon2.PasswordHasher) -> str:
    return hasher.hash(secrets.token_urlsafe(16))
