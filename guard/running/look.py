"""Checks on a run while it lasts: kills, the gateway's life, the spend, requests for a raise."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from guard.gateway.admin import AdminError
from guard.local_gateway import LocalGateway, LocalGatewayError
from guard.running import plan, reports
from guard.running.account import RunAccount
from guard.running.balances import RunSpend
from guard.running.proxy_process import ProxyProcess
from guard.running.raising import RunRaising
from guard.running.report import left, say, spent

_LOOK_S: Final = 0.5


class RunLook:
    """The regular check on one run; called ten times a second, in a thread of its own.

    Args:
        workflow: the workflow of the run.
        limits: the limits of the run.
        gateway: the local gateway; restarted when it has died.
        account: the account of the run.
        proxy: the run's proxy; likewise restarted.
        directory: the directory of the run.
        raising: offers to raise a limit; None if the run does not ask.
        watch: whether to show the spend.
        dry_run: whether kills are ignored.
    """

    def __init__(
        self,
        workflow: str,
        limits: plan.RunLimits,
        gateway: LocalGateway,
        account: RunAccount,
        proxy: ProxyProcess,
        directory: Path,
        raising: RunRaising | None = None,
        *,
        watch: bool,
        dry_run: bool,
    ) -> None:
        self._workflow = workflow
        self._limits = limits
        self._gateway = gateway
        self._account = account
        self._proxy = proxy
        self._directory = directory
        self._raising = raising
        self._watch = watch
        self._dry_run = dry_run
        # When to ask the gateway next, by `time.monotonic()`; `supervise` calls more often.
        self._next_s = 0.0
        # The spend that was shown last.
        self._shown = RunSpend()

    def __call__(self) -> None:
        self._proxy.poll()
        if self._raising is not None:
            with contextlib.suppress(AdminError):  # the next call asks again
                self._raising.poll()
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        # If the gateway does not answer, the next call asks again; the program's own requests fail
        # closed meanwhile.
        with contextlib.suppress(AdminError, LocalGatewayError):
            if not self._gateway.is_running():
                self._gateway.restore()
            self._look_for_kill()
            if self._watch:
                spend = self._account.spend()
                if spend != self._shown:
                    self._shown = spend
                    text = spent(spend, self._account.limits_now(self._limits))
                    say(f"{self._workflow}: {text}{left(spend)}")

    def at_the_end(self) -> None:
        """Check once more, for a raise or a kill just before the program's end.

        A killed program may end by itself before the next look, and with any exit code.
        """
        with contextlib.suppress(AdminError):
            if self._raising is not None:
                self._raising.end()
            self._look_for_kill()

    def _look_for_kill(self) -> None:
        kill = None if self._dry_run else self._account.kill()
        if kill is not None:  # `supervise` ends the program once there is a refusal
            reports.refuse(self._directory, "GD-W002", kill.reason or "no reason was given")
