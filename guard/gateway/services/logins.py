"""Signing in from the command line: the device flow (RFC 8628), and refresh tokens after it.

The gateway gives its own tokens, and asks the provider about the person each time that it makes
one: who is suspended there has nothing that works an hour later.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from guard.core.ids import IdFactory
from guard.gateway.domain import logins as domain
from guard.gateway.domain.errors import ConflictError, StoreError
from guard.gateway.domain.logins import GroupRule, Login, LoginCode, LoginError, rule_of
from guard.gateway.domain.operators import Joining, Person
from guard.gateway.domain.records import Key
from guard.gateway.ledger import logins
from guard.gateway.reading import network_of
from guard.gateway.services.keys import SDK_PREFIX, hash_key
from guard.gateway.services.login_secrets import DEVICE_PREFIX, LoginSecrets, new_login_id
from guard.gateway.services.openid import Known, OpenIdError, OpenIdProvider, PersonRefusedError
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION, within

T = TypeVar("T")

CODES_MAX: Final = 10_000
"""Codes that wait for their persons at once."""
CODES_OF_NETWORK_MAX: Final = 30
"""How many of one network, such as an office behind one address."""
_PREFIX_LENGTH: Final = 12
_TRIES: Final = 3
_WAIT_S: Final = 0.2
"""How often to look whether another request has its answer from the provider."""


class TooManyError(Exception):
    """Too many codes are waiting for their persons."""


class Tokens(Struct, frozen=True):
    """What a program gets for its person.

    Attributes:
        access_token: a key of guard's.
        expires_in_ms: how long that lasts.
        refresh_token: for the next ones; ``None`` where the provider gives none itself.
    """

    access_token: str
    expires_in_ms: int
    refresh_token: str | None

    def __repr__(self) -> str:
        return "Tokens()"


class LoginService:
    """Use cases of ``guard login``.

    Args:
        storage: where codes and logins are kept.
        secrets_: makes and seals tokens.
        provider: where people sign in.
        clock_ms: Unix milliseconds.
    """

    def __init__(
        self,
        storage: Storage,
        secrets_: LoginSecrets,
        provider: OpenIdProvider,
        clock_ms: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._secrets = secrets_
        self._provider = provider
        self._clock_ms = clock_ms
        self._ids = IdFactory()

    # -- the code ------------------------------------------------------------------------------

    async def begin(self, address: str) -> tuple[str, LoginCode]:
        """Return the secret of a program that wants to sign its person in, and its code.

        Raises:
            TooManyError: too many wait already, of all or from its network.
        """
        now_ms, whose = self._clock_ms(), network_of(address)
        of_all, own = await self._storage.login_codes_since(now_ms, whose)
        if of_all >= CODES_MAX or own >= CODES_OF_NETWORK_MAX:
            raise TooManyError
        device = DEVICE_PREFIX + secrets.token_urlsafe(32)

        async def add() -> LoginCode:
            code = LoginCode(
                device_hash=hash_key(device), user_code=domain.new_user_code(), address=address,
                ends_ms=now_ms + domain.CODE_MS,
            )  # fmt: skip
            await self._storage.write(NO_ORGANISATION, logins.add_code, code, whose)
            return code

        return device, await _repeated(add)

    async def identified(self, user_code: str, known: Known) -> tuple[LoginCode, str]:
        """Note who has signed in for a code; return it, and the secret for their answer.

        Raises:
            LoginError: there is no such code that waits, or they may not sign in.
        """
        person = known.person
        rule = await self._rule(person)
        confirm = secrets.token_urlsafe(32)

        async def note() -> LoginCode:
            code = await self._storage.login_code(user_code)
            if code is None or code.state in ("allowed", "refused") or self._has_ended(code):
                raise LoginError("invalid_grant", "no program waits for this code")
            after = msgspec.structs.replace(
                code, state="known", person=person, confirm_hash=hash_key(confirm),
                sealed=self._secrets.seal(known.refresh_token),
            )  # fmt: skip
            # Checked now, so that the person is told, and again when the login begins.
            await self._storage.write(NO_ORGANISATION, logins.check_person, person, rule)
            await self._storage.write(NO_ORGANISATION, logins.change_code, code, after)
            return after

        return await _repeated(note), confirm

    async def answer(self, user_code: str, confirm: str, *, allows: bool) -> None:
        """Note whether a person allows the program.

        Raises:
            LoginError: the page is not the last one that they were shown for the code.
        """

        async def note() -> None:
            code = await self._storage.login_code(user_code)
            if code is None or code.state != "known" or self._has_ended(code):
                raise LoginError("invalid_grant", "no program waits for this code any more")
            if not secrets.compare_digest(code.confirm_hash, hash_key(confirm)):
                raise LoginError("invalid_grant", "another sign-in for this code came later")
            after = msgspec.structs.replace(code, state="allowed" if allows else "refused")
            await self._storage.write(NO_ORGANISATION, logins.change_code, code, after)

        await _repeated(note)

    def _has_ended(self, code: LoginCode) -> bool:
        return code.ends_ms <= self._clock_ms()

    async def redeem(self, device: str) -> Tokens:
        """Return the first tokens of a program whose person has signed in and allows it.

        Raises:
            LoginError: not yet, or never; with the code to answer.
        """

        async def ask() -> LoginCode | str:
            return await self._storage.write(NO_ORGANISATION, logins.poll, hash_key(device))

        code = await _repeated(ask)
        if isinstance(code, str):
            raise LoginError(code, _SAYS[code])
        person = code.person
        assert person is not None  # of those that are allowed
        rule = await self._rule(person)
        account = Key(
            key_id=self._ids.uuid7(self._clock_ms()), organisation_id=rule.organisation_id,
            role="sdk", name=person.name, team=rule.team, person=person.name,
        )  # fmt: skip
        login = Login(
            login_id=new_login_id(), organisation_id=rule.organisation_id, key_id="",
            person=person, sealed=code.sealed, generation=1, made_ms=0, ends_ms=0,
        )  # fmt: skip
        access = self._secrets.access_token(login.login_id, 1)
        try:
            opened = await self._storage.write(
                within(rule.organisation_id), logins.open_login, code, rule, account, login,
                hash_key(access), access[:_PREFIX_LENGTH],
            )  # fmt: skip
        except ConflictError:
            raise LoginError("invalid_grant", _SAYS["invalid_grant"]) from None
        return self._tokens(opened)

    # -- refresh tokens ------------------------------------------------------------------------

    async def refresh(self, token: str) -> Tokens:
        """Return the tokens that follow a refresh token, the same for as long as a minute.

        Raises:
            LoginError: the login has ended, or ends now.
            OpenIdError: the provider cannot be asked; the refresh token stays valid.
        """
        read = self._secrets.read_refresh_token(token)
        found = None if read is None else await self._storage.login(read[0])
        if read is None or found is None:
            raise LoginError("invalid_grant", "the login has ended")
        try:
            step, login = await self._claimed(found, read[1])
        except LoginError as exc:
            await self._end(found, str(exc))
            raise
        return self._tokens(login if step == "again" else await self._asked(login))

    async def _claimed(self, login: Login, generation: int | None) -> tuple[logins.Step, Login]:
        """Claim the question to the provider, once another request that asks it has its answer."""
        own = within(login.organisation_id)
        async with asyncio.timeout(domain.ASKING_MS / 1000):
            while True:
                step, claimed = await _repeated(
                    lambda: self._storage.write(
                        own, logins.begin_refresh, login.login_id, generation
                    )
                )
                if step != "wait":
                    return step, claimed
                await asyncio.sleep(_WAIT_S)

    async def _asked(self, claimed: Login, *, gives: bool = True) -> Login:
        """Return a login whose provider was asked, with the next number if it gives tokens."""
        own = within(claimed.organisation_id)
        try:
            sealed = self._secrets.unseal(claimed.sealed)
            if sealed is None:
                raise LoginError("invalid_grant", "the gateway has another key now; sign in again")
            known = await self._provider.refresh(Known(claimed.person, sealed))
            rule = await self._rule(known.person)
            changed = msgspec.structs.replace(
                claimed, person=known.person, sealed=self._secrets.seal(known.refresh_token)
            )
            access = self._secrets.access_token(claimed.login_id, claimed.generation + 1)
            written = (hash_key(access), access[:_PREFIX_LENGTH]) if gives else None
            return await self._storage.write(
                own, logins.finish_refresh, claimed, changed, rule, written
            )
        except PersonRefusedError:
            why = "the provider does not know this person any more"
        except LoginError as exc:
            why = str(exc)
        except ConflictError:
            # It has ended, or the claim has lapsed: the next try will tell.
            raise OpenIdError("another request has changed the login; try again") from None
        except OpenIdError:
            with contextlib.suppress(ConflictError):
                await self._storage.write(own, logins.stop_asking, claimed)
            raise
        await self._end(claimed, why)
        raise LoginError("invalid_grant", why)

    async def revoke(self, token: str) -> None:
        """End the login that a token belongs to; an unknown token is nothing to end."""
        read = self._secrets.read_refresh_token(token)
        login_id = read[0] if read else await self._storage.login_of(hash_key(token))
        found = None if login_id is None else await self._storage.login(login_id)
        if found is not None:
            await self._end(found, "signed out")

    async def _end(self, login: Login, why: str) -> None:
        await self._storage.write(within(login.organisation_id), logins.end_login, login, why)

    # -- work keys -----------------------------------------------------------------------------

    async def work_key(self, token: str) -> tuple[str, int]:
        """Return a new work key for the person of an access token, and how many ms it lasts.

        Raises:
            LoginError: the token is not valid.
        """
        hashed = hash_key(token)
        login_id, found = await self._storage.login_of(hashed), await self._storage.find_key(hashed)
        login = None if login_id is None else await self._storage.login(login_id)
        if found is None or login is None or (found.key.expires_at_ms or 0) <= self._clock_ms():
            raise LoginError("invalid_grant", "the access token has ended")
        if found.works_until_ms is not None:  # or one that was stolen would go on for good
            raise LoginError("invalid_grant", "a work key gives no other")
        key = SDK_PREFIX + secrets.token_urlsafe(32)
        until_ms = await self._storage.write(
            within(login.organisation_id), logins.add_work_key, login, hash_key(key),
            key[:_PREFIX_LENGTH],
        )  # fmt: skip
        return key, max(0, until_ms - self._clock_ms())

    async def put_off(self, hashed: bytes) -> None:
        """Ask the provider about the person of a work key that has lapsed, and put off its end.

        Raises:
            StoreError: the provider cannot be asked.
        """
        login_id = await self._storage.login_of(hashed)
        login = None if login_id is None else await self._storage.login(login_id)
        if login is None:
            return  # it stays lapsed
        try:
            step, claimed = await self._claimed(login, None)
            if step == "ask":
                await self._asked(claimed, gives=False)
        except LoginError:
            return
        except (OpenIdError, TimeoutError) as exc:
            raise StoreError(f"the provider cannot be asked whose key it is: {exc}") from None

    def _tokens(self, login: Login) -> Tokens:
        return Tokens(
            self._secrets.access_token(login.login_id, login.generation),
            max(0, login.made_ms + domain.ACCESS_MS - self._clock_ms()),
            self._secrets.refresh_token(login.login_id, login.generation) if login.sealed else None,
        )

    # -- groups --------------------------------------------------------------------------------

    async def _rule(self, person: Person) -> GroupRule:
        rule = rule_of(await self._storage.sign_on_rules(), person.groups)
        if rule is None:
            raise LoginError("access_denied", f"no group of {person.name} may sign in here")
        return rule


async def joining_of(storage: Storage, person: Person, of_all: Joining | None) -> Joining | None:
    """Return as what a person may sign in to the dashboard, if at all.

    Args:
        storage: has the table of groups.
        person: who has signed in at the provider.
        of_all: what the settings say of everybody; it stands before a row that names no role.
    """
    rule = rule_of(await storage.sign_on_rules(), person.groups)
    if rule is None or (rule.role is None and of_all is not None):
        return of_all
    own = rule.organisation_id
    return Joining(role=rule.role or "member", organisation=own, by_groups=True)


async def _repeated(work: Callable[[], Awaitable[T]]) -> T:
    """Do what reads and then writes, again where another request was faster."""
    for _ in range(_TRIES):
        try:
            return await work()
        except ConflictError:
            continue
    return await work()


_SAYS: Final = {
    "authorization_pending": "the person has not signed in yet",
    "slow_down": "asked too soon: five seconds more between two questions from now on",
    "access_denied": "the person does not allow it",
    "expired_token": "the code has expired; begin again",
    "invalid_grant": "there is no such code, or it was used",
}
