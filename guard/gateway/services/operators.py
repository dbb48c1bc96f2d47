"""Operators of the dashboard: passwords, throttled sign-in, known devices, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

import argon2
from argon2.exceptions import VerifyMismatchError
from msgspec import Struct

from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.operators import Operator, OperatorSession
from guard.gateway.ledger import directory
from guard.gateway.ledger.state import NOTHING
from guard.gateway.reading import network_of
from guard.gateway.services import devices
from guard.gateway.services.sign_in_throttle import STRANGERS_MAX, Throttle, ThrottledError
from guard.gateway.storage.port import Storage

FIRST_OPERATOR: Final = "admin"
PASSWORD_LENGTH_MIN: Final = 12
PASSWORD_LENGTH_MAX: Final = 256
SESSION_MS: Final = 12 * 3_600_000
IDLE_MS: Final = 2 * 3_600_000
_TOUCH_MS: Final = 60_000
DEVICE_MS: Final = 365 * 86_400_000
"""For how long a browser is known after its last sign-in."""
LINK_MS: Final = 600_000
"""For how long a link makes a browser known."""
_CHECKS_WAITING_MAX: Final = 16
_REST: Final = 3
"""How long strangers' checks rest after each one, in times of its length."""
_REST_MAX_S: Final = 0.5
"""And at most: on a busy machine a check is long."""


class WrongPasswordError(Exception):
    """No operator has this name and password."""


class SignedIn(Struct, frozen=True):
    """What a browser gets that has signed in.

    Attributes:
        token: of the session.
        device: says later that the browser is known.
    """

    token: str
    device: str


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
        # A check takes a core for a moment, and 64 MB: one at once for known devices, of which so
        # many wait, and one for strangers.
        self._known_checks = asyncio.Semaphore(1)
        self._strangers_checks = asyncio.Semaphore(1)
        self._waiting = 0
        self._closing = asyncio.Event()

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

    async def sign_in(self, name: str, password: str, address: str, device: str = "") -> SignedIn:
        """Check a password and start a session.

        An attempt from a browser that is not known may wait in line first.

        Args:
            name: of the operator.
            password: as it was typed.
            address: of the client.
            device: the token of a known device, or anything else.

        Raises:
            ThrottledError: too many attempts from this device or address, or too many in line.
            WrongPasswordError: no such name and password.
        """
        known = await self._device(name, device)
        if known is not None:
            self._throttle.enter_known(self._passed_ms(), known)
            found = await self._checked_known(name, password)
            self._throttle.succeeded_known(known)
        else:
            whose = network_of(address)
            wait_ms = self._throttle.enter(self._passed_ms(), whose, name)
            try:
                await self._wait_in_line(wait_ms)
                found = await self._checked(name, password)
            finally:
                self._throttle.left(whose)
            self._throttle.succeeded(whose, name)
        operator, hashed = found
        token = secrets.token_urlsafe(32)
        await self._store.write(
            NOTHING,
            directory.open_session,
            Actor(actor_name(operator), operator.organisation_id),
            operator.operator_id,
            token_hash(token),
            SESSION_MS,
        )
        known_until_ms = self._clock_ms() + DEVICE_MS
        return SignedIn(token, devices.issue(operator.operator_id, hashed, known_until_ms))

    async def knows(self, name: str, device: str) -> bool:
        """Tell whether a token is one of a device of this operator."""
        return await self._device(name, device) is not None

    async def let_device_in(
        self, actor: Actor, name: str, organisation_id: str | None
    ) -> tuple[str, int]:
        """Return a token that makes a new device known for ten minutes, and when it ends.

        Args:
            actor: who asks for it.
            name: of the operator.
            organisation_id: whose operator it has to be; ``None``: of any, or of all.

        Raises:
            NotFoundError: there is no such operator.
        """
        found = await self._store.find_operator(name)
        if found is None or organisation_id not in (None, found[0].organisation_id):
            raise NotFoundError("there is no such operator")
        operator, hashed = found
        await self._store.write(NOTHING, directory.let_device_in, actor, operator)
        ends_ms = self._clock_ms() + LINK_MS
        return devices.issue(operator.operator_id, hashed, ends_ms), ends_ms

    async def _device(self, name: str, token: str) -> str | None:
        if not devices.is_token(token):
            return None
        found = await self._store.find_operator(name)
        if found is None:
            return None
        return devices.device_of(token, found[0].operator_id, found[1], self._clock_ms())

    async def _checked_known(self, name: str, password: str) -> tuple[Operator, str]:
        if self._waiting >= _CHECKS_WAITING_MAX:
            raise ThrottledError(1000)
        self._waiting += 1
        try:
            async with self._known_checks:
                return await self._check(name, password)
        finally:
            self._waiting -= 1

    async def _wait_in_line(self, wait_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._closing.wait()

    async def _checked(self, name: str, password: str) -> tuple[Operator, str]:
        await self._strangers_checks.acquire()
        began_s = time.perf_counter()
        try:
            if self._closing.is_set():
                raise ThrottledError(1000)
            return await self._check(name, password)
        finally:
            # Calls need the processor too.
            rest_s = min(_REST * (time.perf_counter() - began_s), _REST_MAX_S)
            asyncio.get_running_loop().call_later(rest_s, self._strangers_checks.release)

    def close(self) -> None:
        """Refuse the attempts that are in line: the gateway is shutting down."""
        self._closing.set()
        for _ in range(STRANGERS_MAX):
            self._strangers_checks.release()

    async def _check(self, name: str, password: str) -> tuple[Operator, str]:
        """Return the operator with this password, and its hash.

        Raises:
            WrongPasswordError: there is none.
        """
        found = await self._store.find_operator(name)
        # An unknown name takes as long as a wrong password.
        hashed = await asyncio.to_thread(_nobodys_hash, self._hasher) if found is None else found[1]
        is_right = len(password) <= PASSWORD_LENGTH_MAX and await asyncio.to_thread(
            self._verify, hashed, password
        )
        if found is None or not is_right:
            raise WrongPasswordError
        return found

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
