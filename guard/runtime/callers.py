"""The callers of a proxy: each has an account of its own in the proxy's process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import dataclasses
import functools
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar

import attrs

from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardAuthenticationError,
    GuardAuthError,
    GuardError,
    GuardProtocolError,
    was_shut_down,
)
from guard.breaker.rejection import CallerRejectedError
from guard.core import wire
from guard.delivery.last_delivery import Patience
from guard.loop import LoopClosedError, in_thread
from guard.runtime.account import KeyAccount, ProcessParts
from guard.scope.scope import Entry
from guard.settings import DEFAULT_WORKFLOW, Settings
from guard.state import GuardStatus

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

A = TypeVar("A", bound=KeyAccount)
_LABEL_LENGTH: Final = 8
VERIFIED_S: Final = 30.0
"""How long a verified key counts as valid without a socket, which would report its end."""

REJECTED_S: Final = 10.0
"""How long a refused key is refused without asking the gateway again."""

_REJECTED_MAX: Final = 10_000
IDLE_S: Final = 60.0
"""How long an account may be unused before it is closed; the next use opens it again."""

_SWEEP_S: Final = 5.0
_CLOSE_S: Final = 2.0
_DELIVERY_SHARE: Final = 0.8
"""Share of the time before a signal ends the process that is for delivery, if there is a spool."""


class CallerAccount(KeyAccount):
    """The account of one caller that this process works for. Any thread.

    Args:
        settings: with the proxy's key and the caller's, as one credential, and the id of the
            caller's key.
        parts: the parts that it shares with the other accounts of the process.
        secret: the hash of the secret in the credential.

    Attributes:
        secret: as given; other secrets of the key use the account too, while it is open.
        label: identifies the caller in logs; the key cannot be derived from it.
        workflow: the only workflow that the caller's key is for; None when it is for all.
        organisation_id, team, person: whose the caller's key is; empty where the gateway is older.
        may_name, shows_cost: what its requests may name, and whether they are told their cost.
        run_id: the run of everything that names no other.
    """

    def __init__(self, settings: Settings, parts: ProcessParts, secret: str) -> None:
        super().__init__(settings, parts)
        self.secret = secret
        self.label = self.identity[-_LABEL_LENGTH:]
        self.workflow: str | None = None
        self.organisation_id = self.team = self.person = ""
        self.may_name: tuple[str, ...] = ()
        self.shows_cost = False
        self.run_id = self.new_run_id()
        # Held while an entry is added and while the account is checked for being idle, so that it
        # never ends while it is in use.
        self._lock = threading.Lock()
        # The uses under way. Callers' threads add under the lock; discarding is atomic.
        self._entries: set[Entry] = set()
        # When the account was last used, by any thread, and when the gateway last accepted the key
        # (written on the loop), by `time.monotonic()`.
        self._used_s = self._verified_s = time.monotonic()
        # Whether no further use may begin. Set once, under the lock.
        self._has_ended = False

    def _learned(self, capabilities: wire.Capabilities) -> None:
        self.workflow = capabilities.workflow_id
        self.organisation_id, self.team = capabilities.organisation_id, capabilities.team
        self.person, self.may_name = capabilities.person, tuple(capabilities.may_name)
        self.shows_cost = capabilities.shows_cost
        self._verified_s = time.monotonic()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._lock = threading.Lock()
        self.run_id = self.new_run_id()

    @property
    def identity(self) -> str:
        """An identifier that is the caller's alone: the id of its key, whatever its secret."""
        return self.settings.owner_key

    @property
    def outside(self) -> str:
        """The workflow of everything outside of one: by its name a team can be stopped."""
        return self.workflow or self.settings.workflow or self.team or DEFAULT_WORKFLOW

    @property
    def rejection(self) -> GuardAuthenticationError | None:
        """Why the gateway refuses the caller's key now, or the proxy's; None while it does not."""
        return self.events.health.rejection

    @property
    def is_rejected(self) -> bool:
        """Whether the gateway has refused the key since it was introduced."""
        return self.rejection is not None

    def is_known(self, now_s: float, other_s: float | None = None) -> bool:
        """Return whether the gateway has accepted a secret recently; counts as a use.

        Args:
            now_s: the time.
            other_s: when it last accepted the secret, if that is not the account's own.
        """
        # First: the sweep must not find the account idle between this and `enter`.
        self._used_s = now_s
        if self.is_rejected or self.is_shut_down:
            return False
        if other_s is not None:
            return now_s - other_s < VERIFIED_S
        return self.events.health.channel == "websocket" or now_s - self._verified_s < VERIFIED_S

    def enter(self, entry: Entry) -> None:
        """Begin to work for the caller.

        Raises:
            RuntimeError: the account was closed meanwhile.
        """
        with self._lock:
            if self._has_ended:
                raise RuntimeError("this caller was not used for long: introduce it again")
            self._entries.add(entry)

    def leave(self, entry: Entry) -> None:
        """End what :meth:`enter` has begun."""
        self._used_s = time.monotonic()
        self._entries.discard(entry)

    def end_if_idle(self, now_s: float) -> bool:
        """End the account for new uses if it is idle and holds nothing; return whether it is."""
        with self._lock:
            session = self.link.session
            is_idle = (
                now_s - self._used_s >= IDLE_S
                and not self._entries
                and not self.events.waiting
                and not (session is not None and (session.flusher.spooled or len(session.asks)))
                and not self.leases.totals().leases
                and not self._keeper.renewing
            )
            self._has_ended = self._has_ended or is_idle
        return is_idle

    def is_learning(self, now_s: float) -> bool:
        """Return whether it is time to ask again what the key may do; on the background loop."""
        due = now_s - self._verified_s >= VERIFIED_S and self._used_s > self._verified_s
        if due:
            self._verified_s = now_s
        return due

    async def learn(self) -> None:
        """Ask what the key may do, which somebody may have changed."""
        session = self.link.session
        if session is not None:
            with contextlib.suppress(GuardError):
                await session.verify()

    async def end(self, patience: Patience, *, flush: bool) -> None:
        """Deliver the buffered events and close the session; on the background loop."""
        with self._lock:
            self._has_ended = True
        await self.events.end(patience, flush=flush)

    def __repr__(self) -> str:
        return f"<Caller {self.label}>"


