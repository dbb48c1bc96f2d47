"""Asks whoever has started a run whether its limit is to be raised, at the terminal.

The terminal is the program's. A key is read only where no process of the run is seen to wait for
one, and the terminal is as a shell leaves it; else the command for another terminal is shown.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shlex
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from guard.core.wire import dollars
from guard.running import processes, reports
from guard.running.account import RunAccount, WaitingRaise
from guard.running.report import say
from guard.running.tty_readers import anyone_reads_terminal

_LOOK_S: Final = 0.5
_CENT: Final = 10_000_000
_LINE_MAX: Final = 1024
ENDED: Final = "you have ended it at its limit"


def asks_by_default(environ: Mapping[str, str]) -> bool:
    """Tell whether a person is there to be asked: at a terminal, and not in a CI job."""
    return not environ.get("CI") and sys.stdin.isatty() and sys.stderr.isatty()


def raise_of(limit_nanousd: int, lacking_nanousd: int) -> int:
    """Return the raise to offer: half of the limit, at least what a request lacks, in cents.

    >>> raise_of(2_000_000_000, 1), raise_of(2_000_000_000, 1_500_000_001)
    (1000000000, 1510000000)
    """
    return -(-max(limit_nanousd // 2, lacking_nanousd, 1) // _CENT) * _CENT


@attrs.define
class _Offer:
    """What is offered at the terminal.

    Attributes:
        waiting: the request that waits.
        by_nanousd: the raise.
        key: makes it happen once.
    """

    waiting: WaitingRaise
    by_nanousd: int
    key: str


class RunRaising:
    """One run's; called ten times a second.

    Args:
        workflow: of the run.
        account: of the run.
        directory: of the run.
        limit_nanousd: what it began with.
    """

    def __init__(
        self, workflow: str, account: RunAccount, directory: Path, limit_nanousd: int
    ) -> None:
        self._workflow = workflow
        self._account = account
        self._directory = directory
        self._limit_nanousd = limit_nanousd
        # What is offered now, if a request waits.
        self._offer: _Offer | None = None
        # When to ask the gateway next.
        self._next_s = 0.0
        self._device: int | None = None

    def look(self) -> None:
        """Show what waits, and take an answer.

        Raises:
            AdminError: the gateway cannot be asked now.
        """
        if self._offer is not None:
            self._take_answer(self._offer)
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        waiting = self._account.waiting_raise()
        before = None if self._offer is None else self._offer.waiting
        if before and waiting and waiting.limit_nanousd == before.limit_nanousd:
            return
        if before is not None:
            limit_nanousd = self._account.limit_nanousd()
            if limit_nanousd is not None and limit_nanousd > before.limit_nanousd:
                say(f"raised to {dollars(limit_nanousd)}: it goes on", fg="green")
        self._offer = None
        if waiting is not None:
            by_nanousd = raise_of(self._limit_nanousd, waiting.lacking_nanousd)
            self._offer = _Offer(waiting, by_nanousd, secrets.token_hex(8))
            self._say(self._offer)

    def _say(self, offer: _Offer) -> None:
        spent, limit = dollars(offer.waiting.spent_nanousd), dollars(offer.waiting.limit_nanousd)
        by = dollars(offer.by_nanousd)
        command = f"guard budgets raise {shlex.quote(self._workflow)} --by '{by}' --local"
        until = time.strftime("%H:%M", time.localtime(offer.waiting.deadline_ms / 1000))
        head = f"spent {spent} of {limit}, and a request waits until {until}"
        if self._may_read():
            say(f"{head}: [r]aise by {by}, [q]uit, then Enter (or elsewhere: {command})",
                fg="yellow", bold=True)  # fmt: skip
        else:
            say(f"{head}; raise it from another terminal: {command}", fg="yellow", bold=True)

    # -- the terminal -----------------------------------------------------------------------------

    def _may_read(self) -> bool:
        """Tell whether a key can be read that the program does not expect."""
        if self._device is None:
            with contextlib.suppress(OSError):
                self._device = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        if self._device is None:
            return False
        try:
            if os.tcgetpgrp(self._device) != os.getpgrp():
                return False  # in the background, where reading would stop it
            is_cooked = termios.tcgetattr(self._device)[3] & termios.ICANON
        except (OSError, termios.error):
            return False
        if not is_cooked:
            return False
        if not sys.stdin.isatty():
            return True
        return os.get_blocking(sys.stdin.fileno()) and not anyone_reads_terminal(
            processes.below(os.getpid())
        )

    def _take_answer(self, offer: _Offer) -> None:
        if not self._may_read() or self._device is None:
            return
        if not select.select([self._device], [], [], 0)[0]:
            return
        try:
            text = os.read(self._device, _LINE_MAX)
        except OSError:
            return
        answer = text.decode(errors="replace").strip().lower()
        if answer in ("r", "raise"):
            self._account.raise_limit(offer.by_nanousd, offer.key)
            self._next_s = 0.0
        elif answer in ("q", "quit"):
            reports.refuse(self._directory, "GD-B004", ENDED, budget=offer.waiting.budget)
        elif answer:
            say(f"r raises by {dollars(offer.by_nanousd)}, q quits")
