"""Looks after a run while it lasts: is it killed, does the gateway live, what is spent."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from guard.gateway.cli.admin_client import AdminError
from guard.local_gateway import LocalGateway, LocalGatewayError
from guard.running import plan, reports
from guard.running.account import RunAccount
from guard.running.balances import RunSpend
from guard.running.proxy_process import ProxyProcess
from guard.running.raising import RunRaising
from guard.running.report import left, say, spent

_LOOK_S: Final = 0.5


class RunLook:
    """One run's; called ten times a second.

    Args:
        workflow: of the run.
        limits: of the run.
        gateway: started again when it has died.
        account: of the run.
        proxy: likewise started again.
        directory: of the run.
        raising: asks for the limit to be raised, if the run does.
        watch: whether to show the spend.
        dry_run: whether kills do not count.
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
        # When to look next; `supervise` calls more often than that.
        self._next_s = 0.0
        self._shown = RunSpend()

    def __call__(self) -> None:
        self._proxy.look()
        if self._raising is not None:
            with contextlib.suppress(AdminError):  # a gateway that is away is asked again
                self._raising.look()
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        # A gateway that does not answer now is asked again; the program's own requests fail closed.
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

    def at_the_end(self, code: int) -> None:
        """Look once more: it may have been raised just before its end, or a kill have ended it."""
        with contextlib.suppress(AdminError):
            if self._raising is not None:
                self._raising.end()
            if code:
                self._look_for_kill()

    def _look_for_kill(self) -> None:
        kill = None if self._dry_run else self._account.kill()
        if kill is not None:  # `supervise` ends the program once there is a refusal
            reports.refuse(self._directory, "GD-W002", kill.reason or "no reason was given")
