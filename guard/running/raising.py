"""Asks the user at the terminal whether to raise a run's limit.

The terminal belongs to the program. A key is read only if no process of the run is seen to wait for
one and the terminal is in line mode, as a shell leaves it; else the command for another terminal is
shown.
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

from guard.core.wire import amount_in
from guard.running import processes, reports
from guard.running.account import RunAccount
from guard.running.balances import WaitingRaise, raise_of
from guard.running.report import say
from guard.running.tty_readers import anyone_reads_terminal

_LOOK_S: Final = 0.5
_LINE_MAX: Final = 1024
ENDED: Final = "you have ended it at its limit"


def asks_by_default(environ: Mapping[str, str]) -> bool:
    """Return whether a person can be asked: at a terminal, and not in a CI job."""
    return not environ.get("CI") and sys.stdin.isatty() and sys.stderr.isatty()


@attrs.define
class _Offer:
    """A raise that is offered at the terminal.

    Attributes:
        waiting: the request that waits.
        by: the raise, in the limit's unit.
        key: the idempotency key of the raise.
    """

    waiting: WaitingRaise
    by: int
    key: str

    @property
    def shown(self) -> str:
        """The raise as text, in a form that the command accepts."""
        return amount_in(self.waiting.began.unit, self.by)


class RunRaising:
    """Offers the raises of one run; called ten times a second, by the thread that looks.

    Args:
        workflow: the workflow of the run.
        account: the account of the run.
        directory: the directory of the run.
    """

    def __init__(self, workflow: str, account: RunAccount, directory: Path) -> None:
        self._workflow = workflow
        self._account = account
        self._directory = directory
        # The offer on the terminal; None while no request waits.
        self._offer: _Offer | None = None
        # When to ask the gateway next, by `time.monotonic()`.
        self._next_s = 0.0
        # Descriptor of the terminal, opened when it is first needed.
        self._device: int | None = None

    def poll(self) -> None:
        """Read an answer, if there is one; show the request that waits.

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
        if before and waiting and (waiting.budget_id, waiting.limit) == (
            before.budget_id, before.limit,
        ):  # fmt: skip
            return
        self.end()
        if waiting is not None:
            by = raise_of(waiting.began.unit, waiting.began.limit, waiting.lacking)
            self._offer = _Offer(waiting, by, secrets.token_hex(8))
            self._say(self._offer)

    def end(self) -> None:
        """End the offer; report it if the limit was raised, here or elsewhere.

        Raises:
            AdminError: the gateway cannot be asked now.
        """
        offer, self._offer = self._offer, None
        if offer is not None:
            before, began = offer.waiting, offer.waiting.began
            limit = self._account.limit_of(before.budget_id)
            if limit is not None and limit > before.limit:
                say(f"raised to {amount_in(began.unit, limit, began.of)}: it goes on", fg="green")

    def _say(self, offer: _Offer) -> None:
        name, by = shlex.quote(self._workflow), shlex.quote(offer.shown)
        command = f"guard budgets raise {name} --by {by} --local"
        until = time.strftime("%H:%M", time.localtime(offer.waiting.deadline_ms / 1000))
        head = f"{offer.waiting} until {until}"
        if self._may_read():
            say(f"{head}: [r]aise by {offer.shown}, [q]uit, then Enter (or elsewhere: {command})",
                fg="yellow", bold=True)  # fmt: skip
        else:
            say(f"{head}; raise it from another terminal: {command}", fg="yellow", bold=True)

    # -- the terminal -----------------------------------------------------------------------------

    def _may_read(self) -> bool:
        """Return whether a key can be read without taking it from the program."""
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
            self._account.raise_limit(offer.waiting.budget_id, offer.by, offer.key)
            self._next_s = 0.0
        elif answer in ("q", "quit"):
            reports.refuse(self._directory, "GD-B004", ENDED, **offer.waiting.refusal)
        elif answer:
            say(f"r raises by {offer.shown}, q quits")
