"""``guard gateway serve``: runs a gateway until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import click

from guard.gateway.cli.password import greet
from guard.gateway.open_files import room_for
from guard.gateway.services import logs
from guard.gateway.settings import GatewaySettings, SettingError
from guard.gateway.settings_sources import (
    CONFIG_VARIABLE,
    Setting,
    SettingsError,
    explained,
    load,
    origins,
    table,
    unknown_variables,
)

if TYPE_CHECKING:
    from guard.gateway.first_secrets import FirstSecrets
    from guard.gateway.server import GatewayServer

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])


_METAVARS = {"time": "TIME", "price": "AMOUNT", "list": "ADDRESS"}


def _option(setting: Setting, *, hidden: bool = False) -> Callable[[F], F]:
    default = f"; default: {setting.shown_default}" if setting.shown_default else ""
    text = f"{setting.text}  [env: {setting.variable}{default}]"
    if setting.kind == "flag":
        both = f"{setting.option}/--no-{setting.option[2:]}"
        return click.option(both, setting.name, default=None, help=text)
    many = setting.kind == "list"
    return click.option(
        setting.option,
        setting.name,
        multiple=many,
        metavar=_METAVARS.get(setting.kind, setting.kind.upper()),
        hidden=hidden,
        help=f"{text} Repeatable." if many else text,
    )


def _options(command: F) -> F:
    for setting in reversed(table()):
        if setting.old is not None:
            command = _option(setting.old, hidden=True)(command)
        command = _option(setting)(command)
    return command


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A TOML file of these settings.  [env: {CONFIG_VARIABLE}]",
)
@_options
def serve(config: Path | None, **options: Any) -> None:
    """Serve until interrupted.

    The first run makes an organisation, an API key and an admin key, and prints the keys once. With
    a first admin key that is given (GUARD_GATEWAY_FIRST_ADMIN_KEY_FILE) it prints none.

    Each setting is an option, a variable of the environment, or a line of a TOML file; an option
    goes before the environment, and that before the file.

    \b
    Examples:
      guard gateway serve
      guard gateway serve --port 0 --database /var/lib/guard/gateway.sqlite3 --durable
      guard gateway serve --config /etc/guard/gateway.toml
      guard gateway serve --host 0.0.0.0 --tls-self-signed
    """
    from guard.gateway.domain.errors import StoreError
    from guard.gateway.server import bind
    from guard.gateway.tls import TlsError

    settings, places, given = read_settings(config, options)
    logs.configure(settings.log_level, cast("logs.Format", settings.log_format))
    for sentence in unknown_variables(os.environ):
        _warn(settings, sentence)
    wanted, settings = settings, _with_room(settings)
    if settings != wanted:
        places["connections_max"] = "limit of open files"
    try:
        listening = bind(settings.host, settings.port)
    except OSError as exc:
        raise _failed(settings, exc.strerror or str(exc)) from None
    try:
        with contextlib.closing(listening):
            _run(settings, places, listening, given)
    except (StoreError, TlsError) as exc:
        raise _failed(settings, str(exc)) from None


def read_settings(
    config: Path | None, options: Mapping[str, Any]
) -> tuple[GatewaySettings, dict[str, str], FirstSecrets]:
    """Return the settings, where each was given, and the first secrets.

    Raises:
        click.UsageError: one is wrong; the text says what to give, and calls it as it was given.
    """
    from guard.gateway.first_secrets import first_secrets, metrics_key_of
    from guard.gateway.single_sign_on import provider_of

    places: dict[str, str] = {}
    try:
        settings = load(options, os.environ, config)
        places = origins(options, os.environ, config)
        given = first_secrets(settings)
        metrics_key_of(settings)
        provider_of(settings)
    except SettingsError as exc:
        raise click.UsageError(str(exc)) from None
    except SettingError as exc:
        sources = {field: place.partition(": ")[2] for field, place in places.items()}
        raise click.UsageError(str(explained(exc, sources))) from None
    return settings, places, given


def _warn(settings: GatewaySettings, text: str) -> None:
    if settings.log_format == "json":
        logger.warning(text)
    else:
        click.echo(f"warning: {text}", err=True)


def _with_room(settings: GatewaySettings) -> GatewaySettings:
    """Return the settings with as many connections as there are open files for."""
    wanted = settings.connections_max
    fits = room_for(wanted)
    if fits == wanted:
        return settings
    _warn(
        settings,
        f"the limit of open files has room for {fits} connections and not for {wanted} "
        "(--connections-max); more are refused with 503. Raise it: `ulimit -n`, or LimitNOFILE= of "
        "a systemd unit.",
    )
    return attrs.evolve(settings, connections_max=fits)


def _failed(settings: GatewaySettings, text: str) -> Exception:
    """Return what ends the command; in a log of JSON lines the reason is one of them."""
    if settings.log_format == "json":
        logger.critical(text)
        return click.exceptions.Exit(1)
    return click.ClickException(text)


def is_in_the_clear(settings: GatewaySettings) -> bool:
    """Return whether keys can be read on the network, as far as the settings show."""
    if settings.has_tls or settings.trusted_proxies:
        return False
    if settings.public_url is not None and settings.public_url.startswith("https:"):
        return False
    try:
        return not ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        return settings.host != "localhost"


@contextlib.asynccontextmanager
async def _serving(server: GatewayServer) -> AsyncIterator[asyncio.Task[None]]:
    """Serve meanwhile: probes are answered while the store opens. Stops at an error."""
    task = asyncio.create_task(server.serve(), name="guard-gateway-server")
    try:
        yield task
    except BaseException:
        server.stop()
        await asyncio.gather(task, return_exceptions=True)
        raise


def _stop_on_signals(loop: asyncio.AbstractEventLoop, server: GatewayServer) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)


def _run(
    settings: GatewaySettings, places: dict[str, str], listening: Any, given: FirstSecrets
) -> None:
    from guard.gateway.app import GatewayApp
    from guard.gateway.bootstrap import begin_with
    from guard.gateway.server import GatewayServer, new_event_loop, tune_process
    from guard.gateway.tls import files_of, fingerprint

    tls = files_of(settings)

    async def main() -> None:
        app = GatewayApp(settings, origins=places)
        server = GatewayServer(app, listening, tls)
        async with _serving(server) as served:
            await start(app, server)
            await served

    async def start(app: GatewayApp, server: GatewayServer) -> None:
        await app.open()
        made = await begin_with(app.storage, app.clock_ms(), given)
        loop = asyncio.get_running_loop()
        if not sys.stdin.isatty():  # else there may be a prompt, which a signal has to end
            _stop_on_signals(loop, server)
        if tls is not None or not sys.stdin.isatty():  # a closed terminal still ends it
            loop.add_signal_handler(signal.SIGHUP, server.reload_certificate)
        click.echo(f"guard gateway on {server.base_url}")
        if made is not None:
            click.echo("First run. These keys are shown once:")
            click.echo(f"  GUARD_API_KEY={made.api_key}")
            click.echo(f"  GUARD_ADMIN_KEY={made.admin_key}")
        if tls is not None and settings.tls_self_signed:
            click.echo("Clients pin the certificate:")
            click.echo(f"  GUARD_TLS_FINGERPRINT={fingerprint(tls[0])}")
        if is_in_the_clear(settings):
            _warn(
                settings,
                f"{server.base_url} is not encrypted, and keys can be read on the network. Use "
                "--tls-self-signed or --tls-cert, or a TLS proxy in front (name it with "
                "--trusted-proxy).",
            )
        await greet(app, server.base_url, given.password)
        _stop_on_signals(loop, server)
        tune_process()
        logger.info("ready on %s", server.base_url)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
