"""An agent that spends all it can through the real vendor clients, in a process of its own.

Run as ``python -m tests.support.spending_agent VENDOR_URL ROUNDS SEED``; the environment configures
guard. It prints what became of its requests as JSON. With a fourth argument it also ends after the
round in which its input ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import openai

import guard
from guard.breaker.exceptions import BreakerError

MODEL: Final = "storm-model"
GATHERED: Final = 12
_LIMITS: Final = httpx.Limits(max_connections=GATHERED)


class Agent:
    """Counts what became of its requests in ``outcomes``."""

    def __init__(self, url: str, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url = f"{url}/v1/chat/completions"
        self._random = random.Random(seed)
        self._openai = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=2)

    def _body(self, **more: Any) -> dict[str, Any]:
        message = {"role": "user", "content": "word " * self._random.randrange(1, 80)}
        tokens = self._random.randrange(1, 60)
        return {"model": MODEL, "messages": [message], "max_tokens": tokens, **more}

    def note(self, result: Any) -> None:
        """Count one outcome; what is not documented ends the process."""
        if not isinstance(result, BaseException):
            self.outcomes["ran"] += 1
            return
        error = getattr(result, "error", result)
        if not isinstance(error, guard.GuardError | openai.APIError | httpx.HTTPError):
            raise result
        self.outcomes[type(error).__name__] += 1

    @guard.protect
    async def gathered(self) -> None:
        """Send many requests at once."""
        async with httpx.AsyncClient(limits=_LIMITS, timeout=60) as client:

            async def send() -> None:
                (await client.post(self._url, json=self._body())).raise_for_status()

            sent = [send() for _ in range(GATHERED)]
            for result in await asyncio.gather(*sent, return_exceptions=True):
                self.note(result)

    @guard.protect
    def threaded(self) -> None:
        """Send from threads, with the vendor's client and its retries."""

        def send() -> Any:
            try:
                return self._openai.chat.completions.create(**self._body())
            except BaseException as exc:  # counted
                return exc

        with ThreadPoolExecutor(4) as pool:
            for result in [self._carried(pool, send) for _ in range(GATHERED)]:
                self.note(result.result())

    @guard.protect
    def streamed(self) -> None:
        """Read streams, and leave some of them early."""
        for number in range(3):
            try:
                more = {"stream": True, "stream_options": {"include_usage": True}}
                for count, _ in enumerate(
                    self._openai.chat.completions.create(**self._body(**more))
                ):
                    if number == 2 and count == 3:
                        break
                self.note(None)
            except BaseException as exc:  # counted
                self.note(exc)

    def _carried(self, pool: ThreadPoolExecutor, send: Callable[[], Any]) -> Any:
        return pool.submit(contextvars.copy_context().run, send)

    def round(self) -> None:
        """Do one of them in one of the scopes."""
        workflow, agent = self._random.choice("xyz"), self._random.choice("ab")
        user = guard.context.user(f"storm-{self._random.choice('123')}")
        try:
            with guard.workflow(f"storm-{workflow}"), guard.agent(f"storm-{agent}"), user:
                kind = self._random.random()
                if kind < 0.5:
                    asyncio.run(self.gathered())
                elif kind < 0.9:
                    self.threaded()
                else:
                    self.streamed()
        except guard.GuardError as exc:
            self.outcomes[f"call: {type(exc).__name__}"] += 1
            if isinstance(exc, guard.GuardTransportError):
                time.sleep(0.1)  # the gateway is away; an agent that goes on at once helps nobody


def deliver(runtime: Any) -> None:
    """Deliver what waits; after a time in which the gateway was away it is not asked at once."""
    ends = time.monotonic() + 90
    while True:
        try:
            runtime.flush(10)
            return
        except BreakerError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)


def main() -> None:
    """Run as many rounds as asked for."""
    url, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ended = threading.Event()
    if len(sys.argv) > 4:
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    runtime = guard.init()
    agent = Agent(url, seed)
    for _ in range(rounds):
        if ended.is_set():
            break
        agent.round()
    if len(sys.argv) > 4:
        deliver(runtime)
    guard.shutdown(5)
    print(json.dumps(agent.outcomes), flush=True)


if __name__ == "__main__":
    main()