@attrs.frozen
class _CallerSettings(Settings):
    """The settings of a caller's account.

    Attributes:
        key_id: the id of the caller's key; empty from an older gateway.
    """

    key_id: str = ""

    @classmethod
    def of(cls, settings: Settings, key_id: str) -> Self:
        """Return settings with the id of the caller's key."""
        given = {each.name: getattr(settings, each.name) for each in attrs.fields(Settings)}
        return cls(**given, key_id=key_id)

    @property
    def owner_key(self) -> str:
        """The owner of events on disk: the key's id, since its secret may be replaced meanwhile."""
        return self.key_id or super().owner_key


@attrs.define
class _Secret:
    """The account of a secret; and when the gateway accepted it, if the account has another one."""

    account: CallerAccount
    accepted_s: float | None = None


@attrs.define
class _Rejected:
    """A key that the gateway has refused, and until when the gateway is not asked again."""

    error: CallerRejectedError
    until_s: float


async def _key_id(settings: Settings) -> str:
    """Return the id of the key that a credential names; empty from an older gateway.

    Raises:
        GuardError: the key is refused, or the gateway gave no usable answer.
    """
    from guard.transport.client import GatewayClient

    client = GatewayClient(settings, lambda _: None)
    try:
        return (await client.capabilities()).key_id
    finally:
        await client.close()


