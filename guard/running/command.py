"""The ``guard run`` command."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from guard.core.wire import require_name
from guard.gateway.cli.admin_client import AdminClient, AdminError
from guard.gateway.cli.numbers import Finite
from guard.local_gateway import LocalGateway, LocalGatewayError, join
from guard.local_runs import RunMark
from guard.running import plan, reports, words
from guard.running.account import RunAccount, RunSpend
from guard.running.leftovers import Leftovers
from guard.running.reports import RUN_DIR_VARIABLE
from guard.running.supervise import supervise
from guard.running.unseen import RunUnseen

_LOOK_S: Final = 0.5
_DELIVER_S: Final = 10.0
_AGAIN_S: Final = 0.2


def _read_by(read: Callable[[str], Any]) -> Callable[..., Any]:
    def callback(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return read(text)
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from None

    return callback


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--limit", metavar="AMOUNT", callback=_read_by(plan.read_limit),
              help="The most that the run may spend, in dollars: '$2', 0.50.")  # fmt: skip
@click.option("--block-tool", "block_tools", multiple=True, metavar="GLOB",
              help="Refuse tools of this name; may be repeated.")  # fmt: skip
@click.option("--allow-model", "allow_models", multiple=True, metavar="GLOB",
              help="Refuse all other models; may be repeated.")  # fmt: skip
@click.option("--rate", metavar="N/min", callback=_read_by(plan.read_rate),
              help="The most requests in a time: 10/s, 60/min, 500/h; more wait.")  # fmt: skip
@click.option("--wait", "wait_s", type=Finite(0, 86_400), metavar="SECONDS",
              help="How long a request waits for money that is only set aside, from the last time "
                   "that some came back (120); 0 refuses it at once.")  # fmt: skip
@click.option("--max-output-tokens", type=click.IntRange(1, 2**31),
              help="Put into requests that have no limit of their own.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse models whose price is not known.")
@click.option("--allow-unseen", is_flag=True,
              help="With --limit: go on when a program without guard talks to an LLM.")  # fmt: skip
@click.option("--workflow", metavar="NAME", help="The run's workflow; a new one by default.")
@click.option("--json", "as_json", is_flag=True,
              help="Report as JSON: the last line of standard output.")  # fmt: skip
@click.option("--watch", is_flag=True, help="Show the spend while the program runs.")
@click.option("--dry-run", is_flag=True, help="Refuse nothing; report what would be refused.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def run(
    limit: int | None,
    block_tools: tuple[str, ...],
    allow_models: tuple[str, ...],
    rate: tuple[int, int] | None,
    wait_s: float | None,
    max_output_tokens: int | None,
    strict: bool,
    allow_unseen: bool,
    workflow: str | None,
    as_json: bool,
    watch: bool,
    dry_run: bool,
    program: tuple[str, ...],
) -> None:
    """Put a program under guard, without a server, a key or an edit.

    Each LLM request of the program and of its Python child processes is covered by the limit
    before it is sent. When one is refused, the program is ended, and the exit code is 77.
    Otherwise the exit code, signals, standard input and the terminal are the program's own.

    \b
    Examples:
      guard run --limit '$2' -- python agent.py
      guard run --limit 0.50 --block-tool 'delete_*' -- python -m my_agent
      guard run --limit '$5' --allow-model 'gpt-*-mini' --watch -- pytest tests
      guard run --dry-run --rate 60/min -- uvicorn app:app
    \b
    From another terminal:
        guard kill NAME --local
    """
    if not program:
        raise click.UsageError("no program; for example: guard run --limit '$2' -- python agent.py")
    if workflow is not None:
        try:
            require_name("a name", workflow.strip())
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint="--workflow") from None
    try:
        command = plan.command_of(program)
    except FileNotFoundError as exc:
        raise _Failure(str(exc), 127) from None
    name = workflow or f"{plan.name_of(program)}-{secrets.token_hex(3)}"
    wait_ms = None if wait_s is None else round(wait_s * 1000)
    limits = plan.RunLimits(
        limit, block_tools, allow_models, rate, max_output_tokens, strict, wait_ms,
        seen_only=limit is not None and not allow_unseen and not dry_run,
    )  # fmt: skip
    try:
        with _account(name, limits) as (gateway, account):
            code = _run(command, name, limits, gateway, account, watch, dry_run, as_json)
    except (LocalGatewayError, AdminError) as exc:
        raise _Failure(str(exc), 1) from None
    except OSError as exc:  # such as a disk that is full
        raise _Failure(f"{exc.filename or 'a file of the run'}: {exc.strerror}", 1) from None
    if code == 128 + signal.SIGINT:  # a shell ends its loop only if Ctrl-C has ended the command
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(code)


class _Failure(click.ClickException):
    """One line of error, and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        setattr(self, "exit_code", code)  # noqa: B010  # click declares it for the class


