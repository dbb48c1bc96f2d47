"""Asks the user at the terminal whether to raise a run's limit.

The terminal belongs to the program. A key is read only if no process of the run is seen to wait for
one and the terminal is in line mode, as a shell leaves it; else the command for another terminal is
shown, again and again where the program draws over it, and the window's title says so.
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

from guard.core.visible import one_line
from guard.core.wire import amount_in
from guard.running import processes, reports
from guard.running.account import RunAccount
from guard.running.balances import WaitingRaise, raise_of
from guard.running.report import say, tell_terminal
from guard.running.tty_readers import anyone_reads_terminal

_LOOK_S: Final = 0.5
_LINE_MAX: Final = 1024
_AGAIN_S: Final = 15.0
"""How often it is shown again while the program draws on the whole screen."""

_KEEP_TITLE, _TITLE_BACK = "\x1b[22;0t", "\x1b[23;0t"
_NOTICES: Final = "\x1b]2;{0}\x07\x1b]9;{0}\x07\x1b]777;notify;guard run;{0}\x07\x07"
"""The window's title, notifications as terminals know them, and the bell: what a program that draws
on the whole screen does not paint over."""
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
        # When the offer is shown again, by the same clock; None where its line stays in sight.
        self._again_s: float | None = None
        # Whether the window has a title of ours.
        self._is_titled = False

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
            if self._offer and self._again_s is not None and now_s >= self._again_s:
                self._say(self._offer)
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
        offer, self._offer, self._again_s = self._offer, None, None
        if self._is_titled:
            self._is_titled = False
            tell_terminal(_TITLE_BACK)
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
        if self._draws_itself():
            self._again_s = time.monotonic() + _AGAIN_S
            if not self._is_titled:
                self._is_titled = True
                tell_terminal(_KEEP_TITLE + _NOTICES.format(one_line(f"guard run: {head}")))

    # -- the terminal -----------------------------------------------------------------------------

    def _draws_itself(self) -> bool:
        """Return whether the program has taken the terminal out of its line mode."""
        try:
            return not termios.tcgetattr(sys.stderr.fileno())[3] & termios.ICANON
        except (OSError, ValueError, termios.error):
            return False  # no terminal

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
