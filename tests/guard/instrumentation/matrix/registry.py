"""The cases of the matrix, and how one is run."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import attrs

from tests.support import garbage

MODES = ("plain", "raw", "stream", "raw stream", "helper", "early break", "exception")
UNFINISHED = ("early break", "exception")

PROMPT = "How many tokens are these?"
MESSAGES = [{"role": "user", "content": PROMPT}]


class CallerError(Exception):
    """What the caller's own code raises in the middle of a stream."""


class UnavailableError(Exception):
    """This release of the client does not have it."""


@attrs.frozen
class Case:
    """One way to make a call.

    Attributes:
        client: name of the client's distribution.
        endpoint: what is called.
        mode: one of ``MODES``.
        flavour: ``sync`` or ``async``.
        run: makes the call, given the stand-in's address.
        estimated: whether the vendor does not say the usage, by its design.
    """

    client: str
    endpoint: str
    mode: str
    flavour: str
    run: Callable[[str], Any]
    estimated: bool = False

    @property
    def name(self) -> str:
        return f"{self.client}-{self.endpoint}-{self.mode}-{self.flavour}".replace(" ", "_")

    def __call__(self, url: str) -> None:
        """Make the call, and let go of everything that it left behind."""
        with warnings.catch_warnings():
            # Clients of others that warn about themselves, or leave a socket to the collector.
            warnings.simplefilter("ignore")
            if self.flavour == "async":
                asyncio.run(self.run(url))
            else:
                self.run(url)
            garbage.collect()


CASES: list[Case] = []


def case(
    client: str, endpoint: str, *modes: str, estimated: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a case; with several modes it gets the mode as second argument."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        flavour = "async" if inspect.iscoroutinefunction(function) else "sync"
        for mode in modes:
            run = function if len(modes) == 1 else _bound(function, mode)
            CASES.append(Case(client, endpoint, mode, flavour, run, estimated))
        return function

    return register


def _bound(function: Callable[..., Any], mode: str) -> Callable[[str], Any]:
    return lambda url: function(url, mode)


def installed(distribution: str) -> str | None:
    """Return the version of a client, or None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def consume(stream: Any, mode: str) -> None:
    """Read a stream to its end, leave it early, or raise in the middle of it."""
    for number, _ in enumerate(stream):
        if mode == "early break" and number == 4:
            break
        if mode == "exception" and number == 4:
            raise CallerError


async def consume_async(stream: Any, mode: str) -> None:
    """Read a stream to its end, leave it early, or raise in the middle of it."""
    number = 0
    async for _ in stream:
        if mode == "early break" and number == 4:
            break
        if mode == "exception" and number == 4:
            raise CallerError
        number += 1