@contextlib.contextmanager
def _account(workflow: str, limits: plan.RunLimits) -> Iterator[tuple[LocalGateway, RunAccount]]:
    around = reports.place_around(os.environ)
    gateway = join(None if around is None else Path(around.gateway))
    admin = AdminClient(gateway.url, gateway.identity.admin_key)
    try:
        with RunMark(gateway.files) as mark:
            owner_id = None if around is None else around.key_id
            account = RunAccount(admin, workflow, limits, mark, owner_id)
            try:
                yield gateway, account
            finally:
                with contextlib.suppress(AdminError):  # then the gateway does it
                    account.close()
    finally:
        admin.close()
        gateway.leave()


def _run(
    command: list[str],
    workflow: str,
    limits: plan.RunLimits,
    gateway: LocalGateway,
    account: RunAccount,
    watch: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    kill = None if dry_run else account.kill()
    if kill is not None:
        raise _Failure(words.killed_before(workflow, kill), reports.REFUSED_CODE)
    directory = Path(tempfile.mkdtemp(prefix="guard-run-"))
    left = Leftovers(directory, gateway.url, account.api_key, account.hmac_secret)
    try:
        place = reports.RunPlace(str(gateway.files.directory), account.key_id)
        reports.say_place(directory, place)
        environ = plan.environment_of(
            os.environ,
            url=gateway.url,
            api_key=account.api_key,
            hmac_secret=account.hmac_secret,
            workflow=workflow,
            directory=directory,
            observe=dry_run,
            limits=limits,
        )
        if RUN_DIR_VARIABLE in os.environ:
            reports.say_nested(Path(os.environ[RUN_DIR_VARIABLE]), directory)
        unseen = RunUnseen(directory, limits, gateway, environ)
        look = _Look(workflow, limits, gateway, account, directory, watch=watch, dry_run=dry_run)
        if watch:
            _say(f"{workflow}: started")
        try:
            with unseen.watch.watching(), left.charging():
                code = supervise(command, environ, directory, look)
            code = 128 - code if code < 0 else code
        except OSError as exc:
            raise _Failure(f"{command[0]} cannot be run: {exc.strerror}", 126) from None
        undelivered = _deliver_rest(gateway, account, left)
        return _report(
            code, workflow, limits, account, directory, unseen, dry_run, as_json, undelivered
        )
    finally:
        left.remove()


def _deliver_rest(gateway: LocalGateway, account: RunAccount, left: Leftovers) -> int:
    """Charge what the run's processes have not delivered; return how many events are left.

    A gateway that has just died is started again, within a bounded time.
    """
    ends_s = time.monotonic() + _DELIVER_S
    while True:
        is_back = False
        with contextlib.suppress(LocalGatewayError, AdminError):
            if not gateway.is_running():
                gateway.restore()
            account.spend()  # the report asks for it next
            is_back = True
        undelivered = left.charge_all()
        if (is_back and not undelivered) or time.monotonic() >= ends_s:
            return undelivered
        time.sleep(_AGAIN_S)


def _say(text: str, **style: Any) -> None:
    """Write a line of our own, which differs from the program's lines on a terminal."""
    shown = f"{click.style('guard run:', fg='cyan')} {click.style(text, **style)}"
    click.echo(shown, err=True, color=False if os.environ.get("NO_COLOR") else None)


class _Look:
    """Looks after a run while it lasts: is it killed, does the gateway live, what is spent."""

    def __init__(
        self,
        workflow: str,
        limits: plan.RunLimits,
        gateway: LocalGateway,
        account: RunAccount,
        directory: Path,
        *,
        watch: bool,
        dry_run: bool,
    ) -> None:
        self._workflow = workflow
        self._limits = limits
        self._gateway = gateway
        self._account = account
        self._directory = directory
        self._watch = watch
        self._dry_run = dry_run
        # When to look next; `supervise` calls more often than that.
        self._next_s = 0.0
        self._shown = RunSpend()

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        # A gateway that does not answer now is asked again; the program's own requests fail closed.
        with contextlib.suppress(AdminError, LocalGatewayError):
            if not self._gateway.is_running():
                self._gateway.restore()
            kill = None if self._dry_run else self._account.kill()
            if kill is not None:  # `supervise` ends the program once there is a refusal
                reports.refuse(self._directory, "GD-W002", kill.reason or "no reason was given")
            if self._watch:
                spend = self._account.spend()
                if spend != self._shown:
                    self._shown = spend
                    text = _text(spend, self._limits)
                    _say(f"{self._workflow}: {text}")


def _text(spend: RunSpend, limits: plan.RunLimits) -> str:
    plural = "" if spend.requests == 1 else "s"
    limit = "" if limits.limit_nanousd is None else f" of {_dollars(limits.limit_nanousd)}"
    unsure = ""
    if spend.uncertain_nanousd:
        unsure = f" (of it up to {_dollars(spend.uncertain_nanousd)} uncertain)"
    return f"{spend.requests} LLM request{plural}, {_dollars(spend.nanousd)}{limit}{unsure}"


def _dollars(nanousd: int) -> str:
    text = f"{nanousd / 1e9:.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"${whole}.{part:0<2}"


def _report(
    code: int,
    workflow: str,
    limits: plan.RunLimits,
    account: RunAccount,
    directory: Path,
    unseen: RunUnseen,
    dry_run: bool,
    as_json: bool,
    left: int,
) -> int:
    """Say how it went; return the exit code of the run."""
    refused = _refusal(workflow, limits, account, directory)
    processes = reports.guarded(directory)[0]
    spend = account.spend_in_full()
    observed = account.observed() if dry_run else []
    exit_code = code if refused is None else reports.REFUSED_CODE
    if as_json:
        facts = {
            "workflow": workflow,
            "exit_code": exit_code,
            "program_exit_code": code,
            "refused": refused,
            "requests": spend.requests,
            "spent_nanousd": spend.nanousd,
            "uncertain_nanousd": spend.uncertain_nanousd,
            "cut_short": spend.cut_short,
            "unpriced_models": spend.unpriced,
            "local_models": spend.local,
            "undelivered": left,
            "limit_nanousd": limits.limit_nanousd,
            "guarded_processes": processes,
            "dry_run": dry_run,
            "would_refuse": observed,
            **unseen.facts,
        }
        click.echo(f"\n{json.dumps(facts)}")  # whatever the program's last line lacks
        return exit_code
    if not processes:
        _say(
            "the program did not load guard, so nothing was guarded: is it Python, "
            "started without -I, -E or -S, with guard installed?",
            fg="yellow",
        )
    _say(f"{workflow}: {_text(spend, limits)}")
    if spend.unpriced:
        _say(f"price not known, charged at fallback prices: {_named(spend.unpriced)}", fg="yellow")
    if spend.local:
        _say(f"not charged, at a local address: {_named(spend.local)}")
    if spend.cut_short:
        answers = "1 answer was" if spend.cut_short == 1 else f"{spend.cut_short} answers were"
        _say(f"{answers} cut short by the limit", fg="yellow")
    if left:
        _say(f"{left} events did not reach the gateway, so more was spent", fg="yellow")
    for line in unseen.lines():
        _say(line, fg="yellow")
    if dry_run:
        _report_observed(observed)
    if refused is not None:
        _say(f"stopped: {refused['message']}", fg="red", bold=True)
        _say(refused["reason"])
        _say(refused["advice"])
    return exit_code


def _refusal(
    workflow: str, limits: plan.RunLimits, account: RunAccount, directory: Path
) -> dict[str, Any] | None:
    """Return why the run was ended, in words for who started it; None if it was not."""
    found = reports.refusal(directory)
    if found is None:
        return None
    place = reports.place_of(directory)
    label = (found.get("budget") or {}).get("scope")
    budget = None if label is None else account.budget_behind(label)
    facts = words.RunFacts(
        workflow, limits, account.key_id, "" if place is None else place.gateway, account.halt(),
        *(budget or ()),
    )  # fmt: skip
    said = words.of_refusal(found, facts)
    about = {"message": found.get("message") or said.headline, "reason": found["reason"]}
    return {"error_code": found["error_code"], **about, "advice": said.advice}


def _named(models: dict[str, int]) -> str:
    return ", ".join(f"{model} ({count})" for model, count in models.items())


def _report_observed(observed: list[dict[str, Any]]) -> None:
    kinds = collections.Counter((each["error_code"], each["reason"]) for each in observed)
    _say(f"would have refused {len(observed)}, and refused nothing")
    for (error_code, reason), count in kinds.most_common(10):
        _say(f"  {count} x {error_code}: {reason}")
