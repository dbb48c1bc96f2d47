"""The ``guard run`` command."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from guard.core.wire import require_name
from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.cli.numbers import Finite, Whole, read_by
from guard.local_gateway import LocalGateway, LocalGatewayError, join
from guard.local_runs import RunMark
from guard.running import plan, reports, words
from guard.running.account import RunAccount
from guard.running.forward_proxy import ForwardProxy
from guard.running.leftovers import Leftovers
from guard.running.look import RunLook
from guard.running.proxy_process import ProxyProcess
from guard.running.raising import RunRaising, asks_by_default
from guard.running.report import RunReport, say
from guard.running.reports import RUN_DIR_VARIABLE
from guard.running.routing import Routing
from guard.running.session_key import NAME_LENGTH_MAX
from guard.running.supervise import spawn, supervise
from guard.running.unseen import RunUnseen
from guard.running.wall import PORTS_MAX, Wall, WallError, require_linux

_DELIVER_S: Final = 10.0
_AGAIN_S: Final = 0.2


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--limit", metavar="AMOUNT", callback=read_by(plan.read_limit),
              help="The most that the run may spend, in dollars: '$2', 0.50.")  # fmt: skip
@click.option("--limit-tokens", metavar="N", callback=read_by(plan.read_tokens),
              help="The most tokens, input, output and cached: 20k, 2M.")  # fmt: skip
@click.option("--max-calls", metavar="[GLOB=]N", multiple=True,
              callback=read_by(lambda texts: tuple(map(plan.read_calls, texts))),
              help="The most calls of tools or models of this name, or of all; may be "
                   "repeated.")  # fmt: skip
@click.option("--on-limit", type=click.Choice(["ask", "end"]),
              help="With a limit: what happens to a request that it does not pay for. ask: it "
                   "waits for you to raise the limit; the default at a terminal.")  # fmt: skip
@click.option("--ask-seconds", type=Finite(0.001, 366 * 86_400), default=300.0,
              help="With --on-limit ask: how long a request waits (300).")  # fmt: skip
@click.option("--keep", metavar="SHARE", callback=read_by(plan.read_share),
              help="With --limit or --limit-tokens: kept for the last request of the run, and for "
                   "code that winds down: 5%.")  # fmt: skip
@click.option("--block-tool", "block_tools", multiple=True, metavar="GLOB",
              callback=read_by(plan.read_globs),
              help="Refuse tools of this name; may be repeated.")  # fmt: skip
@click.option("--allow-model", "allow_models", multiple=True, metavar="GLOB",
              callback=read_by(plan.read_globs),
              help="Refuse all other models; may be repeated.")  # fmt: skip
@click.option("--rate", metavar="N/min", callback=read_by(plan.read_rate),
              help="The most requests in a time: 10/s, 60/min, 500/h; more wait.")  # fmt: skip
@click.option("--wait", "wait_s", type=Finite(0, 86_400), metavar="SECONDS",
              help="How long a request waits for reserved money to come back (120); "
                   "0 refuses it at once.")  # fmt: skip
@click.option("--max-output-tokens", type=Whole(1, 2**31),
              help="An output limit for requests that have none.")  # fmt: skip
@click.option("--strict", is_flag=True,
              help="Refuse models without a known price, and requests with anything else that "
                   "guard does not know.")  # fmt: skip
@click.option("--trust", multiple=True, metavar="KIND:NAME", callback=read_by(plan.read_trusted),
              help="What guard does not know but costs nothing more: tool:TYPE, "
                   "member:NAME, block:TYPE, path:HOST/PATH; may be repeated.")  # fmt: skip
@click.option("--allow-unseen", is_flag=True,
              help="With a limit: let through, uncounted, what guard cannot see.")  # fmt: skip
@click.option("--wall", is_flag=True,
              help="The program has no network but guard: what ignores proxies fails "
                   "(Linux).")  # fmt: skip
@click.option("--allow-local", "local_ports", multiple=True, metavar="PORT", type=Whole(1, 65_535),
              help="With --wall: a port of this machine that the program may reach; may be "
                   "repeated.")  # fmt: skip
@click.option("--session", metavar="NAME", default="",
              help="One limit for all runs of this session, kept for 30 days.")  # fmt: skip
@click.option("--workflow", metavar="NAME", help="The run's workflow; a new one by default.")
@click.option("--json", "as_json", is_flag=True,
              help="Report as JSON: the last line of standard output.")  # fmt: skip
@click.option("--watch", is_flag=True, help="Show the spend while the program runs.")
@click.option("--dry-run", is_flag=True, help="Refuse nothing; report what would be refused.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def run(
    limit: int | None,
    limit_tokens: int | None,
    max_calls: tuple[tuple[str, int], ...],
    on_limit: str | None,
    ask_seconds: float,
    keep: int | None,
    block_tools: tuple[str, ...],
    allow_models: tuple[str, ...],
    rate: tuple[int, int] | None,
    wait_s: float | None,
    max_output_tokens: int | None,
    strict: bool,
    trust: tuple[str, ...],
    allow_unseen: bool,
    wall: bool,
    local_ports: tuple[int, ...],
    session: str,
    workflow: str | None,
    as_json: bool,
    watch: bool,
    dry_run: bool,
    program: tuple[str, ...],
) -> None:
    """Put a program under guard, without a server, a key or an edit.

    Each LLM request of the program and of its child processes is covered by the limit before it
    is sent: in Python where it is made, in all other programs by the run's proxy. When one is
    refused, the program and all that it has started are ended, and the exit code is 77. With
    --limit a program that guard cannot redirect to the proxy does not start (77), and a run that
    guard saw nothing of exits with 78. Otherwise the exit code, signals, standard input and the
    terminal are the program's own.

    \b
    Examples:
      guard run --limit '$2' -- python agent.py
      guard run --limit '$5' -- claude
      guard run --limit-tokens 2M --max-calls search=20 -- python agent.py
      guard run --limit '$2' --keep 5% -- python agent.py
      guard run --limit 0.50 --block-tool 'delete_*' -- python -m my_agent
      guard run --limit '$5' --allow-model 'gpt-*-mini' --watch -- pytest tests
      guard run --session feature-17 --limit '$5' -- claude --continue
      guard run --limit '$5' --wall --allow-local 5432 -- claude
      guard run --dry-run --rate 60/min -- uvicorn app:app
    \b
    From another terminal:
        guard kill NAME --local
    """
    if not program:
        raise click.UsageError("no program; for example: guard run --limit '$2' -- python agent.py")
    if keep is not None and limit is limit_tokens is None:
        raise click.UsageError("--keep is a share of --limit or --limit-tokens")
    if local_ports and not wall:
        raise click.UsageError("--allow-local is for the program behind a --wall")
    if wall and (allow_unseen or dry_run):
        open_by = "--allow-unseen" if allow_unseen else "--dry-run"
        raise click.UsageError(f"{open_by} lets through what --wall keeps in")
    if len(local_ports) > PORTS_MAX:
        raise click.UsageError(f"--allow-local opens {PORTS_MAX} ports at most")
    for option, text in (("--workflow", workflow), ("--session", session or None)):
        try:
            require_name("a name", "x" if text is None else text.strip())
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint=option) from None
    if len(session) > NAME_LENGTH_MAX:
        raise click.BadParameter(f"at most {NAME_LENGTH_MAX} characters", param_hint="--session")
    if session and reports.place_around(os.environ) is not None:
        raise click.UsageError("--session is for the outer run: this one is within its session")
    try:
        command = plan.command_of(program)
    except FileNotFoundError as exc:
        raise _Failure(str(exc), 127) from None
    name = workflow or f"{plan.name_of(program)}-{secrets.token_hex(3)}"
    wait_ms = None if wait_s is None else round(wait_s * 1000)
    if on_limit is None:
        on_limit = "ask" if asks_by_default(os.environ) else "end"
    # A session may have its limits from an earlier run.
    has_limit = bool(max_calls or session) or not limit is limit_tokens is None
    limits = plan.RunLimits(
        limit, block_tools, allow_models, rate, max_output_tokens, strict, wait_ms,
        seen_only=not ((limit is limit_tokens is None and not session) or allow_unseen or dry_run),
        limit_tokens=limit_tokens, max_calls=max_calls,
        asks=has_limit and on_limit == "ask" and not dry_run,
        keep_percent=keep or 0, ask_ms=round(ask_seconds * 1000), trust=trust, session=session,
    )  # fmt: skip
    routing = Routing.of(command, os.environ)
    if routing.unroutable is not None:
        if limits.seen_only:
            said = words.cannot_be_routed(routing.unroutable)
            raise _Failure(said, reports.REFUSED_CODE)
        say(f"not guarded: {routing.unroutable}", fg="yellow")
    try:
        if wall:
            require_linux()
        with _account(name, limits) as (gateway, account):
            ports = local_ports if wall else None
            code = _run(routing, name, limits, gateway, account, ports, watch, dry_run, as_json)
    except WallError as exc:
        raise _Failure(str(exc), reports.REFUSED_CODE) from None
    except (LocalGatewayError, AdminError) as exc:
        raise _Failure(str(exc), 1) from None
    except OSError as exc:  # such as a disk that is full
        raise _Failure(f"{exc.filename or 'a file of the run'}: {exc.strerror}", 1) from None
    if code == 128 + signal.SIGINT:  # a shell ends its loop only if Ctrl-C has ended the command
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(code)


class _Failure(click.ClickException):
    """An error that is shown as one line, and its exit code."""

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
                # If this fails, the gateway removes the run: its mark stays.
                with contextlib.suppress(AdminError):
                    account.close()
    finally:
        admin.close()
        gateway.leave()


def _run(
    routing: Routing,
    workflow: str,
    limits: plan.RunLimits,
    gateway: LocalGateway,
    account: RunAccount,
    ports: Sequence[int] | None,
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
            routing.environ,
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
        proxy = ProxyProcess(
            directory, environ, workflow, routing.upstreams, limited=limits.seen_only
        )
        unseen = RunUnseen(directory, limits, gateway, proxy, routing.environ)
        raising = RunRaising(workflow, account, directory) if limits.asks else None
        look = RunLook(
            workflow, limits, gateway, account, proxy, directory, raising, watch=watch,
            dry_run=dry_run,
        )  # fmt: skip
        # The order of the ends: the program; the watch and the charging beside it; the proxies, of
        # which one delivers its own events; then what is left on disk; then the key, in `_account`.
        with proxy, ForwardProxy(routing.environ, unseen.past) as forward:
            walled = ports is not None
            command, led = routing.at(proxy.url, forward.url, directory, walled=walled)
            given = environ | led
            reports.say_environment(directory, given)
            start = spawn
            if ports is not None:
                start = Wall(forward, (proxy.url, gateway.url), ports).start
            if watch:
                say(f"{workflow}: started")
            try:
                with unseen.watch.watching(), left.charging():
                    code = supervise(
                        command, given, directory, look, look.at_the_end, unseen.own, start
                    )
                code = 128 - code if code < 0 else code
            except OSError as exc:
                raise _Failure(f"{command[0]} cannot be run: {exc.strerror}", 126) from None
        undelivered = _deliver_rest(gateway, account, left)
        report = RunReport(
            code, workflow, limits, account, directory, unseen, routing.unroutable, dry_run,
            undelivered,
        )  # fmt: skip
        return report.give(as_json=as_json)
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
            account.spend()  # whether the gateway answers: the report asks for the spend next
            is_back = True
        undelivered = left.charge_all()
        if (is_back and not undelivered) or time.monotonic() >= ends_s:
            return undelivered
        time.sleep(_AGAIN_S)