class Callers:
    """Introduces callers, and keeps the accounts of those that are active.

    Args:
        own: the account of the proxy's own key.
        parts: those of the process.
    """

    def __init__(self, own: KeyAccount, parts: ProcessParts) -> None:
        self._own = own
        self._parts = parts
        # The open accounts, by the id of the key, and by the hashes of its secrets. Written on the
        # background loop; any thread reads them, or a copy where it iterates.
        self._accounts: dict[str, CallerAccount] = {}
        self._secrets: dict[str, _Secret] = {}
        # Refused keys, by hash, the oldest first. Written by callers' loops (`_reject`) and by the
        # background loop, in single operations.
        self._rejected: OrderedDict[str, _Rejected] = OrderedDict()
        # Introductions under way, by hash: all callers that ask at once share one request to the
        # gateway. On the background loop only.
        self._introducing: dict[str, asyncio.Task[CallerAccount]] = {}
        # Whether no further account may be opened. Set once, by the thread that shuts down.
        self._is_finishing = False
        # Closes idle accounts; runs from the first account on.
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def active(self) -> list[CallerAccount]:
        """The accounts that are open."""
        return list(self._accounts.values())

    def after_fork(self) -> None:
        """Start afresh in a forked child, which keeps the scopes of its parent's callers."""
        for account in self.active:
            account._after_fork()
        self._introducing = {}
        self._sweeping = None

    async def introduce(self, api_key: str) -> CallerAccount:
        """Return the account of a caller; see ``guard.contexts.caller.introduce``."""
        hashed = hashlib.sha256(api_key.encode("utf-8", "replace")).hexdigest()
        now_s = time.monotonic()
        # 1. Known, and 2. refused lately: without a thread hop, on the caller's own loop.
        known = self._secrets.get(hashed)
        if known is not None and known.account.is_known(now_s, known.accepted_s):
            return known.account
        rejected = self._rejected.get(hashed)
        if rejected is not None and now_s < rejected.until_s:
            raise copy.copy(rejected.error)  # each raise has its own traceback
        # 3. Ask the gateway, on the background loop.
        try:
            return await self._parts.background.run_async(self._introduce, hashed)
        except LoopClosedError:
            raise was_shut_down() from None
        except CallerRejectedError as exc:
            self._reject(hashed, exc)
            raise copy.copy(exc) from None
        except GuardError as exc:
            raise copy.copy(exc) from exc.__cause__  # each caller gets its own traceback

    def _reject(self, hashed: str, error: CallerRejectedError) -> None:
        self._rejected[hashed] = _Rejected(error, time.monotonic() + REJECTED_S)
        while len(self._rejected) > _REJECTED_MAX:
            self._rejected.popitem(last=False)

    # -- on the background loop -------------------------------------------------------------------

    async def _introduce(self, hashed: str) -> CallerAccount:
        task = self._introducing.get(hashed)
        if task is None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._verified(hashed), context=contextvars.Context())
            self._introducing[hashed] = task
            task.add_done_callback(lambda ended: self._introduced(hashed, ended))
        # Shielded: a caller that gives up must not end the introduction for the others.
        return await asyncio.shield(task)

    def _introduced(self, hashed: str, task: asyncio.Task[CallerAccount]) -> None:
        if self._introducing.get(hashed) is task:
            del self._introducing[hashed]
        if not task.cancelled():
            task.exception()  # marked as retrieved: every caller may have given up

    async def _verified(self, hashed: str) -> CallerAccount:
        """Verify a secret with the gateway; open its key's account, unless it is open.

        Raises:
            GuardError: the key is refused, or the gateway gave no usable answer.
        """
        known = self._secrets.get(hashed)
        session = known.account.link.session if known is not None else None
        if known is not None and known.accepted_s is None and session is not None:
            try:
                await session.verify()
            except GuardAuthenticationError:
                if any(each.account is known.account for each in self._others(hashed)):
                    del self._secrets[hashed]  # another secret goes on with its events
                else:
                    self._close_soon(known.account)
                raise
            return known.account
        await self._require_proxy()
        api_key = f"{self._own.settings.api_key}{wire.CALLER_SEPARATOR}{hashed}"
        settings = attrs.evolve(self._own.settings, api_key=api_key)
        try:
            settings = _CallerSettings.of(settings, await _key_id(settings))
        except GuardAuthenticationError:
            self._secrets.pop(hashed, None)
            raise
        before = self._open(settings.owner_key)
        if before is not None and not before.is_rejected:
            self._secrets[hashed] = _Secret(before, time.monotonic())
            return before
        account = CallerAccount(settings, self._parts, hashed)
        account.link.key_limit = self._own.link.key_limit
        await account.link.open_verified()
        if before is not None:  # its secret has ended, this one has not
            self._close_soon(before, heir=account)
        # Another secret of the key may have opened one meanwhile.
        opened = self._open(account.identity)
        if opened is not None:
            self._parts.background.spawn(lambda: self._close(account), name="guard-caller-ends")
            self._secrets[hashed] = _Secret(opened, time.monotonic())
            return opened
        self._accounts[account.identity] = account
        self._secrets[hashed] = _Secret(account)
        # After it is added: `finish` sets this before it looks for accounts, so that one of the two
        # ends this account.
        if self._is_finishing:
            self._close_soon(account)
            raise was_shut_down()
        if self._sweeping is None:
            self._sweeping = self._parts.background.spawn(self._sweep, name="guard-callers")
        return account

    def _open(self, key_id: str) -> CallerAccount | None:
        account = self._accounts.get(key_id)
        # One that a forked child has from its parent has no session.
        return None if account is None or account.link.session is None else account

    async def _require_proxy(self) -> Session:
        """Check that the gateway supports callers, and that this process's key is a proxy's.

        Raises:
            GuardError: one of them is not so, or the gateway cannot be asked.
        """
        session = await self._own.link.open()
        await session.probe()
        if wire.FEATURE_CALLERS not in (session.features or ()):
            raise GuardProtocolError("the gateway is older than this SDK: it knows no callers")
        if not session.is_proxys:
            raise GuardAuthError(
                "only a key of role proxy may name callers; this process has another one",
                error_code="GD-A005",
            )
        return session

    async def _sweep(self) -> None:
        """Close idle accounts, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = time.monotonic()
            for account in self.active:
                if account.end_if_idle(now_s):
                    self._close_soon(account)
                elif account.is_learning(now_s):
                    self._parts.background.spawn(account.learn, name="guard-caller-learns")
            for hashed, rejected in list(self._rejected.items()):
                if now_s >= rejected.until_s:
                    self._rejected.pop(hashed, None)

    def _others(self, hashed: str) -> list[_Secret]:
        return [each for secret, each in self._secrets.items() if secret != hashed]

    def _close_soon(self, account: CallerAccount, heir: CallerAccount | None = None) -> None:
        # Out of the dicts first: the next introduction of this key opens a new account.
        if self._accounts.get(account.identity) is account:
            del self._accounts[account.identity]
            for hashed in [each for each, of in self._secrets.items() if of.account is account]:
                del self._secrets[hashed]
            closing = functools.partial(self._close, account, heir)
            self._parts.background.spawn(closing, name="guard-caller-ends")

    async def _close(self, account: CallerAccount, heir: CallerAccount | None = None) -> None:
        try:
            await account.end(Patience(_CLOSE_S, account.events.health), flush=heir is None)
            if heir is not None:
                waiting = account.events.outbox.buffer
                heir.events.outbox.buffer.put_back(waiting.take(len(waiting)))
        finally:  # events that were not delivered go to disk, or are counted as lost
            # In a thread: it writes to the disk, and the loop serves the other callers.
            conclude = functools.partial(account.events.conclude, flush=True)
            await in_thread(conclude, finish=True)

    # -- for all accounts -------------------------------------------------------------------------

    @property
    def waiting_calls(self) -> int:
        """How many calls and requests of callers wait in line."""
        return sum(account.waiting_calls for account in self.active)

    def added_to(self, own: GuardStatus) -> GuardStatus:
        """Return the status of the process: that of its own key, with its callers' sums."""
        for account in self.active:
            session, leases = account.link.session, account.leases.totals()
            own = dataclasses.replace(
                own,
                buffered=own.buffered + account.events.waiting,
                spooled=own.spooled + (0 if session is None else session.flusher.spooled),
                events_sent=own.events_sent + account.events.health.sent,
                events_lost=own.events_lost + account.events.health.lost,
                leases=own.leases + leases.leases,
                leased_nanousd=own.leased_nanousd + leases.nanousd,
                leased_calls=own.leased_calls + leases.under_way,
            )
        return own

    def flush(self, timeout_s: float | None = None) -> None:
        """Deliver everything that is buffered for callers now and wait for it.

        Args:
            timeout_s: for each of them, as for :meth:`EventPipeline.flush`.

        Raises:
            BreakerTransportError: some events were neither delivered nor written to disk.
        """
        for account in self.active:
            if account.events.waiting:
                account.events.flush(timeout_s)

    def flush_last(self, timeout_s: float) -> None:
        """Deliver everything that is buffered, of the process's own key too: it may end.

        Events that were not delivered are stored on disk, if there is a spool.

        Args:
            timeout_s: how long to try while no batch is accepted, in seconds.

        Raises:
            BreakerTransportError: some events were neither delivered nor written to disk.
        """
        accounts = [each for each in (self._own, *self.active) if each.events.waiting]
        if self._own.settings.spool_dir is not None:
            timeout_s *= _DELIVERY_SHARE  # the rest of the time is for the disk
        ended = self._for_each(lambda each, left: each.events.deliver(left), accounts, timeout_s)
        left = 0
        for account in accounts:
            session, waiting = account.link.session, account.events.waiting
            if waiting and (session is None or not session.flusher.store_rest()):
                left += waiting
        if left:
            why = next((each for each in ended if each is not None), "no answer in time")
            text = f"{left} events are still buffered: {why}"
            raise BreakerTransportError(text, buffer_size=left)

    def _for_each(
        self,
        act: Callable[[A, Patience], Awaitable[object]],
        accounts: Sequence[A],
        timeout_s: float,
    ) -> list[object]:
        """Do something for all accounts at once, and wait while one of them has time left.

        Returns:
            What came of each, also an exception; nothing if they have not ended in time.
        """
        if not accounts:
            return []
        patiences = [Patience(timeout_s, account.events.health) for account in accounts]

        async def do() -> list[object]:
            return await asyncio.gather(*map(act, accounts, patiences), return_exceptions=True)

        with contextlib.suppress(TimeoutError, RuntimeError, concurrent.futures.CancelledError):
            return self._parts.background.run(
                do, timeout_s=lambda: max(patience.left_s() for patience in patiences)
            )
        return []

    # -- the end ----------------------------------------------------------------------------------

    def finish(self, timeout_s: float, *, flush: bool) -> BreakerTransportError | None:
        """Deliver, and end all accounts; before the loop ends.

        Args:
            timeout_s: how long it may take while no batch is accepted, in seconds.
            flush: whether to deliver.

        Returns:
            The exception to raise if events were lost, else None.
        """
        self._is_finishing = True
        accounts = self.active
        for account in accounts:
            account.is_shut_down = True
        # Whether or not that ended in time, `conclude` stores or counts what is left.
        self._for_each(lambda each, left: each.end(left, flush=flush), accounts, timeout_s)
        failures = [account.events.conclude(flush=flush) for account in accounts]
        for account in accounts:
            account.decisions.close()
        lost = [each for each in failures if each is not None]
        if not lost:
            return None
        return BreakerTransportError(
            f"events of {len(lost)} callers could not be delivered: {lost[0].args[0]}",
            events_lost=sum(each.events_lost for each in lost),
            buffer_size=sum(each.buffer_size for each in lost),
        )
