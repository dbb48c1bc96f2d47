"""One program of ``benchmarks/limit_cases.py``: an agent that asks until it has what it wants.

``python -m benchmarks._limit_agent CASE PORT``, with the case as JSON. It is under ``guard run``
and knows nothing of guard. The stand-in of the vendor has a name that is not local.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks import _limit_clients

HOST = "vendor.test"
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/{model}:{method}",
}

_resolve = socket.getaddrinfo


def _resolved(host: Any, *arguments: Any, **options: Any) -> Any:
    return _resolve("127.0.0.1" if host in (HOST, HOST.encode()) else host, *arguments, **options)


socket.getaddrinfo = _resolved


class Agent:
    """Makes the requests of one case."""

    def __init__(self, case: dict[str, Any], port: str) -> None:
        self.case = case
        self.base = f"http://{HOST}:{port}/{case['wanted']}-{case['fault']}-{case['delay_ms']}"
        method = "streamGenerateContent" if case["stream"] else "generateContent"
        path = PATHS[case["format"]].format(model=case["model"], method=method)
        self.url = self.base + path
        self.body = self._body()
        self.timeout_s = 1.0 if case["way"] == "timeout" else 120.0

    def _body(self) -> dict[str, Any]:
        case, prompt = self.case, "word " * self.case["prompt_words"]
        named, model, stream = case["named"], case["model"], case["stream"]
        messages = [{"role": "user", "content": prompt}]
        if case["format"] == "gemini":
            body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
            if named:
                body["generationConfig"] = {"maxOutputTokens": named}
            return body
        if case["format"] == "responses":
            body = {"model": model, "input": prompt, "stream": stream}
            return body | ({"max_output_tokens": named} if named else {})
        body = {"model": model, "messages": messages, "stream": stream}
        if case["format"] == "anthropic":
            return body | {"max_tokens": named or 8192}
        name = "max_completion_tokens" if model.startswith("o") else "max_tokens"
        return body | ({name: named} if named else {})

    # -- one request --------------------------------------------------------------------------

    def ask(self, client: httpx.Client) -> None:
        if not self.case["stream"]:
            client.post(self.url, json=self.body)
            return
        with client.stream("POST", self.url, json=self.body) as response:
            for number, _ in enumerate(response.iter_raw()):
                if self.case["way"] == "abandon" and number == 1:
                    return

    async def ask_async(self, client: httpx.AsyncClient) -> None:
        if not self.case["stream"]:
            await client.post(self.url, json=self.body)
            return
        async with client.stream("POST", self.url, json=self.body) as response:
            number = 0
            async for _ in response.aiter_raw():
                number += 1
                if self.case["way"] == "abandon" and number == 2:
                    return

    # -- how they are made ----------------------------------------------------------------------

    def serial(self) -> None:
        with httpx.Client(timeout=self.timeout_s) as client:
            for _ in range(self.case["count"]):
                with contextlib.suppress(httpx.HTTPError):
                    self.ask(client)

    def threads(self) -> None:
        with httpx.Client(timeout=self.timeout_s) as client:

            def one(_: int) -> None:
                with contextlib.suppress(httpx.HTTPError):
                    self.ask(client)

            with ThreadPoolExecutor(20) as pool:
                list(pool.map(one, range(self.case["count"])))

    def gather(self) -> None:
        asyncio.run(self._gathered())

    async def _gathered(self) -> None:
        client = httpx.AsyncClient(timeout=self.timeout_s)

        async def one() -> None:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                await self.ask_async(client)

        tasks = [asyncio.create_task(one()) for _ in range(self.case["count"])]
        way = self.case["way"]
        if way == "cancel":
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
        elif way == "close":
            await asyncio.sleep(1.0)
            await client.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.aclose()


def _as_child(agent: Agent, arguments: list[str]) -> None:
    """Do it in a child with an environment of its own, or in one that ends in a hurry."""
    way = agent.case["way"]
    command = [sys.executable, "-m", "benchmarks._limit_agent", *arguments]
    if way == "env":
        subprocess.run(command, env={"PATH": os.environ["PATH"]}, check=False)
    elif way == "nested":
        nested = [sys.executable, "-m", "guard", "run", "--limit", "$100", "--", *command]
        subprocess.run(nested, check=False)
    elif way == "env -i":
        subprocess.run(["env", "-i", *command], check=False)
    elif way == "fork":
        children = []
        for _ in range(3):
            child = os.fork()
            if not child:
                agent.serial()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


def _ends_in_a_hurry(way: str, after_s: float) -> None:
    def end() -> None:
        time.sleep(after_s)
        if way == "_exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if way == "kill" else signal.SIGHUP)

    threading.Thread(target=end, daemon=True).start()


def main() -> None:
    """Play one case."""
    case = json.loads(sys.argv[1])
    agent = Agent(case, sys.argv[2])
    way = case["way"]
    if way in ("env", "env -i", "nested", "fork"):
        rest = json.dumps({**case, "way": "plain"})
        _as_child(agent, [rest, sys.argv[2]])
        return
    if case["client"] != "httpx":
        _limit_clients.play(agent)
        return
    if way in ("_exit", "kill", "hup"):
        _ends_in_a_hurry(way, 0.5)
    shapes: dict[str, Callable[[], Awaitable[None] | None]] = {
        "serial": agent.serial, "threads": agent.threads, "gather": agent.gather,
    }  # fmt: skip
    shapes[case["shape"]]()


if __name__ == "__main__":
    main()
