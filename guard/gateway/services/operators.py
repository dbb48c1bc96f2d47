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
from guard.gateway.domain.operators import (
    Joining,
    Operator,
    OperatorRole,
    OperatorSession,
    Person,
    SessionView,
    actor_name,
)
from guard.gateway.ledger import people
from guard.gateway.reading import network_of
from guard.gateway.services import devices
from guard.gateway.services.sign_in_throttle import STRANGERS_MAX, Throttle, ThrottledError
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION

PASSWORD_LENGTH_MIN: Final = 12
PASSWORD_LENGTH_MAX: Final = 256
SESSION_MS: Final = 12 * 3_600_000
IDLE_MS: Final = 2 * 3_600_000
_TOUCH_MS: Final = 60_000
DEVICE_MS: Final = 365 * 86_400_000
"""How long a browser is known after its last sign-in."""
LINK_MS: Final = 600_000
"""How long a link makes a browser known."""
_CHECKS_WAITING_MAX: Final = 16
"""Maximum attempts of known devices that are checked or wait for a check."""
_REST: Final = 3
"""The pause after each check for an unknown browser, as a multiple of the check's time."""
_REST_MAX_S: Final = 0.5
"""The longest such pause: on a busy machine a check takes long."""


class WrongPasswordError(Exception):
    """No operator has this name and password."""


