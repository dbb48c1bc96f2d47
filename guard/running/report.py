"""The report of ``guard run`` when a run has ended: on the terminal, or as JSON."""

from __future__ import annotations

import collections
import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

import attrs
import click

from guard.core.visible import visible
from guard.core.wire import dollars
from guard.running import plan, reports, words
from guard.running.account import RunAccount
from guard.running.balances import RunSpend
from guard.running.unseen import RunUnseen

_SIGNALLED: Final = 128
"""Exit codes above it are this number plus that of the signal that has ended a program."""


def say(text: str, **style: Any) -> None:
    """Write a line of our own, which differs from the program's lines on a terminal."""
    shown = f"{click.style('guard run:', fg='cyan')} {click.style(visible(text), **style)}"
    click.echo(shown, err=True, color=False if os.environ.get("NO_COLOR") else None)


def tell_terminal(sequence: str) -> None:
    """Write a sequence that shows nothing on the screen itself."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(sequence, err=True, nl=False, color=True)


def spent(spend: RunSpend, limits: plan.RunLimits) -> str:
    """Return the requests and the spend of a run as one line."""
    plural = "" if spend.requests == 1 else "s"
    limit = "" if limits.limit_nanousd is None else f" of {dollars(limits.limit_nanousd)}"
    if limits.session:
        used = "" if spend.money is None else f"{dollars(spend.money.used)}{limit}"
        limit = f"; session {limits.session}: {used or 'no limit of money'}"
    unsure = ""
    if spend.uncertain_nanousd:
        unsure = f" (of it up to {dollars(spend.uncertain_nanousd)} uncertain)"
    counted = "".join(f", {each}" for each in spend.counted)
    return f"{spend.requests} LLM request{plural}, {dollars(spend.nanousd)}{limit}{unsure}{counted}"


def left(spend: RunSpend) -> str:
    """Return what is left of a run's limits, for the end of a line; empty without limits.

    >>> from guard.running.balances import RunBalance
    >>> left(RunSpend(balances=(RunBalance("usd", "", 10**9, 2 * 10**9, kept=5 * 10**8),)))
    '; left: $1 ($0.50 to wind down)'
    """
    parts = ", ".join(each.left_shown() for each in spend.balances)
    return f"; left: {parts}" if parts else ""


@attrs.frozen
class RunReport:
    """How one run went.

    Attributes:
        code: the program's exit code.
        workflow: the workflow of the run.
        limits: the limits of the run.
        account: the account of the run.
        directory: the directory of the run.
        unseen: the requests that it has made past guard.
        unroutable: why the program was not led to the proxy, if it was not.
        dry_run: whether it refused nothing.
        undelivered: how many events did not reach the gateway.
    """

    code: int
    workflow: str
    limits: plan.RunLimits
    account: RunAccount
    directory: Path
    unseen: RunUnseen
    unroutable: str | None
    dry_run: bool
    undelivered: int

    def give(self, *, as_json: bool) -> int:
        """Print the report; return the exit code of the run.

        Args:
            as_json: whether as JSON.
        """
        refused = self._refusal()
        processes = reports.guarded(self.directory)[0]
        # A program that a signal has ended may not have got as far as its first request, which is
        # no sign that guard cannot see it.
        is_reached = processes > 0 or self.unseen.proxied > 0
        is_unseen = self.limits.seen_only and not is_reached and self.code <= _SIGNALLED
        spend = self.account.spend_in_full()
        is_seen = is_reached and (spend.requests > 0 or not self.unseen.is_native)
        limits = self.account.limits_now(self.limits)
        observed = self.account.observed() if self.dry_run else []
        exit_code = self.code
        if refused is not None:
            exit_code = reports.REFUSED_CODE
        elif is_unseen:
            exit_code = reports.UNSEEN_CODE
        if as_json:
            facts = {
                "workflow": self.workflow,
                "session": self.limits.session or None,
                "exit_code": exit_code,
                "program_exit_code": self.code,
                "refused": refused,
                "requests": spend.requests,
                "spent_nanousd": spend.nanousd,
                "uncertain_nanousd": spend.uncertain_nanousd,
                "cut_short": spend.cut_short,
                "unpriced_models": spend.unpriced,
                "local_models": spend.local,
                "undelivered": self.undelivered,
                "limit_nanousd": limits.limit_nanousd,
                "limit_tokens": limits.limit_tokens,
                "max_calls": dict(limits.max_calls),
                "money": None if spend.money is None else spend.money.facts(),
                "counted": [each.facts() for each in spend.counted],
                "seen": is_seen,
                "guarded_processes": processes,
                "unroutable": self.unroutable,
                "dry_run": self.dry_run,
                "would_refuse": observed,
                **self.unseen.facts,
            }
            click.echo(f"\n{json.dumps(facts)}")  # whatever the program's last line lacks
            return exit_code
        if not is_seen:
            say(words.NOT_METERED if is_reached else words.NOTHING_SEEN, fg="yellow")
        say(f"{self.workflow}: {spent(spend, limits)}")
        self._say_special(spend)
        if self.dry_run:
            _say_observed(observed)
        if refused is not None:
            say(f"stopped: {refused['message']}", fg="red", bold=True)
            say(f"[{refused['error_code']}] {refused['reason']}")
            say(refused["advice"])
        elif is_unseen:
            said = words.unseen_under_limit()
            say(said.headline, fg="red", bold=True)
            say(said.advice)
        return exit_code

    def _say_special(self, spend: RunSpend) -> None:
        if spend.unpriced:
            named = _named(spend.unpriced)
            say(f"price not known, charged at fallback prices: {named}", fg="yellow")
        if spend.local:
            say(f"not charged, at a local address: {_named(spend.local)}")
        if spend.cut_short:
            answers = "1 answer was" if spend.cut_short == 1 else f"{spend.cut_short} answers were"
            say(f"{answers} cut short by the limit", fg="yellow")
        if self.undelivered:
            say(f"{self.undelivered} events did not reach the gateway, so more was spent",
                fg="yellow")  # fmt: skip
        for line in self.unseen.lines():
            say(line, fg="yellow")

    def _refusal(self) -> dict[str, Any] | None:
        """Return why guard has ended the run, in words for the user; None if it has not."""
        found = reports.refusal(self.directory)
        if found is None:
            return None
        place = reports.place_of(self.directory)
        label = (found.get("budget") or {}).get("scope")
        budget = None if label is None else self.account.budget_behind(label)
        facts = words.RunFacts(
            self.workflow, self.limits, self.account.key_id,
            "" if place is None else place.gateway, self.account.halt(), *(budget or ()),
        )  # fmt: skip
        said = words.of_refusal(found, facts)
        about = {"message": found.get("message") or said.headline, "reason": found["reason"]}
        return {"error_code": found["error_code"], **about, "advice": said.advice}


def _named(models: dict[str, int]) -> str:
    return ", ".join(f"{model} ({count})" for model, count in models.items())


def _say_observed(observed: list[dict[str, Any]]) -> None:
    kinds = collections.Counter((each["error_code"], each["reason"]) for each in observed)
    say(f"would have refused {len(observed)}, and refused nothing")
    for (error_code, reason), count in kinds.most_common(10):
        say(f"  {count} x {error_code}: {reason}")
