"""A connection to Redis that fails fast while Redis is unavailable, and recovers by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError, RedisError
from redis.maint_notifications import MaintNotificationsConfig

from guard.core.retry import Backoff
from guard.gateway.domain.errors import StoreError

logger = logging.getLogger(__name__)

ANSWER_WAIT_S: Final = 1.0
"""A Redis that takes longer to answer counts as unavailable."""

PING_S: Final = 1.0
"""How often Redis is pinged while no call uses it."""

RECONNECT: Final = Backoff(base_s=0.1, cap_s=2.0)
_BATCH_MAX: Final = 512

# uvloop raises RuntimeError for a write to a connection that was reset while nothing read from it.
Failure = (RedisError, OSError, TimeoutError, RuntimeError)


class _Call:
    __slots__ = ("arguments", "future", "key", "script")

    def __init__(self, script: AsyncScript, key: str, arguments: tuple[Any, ...]) -> None:
        self.script = script
        self.key = key
        self.arguments = arguments
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class RedisConnection:
    """Runs scripts; those of one turn of the loop go out in one write.

    While Redis is unavailable every call fails at once, and a task tries to reach it again, at
    random intervals that grow to two seconds. A call is never repeated after a failure: Redis may
    have run it, and a call that is counted twice would be worse than one that is refused.

    All of it runs on the loop.

    Args:
        url: such as ``redis://:password@host:6379/0``, ``rediss://...`` or ``unix:///path``.
        answer_wait_s: how long to wait for an answer, in seconds; then Redis counts as unavailable.

    Attributes:
        is_up: whether the last answer came.
        failures: how often Redis has become unavailable.
    """

    def __init__(self, url: str, *, answer_wait_s: float = ANSWER_WAIT_S) -> None:
        self._answer_wait_s = answer_wait_s
        self._redis = Redis.from_url(
            url,
            socket_timeout=answer_wait_s,
            socket_connect_timeout=answer_wait_s,
            retry=Retry(NoBackoff(), 0),
            # With them a connection that the server has closed is used again over TCP, and fails.
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        # Calls of this turn of the loop that are not written yet. If there are some, a call of
        # ``_flush`` is booked.
        self._calls: list[_Call] = []
        # Batches that wait for their answers; the loop itself refers to its tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()
        # Tries to reach Redis again. Runs exactly while ``is_up`` is false.
        self._reconnecting: asyncio.Task[None] | None = None
        # Pings, so that a loss is noticed before a call fails.
        self._pinging: asyncio.Task[None] | None = None
        # Set first by ``close``. The two tasks look at it, since a cancellation is not enough: on
        # Python 3.11 ``asyncio.wait_for``, by which the client sends, swallows one that comes in
        # the turn in which it ends.
        self._closing = False
        # Whether Redis has answered since the last ping was due.
        self._has_answered = False
        self.is_up = True
        self.failures = 0

    def script(self, text: str) -> AsyncScript:
        """Return a script to run."""
        return self._redis.register_script(text)

    async def open(self) -> None:
        """Try to reach Redis; if that fails, keep trying in the background."""
        try:
            await self._ping()
        except Failure as exc:
            self._lost(exc)
        self._pinging = asyncio.create_task(self._ping_on(), name="guard-gateway-redis-ping")

    async def close(self) -> None:
        """Fail the calls that have no answer yet, and disconnect."""
        self._closing = True
        calls, self._calls = self._calls, []
        _answer(calls, [StoreError("the gateway ends")] * len(calls))
        tasks = [*self._tasks, *filter(None, (self._reconnecting, self._pinging))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._redis.aclose()

    async def run(self, script: AsyncScript, key: str, *arguments: Any) -> Any:
        """Run a script on the keys that begin with ``key``.

        Raises:
            StoreError: Redis is unavailable, or does not answer in time.
        """
        if not self.is_up:
            raise StoreError("Redis is not available")
        call = _Call(script, key, arguments)
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._flush)
        self._calls.append(call)
        return await call.future

    # -- one write for a turn of the loop --------------------------------------------------------

    def _flush(self) -> None:
        calls, self._calls = self._calls, []
        for start in range(0, len(calls), _BATCH_MAX):
            task = asyncio.get_running_loop().create_task(
                self._send(calls[start : start + _BATCH_MAX]), name="guard-gateway-redis"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, calls: list[_Call]) -> None:
        try:
            async with asyncio.timeout(self._answer_wait_s):
                answers = await self._asked(calls)
                unknown = [n for n, each in enumerate(answers) if isinstance(each, NoScriptError)]
                # Redis has restarted and lost its scripts. Those calls had no effect, so they can
                # be sent again.
                if unknown:
                    for script in {call.script for call in calls}:
                        await self._redis.script_load(script.script)
                    again = await self._asked([calls[n] for n in unknown])
                    for n, answer in zip(unknown, again, strict=True):
                        answers[n] = answer
                self._has_answered = True
        except Failure as exc:
            self._lost(exc)
            answers = [exc] * len(calls)
        # Cancelled by ``close``: the callers must not wait for ever.
        except BaseException:
            _answer(calls, [StoreError("the gateway ends")] * len(calls))
            raise
        _answer(calls, answers)

    async def _asked(self, calls: list[_Call]) -> list[Any]:
        # Without a transaction: each script is atomic by itself, and they are independent.
        async with self._redis.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(call.script.sha, 1, call.key, *call.arguments)
            return list(await pipe.execute(raise_on_error=False))

    # -- lost and found --------------------------------------------------------------------------

    def _lost(self, exc: Exception) -> None:
        # Several batches may fail at once; the first one starts the task.
        if self.is_up:
            self.is_up = False
            self.failures += 1
            logger.error("Redis is not available, capped calls are refused: %s", _name(exc))
            self._reconnecting = asyncio.get_running_loop().create_task(
                self._reconnect(), name="guard-gateway-redis-reconnect"
            )

    async def _reconnect(self) -> None:
        attempt = 0
        while not (self.is_up or self._closing):
            await asyncio.sleep(RECONNECT.delay_s(attempt, random.random()))
            attempt += 1
            try:
                # All of them: after a timeout a late answer would be taken for the next call's.
                await self._redis.connection_pool.disconnect()
                await self._ping()
            except Failure as exc:
                logger.debug("Redis is still not available: %s", _name(exc))
            else:
                self.is_up = True
                logger.warning("Redis is available again")

    async def _ping_on(self) -> None:
        while not self._closing:
            await asyncio.sleep(PING_S)
            is_idle, self._has_answered = not self._has_answered, False
            if is_idle and self.is_up:
                try:
                    await self._ping()
                except Failure as exc:
                    self._lost(exc)

    async def _ping(self) -> None:
        async with asyncio.timeout(self._answer_wait_s):
            await self._redis.ping()


def _answer(calls: list[_Call], answers: list[Any]) -> None:
    for call, answer in zip(calls, answers, strict=True):
        if call.future.done():
            continue
        if isinstance(answer, StoreError):
            call.future.set_exception(answer)
        elif isinstance(answer, Exception):
            call.future.set_exception(StoreError(f"Redis failed: {_name(answer)}"))
        else:
            call.future.set_result(answer)


def _name(exc: BaseException) -> str:
    """Return what went wrong, without addresses and passwords."""
    return type(exc).__name__