class SignedIn(Struct, frozen=True):
    """The tokens for a browser that has signed in.

    Attributes:
        token: of the session.
        device: shows at a later sign-in that the browser is known.
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
        # A check takes a core for a moment, and 64 MB, so there is one at a time for known devices
        # and one for unknown browsers: the latter never delay the former.
        self._known_checks = asyncio.Semaphore(1)
        self._strangers_checks = asyncio.Semaphore(1)
        # How many attempts of known devices are checked or wait for the semaphore.
        self._waiting = 0
        # Set by :meth:`close`: attempts in line end at once.
        self._closing = asyncio.Event()

    async def has_operators(self) -> bool:
        """Return whether there is an operator who can sign in."""
        return await self._store.has_operators()

    async def set_password(
        self, actor: Actor, name: str, password: str, organisation_id: str | None
    ) -> Operator:
        """Add an operator, an owner, or change the password of one (which ends their sessions).

        Raises:
            ValueError: the password is too short or too long.
            ConflictError: the name belongs to an operator of another organisation.
        """
        return await self.put(actor, name, organisation_id, password=password)

    async def put(
        self,
        actor: Actor,
        name: str,
        organisation_id: str | None,
        *,
        password: str | None = None,
        role: OperatorRole | None = None,
    ) -> Operator:
        """Add an operator, or change the password (which ends their sessions) or the role of one.

        Args:
            actor: who asks for it.
            name: of the operator.
            organisation_id: the organisation that a new operator sees, and that a known one has to
                see; ``None``: all organisations, or whichever a known one sees.
            password: the new one; ``None``: unchanged, and none for a new operator.
            role: the new one; ``None``: unchanged, and owner for a new operator.

        Raises:
            ValueError: the password is too short or too long.
            ConflictError: the name belongs to an operator of another organisation.
        """
        hashed = None if password is None else await self._hashed(password)
        wanted = Operator(operator_id="", name=name, organisation_id=organisation_id)
        return await self._store.write(
            NO_ORGANISATION, people.put_operator, actor, wanted, password_hash=hashed, role=role
        )

    async def _hashed(self, password: str) -> str:
        if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
            raise ValueError(
                f"a password has {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters"
            )
        return await asyncio.to_thread(self._hasher.hash, password)

    async def remove(self, actor: Actor, name: str, organisation_id: str | None) -> Operator:
        """Remove an operator and end their sessions.

        Args:
            actor: who asks for it.
            name: of the operator.
            organisation_id: whose operator it has to be; ``None``: of any, or of all.

        Raises:
            NotFoundError: there is no such operator.
        """
        return await self._store.write(
            NO_ORGANISATION, people.remove_operator, actor, organisation_id, name
        )

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
        # An attempt is counted as failed before its password is checked, and taken back when it was
        # right: attempts at the same time cannot get around the throttle.
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
        token = await self.open_session(operator, "password", address)
        known_until_ms = self._clock_ms() + DEVICE_MS
        return SignedIn(token, devices.issue(operator.operator_id, hashed, known_until_ms))

    async def signed_on(
        self, person: Person, signed_in_by: str, address: str, joining: Joining | None
    ) -> str:
        """Start a session of a person who has signed in elsewhere, and return its token.

        Args:
            person: who has signed in.
            signed_in_by: where.
            address: of the client.
            joining: as what a person joins who is no operator yet; ``None``: they are refused.

        Raises:
            UnknownPersonError: they may not sign in here.
        """
        token = secrets.token_urlsafe(32)
        await self._store.write(
            NO_ORGANISATION, people.sign_on, Actor(signed_in_by), person, joining,
            token_hash(token), SESSION_MS, address,
        )  # fmt: skip
        return token

    async def open_session(self, operator: Operator, signed_in_by: str, address: str) -> str:
        """Start a session of an operator who has shown who they are, and return its token.

        Args:
            operator: as they are stored.
            signed_in_by: how they have shown it.
            address: of the client.
        """
        token = secrets.token_urlsafe(32)
        await self._store.write(
            NO_ORGANISATION,
            people.open_session,
            Actor(actor_name(operator), operator.organisation_id),
            operator.operator_id,
            token_hash(token),
            SESSION_MS,
            signed_in_by=signed_in_by,
            signed_in_from=address,
        )
        return token

    async def knows(self, name: str, device: str) -> bool:
        """Return whether a token is one of a device of this operator."""
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
        if not hashed:
            raise NotFoundError(f"{name} has no password yet: guard gateway password {name}")
        await self._store.write(NO_ORGANISATION, people.let_device_in, actor, operator)
        ends_ms = self._clock_ms() + LINK_MS
        return devices.issue(operator.operator_id, hashed, ends_ms), ends_ms

    async def _device(self, name: str, token: str) -> str | None:
        if not devices.is_token(token):
            return None
        found = await self._store.find_operator(name)
        if found is None or not found[1]:
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
        # Acquired and released by hand: the release comes after the pause, when this is over.
        await self._strangers_checks.acquire()
        began_s = time.perf_counter()
        try:
            if self._closing.is_set():
                raise ThrottledError(1000)
            return await self._check(name, password)
        finally:
            # The pause leaves the processor to the gateway's calls. Also after a failure.
            rest_s = min(_REST * (time.perf_counter() - began_s), _REST_MAX_S)
            asyncio.get_running_loop().call_later(rest_s, self._strangers_checks.release)

    def close(self) -> None:
        """Refuse the attempts that are in line: the gateway is shutting down."""
        self._closing.set()
        # Those that wait for their check are let through, find the event set, and end.
        for _ in range(STRANGERS_MAX):
            self._strangers_checks.release()

    async def _check(self, name: str, password: str) -> tuple[Operator, str]:
        """Return the operator with this password, and its hash.

        Raises:
            WrongPasswordError: there is none.
        """
        found = await self._store.find_operator(name)
        # A password is checked in any case: an answer that came sooner would show that there is no
        # operator of this name, or none with a password.
        hashed = "" if found is None else found[1]
        hashed = hashed or await asyncio.to_thread(_nobodys_hash, self._hasher)
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
        if found is None or _has_ended(found, now_ms):
            return None
        # Not with each request, which would be a write for each. The idle time is that much less
        # exact.
        if now_ms - found.seen_at_ms >= _TOUCH_MS:
            await self._store.write(NO_ORGANISATION, people.touch_session, token_hash(token))
        return found

    async def sign_out(self, token: str) -> None:
        """End a session."""
        await self._store.write(NO_ORGANISATION, people.end_session, token_hash(token))

    async def sessions(self, organisation_id: str | None) -> list[SessionView]:
        """List the sessions of one organisation's operators, or of all, newest first."""
        found = await self._store.sessions(organisation_id)
        now_ms = self._clock_ms()
        return [view for _, view in found if not _has_ended(view, now_ms)]

    async def end_session(self, actor: Actor, session_id: str, organisation_id: str | None) -> None:
        """End a session by its id.

        Args:
            actor: who asks for it.
            session_id: see :class:`guard.gateway.domain.operators.SessionView`.
            organisation_id: of whose operators it has to be; ``None``: of any.

        Raises:
            NotFoundError: there is no such session.
        """
        for hashed, view in await self._store.sessions(organisation_id):
            if view.session_id == session_id:
                await self._store.write(
                    NO_ORGANISATION, people.end_others_session, actor, view, hashed
                )
                return
        raise NotFoundError("there is no such session")

    async def end_sessions(self, actor: Actor, name: str, organisation_id: str | None) -> Operator:
        """End every session of an operator.

        Raises:
            NotFoundError: there is no such operator.
        """
        return await self._store.write(
            NO_ORGANISATION, people.end_sessions, actor, organisation_id, name
        )


def _has_ended(session: OperatorSession | SessionView, now_ms: int) -> bool:
    return session.expires_at_ms <= now_ms or session.seen_at_ms + IDLE_MS <= now_ms


def token_hash(token: str) -> bytes:
    """Return the hash that is stored of a session's token (256 random bits)."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@functools.lru_cache(maxsize=1)
def _nobodys_hash(hasher: argon2.PasswordHasher) -> str:
    return hasher.hash(secrets.token_urlsafe(16))
