"""The ``guard`` command: demo, run, doctor, status, explain, kill and pause, the gateway."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import click

from guard.core.catalogue import CATALOGUE
from guard.version import __version__, installs

_LAZY: Final = {
    "demo": ("guard.demo.command", "demo", "Watch an agent under guard, from triage to kill."),
    "run": (
        "guard.running.command",
        "run",
        "Put a program under guard: limited, watched, stopped.",
    ),
    "login": ("guard.login.command", "login", "Sign in at a gateway, for your own tools."),
    "logout": ("guard.login.command", "logout", "End this machine's login at the gateway."),
    "key": ("guard.login.command", "key", "Print a key of your login, for tools that ask for one."),
    "proxy": ("guard.proxy.command", "proxy", "Serve programs in any language as a proxy."),
    "gateway": ("guard.gateway.cli.main", "gateway", "Run and operate the self-hosted gateway."),
    "alerts": ("guard.gateway.cli.alerts", "alerts", "Alerts: rules, channels, test messages."),
    "budgets": ("guard.gateway.cli.budgets", "budgets", "List, set and raise budgets."),
    **{
        action: ("guard.gateway.cli.directives", action, summary)
        for action, summary in (
            ("kill", "Stop what `guard run` runs, or any workflow."),
            ("pause", "Refuse a workflow's next requests until it is resumed."),
            ("resume", "Lift a pause."),
            ("revive", "Lift a kill."),
        )
    },
}

_MARKS: Final = {
    "ok": click.style("ok  ", fg="green"),
    "warn": click.style("warn", fg="yellow"),
    "fail": click.style("FAIL", fg="red"),
}


@contextlib.contextmanager
def _in_two_lines() -> Iterator[None]:
    """Have a mistake in a command line say what it is, and where the rest stands."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as exc:
        hint = "" if exc.ctx is None else f"\nTry '{exc.ctx.command_path} --help'."
        raise click.UsageError(f"{exc.format_message()}{hint}") from None


class LazyGroup(click.Group):
    """A group whose heavy commands are imported when they are used."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the command's own options."""
        with _in_two_lines():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is named."""
        with _in_two_lines():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, the lazy ones too."""
        return sorted([*super().list_commands(ctx), *_LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now if it is a lazy one."""
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, name, _ = _LAZY[cmd_name]
        gc.disable()  # what loads is no garbage, and looking for some takes a tenth of the time
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.partition(".")[0] in ("guard", "spamdetect"):
                raise
            raise click.ClickException(
                f"`guard {cmd_name}` needs the package {exc.name!r}, which is not installed. "
                f"Install it: {installs('gateway')}"
            ) from None
        finally:
            gc.enable()
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing the lazy ones."""
        rows = []
        for name in self.list_commands(ctx):
            if name in _LAZY:
                rows.append((name, _LAZY[name][2]))
            elif (command := super().get_command(ctx, name)) is not None:
                rows.append((name, command.get_short_help_str(limit=60)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="guard")
def cli() -> None:
    """A hard stop for AI agents: budget, kill, pause and tool policy before every call.

    \b
    Start here:
      guard demo                        watch it work, on this machine alone
      guard run --limit '$2' -- claude  put a program under a limit
      guard gateway serve               run a gateway and get a first API key
      guard doctor                      check the settings of this environment
    """


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def status(as_json: bool) -> None:
    """Connect with this environment's settings and print the status.

    Exit code 0 when the state is ok or degraded.
    """
    import dataclasses

    import guard

    _or_exit(as_json)
    snapshot = guard.status()
    guard.shutdown()
    facts = dataclasses.asdict(snapshot)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            shown = ", ".join(value) if isinstance(value, tuple) else value
            click.echo(
                f"{name.replace('_', ' '):<{width}}  {'-' if shown in (None, '') else shown}"
            )
    if snapshot.state not in ("ok", "degraded"):
        click.echo(f"guard: {snapshot.state}; `guard doctor` says why", err=True)
        raise SystemExit(1)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def doctor(as_json: bool) -> None:
    """Check this environment: settings, gateway, hooks, spool; say what to do.

    \b
    Settings come from the environment: GUARD_API_KEY, GUARD_API_URL,
    GUARD_HMAC_SECRET, GUARD_FALLBACK_MODE, GUARD_SPOOL_DIR and others.

    Exit code 0 when nothing has failed; a warning is no failure.
    """
    from guard.doctor import examine

    found = []
    for check in examine():
        found.append(check)
        if not as_json:
            click.echo(f"{_MARKS[check.result]}  {check.name:<16} {check.detail}")
            if check.advice:
                click.echo(f"{'':<23}{check.advice}")
    good = all(check.result != "fail" for check in found)
    if as_json:
        checks = [
            {"name": check.name, "result": check.result, "detail": check.detail}
            | ({"advice": check.advice} if check.advice else {})
            for check in found
        ]
        click.echo(json.dumps({"ok": good, "checks": checks}))
    raise SystemExit(0 if good else 1)


@cli.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain an error code, such as GD-B004; without one, list them all."""
    if code is None:
        for name, entry in CATALOGUE.items():
            click.echo(f"{name:<9}  {entry.title}")
        return
    found = CATALOGUE.get(code.upper())
    if found is None:
        raise click.ClickException(f"no error code {code!r}; `guard explain` lists them")
    click.echo(f"{code.upper()}: {found.title}\n\n{found.explanation}\n")
    click.echo(f"End users are told: {found.user_message}")


def _or_exit(as_json: bool) -> None:
    """Initialise guard and give the control channel a moment to open; exit 1 on an error."""
    import time

    import guard
    from guard.breaker.exceptions import BreakerError

    try:
        guard.init()
    except BreakerError as exc:
        if as_json:
            click.echo(json.dumps({"state": "misconfigured", "error": str(exc)}))
        else:
            click.echo(f"guard: {exc}", err=True)
        raise SystemExit(1) from None
    ends = time.monotonic() + 2.0
    while guard.status().control_channel != "websocket" and time.monotonic() < ends:
        time.sleep(0.02)
